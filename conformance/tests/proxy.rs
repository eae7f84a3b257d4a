//! Each fault of the proxy has the effect that its name describes, and no other.

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

/// Timeout for events that the proxy does not hold back.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time without data after which a connection counts as silent.
const QUIET_PERIOD: Duration = Duration::from_millis(100);

/// Starts a proxy to a server that returns every byte. Dropping the set stops the server.
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

/// Returns the next byte, or `None` if the connection is closed or broken.
async fn next(stream: &mut TcpStream) -> Option<u8> {
    let mut byte = [0];
    let result = timeout(TIMEOUT, stream.read(&mut byte)).await.expect("the connection hangs");
    result.ok().filter(|count| *count == 1).map(|_| byte[0])
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(QUIET_PERIOD, stream.read(&mut [0])).await.is_err()
}

async fn send(stream: &mut TcpStream, byte: u8) -> io::Result<()> {
    stream.write_all(&[byte]).await
}

#[tokio::test]
async fn bytes_that_the_proxy_holds_back_are_delivered_later() {
    let (proxy, _server) = echo().await;
    for hold in [Proxy::stall, Proxy::hold_requests, Proxy::hold_answers] {
        let mut stream = connect(&proxy).await;
        send(&mut stream, 1).await.expect("connected");
        assert_eq!(next(&mut stream).await, Some(1), "the proxy held back a byte without a fault");
        hold(&proxy);
        send(&mut stream, 2).await.expect("still connected");
        assert!(is_silent(&mut stream).await, "a byte passed that the proxy was to hold back");
        proxy.pass();
        assert_eq!(next(&mut stream).await, Some(2), "a byte that was held back is lost");
    }
}

#[tokio::test]
async fn a_cut_ends_the_open_connections_and_no_later_ones() {
    let (proxy, _server) = echo().await;
    let mut stream = connect(&proxy).await;
    send(&mut stream, 1).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(1));
    proxy.cut();
    assert_eq!(next(&mut stream).await, None, "the connection still works after the cut");
    let mut stream = connect(&proxy).await;
    send(&mut stream, 2).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(2), "a new connection is cut too");
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_byte_that_is_sent_after_a_cut_is_returned() {
    const ROUNDS: usize = 5_000;
    let (proxy, _server) = echo().await;
    for _ in 0..ROUNDS {
        let mut stream = connect(&proxy).await;
        send(&mut stream, 1).await.expect("connected");
        assert_eq!(next(&mut stream).await, Some(1));
        proxy.cut();
        // Fails if the proxy has closed the connection already.
        send(&mut stream, 2).await.ok();
        assert_eq!(next(&mut stream).await, None, "a byte passed after the cut");
    }
}

#[tokio::test]
async fn a_proxy_hangs_up_until_pass_is_called() {
    let (proxy, _server) = echo().await;
    proxy.hang_up();
    for _ in 0..3 {
        let mut stream = connect(&proxy).await;
        assert_eq!(next(&mut stream).await, None, "the proxy did not hang up");
    }
    proxy.pass();
    let mut stream = connect(&proxy).await;
    send(&mut stream, 1).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(1), "the proxy still hangs up");
}

#[tokio::test]
async fn a_delay_holds_up_requests_and_answers() {
    let (proxy, _server) = echo().await;
    let mut stream = connect(&proxy).await;
    proxy.delay(QUIET_PERIOD);
    let began = Instant::now();
    send(&mut stream, 1).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(1));
    assert!(began.elapsed() >= QUIET_PERIOD * 2, "the round trip took {:?}", began.elapsed());
}

#[tokio::test]
async fn a_delay_of_requests_holds_up_no_replies() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let proxy = Proxy::to(listener.local_addr().expect("it is bound")).await.expect("a port is free");
    proxy.delay_requests(Duration::from_secs(3600));
    let mut stream = connect(&proxy).await;
    let (mut server, _) = listener.accept().await.expect("the proxy connects");
    send(&mut stream, 1).await.expect("connected");
    send(&mut server, 2).await.expect("connected");
    assert_eq!(next(&mut stream).await, Some(2), "the delay holds up replies");
    assert!(is_silent(&mut server).await, "the delay does not hold up requests");
}

#[tokio::test]
async fn a_request_that_is_held_back_reaches_the_server_after_its_client_has_disconnected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let proxy = Proxy::to(listener.local_addr().expect("it is bound")).await.expect("a port is free");
    proxy.hold_requests();
    let mut stream = connect(&proxy).await;
    send(&mut stream, 7).await.expect("connected");
    let (mut server, _) = listener.accept().await.expect("the proxy connects");
    assert!(is_silent(&mut server).await, "a byte passed that the proxy was to hold back");
    drop(stream);
    proxy.pass();
    assert_eq!(next(&mut server).await, Some(7), "the request was lost when its client left");
}

#[tokio::test]
async fn after_lead_to_new_connections_reach_the_other_server() {
    let ((proxy, _server), (other, received, _other)) = (echo().await, counting().await);
    let mut before = connect(&proxy).await;
    send(&mut before, 1).await.expect("connected");
    assert_eq!(next(&mut before).await, Some(1));
    proxy.lead_to(other);
    send(&mut before, 2).await.expect("still connected");
    assert_eq!(next(&mut before).await, Some(2), "a connection that was open is moved");
    proxy.pass();
    let mut after = connect(&proxy).await;
    send(&mut after, 3).await.expect("connected");
    until("a byte reaches the other server", || received.load(SeqCst) == 1).await;
}

/// Starts a server that counts the received bytes, and never ends a connection. Dropping the set
/// stops the server.
async fn counting() -> (SocketAddr, Arc<AtomicUsize>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let (address, received) = (listener.local_addr().expect("it is bound"), Arc::new(AtomicUsize::new(0)));
    let (mut server, counter) = (JoinSet::new(), Arc::clone(&received));
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
    (address, received, server)
}

/// Sends heartbeats to one server until the connection breaks, then to the next, without end.
/// Counts the connections.
async fn send_heartbeats(servers: Vec<SocketAddr>, connected: Arc<AtomicUsize>) {
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

/// Waits until the condition is true.
async fn until(event: &str, mut condition: impl FnMut() -> bool) {
    let checks = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, checks).await.unwrap_or_else(|_| panic!("this never happened: {event}"));
}

#[tokio::test]
async fn a_client_that_was_killed_reaches_none_of_its_servers_however_it_tries() {
    let ((first, received, _server), (second, received_by_other, _other)) =
        (counting().await, counting().await);
    let (connected, mut client) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    let counter = Arc::clone(&connected);
    let (_store, kill) = killable(&[first, second], async |proxies| {
        client.spawn(send_heartbeats(proxies, counter));
        Ok(MemoryBackend::new().into_store())
    })
    .await
    .expect("the client connects");
    until("a heartbeat arrives", || received.load(SeqCst) > 0).await;
    kill();
    let before = connected.load(SeqCst);
    until("the killed client connects again", || connected.load(SeqCst) > before + 2).await;
    // Heartbeats that were in transit at the kill have arrived by now.
    let before_more = received.load(SeqCst);
    until("the killed client continues to connect", || connected.load(SeqCst) > before + 50).await;
    assert_eq!(received.load(SeqCst), before_more, "heartbeats of the killed client still arrive");
    assert_eq!(received_by_other.load(SeqCst), 0, "the killed client reached the other server");
}
