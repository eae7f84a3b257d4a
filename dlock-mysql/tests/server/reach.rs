//! Tests with several hosts, and with a Unix socket.

use std::time::Duration;

use dlock_conformance::{Data, Proxy};
use dlock_core::{Error, Locks, Registry, Result};
use dlock_mysql::DRIVER;
use dlock_testbed::servers::{
    Running,
    mysql::{Flavour, start},
};
use sqlx::mysql::MySqlConnection;
use tokio::{
    io::copy_bidirectional,
    net::{TcpStream, UnixListener},
    time::{sleep, timeout},
};

use crate::{
    SOON, brand, connect, end_sessions, execute,
    named::{LONG, WAITING, until_watched},
    plain_session, query, until,
};

const CLAIMS: &str = "SELECT COUNT(*) FROM dlock_queue";

async fn connect_at(servers: &str) -> Result<Locks> {
    Registry::new().with(DRIVER).connect(&format!("mysql://dlock:s3cret%3A%2F@{servers}")).await
}

pub(crate) async fn of_several_hosts_the_one_that_takes_writes_is_used(server: &Running) {
    let mut one = plain_session(server).await;
    let beside = start(brand(&mut one).await, Flavour::Standalone).await.expect("a second server runs");
    let mut other = plain_session(&beside).await;
    execute(&mut one, "SET GLOBAL read_only = 1").await;
    let hosts = format!("{},{}/dlock", server.servers()[0].address(), beside.servers()[0].address());
    let locks = connect_at(&hosts).await.expect("one of the hosts accepts writes");
    let held = locks.mutex("job").lock().await.expect("the lock is free");
    assert_eq!(query(&mut other, CLAIMS).await, 1, "the claim is not on the server that accepts writes");
    held.release().await.expect("the lock is still held");
    // The servers change roles, which ends the sessions of clients.
    execute(&mut other, "SET GLOBAL read_only = 1").await;
    end_sessions(&mut other).await;
    execute(&mut one, "SET GLOBAL read_only = 0").await;
    let held = locks.mutex("job").lock().await.expect("the other server accepts writes now");
    assert_eq!(query(&mut one, CLAIMS).await, 1, "the claim is not on the server that accepts writes");
    held.release().await.expect("the lock is still held");
    execute(&mut one, "SET GLOBAL read_only = 1").await;
    let error = connect_at(&hosts).await.expect_err("no host accepts writes");
    assert!(matches!(error, Error::Unwritable { .. }), "{error:?}");
}

/// A user that a read-only server refuses, and a user with all rights, who may write there.
const USERS: [&str; 2] = ["app:x", "dlock:s3cret%3A%2F"];

/// Two servers with the tables and the users. `one` accepts writes, and `other` is read-only.
struct Pair {
    /// Keeps the second server running.
    _beside: Running,
    one: MySqlConnection,
    other: MySqlConnection,
    hosts: String,
}

impl Pair {
    async fn with(server: &Running) -> Self {
        let mut one = plain_session(server).await;
        let beside = start(brand(&mut one).await, Flavour::Standalone).await.expect("a second server runs");
        let mut other = plain_session(&beside).await;
        for (server, session) in [(server, &mut one), (&beside, &mut other)] {
            connect(server, "").await.expect("the client creates the tables").close().await;
            let user = "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'x';
                GRANT SELECT, INSERT, UPDATE, DELETE ON dlock.* TO app@'127.0.0.1'";
            execute(session, user).await;
        }
        execute(&mut other, "SET GLOBAL read_only = 1").await;
        let hosts = [server, &beside].map(|server| server.servers()[0].address().to_string()).join(",");
        Self { _beside: beside, one, other, hosts }
    }

    async fn connect(&self, user: &str, params: &str) -> Locks {
        let url = format!("mysql://{user}@{}/dlock{params}", self.hosts);
        Registry::new().with(DRIVER).connect(&url).await.expect("one of the hosts accepts writes")
    }

    /// Makes the servers change roles. No session ends.
    async fn switch(&mut self) {
        execute(&mut self.one, "SET GLOBAL read_only = 1").await;
        execute(&mut self.other, "SET GLOBAL read_only = 0").await;
        std::mem::swap(&mut self.one, &mut self.other);
    }
}

pub(crate) async fn a_named_lock_is_lost_when_its_server_becomes_read_only(server: &Running) {
    let mut pair = Pair::with(server).await;
    for user in USERS {
        let locks = pair.connect(user, "?mode=session").await;
        let held = locks.mutex("job").lock().ttl(SOON).await.expect("the lock is free");
        until_watched(&locks, "job").await;
        pair.switch().await;
        timeout(SOON * 2, held.lost())
            .await
            .expect("other clients take the lock on the other server from now on");
        let next = locks.mutex("job").lock().await.expect("the other server accepts writes");
        let is_free = query(&mut pair.one, "SELECT IS_FREE_LOCK('job')").await;
        assert_eq!(is_free, 0, "{user}: the lock is not on the server that accepts writes");
        // The shared sessions are on the new server, too.
        until_watched(&locks, "job").await;
        next.release().await.expect("the lock is still held");
    }
}

