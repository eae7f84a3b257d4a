//! Servers that lack requests, and a directory with a used-up counter.
//!
//! A proxy replaces a request by an unknown one, so that the server replies like an old server.
//! Another proxy changes the numbers of nodes, so that a directory seems to have had two thousand
//! million claims.
#![expect(clippy::disallowed_methods, reason = "the proxy's connections are tasks")]

mod common;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use common::{locks, soon, store, unique};
use dlock_conformance::Proxy;
use dlock_core::{Kind, LockOptions};
use dlock_testbed::servers::{Running, zookeeper::Flavour};
use futures_util::future::join_all;
use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    time::sleep,
};
use zookeeper_client::Client;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        without_containers_the_last_to_leave_deletes_the_directory,
        without_containers_a_directory_outlives_the_session_of_its_last_claim on 2 threads,
        a_server_without_create2_is_refused_with_what_to_do,
        a_directory_whose_counter_is_used_up_is_refused_while_others_queue_there_and_then_made_anew,
    }])
}

// Opcodes, as in `ZooDefs.OpCode`.
const CREATE2: i32 = 15;
const CREATE_CONTAINER: i32 = 19;
/// Opcode that no server knows.
const UNKNOWN: i32 = 998;

/// Starts a server that lacks a request. Returns its URL, and a client of `zookeeper-client` for
/// the same nodes. Returns `None` if ZooKeeper is neither available nor required.
async fn lacking(request: i32) -> Option<(String, Client, Running)> {
    let running = store(Flavour::Standalone).await?;
    let server = running.servers()[0].address();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("zk://{}/test?timeout=10s", listener.local_addr().expect("the listener is bound"));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(without(request, client, server));
        }
    });
    let raw = Client::connect(&server.to_string()).await.expect("the server is running");
    Some((url, raw, running))
}

/// Relays all data between a client and a server, except the request that the server must lack.
async fn without(request: i32, mut client: TcpStream, server: SocketAddr) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let requests = async {
        // Each packet follows its length. The first packet opens the session. In all others the
        // opcode follows the packet's number.
        for packet in 0.. {
            let length = from_client.read_u32().await?;
            let mut body = vec![0; length as usize];
            from_client.read_exact(&mut body).await?;
            if packet > 0 && body[4..8] == request.to_be_bytes() {
                body[4..8].copy_from_slice(&UNKNOWN.to_be_bytes());
            }
            to_server.write_u32(length).await?;
            to_server.write_all(&body).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = requests => ended,
        ended = copy(&mut from_server, &mut to_client) => ended.map(drop),
    }
}

async fn without_containers_the_last_to_leave_deletes_the_directory() {
    let Some((url, raw, _running)) = lacking(CREATE_CONTAINER).await else { return };
    // The first client creates the directory. One of the other clients, which find the directory,
    // leaves last.
    let clients = [locks(&url).await, locks(&url).await, locks(&url).await];
    for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit] {
        let name = unique();
        let path = format!("/test/{name}");
        let options = LockOptions::new();
        let first = clients[0].of(kind, &name).lock(&options).await.expect("the lock is free");
        let made = raw.check_stat(&path).await.expect("the server replies");
        assert!(made.is_some(), "{kind:?}: the directory of a held lock does not exist");
        let handles: Vec<_> = clients[1..].iter().map(|client| client.of(kind, &name)).collect();
        let others = join_all(handles.iter().map(async |handle| {
            let guard = handle.lock(&options).await.expect("the lock is granted in turn");
            guard.release().await.expect("the claim holds the lock");
        }));
        let (first, _) = tokio::join!(first.release(), soon("the lock is not granted", others));
        first.expect("the claim holds the lock");
        let left = raw.check_stat(&path).await.expect("the server replies");
        assert!(left.is_none(), "{kind:?}: no client uses the lock, and its directory still exists");
    }
}

