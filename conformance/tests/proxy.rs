//! The proxy does to a connection what it says, and nothing else.

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

/// Long enough for anything that is not held back.
const AMPLE: Duration = Duration::from_secs(20);
/// Short, for what must not happen.
const MOMENT: Duration = Duration::from_millis(100);

/// A server that sends back what it is sent, and a proxy to it. It ends when the set is dropped.
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
    TcpStream::connect(proxy.address()).await.expect("it listens")
}

/// The next byte, or `None` at the end of the connection, however it ended.
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
async fn what_is_held_back_is_delivered_later() {
    let (proxy, _server) = echo().await;
    for hold in [Proxy::stall, Proxy::hold_requests, Proxy::hold_answers] {
        let mut stream = connect(&proxy).await;
        say(&mut stream, 1).await.expect("connected");
        assert_eq!(next(&mut stream).await, Some(1), "everything passes at first");
        hold(&proxy);
        say(&mut stream, 2).await.expect("still connected");
        assert!(is_silent(&mut stream).await, "it passed all the same");
        proxy.pass();
        assert_eq!(next(&mut stream).await, Some(2), "what was held back is lost");
    }
}

#[tokio::test]
async fn a_cut_ends_the_connections_there_are_and_no_others() {
    let (proxy, _server) = echo().await;
    let mut stream = connect(&proxy).await;
    say(&mut stream, 1).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(1));
    proxy.cut();
    assert_eq!(next(&mut stream).await, None, "it was cut");
    let mut stream = connect(&proxy).await;
    say(&mut stream, 2).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(2), "a new connection is cut, too");
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn who_hangs_up_does_so_until_everything_passes_again() {
    let (proxy, _server) = echo().await;
    proxy.hang_up();
    for _ in 0..3 {
        let mut stream = connect(&proxy).await;
        assert_eq!(next(&mut stream).await, None, "it did not hang up");
    }
    proxy.pass();
    let mut stream = connect(&proxy).await;
    say(&mut stream, 1).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(1), "it hangs up for ever");
}

#[tokio::test]
async fn a_delay_is_at_least_as_long_as_it_should_be() {
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
    assert!(is_silent(&mut server).await, "it passed all the same");
    drop(stream);
    proxy.pass();
    assert_eq!(next(&mut server).await, Some(7), "the request is lost with its client");
}

#[tokio::test]
async fn connections_made_after_a_move_lead_to_the_other_server() {
    let ((proxy, _server), (other, heard, _other)) = (echo().await, counting().await);
    let mut before = connect(&proxy).await;
    say(&mut before, 1).await.expect("connected");
    assert_eq!(next(&mut before).await, Some(1));
    proxy.lead_to(other);
    say(&mut before, 2).await.expect("still connected");
    assert_eq!(next(&mut before).await, Some(2), "the connection that there was is moved");
    proxy.pass();
    let mut after = connect(&proxy).await;
    say(&mut after, 3).await.expect("connected");
    until("the other server is spoken to", || heard.load(SeqCst) == 1).await;
}

/// A server that counts the bytes it is sent, and never ends a connection. It ends when the set is dropped.
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

/// Sends a heartbeat to each server without rest, and connects anew as often as it must, for ever. Counts its connections.
async fn beat(servers: Vec<SocketAddr>, connected: Arc<AtomicUsize>) {
    loop {
        for server in &servers {
            let Ok(mut stream) = TcpStream::connect(server).await else { continue };
            connected.fetch_add(1, SeqCst);
            // On one until it breaks, then on the next.
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
    timeout(AMPLE, asking).await.unwrap_or_else(|_| panic!("never: {what}"));
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
    .expect("it connects");
    until("a heartbeat arrives", || heard.load(SeqCst) > 0).await;
    kill();
    let before = connected.load(SeqCst);
    until("it connects anew", || connected.load(SeqCst) > before + 2).await;
    // What was on the way when it was killed has arrived.
    let last = heard.load(SeqCst);
    until("it goes on trying", || connected.load(SeqCst) > before + 50).await;
    assert_eq!(heard.load(SeqCst), last, "its heartbeats still arrive");
    assert_eq!(also_heard.load(SeqCst), 0, "it lives on with the other server");
}
