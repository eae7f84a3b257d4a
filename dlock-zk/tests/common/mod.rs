//! Helpers for the tests of this crate.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::time::Duration;

use dlock_conformance::or_ignore;
use dlock_core::{ClaimId, LockOptions, Locks, Result, driver::Store};
use dlock_testbed::servers::{
    Running, Server,
    zookeeper::{Flavour, start, word},
};
use dlock_zk::DRIVER;
use tokio::time::sleep;
use zookeeper_client::{Acls, Client, CreateMode};

/// Connects to the store of a URL.
pub(crate) async fn connect(url: &str) -> Result<Store> {
    DRIVER.connect(url.parse()?).await
}

/// Connects to the store of a URL, with the longest ttl that the session allows as the default.
pub(crate) async fn locks(url: &str) -> Locks {
    let store = connect(url).await.expect("a server is running");
    let ttl = *store.backend.info().ttl.end();
    Locks::new(store).with_defaults(LockOptions::new().ttl(ttl))
}

/// Starts a store. Returns `None` if ZooKeeper is neither available nor required.
pub(crate) async fn store(flavour: Flavour) -> Option<Running> {
    or_ignore(start(flavour).await)
}

/// Creates a lock's directory, which the server does not delete when it is empty.
pub(crate) async fn lasting_directory(raw: &Client, name: &str) {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    raw.mkdir(&format!("/test/{name}"), &options).await.expect("all clients may create nodes");
}

/// Returns a name that no other test uses.
pub(crate) fn unique() -> String {
    format!("test-{}", ClaimId::random())
}

/// Waits for an event that must happen within a minute, even on a busy machine. Panics with `what`
/// if it does not.
pub(crate) async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("{what}"))
}

/// Returns the servers whose status contains `mode`.
async fn servers(running: &Running, mode: &str) -> Vec<Server> {
    let mut found = Vec::new();
    for server in running.servers() {
        if word(server.address(), "srvr").await.unwrap_or_default().contains(mode) {
            found.push(server.clone());
        }
    }
    found
}

/// Waits until exactly `COUNT` servers have this mode, because an election may be in progress.
pub(crate) async fn some<const COUNT: usize>(running: &Running, mode: &str) -> [Server; COUNT] {
    let found = async {
        loop {
            match servers(running, mode).await.try_into() {
                Ok(found) => break found,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    };
    soon("the servers do not agree", found).await
}
