//! Ways to a server: several hosts, and a Unix socket.

use dlock_conformance::{
    Data, Proxy,
    stores::{
        Running,
        mysql::{Flavour, start},
    },
};
use dlock_core::{Error, Locks, Registry, Result};
use dlock_mysql::DRIVER;
use sqlx::mysql::MySqlConnection;
use tokio::{
    io::copy_bidirectional,
    net::{TcpStream, UnixListener},
    time::{sleep, timeout},
};

use crate::{
    SOON, ask, brand, connect, end_sessions,
    named::{LONG, WAITING, until_watched},
    stranger, tell, until,
};

const CLAIMS: &str = "SELECT COUNT(*) FROM dlock_queue";

async fn connect_at(servers: &str) -> Result<Locks> {
    Registry::new().with(DRIVER).connect(&format!("mysql://dlock:s3cret%3A%2F@{servers}")).await
}

pub(crate) async fn of_several_hosts_the_one_that_takes_writes_is_used(server: &Running) {
    let mut one = stranger(server).await;
    let beside = start(brand(&mut one).await, Flavour::Standalone).await.expect("another one runs");
    let mut other = stranger(&beside).await;
    tell(&mut one, "SET GLOBAL read_only = 1").await;
    let hosts = format!("{},{}/dlock", server.servers()[0].address(), beside.servers()[0].address());
    let locks = connect_at(&hosts).await.expect("one of them takes writes");
    let held = locks.mutex("job").lock().await.expect("nobody holds it");
    assert_eq!(ask(&mut other, CLAIMS).await, 1, "the lock is not where writes are taken");
    held.release().await.expect("held until now");
    // They change places, which ends the sessions of clients.
    tell(&mut other, "SET GLOBAL read_only = 1").await;
    end_sessions(&mut other).await;
    tell(&mut one, "SET GLOBAL read_only = 0").await;
    let held = locks.mutex("job").lock().await.expect("the other takes writes now");
    assert_eq!(ask(&mut one, CLAIMS).await, 1, "the lock is not where writes are taken");
    held.release().await.expect("held until now");
    tell(&mut one, "SET GLOBAL read_only = 1").await;
    let told = connect_at(&hosts).await.expect_err("neither takes writes");
    assert!(matches!(told, Error::Unwritable { .. }), "{told:?}");
}

/// A user whom a read-only server refuses, and one with all rights, who may write there.
const USERS: [&str; 2] = ["app:x", "dlock:s3cret%3A%2F"];

/// A server that takes writes and one that does not, both with the tables and the users.
struct Pair {
    /// What keeps the second server.
    _beside: Running,
    one: MySqlConnection,
    other: MySqlConnection,
    hosts: String,
}

impl Pair {
    async fn with(server: &Running) -> Self {
        let mut one = stranger(server).await;
        let beside = start(brand(&mut one).await, Flavour::Standalone).await.expect("another one runs");
        let mut other = stranger(&beside).await;
        for (server, session) in [(server, &mut one), (&beside, &mut other)] {
            connect(server, "").await.expect("it makes the tables").close().await;
            let user = "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'x';
                GRANT SELECT, INSERT, UPDATE, DELETE ON dlock.* TO app@'127.0.0.1'";
            tell(session, user).await;
        }
        tell(&mut other, "SET GLOBAL read_only = 1").await;
        let hosts = [server, &beside].map(|server| server.servers()[0].address().to_string()).join(",");
        Self { _beside: beside, one, other, hosts }
    }

    async fn connect(&self, user: &str, params: &str) -> Locks {
        let url = format!("mysql://{user}@{}/dlock{params}", self.hosts);
        Registry::new().with(DRIVER).connect(&url).await.expect("one of them takes writes")
    }

    /// They change places, and no session ends.
    async fn switch(&mut self) {
        tell(&mut self.one, "SET GLOBAL read_only = 1").await;
        tell(&mut self.other, "SET GLOBAL read_only = 0").await;
        std::mem::swap(&mut self.one, &mut self.other);
    }
}

