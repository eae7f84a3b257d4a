//! Each fault of the proxy does to a connection what the name of the fault says, and nothing else.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use dlock_conformance::{Proxy, killable};
use dlock_core::memory::MemoryBackend;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout},
};

/// Long enough for anything that the proxy does not hold back.
const AMPLE: Duration = Duration::from_secs(20);
/// How long a test waits to see that something does not happen.
const MOMENT: Duration = Duration::from_millis(100);

/// A proxy to a server that sends back every byte. The server ends when the set is dropped.
async fn echo() -> (Proxy, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await.ok();
            });
        }
    });
    (Proxy::to(address).await.expect("a port is free"), server)
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.expect("the proxy listens")
}

/// The next byte, or `None` at the end of the connection, whether closed or broken.
async fn next(stream: &mut TcpStream) -> Option<u8> {
    let mut byte = [0];
    let read = timeout(AMPLE, stream.read(&mut byte)).await.expect("the connection hangs");
    read.ok().filter(|count| *count == 1).map(|_| byte[0])
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(MOMENT, stream.read(&mut [0])).await.is_err()
}

async fn say(stream: &mut TcpStream, byte: u8) -> io::Result<()> {
    stream.write_all(&[byte]).await
}

#[tokio::test]
async fn bytes_that_the_proxy_holds_back_are_delivered_later() {
    let (proxy, _server) = echo().await;
    for hold in [Proxy::stall, Proxy::hold_requests, Proxy::hold_answers] {
        let mut stream = connect(&proxy).await;
        say(&mut stream, 1).await.expect("connected");
        assert_eq!(next(&mut stream).await, Some(1), "the proxy held back a byte before it was told to");
        hold(&proxy);
        say(&mut stream, 2).await.expect("still connected");
        assert!(is_silent(&mut stream).await, "a byte passed that the proxy was to hold back");
        proxy.pass();
        assert_eq!(next(&mut stream).await, Some(2), "a byte that was held back is lost");
    }
}

#[tokio::test]
async fn a_cut_ends_the_open_connections_and_no_later_ones() {
    let (proxy, _server) = echo().await;
    let mut stream = connect(&proxy).await;
    say(&mut stream, 1).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(1));
    proxy.cut();
    assert_eq!(next(&mut stream).await, None, "the connection goes on after the cut");
    let mut stream = connect(&proxy).await;
    say(&mut stream, 2).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(2), "a new connection is cut too");
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn a_proxy_that_hangs_up_does_so_until_it_is_told_to_pass() {
    let (proxy, _server) = echo().await;
    proxy.hang_up();
    for _ in 0..3 {
        let mut stream = connect(&proxy).await;
        assert_eq!(next(&mut stream).await, None, "the proxy did not hang up");
    }
    proxy.pass();
    let mut stream = connect(&proxy).await;
    say(&mut stream, 1).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(1), "the proxy still hangs up");
}

#[tokio::test]
async fn a_delay_holds_up_requests_and_answers() {
    let (proxy, _server) = echo().await;
    let mut stream = connect(&proxy).await;
    proxy.delay(MOMENT);
    let began = Instant::now();
    say(&mut stream, 1).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(1));
    assert!(began.elapsed() >= MOMENT * 2, "there and back took {:?}", began.elapsed());
}

#[tokio::test]
async fn a_request_that_is_held_back_reaches_the_server_after_its_client_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let proxy = Proxy::to(listener.local_addr().expect("it is bound")).await.expect("a port is free");
    proxy.hold_requests();
    let mut stream = connect(&proxy).await;
    say(&mut stream, 7).await.expect("connected");
    let (mut server, _) = listener.accept().await.expect("the proxy connects");
    assert!(is_silent(&mut server).await, "a byte passed that the proxy was to hold back");
    drop(stream);
    proxy.pass();
    assert_eq!(next(&mut server).await, Some(7), "the request was lost when its client left");
}

#[tokio::test]
async fn after_lead_to_new_connections_reach_the_other_server() {
    let ((proxy, _server), (other, heard, _other)) = (echo().await, counting().await);
    let mut before = connect(&proxy).await;
    say(&mut before, 1).await.expect("connected");
    assert_eq!(next(&mut before).await, Some(1));
    proxy.lead_to(other);
    say(&mut before, 2).await.expect("still connected");
    assert_eq!(next(&mut before).await, Some(2), "a connection that was open is moved");
    proxy.pass();
    let mut after = connect(&proxy).await;
    say(&mut after, 3).await.expect("connected");
    until("a byte reaches the other server", || heard.load(SeqCst) == 1).await;
}

/// A server that counts the bytes it receives, and never ends a connection. The server ends when the set is dropped.
async fn counting() -> (SocketAddr, Arc<AtomicUsize>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let (address, heard) = (listener.local_addr().expect("it is bound"), Arc::new(AtomicUsize::new(0)));
    let (mut server, counter) = (JoinSet::new(), Arc::clone(&heard));
    server.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let counter = Arc::clone(&counter);
            connections.spawn(async move {
                while stream.read_u8().await.is_ok() {
                    counter.fetch_add(1, SeqCst);
                }
            });
        }
    });
    (address, heard, server)
}

/// Sends heartbeats for ever: to one server until the connection breaks, then to the next. Counts its connections.
async fn beat(servers: Vec<SocketAddr>, connected: Arc<AtomicUsize>) {
    loop {
        for server in &servers {
            let Ok(mut stream) = TcpStream::connect(server).await else { continue };
            connected.fetch_add(1, SeqCst);
            while stream.write_u8(1).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let asking = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(AMPLE, asking).await.unwrap_or_else(|_| panic!("this never happened: {what}"));
}

#[tokio::test]
async fn a_client_that_was_killed_reaches_none_of_its_servers_however_it_tries() {
    let ((first, heard, _server), (second, also_heard, _other)) = (counting().await, counting().await);
    let (connected, mut client) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    let counter = Arc::clone(&connected);
    let (_store, kill) = killable(&[first, second], async |proxies| {
        client.spawn(beat(proxies, counter));
        Ok(MemoryBackend::new().into_store())
    })
    .await
    .expect("the client connects");
    until("a heartbeat arrives", || heard.load(SeqCst) > 0).await;
    kill();
    let before = connected.load(SeqCst);
    until("the killed client connects again", || connected.load(SeqCst) > before + 2).await;
    // The heartbeats that were on the way at the kill have arrived by now.
    let last = heard.load(SeqCst);
    until("the killed client goes on connecting", || connected.load(SeqCst) > before + 50).await;
    assert_eq!(heard.load(SeqCst), last, "heartbeats of the killed client still arrive");
    assert_eq!(also_heard.load(SeqCst), 0, "the killed client reached the other server");
}
