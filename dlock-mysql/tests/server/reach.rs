//! Ways to a server: several hosts, and a Unix socket.

use dlock_conformance::stores::{
    Running,
    mysql::{Flavour, start},
};
use dlock_core::{Error, Locks, Registry, Result};
use dlock_mysql::DRIVER;
use tokio::{
    io::copy_bidirectional,
    net::{TcpStream, UnixListener},
};

use crate::{ask, brand, end_sessions, stranger, tell};

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