/// A limit of named locks that the README documents. The second client cannot reach the first host.
pub(crate) async fn two_servers_that_accept_writes_grant_one_named_lock_twice(server: &Running) {
    let mut one = plain_session(server).await;
    let beside = start(brand(&mut one).await, Flavour::Standalone).await.expect("a second server runs");
    let (first, second) = (server.servers()[0].address(), beside.servers()[0].address());
    let proxy = Proxy::to(first).await.expect("a port is free");
    proxy.hang_up();
    let holder = connect_at(&format!("{first},{second}/dlock?mode=session")).await.expect("a host replies");
    let held = holder.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
    let hosts = format!("{},{second}/dlock?mode=session", proxy.address());
    let other = connect_at(&hosts).await.expect("the second host replies");
    let next = other.mutex("job").try_lock().await.expect("the server replies");
    let next = next.expect("the second server does not know the locks of the first one");
    assert!(!held.is_lost(), "the server of the first holder still runs");
    next.release().await.expect("the lock is still held");
    held.release().await.expect("the lock is still held");
}

/// The servers of the test do not replicate, so the hold is lost. On a replica the hold would
/// continue.
pub(crate) async fn a_hold_continues_where_writes_are_accepted(server: &Running) {
    let mut pair = Pair::with(server).await;
    for user in USERS {
        let locks = pair.connect(user, "").await;
        let held = locks.mutex("job").lock().ttl(SOON).await.expect("the lock is free");
        pair.switch().await;
        timeout(SOON * 2, held.lost()).await.expect("the new server has no row of the hold");
        let next = locks.mutex("job").lock().await.expect("the other server accepts writes");
        assert_eq!(
            query(&mut pair.one, CLAIMS).await,
            1,
            "{user}: the claim is not on the server that accepts writes"
        );
        next.release().await.expect("the lock is still held");
        drop(held);
    }
}

pub(crate) async fn a_waiter_listens_at_the_server_that_takes_writes(server: &Running) {
    let mut pair = Pair::with(server).await;
    let (a, b) = (pair.connect(USERS[0], "").await, pair.connect(USERS[1], "").await);
    for _ in 0..2 {
        let held = a.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
        let waits = tokio::spawn({
            let job = b.mutex("job");
            async move { job.lock().ttl(LONG).await }
        });
        until(&mut pair.one, WAITING, 1).await;
        held.release().await.expect("the lock is still held");
        waits
            .await
            .expect("the task does not panic")
            .expect("the lock is granted")
            .release()
            .await
            .expect("the lock is still held");
        pair.switch().await;
    }
}

/// A server that was restarted gives the connection ids of old sessions to new ones.
pub(crate) async fn a_session_from_before_a_restart_is_not_taken_for_another(server: &Running) {
    let proxy = Proxy::to(server.servers()[0].address()).await.expect("a port is free");
    let url = format!("{}/dlock?mode=session&timeout=500ms", proxy.address());
    let locks = connect_at(&url).await.expect("the server runs");
    // The server itself uses the first connection ids after its start.
    for _ in 0..50 {
        plain_session(server).await;
    }
    let held = locks.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
    let id = query(&mut plain_session(server).await, "SELECT IS_USED_LOCK('job')").await;
    proxy.stall();
    let released = tokio::spawn(held.release());
    // The session does not reply, so the client tries to end it.
    sleep(SOON / 2).await;
    let machine = &server.servers()[0];
    machine.kill().await.expect("the server runs");
    machine.start(Data::Kept).await.expect("the server was killed");
    let mut bystander = plain_session(server).await;
    while query(&mut bystander, "SELECT CONNECTION_ID()").await < id {
        bystander = plain_session(server).await;
    }
    assert_eq!(
        query(&mut bystander, "SELECT CONNECTION_ID()").await,
        id,
        "the server skipped the connection id"
    );
    proxy.pass();
    released.await.expect("the task does not panic").ok();
    assert_eq!(query(&mut bystander, "SELECT 1").await, 1, "the session of another program was ended");
}

/// A release would be repeated for the ttl, and would delay the close.
pub(crate) async fn an_attempt_that_finds_no_connection_is_not_released(server: &Running) {
    let proxy = Proxy::to(server.servers()[0].address()).await.expect("a port is free");
    let locks = connect_at(&format!("{}/dlock", proxy.address())).await.expect("the server runs");
    proxy.hang_up();
    // The first attempt may be sent on a connection that has just ended, and is released.
    for (name, ttl) in [("first", Duration::from_secs(1)), ("second", Duration::from_secs(600))] {
        let error = timeout(SOON * 4, locks.mutex(name).lock().ttl(ttl)).await.expect("an error");
        assert!(error.expect_err("no server").is_transient());
    }
    timeout(SOON * 6, locks.close()).await.expect("the client releases a claim that was never sent");
}

/// The server may run in a container, where its socket is not visible. So the test has a socket of
/// its own that leads to the server's port.
pub(crate) async fn a_socket_leads_to_the_server(server: &Running) {
    let (folder, address) = (tempfile::tempdir().expect("a temporary folder"), server.servers()[0].address());
    let path = folder.path().join("mysqld.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let passes = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(address).await.expect("the server runs");
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    let locks = connect_at(&format!("/dlock?socket={}", path.display()))
        .await
        .expect("the socket leads to the server");
    let held = locks.mutex("job").lock().await.expect("the lock is free");
    assert_eq!(query(&mut plain_session(server).await, CLAIMS).await, 1, "the claim is not on the server");
    held.release().await.expect("the lock is still held");
    passes.abort();
}
