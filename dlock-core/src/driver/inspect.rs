//! Looking into a store and breaking locks: an ability of its own, for stores that have it.

use std::{fmt, time::Duration};

use async_trait::async_trait;

use super::{Kind, LockName, Result, Token};

/// Looks into a store. A snapshot: what it tells may have changed by the time it is read.
#[async_trait]
pub trait Inspect: fmt::Debug + Send + Sync + 'static {
    /// Who holds `name` and who waits for it; `None` if nobody does either.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>>;

    /// The locks whose names begin with `prefix`, in order of their names. May be costly; never blocks the store.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn list(&self, prefix: &str) -> Result<Vec<LockState>>;

    /// Takes `name` from whoever holds it, wakes the next in the queue, and tells the old holder where the store
    /// can. Those who wait keep their places. `true` if somebody held it.
    ///
    /// # Errors
    /// When the store cannot be asked; whether it happened is then unknown.
    async fn force_release(&self, name: &LockName) -> Result<bool>;
}

/// One lock as the store sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// Its name.
    pub name: LockName,
    /// Who holds it: one claim, or any number of readers.
    pub holders: Vec<Contender>,
    /// Who waits, first come first; empty if the store keeps no queue.
    pub queue: Vec<Contender>,
}

/// One claim as the store sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// The claim's id in the store's words; one of dlock's begins with its [`ClaimId`](crate::ClaimId).
    pub id: String,
    /// How it holds or wants to hold.
    pub kind: Kind,
    /// Its fencing token, if it holds and the store tells.
    pub token: Option<Token>,
    /// How long ago it came, if the store tells.
    pub since: Option<Duration>,
    /// How long until the store forgets it, if it is not heard of; `None` if it never would, or if the store does not tell:
    /// how long another client's session lasts is known to that client only.
    pub ttl_left: Option<Duration>,
    /// Who it is in words, for people: `pid 4711 on web-3`.
    pub who: Option<String>,
}
