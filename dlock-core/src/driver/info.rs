//! What a store is and can do.

use std::{ops::RangeInclusive, time::Duration};

use super::{Error, Kind, Result, duration};

/// What a store is and can do. The engine refuses what is absent here before any I/O.
///
/// A driver starts with [`Info::new`] and adds what its store can do:
///
/// ```
/// use dlock_core::{Kind, driver::Info};
/// use std::time::Duration;
/// let info = Info::new("table", "table:jobs").kinds(&[Kind::Mutex]).tokens(true).ttl(Duration::from_millis(10)..=DAY);
/// # const DAY: Duration = Duration::from_secs(24 * 3600);
/// assert!(info.downgrades.is_empty());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// The store's name, as in its URL's scheme: `memory`, `sqlite`, `redis`.
    pub store: &'static str,
    /// Two clients of one store have the same identity, two stores never do. Holds no secret.
    pub identity: String,
    /// The kinds of claim it grants.
    pub kinds: &'static [Kind],
    /// Kinds that it does not grant, each with what to do instead: the end of the error that refuses the kind.
    pub instead: &'static [(Kind, &'static str)],
    /// Whether every grant carries a fencing token.
    pub tokens: bool,
    /// The kinds of hold that the store can turn into a read hold in one step, when a read claim with the same id asks (see
    /// [`Claim::attempt`](super::Claim::attempt)).
    pub downgrades: &'static [Kind],
    /// Whether it can keep a claim for a given time without its client ([`Claim::detach`](super::Claim::detach)): for
    /// [`LockOptions::at_least`](crate::LockOptions::at_least) and [tickets](crate::Ticket).
    pub detaches: bool,
    /// How many free locks it can grant in one step ([`Backend::attempt_all`](super::Backend::attempt_all)). One: it cannot.
    pub together: usize,
    /// Maximum number of [attempts](super::Claim::attempt) of one client that may be in flight at once. The engine keeps further
    /// attempts waiting, so that a crowd of waiters delays neither renewals nor releases, which are not counted.
    pub attempts_in_flight: usize,
    /// The shortest and the longest ttl it can keep.
    pub ttl: RangeInclusive<Duration>,
    /// The shortest and the longest [lease](crate::LockOptions::lease), and the longest time for which a claim can be
    /// detached.
    pub leases: RangeInclusive<Duration>,
    /// When the store forgets the claims of a silent client. `None`: when the claim's own ttl is over. `Some`: when the
    /// client's session ends, this long after the client's last sign of life. While the session lives, a claim that was not
    /// released stays.
    pub session: Option<Duration>,
}

impl Info {
    /// A store that grants a mutex without a token, for a ttl between a millisecond and ten years.
    pub fn new(store: &'static str, identity: impl Into<String>) -> Self {
        let lasting = Duration::from_millis(1)..=Duration::from_secs(10 * 365 * 24 * 3600);
        Self {
            store,
            identity: identity.into(),
            kinds: &[Kind::Mutex],
            instead: &[],
            tokens: false,
            downgrades: &[],
            detaches: false,
            together: 1,
            attempts_in_flight: 256,
            ttl: lasting.clone(),
            leases: lasting,
            session: None,
        }
    }

    /// The kinds of claim it grants. List the kinds that the driver knows one by one; do not pass [`Kind::ALL`], which may
    /// grow.
    #[must_use]
    pub fn kinds(mut self, kinds: &'static [Kind]) -> Self {
        self.kinds = kinds;
        self
    }

    /// What to do instead of asking for a kind that the store does not grant, where there is something to say.
    #[must_use]
    pub fn instead(mut self, instead: &'static [(Kind, &'static str)]) -> Self {
        self.instead = instead;
        self
    }

    /// Whether every grant carries a fencing token.
    #[must_use]
    pub fn tokens(mut self, tokens: bool) -> Self {
        self.tokens = tokens;
        self
    }

    /// The kinds of a hold that can be turned into a read hold.
    #[must_use]
    pub fn downgrades(mut self, kinds: &'static [Kind]) -> Self {
        self.downgrades = kinds;
        self
    }

    /// Whether it can keep a claim for a given time without its client.
    #[must_use]
    pub fn detaches(mut self, detaches: bool) -> Self {
        self.detaches = detaches;
        self
    }

    /// How many free locks it can grant in one step, all or none: for a driver that has
    /// [`attempt_all`](super::Backend::attempt_all). Default: one.
    #[must_use]
    pub fn together(mut self, most: usize) -> Self {
        self.together = most;
        self
    }

    /// Maximum number of attempts of one client in flight. Default: 256. At least one.
    #[must_use]
    pub fn attempts_in_flight(mut self, most: usize) -> Self {
        self.attempts_in_flight = most.max(1);
        self
    }

    /// The shortest and the longest ttl. The same limits hold for a lease, which in a store without sessions is a ttl that
    /// is not renewed.
    #[must_use]
    pub fn ttl(mut self, range: RangeInclusive<Duration>) -> Self {
        (self.ttl, self.leases) = (range.clone(), range);
        self
    }

    /// For a store in which a claim lives as long as its client's session: `timeout` is how long a dead client's claims
    /// stay. `leases` are the shortest and the longest lease. The engine ends a lease itself, and until then asks
    /// [`Claim::renew`](super::Claim::renew).
    #[must_use]
    pub fn session(mut self, timeout: Duration, leases: RangeInclusive<Duration>) -> Self {
        (self.session, self.leases) = (Some(timeout), leases);
        self
    }

    /// Refuses a kind that the store does not have. The engine asks this before any I/O.
    ///
    /// # Errors
    /// [`Error::Unsupported`], with the kinds that it has.
    pub fn check_kind(&self, kind: Kind) -> Result<()> {
        if self.kinds.contains(&kind) { Ok(()) } else { Err(self.unsupported(kind)) }
    }

    /// Refuses to keep a lock for `lasting` without its holder, if the store cannot. The engine asks this before any I/O.
    ///
    /// # Errors
    /// [`Error::Unsupported`], or [`Error::InvalidOptions`] if the time is not among [`leases`](Self::leases).
    pub fn check_detach(&self, lasting: Duration) -> Result<()> {
        if !self.detaches {
            let what = "keep a lock that its holder has left: its locks end with their holder's session; use another store \
                        for `at_least` and tickets";
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

    /// The error for a kind that the store does not have. A driver uses it in the last arm of a match on [`Kind`].
    pub fn unsupported(&self, kind: Kind) -> Error {
        let kinds: Vec<_> = self.kinds.iter().map(ToString::to_string).collect();
        let mut what = format!("lock for {kind}; it can for {}", kinds.join(", "));
        for (_, instead) in self.instead.iter().filter(|(lacks, _)| *lacks == kind) {
            what = format!("{what}; {instead}");
        }
        Error::Unsupported { store: self.store, what }
    }
}
