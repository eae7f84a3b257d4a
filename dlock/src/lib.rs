//! Distributed locks over the store you already run.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock::Result<()> {
//! use std::time::Duration;
//! let locks = dlock::connect("memory:").await?;
//! let guard = locks.mutex("invoice/42").lock().wait(Duration::from_secs(5)).await?;
//! let token = guard.token(); // the protected resource refuses smaller tokens
//! if !guard.is_lost() {
//!     // the work; `guard.lost()` completes as soon as the lock is lost
//! }
//! guard.release().await?;
//! # let _ = token; Ok(()) }
//! ```
//!
//! The URL selects the store:
//!
//! - `memory:`, for tests. It needs no feature.
//! - `sqlite:PATH`, feature `sqlite`: one file for many processes of one host.
//! - `redis://HOST` and related schemes, feature `redis`: shared by hosts, and with Redisson.
//! - `redis+redlock://A,B,C`, feature `redis`: a majority of servers, without tokens.
//! - `zk://HOST`, feature `zk`: ZooKeeper, shared with Curator. The feature `zk-tls` adds TLS.
//! - `etcd://A,B,C`, feature `etcd`: a cluster, shared with `etcdctl lock`.
//! - `mysql://HOST/DATABASE` and `mariadb://…`, feature `mysql`: a queue in a table, or the
//!   server's named locks.
//! - `postgres://HOST/DATABASE` and `postgresql://…`, feature `postgres`: a queue in a table, or
//!   the server's advisory locks (`pg_advisory_lock`).
//!
//! `docs/semantics.md` describes the guarantees of all stores and their limits. The README of each
//! store's crate describes the properties of that store.
//!
//! [`MultiLock`] takes several locks as one. [`RedLock`] makes one store of several stores.
//!
//! To use a store of your own, implement a [`driver`] and add it to the [`registry`].
//!
//! The command `dlock` is in the package `dlock-cli`: `dlock run NAME -- CMD` runs a command under
//! a lock.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
#[cfg(feature = "config")]
pub mod config;

/// Features of PostgreSQL only.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use dlock_postgres::CheckIn;
}

/// Features of SQLite only.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use dlock_sqlite::CheckIn;
}

pub use dlock_core::{
    Acquire, Candidate, ClaimId, Contender, DistributedLock, DistributedLockExt, Election, Error, FairLock,
    FairMutex, Guard, GuardError, Kind, Leader, Lock, LockName, LockOptions, LockState, Locks, LostReason,
    LostSignal, Mark, Member, MultiLock, Mutex, Next, Observed, Observer, Occurrence, Once, OnceError, Owner,
    ReadLock, RedLock, Registry, Result, RwLock, RwPair, Semaphore, Term, Ticket, Token, TryAcquire, Wait,
    Who, WriteLock, driver,
};

/// Connects to the store of a URL. Supports the stores that are compiled in.
///
/// The client runs on the caller's tokio runtime. A call that blocks the runtime for a ttl
/// therefore loses every lock. A client on a thread of its own does not have this problem, but is
/// not the default, because dropping it may block a thread of the executor for two seconds or
/// longer; see [`connect_on_own_thread`].
///
/// # Errors
/// [`Error::InvalidConfig`] for an invalid URL and for an unknown scheme or parameter.
/// [`Error::Unavailable`] and [`Error::Refused`] from the store. No error contains a password.
///
/// # Cancel safety
/// Safe: dropping the future ends the attempt.
pub async fn connect(url: &str) -> Result<Locks> {
    registry().connect(url).await
}

/// Connects as [`connect`] does, with the client on a thread of its own.
///
/// The client renews its locks while the caller's runtime is blocked, works on any executor, and
/// leaves no lock held at the end of the program. [`Locks::on_own_thread`] does the same for other
/// ways to connect, such as a store of a configuration.
///
/// It costs one thread. At a round trip of 0.2 ms, the measured times to acquire and release a
/// lock, and to hand it to a waiter, are within a tenth of those of [`connect`]. It is not the
/// default, because dropping the last clone of the client, or its last guard, blocks for up to two
/// seconds until the store has confirmed the release. In an async task this blocks a thread of the
/// executor. [`Locks::close`] waits without blocking.
///
/// # Errors
/// As [`connect`], and [`Error::Unavailable`] if the thread cannot be started.
///
/// # Cancel safety
/// Safe: dropping the future ends the attempt and the thread.
pub async fn connect_on_own_thread(url: &str) -> Result<Locks> {
    registry().connect_on_own_thread(url).await
}

