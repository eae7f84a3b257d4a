//! How a client finds a server, and under which name the server sees it: sockets, several hosts, files that are replaced.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use dlock_conformance::Proxy;
use dlock_core::{Kind, LockOptions, Locks};
use dlock_testbed::servers::{Running, redis::Flavour};
use tokio::{
    io::copy_bidirectional,
    net::{TcpStream, UnixListener},
};

use crate::common::{Bench, connect, query, servers, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_server_is_reached_at_a_unix_socket,
        a_client_has_a_name_in_the_servers_list,
        the_master_among_several_hosts_is_found_again_after_it_has_changed,
        certificates_are_read_again_for_each_connection,
        a_password_is_read_again_for_each_connection,
        a_client_with_classic_messages_uses_no_shard_channels_of_a_cluster,
    }
}

/// A folder that is removed at the end of its test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(crate::common::unique());
        fs::create_dir(&path).expect("a new name");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("it is there");
    }
}

async fn locks(url: &str) -> Locks {
    Locks::new(connect(url).await.expect("the server is there"))
}

/// Asserts that a waiter gets a lock that is released.
async fn works(locks: &Locks) {
    for kind in crate::common::KINDS {
        let name = crate::common::unique();
        let held = locks.of(*kind, &name).lock(&LockOptions::new()).await.expect("the lock is free");
        let write = locks.rwlock(&name).write();
        let rival = locks.of(if *kind == Kind::Read { Kind::Write } else { *kind }, &name);
        let options = LockOptions::new();
        let wait =
            async { if *kind == Kind::Read { write.lock().await } else { rival.lock(&options).await } };
        let release = async { held.release().await.expect("held until now") };
        let (next, ()) = soon("the next is not let in", async { tokio::join!(wait, release) }).await;
        next.expect("it is free").release().await.expect("held until now");
    }
}

/// A socket that leads to a server. It ends with the runtime of its test.
#[expect(clippy::disallowed_methods, reason = "each connection is a task")]
fn lead(socket: &Path, server: SocketAddr) {
    let listener = UnixListener::bind(socket).expect("nobody else has that path");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.expect("the server is there");
                copy_bidirectional(&mut client, &mut server).await.ok();
            });
        }
    });
}

async fn a_server_is_reached_at_a_unix_socket() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let folder = Folder::new();
    let socket = folder.0.join("redis.sock");
    lead(&socket, server.address());
    let locks = locks(&format!("redis+unix://{}?db=2", socket.display())).await;
    works(&locks).await;
    let held = locks.mutex("foo").lock().await.unwrap();
    assert!(!bench.query::<bool>("EXISTS foo").await, "the lock is in database 0, not in database 2");
    held.release().await.unwrap();
}

async fn a_client_has_a_name_in_the_servers_list() {
    let Some(bench) = Bench::new().await else { return };
    let (_plain, _named) = (bench.locks("").await, bench.locks("client_name=billing-7").await);
    let list: String = bench.query("CLIENT LIST").await;
    assert!(list.contains(" name=dlock ") && list.contains(" name=billing-7 "), "{list}");
}

async fn the_master_among_several_hosts_is_found_again_after_it_has_changed() {
    let (Some(a), Some(b)) = (servers(Flavour::Standalone).await, servers(Flavour::Standalone).await) else {
        return;
    };
    let (first, second) = (&a.servers()[0], &b.servers()[0]);
    let follow = async |one: &dlock_testbed::servers::Server, other: &dlock_testbed::servers::Server| {
        query::<()>(one, &format!("REPLICAOF {} {}", other.address().ip(), other.address().port())).await;
    };
    follow(first, second).await;
    let url = format!("redis://127.0.0.1:1,{},{}?role=master&timeout=2s", first.address(), second.address());
    let locks = locks(&url).await;
    works(&locks).await;
    let held = locks.mutex("foo").lock().await.unwrap();
    assert!(query::<bool>(second, "EXISTS foo").await, "a replica was asked");
    held.release().await.unwrap();
    query::<()>(first, "REPLICAOF NO ONE").await;
    follow(second, first).await;
    let moved = async {
        loop {
            if let Ok(Some(held)) = locks.mutex("foo").try_lock().await {
                return held;
            }
        }
    };
    let held = soon("the new master is not found", moved).await;
    assert!(query::<bool>(first, "EXISTS foo").await, "a replica was asked");
    drop(held);
}

/// Two servers that know the same user. Each has a certificate that the other's authority did not sign.
async fn encrypted() -> Option<(Running, Running)> {
    Some((servers(Flavour::Tls).await?, servers(Flavour::Tls).await?))
}

/// The port of a server's URL, which is its port for TLS.
fn port(running: &Running) -> u16 {
    let port = running.url().rsplit(':').next().expect("a port");
    port.trim_end_matches(|c: char| !c.is_ascii_digit())
        .split('/')
        .next()
        .expect("a port")
        .parse()
        .expect("a number")
}

async fn certificates_are_read_again_for_each_connection() {
    let Some((old, new)) = encrypted().await else { return };
    let proxy = Proxy::to(([127, 0, 0, 1], port(&old)).into()).await.expect("a port is free");
    let folder = Folder::new();
    let ca = folder.0.join("ca.pem");
    fs::copy(old.ca().expect("it speaks TLS"), &ca).expect("there is room");
    let url = old.url().replace(&format!(":{}", port(&old)), &format!(":{}", proxy.address().port()));
    let locks = locks(&format!("{url}?ca={}", ca.display())).await;
    works(&locks).await;
    // The server changes to another authority before the client knows it, which is the wrong order.
    proxy.lead_to(([127, 0, 0, 1], port(&new)).into());
    proxy.cut();
    locks.mutex("foo").try_lock().await.expect_err("nobody trusts the new authority yet");
    fs::copy(new.ca().expect("it speaks TLS"), &ca).expect("there is room");
    let back = async { while locks.mutex("foo").try_lock().await.is_err() {} };
    soon("the new authority is never believed", back).await;
}

async fn a_password_is_read_again_for_each_connection() {
    let Some(bench) = Bench::new().await else { return };
    if bench.running.own_server().is_none() {
        return;
    }
    bench.send("ACL SETUSER app on >first +@all ~* &*").await;
    let folder = Folder::new();
    let file = folder.0.join("password");
    fs::write(&file, "first\n").expect("there is room");
    let url = bench.running.url().replacen("://", "://app@", 1);
    let locks = locks(&format!("{url}?password_file={}", file.display())).await;
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(6)).await.unwrap();
    bench.send("ACL SETUSER app resetpass >second").await;
    fs::write(&file, "second\n").expect("there is room");
    bench.send("CLIENT KILL TYPE normal SKIPME yes").await;
    works(&locks).await;
    held.release().await.expect("the hold was renewed meanwhile");
}

async fn a_client_with_classic_messages_uses_no_shard_channels_of_a_cluster() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let locks = locks(&format!("{}?pubsub=classic", running.url())).await;
    works(&locks).await;
    for server in running.servers() {
        assert_eq!(query::<Vec<String>>(server, "PUBSUB SHARDCHANNELS").await, [""; 0]);
    }
}
