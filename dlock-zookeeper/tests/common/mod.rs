//! What the tests of this crate share.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::time::Duration;

use dlock_conformance::{
    or_ignore,
    stores::{
        Running,
        zookeeper::{Flavour, start},
    },
};
use dlock_core::{ClaimId, LockOptions, Locks, Result, driver::Store};
use dlock_zookeeper::DRIVER;
use zookeeper_client::{Acls, Client, CreateMode};

/// A client of the store that a URL names.
pub(crate) async fn connect(url: &str) -> Result<Store> {
    (DRIVER.connect)(url.parse()?).await
}

/// The same as its users see it, with a ttl that its session allows.
pub(crate) async fn locks(url: &str) -> Locks {
    let store = connect(url).await.expect("a server is there");
    let ttl = *store.backend.info().ttl.end();
    Locks::new(store).with_defaults(LockOptions::new().ttl(ttl))
}

/// A store; `None` if there is no ZooKeeper and none is required.
pub(crate) async fn store(flavour: Flavour) -> Option<Running> {
    or_ignore(start(flavour).await)
}

/// Makes a lock's directory as one that the server does not remove when it is empty.
pub(crate) async fn lasting_directory(raw: &Client, name: &str) {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    raw.mkdir(&format!("/test/{name}"), &options).await.expect("anybody may create");
}

/// A name that nobody else uses.
pub(crate) fn unique() -> String {
    format!("test-{}", ClaimId::random())
}

/// Waits for what must happen soon, however busy the machine is.
pub(crate) async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("{what}"))
}
