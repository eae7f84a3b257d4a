//! Tests of connections through sockets, to several hosts and with replaced files, and of the
//! client's name.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use dlock_conformance::Proxy;
use dlock_core::{Kind, LockOptions, Locks};
use dlock_testbed::servers::{Running, Server, redis::Flavour};
use tokio::{
    io::copy_bidirectional,
    net::{TcpStream, UnixListener},
    time::{sleep, timeout},
};

use crate::common::{Bench, connect, query, servers, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_server_is_reached_at_a_unix_socket,
        a_client_has_a_name_in_the_servers_list,
        each_connection_has_the_name_of_the_library_on_redis_7_2,
        the_master_among_several_hosts_is_found_again_after_it_has_changed,
        certificates_are_read_again_for_each_connection,
        a_password_is_read_again_for_each_connection,
        on_a_cluster_a_password_is_read_once,
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
        fs::remove_dir_all(&self.0).expect("the folder exists");
    }
}

async fn locks(url: &str) -> Locks {
    Locks::new(connect(url).await.expect("the server is running"))
}

/// Asserts that a waiter is granted a released lock.
async fn works(locks: &Locks) {
    for kind in crate::common::KINDS {
        let name = crate::common::unique();
        let held = locks.of(*kind, &name).lock(&LockOptions::new()).await.expect("the lock is free");
        let write = locks.rwlock(&name).write();
        let rival = locks.of(if *kind == Kind::Read { Kind::Write } else { *kind }, &name);
        let options = LockOptions::new();
        let wait =
            async { if *kind == Kind::Read { write.lock().await } else { rival.lock(&options).await } };
        let release = async { held.release().await.expect("the lock is still held") };
        let (next, ()) = soon("the waiter is not granted", async { tokio::join!(wait, release) }).await;
        next.expect("the lock is free").release().await.expect("the lock is still held");
    }
}

/// Forwards connections from a socket to a server. Ends with the runtime of the test.
#[expect(clippy::disallowed_methods, reason = "each connection is a task")]
fn forward(socket: &Path, server: SocketAddr) {
    let listener = UnixListener::bind(socket).expect("the path is unused");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.expect("the server is running");
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
    forward(&socket, server.address());
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

async fn each_connection_has_the_name_of_the_library_on_redis_7_2() {
    let Some(bench) = Bench::new().await else { return };
    if bench.running.own_server().is_none() || bench.version().await < (7, 2) {
        return;
    }
    // The user distinguishes the connections of this client from those of the test.
    bench.send("ACL SETUSER app on nopass +@all ~* &*").await;
    let locks = locks(&bench.running.url().replacen("://", "://app:any@", 1)).await;
    let held = locks.mutex("foo").lock().await.unwrap();
    let list = async {
        bench.wait_for_subscriber("redisson_lock__channel:{foo}").await;
        let list: String = bench.query("CLIENT LIST").await;
        held.release().await.unwrap();
        list
    };
    let (next, list) = tokio::join!(locks.mutex("foo").lock().into_future(), list);
    next.unwrap().release().await.unwrap();
    let ours: Vec<_> = list.lines().filter(|line| line.contains(" user=app ")).collect();
    assert_eq!(ours.len(), 2, "not one connection for commands and one for messages: {list}");
    assert!(ours.iter().all(|line| line.contains(" lib-name=dlock ")), "{ours:?}");
}

async fn the_master_among_several_hosts_is_found_again_after_it_has_changed() {
    let (Some(a), Some(b)) = (servers(Flavour::Standalone).await, servers(Flavour::Standalone).await) else {
        return;
    };
    let (first, second) = (&a.servers()[0], &b.servers()[0]);
    let follow = async |replica: &Server, master: &Server| {
        query::<()>(replica, &format!("REPLICAOF {} {}", master.address().ip(), master.address().port()))
            .await;
    };
    follow(first, second).await;
    let url = format!("redis://127.0.0.1:1,{},{}?role=master&timeout=2s", first.address(), second.address());
    let locks = locks(&url).await;
    works(&locks).await;
    let held = locks.mutex("foo").lock().await.unwrap();
    assert!(query::<bool>(second, "EXISTS foo").await, "the lock is not on the master");
    held.release().await.unwrap();
    query::<()>(first, "REPLICAOF NO ONE").await;
    follow(second, first).await;
    let granted = async {
        loop {
            if let Ok(Some(held)) = locks.mutex("foo").try_lock().await {
                return held;
            }
        }
    };
    let held = soon("the new master is not found", granted).await;
    assert!(query::<bool>(first, "EXISTS foo").await, "the lock is not on the master");
    drop(held);
}

/// Starts two servers with the same user. Each has a certificate of another authority.
async fn encrypted() -> Option<(Running, Running)> {
    Some((servers(Flavour::Tls).await?, servers(Flavour::Tls).await?))
}

/// Returns the port of a server's URL, which is its port for TLS.
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
    fs::copy(old.ca().expect("the server uses TLS"), &ca).expect("the disk has space");
    let url = old.url().replace(&format!(":{}", port(&old)), &format!(":{}", proxy.address().port()));
    let locks = locks(&format!("{url}?ca={}", ca.display())).await;
    works(&locks).await;
    // The server changes to another authority before the client has it, which is the wrong order.
    proxy.lead_to(([127, 0, 0, 1], port(&new)).into());
    proxy.cut();
    locks.mutex("foo").try_lock().await.expect_err("the client does not trust the new authority yet");
    fs::copy(new.ca().expect("the server uses TLS"), &ca).expect("the disk has space");
    let reconnected = async { while locks.mutex("foo").try_lock().await.is_err() {} };
    soon("the client never trusts the new authority", reconnected).await;
}

