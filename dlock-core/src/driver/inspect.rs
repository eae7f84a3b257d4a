//! Looking into a store and breaking locks. A trait of its own, because not all stores can do it.

use std::{fmt, time::Duration};

use async_trait::async_trait;

use super::{Kind, LockName, Result, Token};

/// Looks into a store. A snapshot: what it tells may have changed by the time it is read.
#[async_trait]
pub trait Inspect: fmt::Debug + Send + Sync + 'static {
    /// Who holds `name` and who waits for it. `None` if nobody holds it and nobody waits.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>>;

    /// The locks whose names begin with `prefix`, in order of their names. May be costly; never blocks the store.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn list(&self, prefix: &str) -> Result<Vec<LockState>>;

    /// Takes `name` from its holders and wakes the next in the queue. Tells the old holders at once if the store can do
    /// that. Those who wait keep their places. `true` if somebody held it.
    ///
    /// # Errors
    /// When the store cannot be asked; whether it happened is then unknown.
    async fn force_release(&self, name: &LockName) -> Result<bool>;
}

/// One lock as the store sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LockState {
    /// Its name.
    pub name: LockName,
    /// Who holds it: one claim, or any number of readers.
    pub holders: Vec<Contender>,
    /// Who waits, first come first; empty if the store keeps no queue.
    pub queue: Vec<Contender>,
}

impl LockState {
    /// A lock that nobody holds or waits for, to be filled in.
    pub fn new(name: LockName) -> Self {
        Self { name, holders: Vec::new(), queue: Vec::new() }
    }

    /// Whether nobody holds it and nobody waits for it. Such a lock is [inspected](Inspect::inspect) as `None`.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }
}

/// One claim as the store sees it.
///
/// A driver starts with [`Contender::new`] and adds what its store tells:
///
/// ```
/// use dlock_core::{Contender, Kind};
/// use std::time::Duration;
/// let waiting = Contender::new("4711", Kind::Fair).ttl_left(Duration::from_secs(30)).who("pid 4711 on web-3");
/// assert_eq!(waiting.token, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Contender {
    /// The claim's id as the store shows it. The id of a claim of dlock begins with its [`ClaimId`](crate::ClaimId).
    pub id: String,
    /// How it holds or wants to hold.
    pub kind: Kind,
    /// Its fencing token, if it holds and the store tells.
    pub token: Option<Token>,
    /// How long ago it came, if the store tells.
    #[cfg_attr(feature = "serde", serde(with = "super::data::seconds"))]
    pub since: Option<Duration>,
    /// How long until the store forgets the claim, if its client stays silent. `None` if the store never would, or does not
    /// tell: only a client itself knows how long its session lasts.
    #[cfg_attr(feature = "serde", serde(with = "super::data::seconds"))]
    pub ttl_left: Option<Duration>,
    /// A description for people: `pid 4711 on web-3`.
    pub who: Option<String>,
}

impl Contender {
    /// A claim with only an id and a kind.
    pub fn new(id: impl Into<String>, kind: Kind) -> Self {
        Self { id: id.into(), kind, token: None, since: None, ttl_left: None, who: None }
    }

    /// Its fencing token.
    #[must_use]
    pub fn token(mut self, token: impl Into<Option<Token>>) -> Self {
        self.token = token.into();
        self
    }

    /// How long ago it came.
    #[must_use]
    pub fn since(mut self, ago: impl Into<Option<Duration>>) -> Self {
        self.since = ago.into();
        self
    }

    /// How long until the store forgets it, if it is not heard of.
    #[must_use]
    pub fn ttl_left(mut self, left: impl Into<Option<Duration>>) -> Self {
        self.ttl_left = left.into();
        self
    }

    /// Who it is in words.
    #[must_use]
    pub fn who(mut self, who: impl Into<String>) -> Self {
        self.who = Some(who.into());
        self
    }
}