/// Returns the stores that are compiled in. [`Registry::with`] adds another store.
///
/// The registry also knows the schemes of the other stores of dlock. It refuses their URLs with an
/// error that names the missing feature. [`Registry::schemes`] lists the schemes that it can
/// connect.
pub fn registry() -> Registry {
    STORES.into_iter().fold(Registry::new(), |registry, (feature, schemes, driver)| match driver {
        Some(driver) => registry.with(driver),
        None => schemes.iter().fold(registry, |registry, scheme| registry.without(scheme, feature)),
    })
}

/// Feature and URL schemes of each store, with its driver if that is compiled in.
const STORES: [(&str, &[&str], Option<driver::Driver>); 6] = [
    ("sqlite", &["sqlite"], SQLITE),
    ("etcd", &["etcd", "etcds"], ETCD),
    ("redis", &["redis", "rediss", "redis+unix", "redis+sentinel", "redis-cluster", "redis+redlock"], REDIS),
    ("zk", &["zk"], ZOOKEEPER),
    ("mysql", &["mysql", "mariadb"], MYSQL),
    ("postgres", &["postgres", "postgresql"], POSTGRES),
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
const ZOOKEEPER: Option<driver::Driver> = Some(dlock_zk::DRIVER);
#[cfg(not(feature = "zk"))]
const ZOOKEEPER: Option<driver::Driver> = None;

#[cfg(feature = "mysql")]
const MYSQL: Option<driver::Driver> = Some(dlock_mysql::DRIVER);
#[cfg(not(feature = "mysql"))]
const MYSQL: Option<driver::Driver> = None;

#[cfg(feature = "postgres")]
const POSTGRES: Option<driver::Driver> = Some(dlock_postgres::DRIVER);
#[cfg(not(feature = "postgres"))]
const POSTGRES: Option<driver::Driver> = None;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_schemes_of_a_store_are_those_of_its_driver() {
        for (feature, schemes, driver) in STORES {
            if let Some(driver) = driver {
                assert_eq!(
                    schemes,
                    driver.schemes(),
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
                // A compiled-in driver refuses this URL without I/O, because it has neither path
                // nor host.
                let error =
                    registry.connect(&format!("{scheme}:?no=such")).await.expect_err("refused").to_string();
                let hint = format!("build with feature `{feature}`");
                assert_eq!(error.contains(&hint), driver.is_none(), "{scheme}: {error}");
            }
        }
    }

    /// Returns the label of a store in metrics and events. A store that cannot be reached names it
    /// in its error.
    async fn label(url: &str) -> &'static str {
        match connect(url).await {
            Ok(locks) => locks.info().store,
            Err(Error::Unavailable { store, .. }) => store,
            Err(error) => panic!("{url}: {error}"),
        }
    }

    #[tokio::test]
    async fn the_page_of_metrics_lists_the_labels_of_all_stores() {
        let page = include_str!("../../docs/metrics.md");
        let line = page.lines().find_map(|line| line.strip_prefix("- `store` is the store's name: "));
        let documented = line.expect("a line with the labels").split('`').skip(1).step_by(2);
        let documented: BTreeSet<_> = documented.collect();

        let file = std::env::temp_dir().join(format!("dlock-labels-{}.db", std::process::id()));
        let sqlite = format!("sqlite:{}", file.display());
        let registry = registry();
        let mut members = Vec::new();
        for name in ["a", "b", "c"] {
            members.push(registry.open(&format!("memory:labels-{name}")).await.unwrap());
        }
        let redlock = Locks::new(RedLock::new(members).unwrap().into_store());
        let mut labels = BTreeSet::from([label("memory:").await, redlock.info().store]);
        for (feature, _, driver) in STORES {
            // No server listens on this port.
            let url = match feature {
                "sqlite" => sqlite.clone(),
                "mysql" | "postgres" => format!("{feature}://user:password@127.0.0.1:1/database"),
                scheme => format!("{scheme}://127.0.0.1:1"),
            };
            labels.insert(if driver.is_some() { label(&url).await } else { feature });
        }
        for end in ["", "-wal", "-shm"] {
            std::fs::remove_file(format!("{}{end}", file.display())).ok();
        }
        std::fs::remove_dir(format!("{}-bells", file.display())).ok();
        assert_eq!(documented, labels);
    }
}

/// Compiles and runs the examples of the front page and of the package's page.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles and runs the examples of the book.
#[cfg(doctest)]
#[doc = include_str!("../../docs/book/src/from-shedlock.md")]
#[doc = include_str!("../../docs/book/src/leader.md")]
#[doc = include_str!("../../docs/book/src/library.md")]
#[doc = include_str!("../../docs/book/src/move-store.md")]
#[doc = include_str!("../../docs/book/src/per-customer.md")]
#[doc = include_str!("../../docs/book/src/pool.md")]
struct Book;

/// Compiles and runs the example of the page about configurations.
#[cfg(all(doctest, feature = "config"))]
#[doc = include_str!("../../docs/config.md")]
struct ConfigPage;