/// A limit that the README documents.
async fn without_containers_a_directory_outlives_the_session_of_its_last_claim() {
    let Some((url, raw, running)) = lacking(CREATE_CONTAINER).await else { return };
    let host = url.trim_start_matches("zk://").split('/').next().expect("a host");
    let proxy = Proxy::to(host.parse().expect("an address")).await.expect("a port is free");
    let (name, control) = (unique(), unique());
    let exists = async |path: String| raw.check_stat(&path).await.expect("the server replies").is_some();
    let client = locks(&format!("zk://{}/test?timeout=10s&session=3s", proxy.address())).await;
    let held = client.mutex(&name).lock().await.expect("the lock is free");
    proxy.stall();
    soon("the session does not end", async {
        let list = async || raw.list_children(&format!("/test/{name}")).await.expect("the server replies");
        while !list().await.is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // The server has deleted the empty containers once more when it has deleted this one.
    let direct = locks(&format!("{}/test?timeout=10s", running.url())).await;
    drop(direct.mutex(&control).lock().await.expect("the lock is free"));
    soon("an empty container is not deleted", async {
        while exists(format!("/test/{control}")).await {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(exists(format!("/test/{name}")).await, "the directory was deleted");
    // The next claim of another client finds the directory, and deletes it.
    let next = locks(&url).await.mutex(&name).lock().await.expect("the lock is free");
    assert!(held.is_lost(), "two claims hold the lock");
    next.release().await.expect("the claim holds the lock");
    assert!(!exists(format!("/test/{name}")).await, "the directory was not deleted");
}

async fn a_server_without_create2_is_refused_with_what_to_do() {
    let Some((url, _raw, _running)) = lacking(CREATE2).await else { return };
    let refused =
        locks(&url).await.mutex(unique()).lock().await.map(drop).expect_err("dlock needs the request");
    let text = format!("{refused:?}");
    assert!(!refused.is_transient() && text.contains("before 3.5"), "{text}");
}

/// First digits of the nodes' numbers, as the server writes them (`YOUNG`), and as clients behind
/// the proxy see them (`OLD`).
const YOUNG: &[u8] = b"-lock-00000";
const OLD: &[u8] = b"-lock-21470";

/// Opcode of a delete.
const DELETE: i32 = 2;

fn rewrite(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    for at in 0..bytes.len().saturating_sub(from.len() - 1) {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
}

/// Relays all data between a client and a server. To the client, the nodes of `directory` have
/// numbers near the end of the server's counter, until it deletes the directory.
async fn aged(
    directory: String,
    is_old: Arc<AtomicBool>,
    mut client: TcpStream,
    server: SocketAddr,
) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let requests = async {
        loop {
            let length = from_client.read_u32().await?;
            let mut body = vec![0; length as usize];
            from_client.read_exact(&mut body).await?;
            // Consists of eight bytes of header, the length of the path, the path, and the version.
            if body[4..8] == DELETE.to_be_bytes()
                && body[12..].starts_with(directory.as_bytes())
                && body.len() == 12 + directory.len() + 4
            {
                is_old.store(false, SeqCst);
            }
            rewrite(&mut body, OLD, YOUNG);
            to_server.write_u32(length).await?;
            to_server.write_all(&body).await?;
        }
    };
    let replies = async {
        loop {
            let length = from_server.read_u32().await?;
            let mut body = vec![0; length as usize];
            from_server.read_exact(&mut body).await?;
            if is_old.load(SeqCst) {
                rewrite(&mut body, YOUNG, OLD);
            }
            to_client.write_u32(length).await?;
            to_client.write_all(&body).await?;
        }
    };
    tokio::select! {
        ended = requests => ended,
        ended = replies => ended,
    }
}

async fn a_directory_whose_counter_is_used_up_is_refused_while_others_queue_there_and_then_made_anew() {
    let Some(running) = store(Flavour::Standalone).await else { return };
    let server = running.servers()[0].address();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("zk://{}/test?timeout=10s", listener.local_addr().expect("the listener is bound"));
    let (name, is_old) = (unique(), Arc::new(AtomicBool::new(true)));
    let (directory, flag) = (format!("/test/{name}"), Arc::clone(&is_old));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(aged(directory.clone(), Arc::clone(&flag), client, server));
        }
    });
    let raw = Client::connect(&server.to_string()).await.expect("the server is running");
    let (client, other) = (locks(&url).await, locks(&format!("zk://{server}/test?timeout=10s")).await);
    // The other client took the lock before the counter was used up.
    let held = other.mutex(&name).lock().await.expect("the lock is free");
    let refused = client.mutex(&name).lock().await.map(drop).expect_err("two claims could hold the lock");
    let text = format!("{refused:?}");
    assert!(
        !refused.is_transient()
            && text.contains("2147483647")
            && text.contains("delete the directory by hand"),
        "{text}"
    );
    let left = raw.list_children(&format!("/test/{name}")).await.expect("the server replies");
    assert_eq!(left.len(), 1, "the refused claim has left a node behind: {left:?}");
    // The client has tried to delete the directory. The server has refused this, because the
    // directory is not empty.
    is_old.store(true, SeqCst);
    held.release().await.expect("the claim holds the lock");
    let held = soon("the claim waits too long", client.mutex(&name).lock().into_future())
        .await
        .expect("the directory is empty");
    let made = raw.list_children(&format!("/test/{name}")).await.expect("the server replies").concat();
    assert!(made.ends_with("0000000000"), "the counter did not start again: {made}");
    held.release().await.expect("the claim holds the lock");
}
