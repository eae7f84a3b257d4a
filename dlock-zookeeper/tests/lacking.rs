//! Servers that lack requests: a proxy turns them into one that no server knows, so that the server says what an old one says.
//! And a directory that has had two thousand million claims: a proxy writes the numbers of its nodes.
#![expect(clippy::disallowed_methods, reason = "the proxy's connections are tasks")]

mod common;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use common::{locks, soon, store, unique};
use dlock_conformance::stores::{Running, zookeeper::Flavour};
use dlock_core::{Kind, LockOptions};
use futures_util::future::join_all;
use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
};
use zookeeper_client::Client;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        without_containers_the_last_to_leave_deletes_the_directory,
        a_server_without_create2_is_refused_with_what_to_do,
        a_directory_whose_counter_is_used_up_is_refused_while_others_queue_there_and_then_made_anew,
    }])
}

// The requests' numbers, as `ZooDefs.OpCode` has them.
const CREATE2: i32 = 15;
const CREATE_CONTAINER: i32 = 19;
/// No server's.
const UNKNOWN: i32 = 998;

/// The URL of a server that lacks a request, and a client of the crate that sees the same nodes. `None` if there is no ZooKeeper.
async fn lacking(request: i32) -> Option<(String, Client, Running)> {
    let running = store(Flavour::Standalone).await?;
    let server = running.servers()[0].address();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("zk://{}/test?timeout=10s", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(without(request, client, server));
        }
    });
    let raw = Client::connect(&server.to_string()).await.expect("the server is there");
    Some((url, raw, running))
}

/// Passes everything between a client and a server, but for a request that the server is to lack.
async fn without(request: i32, mut client: TcpStream, server: SocketAddr) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let requests = async {
        // Every packet has its length before it. The first opens the session; in others the request follows their number.
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
    // The first makes the directory. The others find it there, and one of them leaves last.
    let clients = [locks(&url).await, locks(&url).await, locks(&url).await];
    for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit] {
        let name = unique();
        let path = format!("/test/{name}");
        let options = LockOptions::new();
        let first = clients[0].of(kind, &name).lock(&options).await.expect("free");
        let made = raw.check_stat(&path).await.expect("an answer");
        assert!(made.is_some(), "{kind:?}: the directory of a held lock is not there");
        let handles: Vec<_> = clients[1..].iter().map(|client| client.of(kind, &name)).collect();
        let others = join_all(handles.iter().map(async |handle| {
            let guard = handle.lock(&options).await.expect("its turn comes");
            guard.release().await.expect("held");
        }));
        let (first, _) = tokio::join!(first.release(), soon("no turn", others));
        first.expect("held");
        let left = raw.check_stat(&path).await.expect("an answer");
        assert!(left.is_none(), "{kind:?}: nobody uses the lock, and its directory is there");
    }
}

async fn a_server_without_create2_is_refused_with_what_to_do() {
    let Some((url, _raw, _running)) = lacking(CREATE2).await else { return };
    let refused = locks(&url).await.mutex(unique()).lock().await.map(drop).expect_err("it needs the request");
    let text = format!("{refused:?}");
    assert!(!refused.is_transient() && text.contains("before 3.5"), "{text}");
}

/// The first digits of the numbers of nodes, as the server writes them and as clients behind the proxy see them.
const YOUNG: &[u8] = b"-lock-00000";
const OLD: &[u8] = b"-lock-21470";

/// The opcode of a delete.
const DELETE: i32 = 2;

fn rewrite(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    for at in 0..bytes.len().saturating_sub(from.len() - 1) {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
}

/// Passes everything between a client and a server. Until the client deletes the directory, its nodes have numbers near the end
/// of the server's counter.
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
            // The header of eight bytes, the length of the path, the path, the version.
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
    let url = format!("zk://{}/test?timeout=10s", listener.local_addr().expect("it is bound"));
    let (name, is_old) = (unique(), Arc::new(AtomicBool::new(true)));
    let (directory, flag) = (format!("/test/{name}"), Arc::clone(&is_old));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(aged(directory.clone(), Arc::clone(&flag), client, server));
        }
    });
    let raw = Client::connect(&server.to_string()).await.expect("the server is there");
    let (client, other) = (locks(&url).await, locks(&format!("zk://{server}/test?timeout=10s")).await);
    // The other came before the counter was used up.
    let held = other.mutex(&name).lock().await.expect("free");
    let refused = client.mutex(&name).lock().await.map(drop).expect_err("two could hold it");
    let text = format!("{refused:?}");
    assert!(
        !refused.is_transient()
            && text.contains("2147483647")
            && text.contains("delete the directory by hand"),
        "{text}"
    );
    let left = raw.list_children(&format!("/test/{name}")).await.expect("an answer");
    assert_eq!(left.len(), 1, "the refused claim has left a node: {left:?}");
    // The client asked for the empty directory to be deleted, which the server has refused: it is not empty.
    is_old.store(true, SeqCst);
    held.release().await.expect("held");
    let held =
        soon("it is refused", client.mutex(&name).lock().into_future()).await.expect("nobody is there");
    let made = raw.list_children(&format!("/test/{name}")).await.expect("an answer").concat();
    assert!(made.ends_with("0000000000"), "the counter did not begin anew: {made}");
    held.release().await.expect("held");
}
