//! Inspection of a store and forced release, as a trait of its own, because not all stores support
//! it.

use std::{fmt, time::Duration};

use async_trait::async_trait;

use crate::model::{Kind, LockName, Result, Token};

/// Beginning of the names of marks, which record that work is done. A store may have many of them.
pub const MARK_PREFIX: &str = "dlock-once:";

/// Inspects a store. The results are snapshots, and may be outdated when they arrive.
#[async_trait]
pub trait Inspect: fmt::Debug + Send + Sync + 'static {
    /// Returns the holders and waiters of `name`, or `None` if there are none.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses the query.
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>>;

    /// Returns the claim that holds an exclusive lock, for the observers of an election. A driver
    /// implements this if it can read the holder without the queue. Otherwise the engine calls
    /// [`inspect`](Self::inspect).
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect), and if a part of the store that may know the holder does not
    /// reply.
    async fn holder(&self, name: &LockName) -> Result<Option<Contender>> {
        let state = self.inspect(name).await?;
        Ok(state.and_then(|state| state.holders.into_iter().next()))
    }

    /// Returns the locks whose names begin with `prefix`, sorted by name. May be costly, but never
    /// blocks the store.
    ///
    /// May leave out names that begin with [`MARK_PREFIX`], unless `prefix` does so too. The engine
    /// drops them from other lists. A driver that sends a request for each lock should leave them
    /// out.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses the query.
    async fn list(&self, prefix: &str) -> Result<Vec<LockState>>;

    /// Takes the lock from its holders and wakes the next claims in the queue. Notifies the former
    /// holders at once if the store can do that. Waiters keep their places. Returns whether there
    /// was a holder.
    ///
    /// # Errors
    /// If the store cannot be reached or refuses the request. The outcome is then unknown.
    async fn force_release(&self, name: &LockName) -> Result<bool>;
}

/// The state of one lock in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LockState {
    /// Name of the lock.
    pub name: LockName,
    /// Claims that hold the lock: one, or several if they are readers or permits.
    pub holders: Vec<Contender>,
    /// Waiting claims in order of arrival. Empty if the store keeps no queue.
    pub queue: Vec<Contender>,
}

impl LockState {
    /// Creates the state of a lock without holders and waiters.
    pub fn new(name: LockName) -> Self {
        Self { name, holders: Vec::new(), queue: Vec::new() }
    }

    /// Returns whether the lock has neither holders nor waiters. [`Inspect::inspect`] returns
    /// `None` for such a lock.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }
}

/// One claim as recorded in the store.
///
/// A driver starts with [`Contender::new`] and adds the data that its store has:
///
/// ```
/// use dlock_core::{Contender, Kind};
/// use std::time::Duration;
/// let waiting = Contender::new("4711", Kind::Fair)
///     .ttl_left(Duration::from_secs(30))
///     .who("pid 4711 on web-3");
/// assert_eq!(waiting.token, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Contender {
    /// Id of the claim in the notation of the store. For a claim of dlock the text begins with its
    /// [`ClaimId`](crate::ClaimId).
    pub id: String,
    /// Kind in which the claim holds the lock, or waits for it.
    pub kind: Kind,
    /// Fencing token of a holder. `None` for waiters, and if the store does not report tokens.
    pub token: Option<Token>,
    /// Time since the claim arrived. `None` if the store does not record it.
    #[cfg_attr(feature = "serde", serde(with = "crate::model::serde_impls::seconds"))]
    pub since: Option<Duration>,
    /// Time until the store forgets the claim if its client sends nothing more. `None` if the store
    /// never forgets the claim or does not report the time. In a store with sessions, only the
    /// client knows how long its session lasts.
    #[cfg_attr(feature = "serde", serde(with = "crate::model::serde_impls::seconds"))]
    pub ttl_left: Option<Duration>,
    /// Label of the claim, for people: `pid 4711 on web-3`.
    pub who: Option<String>,
}

impl Contender {
    /// Creates a claim with only an id and a kind.
    pub fn new(id: impl Into<String>, kind: Kind) -> Self {
        Self { id: id.into(), kind, token: None, since: None, ttl_left: None, who: None }
    }

    /// Sets the fencing token.
    #[must_use]
    pub fn token(mut self, token: impl Into<Option<Token>>) -> Self {
        self.token = token.into();
        self
    }

    /// Sets the time since the claim arrived.
    #[must_use]
    pub fn since(mut self, elapsed: impl Into<Option<Duration>>) -> Self {
        self.since = elapsed.into();
        self
    }

    /// Sets the time until the store forgets the claim if its client sends nothing more.
    #[must_use]
    pub fn ttl_left(mut self, left: impl Into<Option<Duration>>) -> Self {
        self.ttl_left = left.into();
        self
    }

    /// Sets the label.
    #[must_use]
    pub fn who(mut self, who: impl Into<String>) -> Self {
        self.who = Some(who.into());
        self
    }
}
