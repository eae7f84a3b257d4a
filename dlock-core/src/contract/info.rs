//! The capabilities of a store, as data.

use std::{any::Any, ops::RangeInclusive, sync::Arc, time::Duration};

use crate::model::{Error, Kind, Result, duration};

/// The name, identity and capabilities of a store. The engine refuses requests that the store does
/// not support before any I/O.
///
/// A driver starts with [`Info::new`] and adds the capabilities of its store:
///
/// ```
/// use dlock_core::{Kind, driver::Info};
/// use std::time::Duration;
/// # const DAY: Duration = Duration::from_secs(24 * 3600);
/// let ttl = Duration::from_millis(10)..=DAY;
/// let info = Info::new("table", "table:jobs").kinds(&[Kind::Mutex]).tokens(true).ttl(ttl);
/// assert!(info.downgrades.is_empty());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// Name of the store, as in its URL's scheme: `memory`, `sqlite`, `redis`.
    pub store: &'static str,
    /// Identity of the store. Two clients of one store have the same identity, and two stores never
    /// do. Holds no secret.
    pub identity: String,
    /// Kinds of claim that the store grants.
    pub kinds: &'static [Kind],
    /// Alternatives for kinds that the store does not grant. The error that refuses the kind ends
    /// with this text.
    pub alternatives: &'static [(Kind, &'static str)],
    /// Whether every grant carries a fencing token.
    pub tokens: bool,
    /// Kinds of hold that the store can turn into a read hold in one step, on the attempt of a read
    /// claim with the same id (see [`Claim::attempt`](super::Claim::attempt)).
    pub downgrades: &'static [Kind],
    /// Whether the store can keep a claim for a given time without its client
    /// ([`Claim::detach`](super::Claim::detach)). Required for
    /// [`LockOptions::at_least`](crate::LockOptions::at_least) and [tickets](crate::Ticket).
    pub detaches: bool,
    /// Whether clients can read the store's clock ([`Backend::clock`](super::Backend::clock)).
    /// Required for [`Locks::period_key`](crate::Locks::period_key).
    pub clock: bool,
    /// Maximum number of free locks that the store can grant in one step
    /// ([`Backend::attempt_all`](super::Backend::attempt_all)). 1 means not supported.
    pub locks_per_step: usize,
    /// Maximum number of first [attempts](super::Claim::attempt) of one client in flight. An
    /// attempt counts as the first until the store has replied to the claim. The engine queues
    /// further attempts, so that many waiters do not delay renewals. Renewals are not counted.
    pub attempts_in_flight: usize,
    /// Maximum number of repeated attempts of one client's waiters in flight. They are counted
    /// apart, so that waiters do not delay attempts for free locks.
    pub repeats_in_flight: usize,
    /// Maximum number of [releases](super::Claim::release) of one client's holds in flight. The
    /// releases of claims without a hold are counted apart, with the same maximum.
    pub releases_in_flight: usize,
    /// Longest time for which the store may still execute an attempt whose connection broke,
    /// counted from its send time. Zero if the store executes no such attempt
    /// ([`Claim::late_for`](super::Claim::late_for)).
    pub late_for: Duration,
    /// Shortest and longest ttl that the store supports.
    pub ttl: RangeInclusive<Duration>,
    /// Shortest and longest [lease](crate::LockOptions::lease), and the range of times for which a
    /// claim can be detached.
    pub leases: RangeInclusive<Duration>,
    /// Session timeout of a store whose claims live as long as their client's session. The store
    /// deletes the claims of a client this long after the last request that it has received from
    /// the client. Until then a claim that was not released stays. `None` in a store that deletes
    /// each claim after the claim's own ttl.
    pub session: Option<Duration>,
    /// Whether a claim also ends with its connection, before its ttl. The engine then renews a
    /// lease until its end, to detect the loss.
    pub ends_with_connection: bool,
    /// Data of the driver, which it finds again in the guards of its holds
    /// ([`HeldClaim::driver_data`](crate::driver::HeldClaim::driver_data)). The engine does not use
    /// it.
    pub driver_data: Option<Arc<dyn Any + Send + Sync>>,
}

impl Info {
    /// Longest ttl of a store that sets no limit of its own: ten years.
    pub const MAX_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

    /// Creates the description of a store that grants a mutex without a token, with a ttl between
    /// one millisecond and ten years.
    pub fn new(store: &'static str, identity: impl Into<String>) -> Self {
        let range = Duration::from_millis(1)..=Self::MAX_TTL;
        Self {
            store,
            identity: identity.into(),
            kinds: &[Kind::Mutex],
            alternatives: &[],
            tokens: false,
            downgrades: &[],
            detaches: false,
            clock: false,
            locks_per_step: 1,
            attempts_in_flight: 256,
            repeats_in_flight: 256,
            releases_in_flight: 256,
            late_for: Duration::ZERO,
            ttl: range.clone(),
            leases: range,
            session: None,
            ends_with_connection: false,
            driver_data: None,
        }
    }

    /// Sets the kinds of claim that the store grants. List the kinds that the driver knows one by
    /// one. Do not pass [`Kind::ALL`], which may grow.
    #[must_use]
    pub fn kinds(mut self, kinds: &'static [Kind]) -> Self {
        self.kinds = kinds;
        self
    }

