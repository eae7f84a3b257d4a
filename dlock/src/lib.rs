//! Distributed locks over the store you already run.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock::Result<()> {
//! use std::time::Duration;
//! let locks = dlock::connect("memory:").await?;
//! let guard = locks.mutex("invoice/42").lock().wait(Duration::from_secs(5)).await?;
//! let token = guard.token(); // grows with every grant: let what the lock protects refuse a smaller one
//! if !guard.is_lost() {
//!     // the work; `guard.lost()` ends at once if the lock is lost meanwhile
//! }
//! guard.release().await?;
//! # let _ = token; Ok(()) }
//! ```
//!
//! The store is chosen by its URL. `memory:` is always there, for tests; `sqlite:PATH`, feature `sqlite`, is one file
//! for many processes of one host; `redis://HOST` and its kin, feature `redis`, are shared by hosts, and with Redisson;
//! `redis+redlock://A,B,C`, of the same feature, is a majority of servers, without a token; `zk://HOST`, feature `zk`,
//! is ZooKeeper, shared with Curator, and feature `zk-tls` reaches it through TLS; `etcd://A,B,C`, feature `etcd`, is a
//! cluster, shared with `etcdctl lock`; `mysql://HOST/DATABASE` and `mariadb://…`, feature `mysql`, are a queue in a
//! table, or the server's own named locks. What all stores promise, and where that ends, is in `docs/semantics.md`;
//! what is one store's own is in the README of its crate.
//!
//! [`MultiLock`] takes several locks as one; [`RedLock`] makes one store of several.
//!
//! To bring a store of your own, see [`driver`], and add it to the [`registry`].
//!
//! The command `dlock` is a package of its own, `dlock-cli`: `dlock run NAME -- CMD` runs a command under a lock.

pub mod blocking;
#[cfg(feature = "config")]
pub mod config;

pub use dlock_core::{
    Acquire, ClaimId, Contender, DistributedLock, DistributedLockExt, Error, FairLock, FairMutex, Guard,
    GuardError, Kind, Lock, LockName, LockOptions, LockState, Locks, LostReason, LostSignal, Member,
    MultiLock, Mutex, Owner, ReadLock, RedLock, Registry, Result, RwLock, RwPair, Semaphore, Ticket, Token,
    TryAcquire, Wait, Who, WriteLock, driver,
};

/// Connects to the store that a URL names, with the stores that are compiled in.
///
/// The client lives on the caller's tokio runtime: a call that blocks the runtime for a ttl loses every lock. A client on a
/// thread of its own is not the default, because dropping it may block a thread of your executor for up to two seconds; see
/// [`connect_on_own_thread`].
///
/// # Errors
/// [`Error::InvalidConfig`] for a URL, scheme or parameter that is not known; [`Error::Unavailable`] and
/// [`Error::Refused`] from the store. None shows a password.
///
/// # Cancel safety
/// Safe: dropping the future ends the attempt.
pub async fn connect(url: &str) -> Result<Locks> {
    registry().connect(url).await
}

/// Connects as [`connect`] does, with the client on a thread of its own: its locks are renewed while the caller's runtime is
/// blocked, it works on any executor, and nothing stays locked when the program ends. [`Locks::on_own_thread`] does the same for
/// other ways to connect, such as a store of a configuration.
///
/// It costs a thread. At a round trip of 0.2 ms, the measured times are within a tenth of those of [`connect`], for taking and
/// releasing a lock as for handing it to a waiter. It is not the default for another reason: whoever drops the last clone of
/// the client, or its last guard, waits for up to two seconds until the store has confirmed the release. In an async task that
/// blocks a thread of the executor. [`Locks::close`] waits without blocking.
///
/// # Errors
/// As [`connect`], and [`Error::Unavailable`] if there is no thread to be had.
///
/// # Cancel safety
/// Safe: dropping the future ends the attempt and the thread.
pub async fn connect_on_own_thread(url: &str) -> Result<Locks> {
    registry().connect_on_own_thread(url).await
}

/// The stores that are compiled in, to add your own with [`Registry::with`].
///
/// It also knows the schemes of the stores that are not compiled in, and refuses their URLs with the feature that brings
/// the store. [`Registry::schemes`] lists those that it can connect.
pub fn registry() -> Registry {
    STORES.into_iter().fold(Registry::new(), |registry, (feature, schemes, driver)| match driver {
        Some(driver) => registry.with(driver),
        None => schemes.iter().fold(registry, |registry, scheme| registry.without(scheme, feature)),
    })
}

/// All stores: for each its feature, the schemes of its URLs, and its driver if it is compiled in.
const STORES: [(&str, &[&str], Option<driver::Driver>); 5] = [
    ("sqlite", &["sqlite"], SQLITE),
    ("etcd", &["etcd", "etcds"], ETCD),
    ("redis", &["redis", "rediss", "redis+unix", "redis+sentinel", "redis-cluster", "redis+redlock"], REDIS),
    ("zk", &["zk"], ZOOKEEPER),
    ("mysql", &["mysql", "mariadb"], MYSQL),
];

#[cfg(feature = "sqlite")]
const SQLITE: Option<driver::Driver> = Some(dlock_sqlite::DRIVER);
#[cfg(not(feature = "sqlite"))]
const SQLITE: Option<driver::Driver> = None;

#[cfg(feature = "etcd")]
const ETCD: Option<driver::Driver> = Some(dlock_etcd::DRIVER);
#[cfg(not(feature = "etcd"))]
const ETCD: Option<driver::Driver> = None;

#[cfg(feature = "redis")]
const REDIS: Option<driver::Driver> = Some(dlock_redis::DRIVER);
#[cfg(not(feature = "redis"))]
const REDIS: Option<driver::Driver> = None;

#[cfg(feature = "zk")]
const ZOOKEEPER: Option<driver::Driver> = Some(dlock_zookeeper::DRIVER);
#[cfg(not(feature = "zk"))]
const ZOOKEEPER: Option<driver::Driver> = None;

#[cfg(feature = "mysql")]
const MYSQL: Option<driver::Driver> = Some(dlock_mysql::DRIVER);
#[cfg(not(feature = "mysql"))]
const MYSQL: Option<driver::Driver> = None;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemes_of_a_store_are_those_of_its_driver() {
        for (feature, schemes, driver) in STORES {
            if let Some(driver) = driver {
                assert_eq!(
                    schemes, driver.schemes,
                    "the schemes that are listed for `{feature}` are not those of its driver"
                );
            }
        }
    }

    #[tokio::test]
    async fn every_scheme_is_known_or_names_the_feature_that_brings_it() {
        let registry = registry();
        for (feature, schemes, driver) in STORES {
            for scheme in schemes {
                // A URL without path and host: a compiled-in driver refuses it without asking any server.
                let error =
                    registry.connect(&format!("{scheme}:?no=such")).await.expect_err("refused").to_string();
                let hint = format!("build with feature `{feature}`");
                assert_eq!(error.contains(&hint), driver.is_none(), "{scheme}: {error}");
            }
        }
    }
}

/// The examples of the front page and of the package's page, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../README.md")]
struct Readme;
