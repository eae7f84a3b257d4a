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
//! `redis+redlock://A,B,C`, of the same feature, is a majority of servers, without a token. What a store promises, and
//! where that ends, is in `docs/semantics.md`.
//!
//! [`MultiLock`] takes several locks as one; [`RedLock`] makes one store of several.
//!
//! To bring a store of your own, see [`driver`], and add it to the [`registry`].
//!
//! The package is also the command `dlock`, feature `cli`: `dlock run NAME -- CMD` runs a command under a lock.

#[cfg(feature = "config")]
pub mod config;

pub use dlock_core::{
    Acquire, ClaimId, Contender, DistributedLock, DistributedLockExt, Error, FairLock, FairMutex, Guard,
    Kind, Lock, LockName, LockOptions, LockState, Locks, LostReason, LostSignal, MultiLock, Mutex, Owner,
    ReadLock, RedLock, Registry, Result, RwLock, RwPair, Token, TryAcquire, Wait, WriteLock, driver,
};

/// Connects to the store that a URL names, with the stores that are compiled in.
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

/// The stores that are compiled in, to add your own with [`Registry::with`].
pub fn registry() -> Registry {
    let registry = Registry::new();
    #[cfg(feature = "sqlite")]
    let registry = registry.with(dlock_sqlite::DRIVER);
    #[cfg(not(feature = "sqlite"))]
    let registry = registry.without("sqlite", "sqlite");
    #[cfg(feature = "redis")]
    let registry = registry.with(dlock_redis::DRIVER);
    #[cfg(not(feature = "redis"))]
    let registry = ["redis", "rediss", "redis+unix", "redis+sentinel", "redis-cluster", "redis+redlock"]
        .into_iter()
        .fold(registry, |registry, scheme| registry.without(scheme, "redis"));
    registry
}

/// The examples of the front page and of the package's page, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../README.md")]
struct Readme;