    /// Sets alternatives for kinds that the store does not grant. A kind without a useful
    /// alternative needs no entry.
    #[must_use]
    pub fn alternatives(mut self, alternatives: &'static [(Kind, &'static str)]) -> Self {
        self.alternatives = alternatives;
        self
    }

    /// Sets whether every grant carries a fencing token. Default: false.
    #[must_use]
    pub fn tokens(mut self, tokens: bool) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets the kinds of hold that can be turned into a read hold. Default: none.
    #[must_use]
    pub fn downgrades(mut self, kinds: &'static [Kind]) -> Self {
        self.downgrades = kinds;
        self
    }

    /// Sets whether the store can keep a claim for a given time without its client. Default: false.
    #[must_use]
    pub fn detaches(mut self, detaches: bool) -> Self {
        self.detaches = detaches;
        self
    }

    /// Sets whether clients can read the store's clock. For a driver that implements
    /// [`clock`](super::Backend::clock). Default: false.
    #[must_use]
    pub fn clock(mut self, clock: bool) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the maximum number of free locks that the store can grant in one step, all or none. For
    /// a driver that implements [`attempt_all`](super::Backend::attempt_all). Default: 1.
    #[must_use]
    pub fn locks_per_step(mut self, most: usize) -> Self {
        self.locks_per_step = most;
        self
    }

    /// Sets the maximum number of first attempts of one client in flight, and that of repeated
    /// attempts. Default: 256. A value of 0 counts as 1.
    #[must_use]
    pub fn attempts_in_flight(mut self, most: usize) -> Self {
        self.attempts_in_flight = most.max(1);
        self.repeats_in_flight = self.attempts_in_flight;
        self
    }

    /// Sets the maximum number of repeated attempts of one client in flight, for a driver that
    /// gathers them. Call it after [`attempts_in_flight`](Self::attempts_in_flight), which is the
    /// default. A value of 0 counts as 1.
    #[must_use]
    pub fn repeats_in_flight(mut self, most: usize) -> Self {
        self.repeats_in_flight = most.max(1);
        self
    }

    /// Sets the maximum number of releases of one client's holds in flight, and that of its other
    /// releases. Default: 256. A value of 0 counts as 1.
    #[must_use]
    pub fn releases_in_flight(mut self, most: usize) -> Self {
        self.releases_in_flight = most.max(1);
        self
    }

    /// Sets the longest time for which the store may execute an attempt whose connection broke. For
    /// a driver that implements [`Claim::late_for`](super::Claim::late_for). Default: zero.
    #[must_use]
    pub fn late_for(mut self, limit: Duration) -> Self {
        self.late_for = limit;
        self
    }

    /// Sets the shortest and the longest ttl. The same limits apply to a lease, which in a store
    /// without sessions is a ttl that is not renewed.
    #[must_use]
    pub fn ttl(mut self, range: RangeInclusive<Duration>) -> Self {
        (self.ttl, self.leases) = (range.clone(), range);
        self
    }

    /// Sets [`ends_with_connection`](Self::ends_with_connection).
    #[must_use]
    pub fn ends_with_connection(mut self, ends: bool) -> Self {
        self.ends_with_connection = ends;
        self
    }

    /// Sets the session timeout, and the shortest and the longest lease, of a store whose claims
    /// live as long as their client's session. The claims of a dead client stay for the timeout.
    /// The engine ends a lease itself, and calls [`Claim::renew`](super::Claim::renew) until then.
    #[must_use]
    pub fn session(mut self, timeout: Duration, leases: RangeInclusive<Duration>) -> Self {
        (self.session, self.leases) = (Some(timeout), leases);
        self
    }

    /// Sets data that the driver finds again in the guards of its holds. For a driver that verifies
    /// a hold inside a transaction of the user. Default: none.
    #[must_use]
    pub fn driver_data(mut self, data: impl Any + Send + Sync) -> Self {
        self.driver_data = Some(Arc::new(data));
        self
    }

    /// Checks that the store grants this kind. The engine calls it before any I/O.
    ///
    /// # Errors
    /// [`Error::Unsupported`], which lists the supported kinds.
    pub fn check_kind(&self, kind: Kind) -> Result<()> {
        if self.kinds.contains(&kind) { Ok(()) } else { Err(self.unsupported(kind)) }
    }

    /// Checks that the store can keep a lock for `lasting` without its holder. The engine calls it
    /// before any I/O.
    ///
    /// # Errors
    /// [`Error::Unsupported`], or [`Error::InvalidOptions`] if the time is not within
    /// [`leases`](Self::leases).
    pub fn check_detach(&self, lasting: Duration) -> Result<()> {
        if !self.detaches {
            let what = "keep a lock without its holder, because its locks end with the holder's session; use another \
                        store for `at_least` and tickets";
            return Err(Error::Unsupported { store: self.store, what: what.to_owned() });
        }
        if !self.leases.contains(&lasting) {
            let [least, most, lasting] =
                [*self.leases.start(), *self.leases.end(), lasting].map(duration::text);
            let reason = format!(
                "{} keeps a lock without its holder for {least} to {most}, not for {lasting}",
                self.store
            );
            return Err(Error::InvalidOptions { reason });
        }
        Ok(())
    }

    /// Returns the error for a kind that the store does not support. A driver uses it in the last
    /// arm of a match on [`Kind`].
    pub fn unsupported(&self, kind: Kind) -> Error {
        let kinds: Vec<_> = self.kinds.iter().map(ToString::to_string).collect();
        let mut what = format!("grant locks of kind {kind}; it supports {}", kinds.join(", "));
        for (_, alternative) in self.alternatives.iter().filter(|(unsupported, _)| *unsupported == kind) {
            what = format!("{what}; {alternative}");
        }
        Error::Unsupported { store: self.store, what }
    }
}
