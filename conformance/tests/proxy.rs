//! The proxy does to a connection what it says, and nothing else.

use std::{io, time::Duration};

use dlock_conformance::Proxy;
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