async fn a_password_is_read_again_for_each_connection() {
    let Some(bench) = Bench::new().await else { return };
    if bench.running.own_server().is_none() {
        return;
    }
    bench.send("ACL SETUSER app on >first +@all ~* &*").await;
    let folder = Folder::new();
    let file = folder.0.join("password");
    fs::write(&file, "first\n").expect("the disk has space");
    let url = bench.running.url().replacen("://", "://app@", 1);
    let locks = locks(&format!("{url}?password_file={}", file.display())).await;
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(6)).await.unwrap();
    bench.send("ACL SETUSER app resetpass >second").await;
    fs::write(&file, "second\n").expect("the disk has space");
    bench.send("CLIENT KILL TYPE normal SKIPME yes").await;
    works(&locks).await;
    held.release().await.expect("the hold was renewed after the change");
}

async fn on_a_cluster_a_password_is_read_once() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let on_each_node = async |command: &str| {
        for server in running.servers() {
            query::<redis::Value>(server, command).await;
        }
    };
    on_each_node("ACL SETUSER app on >first +@all ~* &*").await;
    let folder = Folder::new();
    let file = folder.0.join("password");
    fs::write(&file, "first").expect("the disk has space");
    let url = running.url().replacen("://", "://app@", 1);
    let url = format!("{url}?timeout=1s&password_file={}", file.display());
    let client = locks(&url).await;
    // Calls may fail until the client has connected again, whatever the password.
    let connects_again_within = async |limit: Duration| {
        on_each_node("CLIENT KILL TYPE normal SKIPME yes").await;
        let connects = async {
            loop {
                if let Ok(Some(held)) = client.mutex("foo").try_lock().await {
                    return held.release().await;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(limit, connects).await.map(|released| released.expect("the lock is held")).is_ok()
    };
    assert!(connects_again_within(Duration::from_secs(30)).await, "the client makes no further connections");
    on_each_node("ACL SETUSER app resetpass >second").await;
    fs::write(&file, "second").expect("the disk has space");
    assert!(!connects_again_within(Duration::from_secs(3)).await, "the client has the new password");
    works(&locks(&url).await).await;
}

async fn a_client_with_classic_messages_uses_no_shard_channels_of_a_cluster() {
    let Some(running) = servers(Flavour::Cluster).await else { return };
    let locks = locks(&format!("{}?pubsub=classic", running.url())).await;
    works(&locks).await;
    for server in running.servers() {
        assert_eq!(query::<Vec<String>>(server, "PUBSUB SHARDCHANNELS").await, [""; 0]);
    }
}