pub(crate) async fn a_named_lock_is_lost_when_its_server_becomes_read_only(server: &Running) {
    let mut pair = Pair::with(server).await;
    for user in USERS {
        let locks = pair.connect(user, "?mode=session").await;
        let held = locks.mutex("job").lock().ttl(SOON).await.expect("nobody holds it");
        until_watched(&locks, "job").await;
        pair.switch().await;
        timeout(SOON * 2, held.lost()).await.expect("others take it on the other server from now on");
        let next = locks.mutex("job").lock().await.expect("the other server takes writes");
        let is_free = ask(&mut pair.one, "SELECT IS_FREE_LOCK('job')").await;
        assert_eq!(is_free, 0, "{user}: it is not where writes are taken");
        // The sessions for watches and looks are there too.
        until_watched(&locks, "job").await;
        next.release().await.expect("held until now");
    }
}

/// The test's servers have no rows in common. A replica would have the hold's, and it would go on there.
pub(crate) async fn a_hold_goes_on_where_writes_are_taken(server: &Running) {
    let mut pair = Pair::with(server).await;
    for user in USERS {
        let locks = pair.connect(user, "").await;
        let held = locks.mutex("job").lock().ttl(SOON).await.expect("nobody holds it");
        pair.switch().await;
        timeout(SOON * 2, held.lost()).await.expect("its row is not there");
        let next = locks.mutex("job").lock().await.expect("the other server takes writes");
        assert_eq!(ask(&mut pair.one, CLAIMS).await, 1, "{user}: the lock is not where writes are taken");
        next.release().await.expect("held until now");
        drop(held);
    }
}

pub(crate) async fn a_waiter_listens_at_the_server_that_takes_writes(server: &Running) {
    let mut pair = Pair::with(server).await;
    let (a, b) = (pair.connect(USERS[0], "").await, pair.connect(USERS[1], "").await);
    for _ in 0..2 {
        let held = a.mutex("job").lock().ttl(LONG).await.expect("nobody holds it");
        let waits = tokio::spawn({
            let job = b.mutex("job");
            async move { job.lock().ttl(LONG).await }
        });
        until(&mut pair.one, WAITING, 1).await;
        held.release().await.expect("held until now");
        waits.await.expect("no panic").expect("it is free").release().await.expect("held until now");
        pair.switch().await;
    }
}

/// Sessions have numbers, which a server that was started again gives to others.
pub(crate) async fn a_session_from_before_a_restart_is_not_taken_for_another(server: &Running) {
    let proxy = Proxy::to(server.servers()[0].address()).await.expect("a port is free");
    let url = format!("{}/dlock?mode=session&timeout=500ms", proxy.address());
    let locks = connect_at(&url).await.expect("it runs");
    // The next sessions have numbers that the server does not need for itself.
    for _ in 0..50 {
        stranger(server).await;
    }
    let held = locks.mutex("job").lock().ttl(LONG).await.expect("nobody holds it");
    let id = ask(&mut stranger(server).await, "SELECT IS_USED_LOCK('job')").await;
    proxy.stall();
    let released = tokio::spawn(held.release());
    // The session does not answer, and is to be ended.
    sleep(SOON / 2).await;
    let machine = &server.servers()[0];
    machine.kill().await.expect("it runs");
    machine.start(Data::Kept).await.expect("it was killed");
    let mut bystander = stranger(server).await;
    while ask(&mut bystander, "SELECT CONNECTION_ID()").await < id {
        bystander = stranger(server).await;
    }
    assert_eq!(ask(&mut bystander, "SELECT CONNECTION_ID()").await, id, "a number was left out");
    proxy.pass();
    released.await.expect("no panic").ok();
    assert_eq!(ask(&mut bystander, "SELECT 1").await, 1, "another session was ended");
}

/// The server may run where its socket cannot be seen. So the socket is the test's, and leads to the server's port.
pub(crate) async fn a_socket_leads_to_the_server(server: &Running) {
    let (folder, address) = (tempfile::tempdir().expect("a folder"), server.servers()[0].address());
    let path = folder.path().join("mysqld.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let passes = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(address).await.expect("it runs");
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    let locks = connect_at(&format!("/dlock?socket={}", path.display())).await.expect("it leads to a server");
    let held = locks.mutex("job").lock().await.expect("nobody holds it");
    assert_eq!(ask(&mut stranger(server).await, CLAIMS).await, 1, "it led elsewhere");
    held.release().await.expect("held until now");
    passes.abort();
}
