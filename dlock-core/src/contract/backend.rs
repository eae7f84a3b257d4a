//! The driver contract: the operations that a store must provide.
//!
//! A driver implements six methods: [`Backend::info`] and [`Backend::claim`], and the four required
//! methods of [`Claim`]. Ten more have defaults: [`Backend::close`], [`Backend::watch`] for stores
//! that can notify observers, [`Backend::clock`] for stores with a clock that clients can read,
//! [`Backend::attempt_all`] for stores that can grant several locks in one step, and
//! [`Claim::detach`], [`Claim::resume`] and [`Claim::locator`] for stores that can keep a claim
//! without its client. [`Claim::late_for`] is for stores that refuse late requests by a deadline,
//! [`Claim::may_be_stored`] for drivers that know whether a request was sent, and [`Claim::leave`]
//! for drivers that renew several claims in one call. The engine implements waiting, timeouts,
//! cancellation, renewal, loss and re-entry.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{Entry, Info, Inspect, Watch};
use crate::model::{ClaimId, Error, Kind, LockName, Result, Token, Wait, Who, duration};

/// The parameters of a claim.
///
/// The engine creates requests, and so do tests and drivers that wrap other drivers. Later versions
/// may add fields. A driver takes the fields that it needs:
/// `let Request { name, id, ttl, .. } = &request;`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The lock. A name identifies one lock, whatever the kind.
    pub name: LockName,
    /// Kind in which the claim requests and holds the lock.
    pub kind: Kind,
    /// Id of the claim, new for every acquisition. It begins with the [key](Who::key) of the label
    /// for which it was drawn. That is `who`, except in a release by ticket.
    pub id: ClaimId,
    /// Time after which the store must forget the claim, counted from the last request for it.
    pub ttl: Duration,
    /// Wait limit of the caller. For stores that handle a single try differently, or that record
    /// the wait limit. The engine enforces the limit; a driver never does.
    pub wait: Wait,
    /// Whether the caller wants the fencing token. `false` for the members of a
    /// [`RedLock`](crate::RedLock). A store that must keep a record for each name to draw tokens
    /// should then grant without a token. Other stores may ignore the field.
    pub wants_token: bool,
    /// Maximum number of claims that may hold together, according to this claim: the number of
    /// permits. Applies to [`Kind::Permit`] only. Default: 1. Claims of one name may have different
    /// limits, see [`turn`](super::turn).
    pub limit: NonZeroU32,
    /// Label of the claim, for people who look into the store. A driver stores it with the claim,
    /// or separately under its [key](Who::key), and reports it as
    /// [`Contender::who`](crate::Contender::who).
    pub who: Who,
    /// Result of [`Claim::locator`] from the time when the claim was detached. `None` unless the
    /// claim is to be resumed or released by its ticket.
    pub locator: Option<Arc<str>>,
    /// Whether the claim is a candidate of an [`Election`](crate::Election). Only for stores in
    /// which other programs have elections too, and store their candidates differently from locks.
    /// Other stores ignore the field.
    pub is_candidate: bool,
}

impl Request {
    /// Creates a request of [this process](Who::this_process) with a [new
    /// id](ClaimId::random_for). The caller waits forever, and a permit has a limit of one.
    pub fn new(name: LockName, kind: Kind, ttl: Duration) -> Self {
        Self::by(Who::this_process(), name, kind, ttl)
    }

    /// Creates a request as [`new`](Self::new) does, with the label `who`.
    pub fn by(who: Who, name: LockName, kind: Kind, ttl: Duration) -> Self {
        let (wait, limit) = (Wait::Forever, NonZeroU32::MIN);
        Self {
            name,
            kind,
            id: ClaimId::random_for(&who),
            ttl,
            wait,
            wants_token: true,
            limit,
            who,
            locator: None,
            is_candidate: false,
        }
    }

    /// Returns the claim's entry in the queue of its lock.
    pub const fn entry(&self) -> Entry {
        Entry::new(self.id, self.kind).limit(self.limit)
    }

    /// Sets the id of the claim.
    #[must_use]
    pub fn id(mut self, id: ClaimId) -> Self {
        self.id = id;
        self
    }

    /// Sets the ttl.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Allows the store to grant without a fencing token.
    #[must_use]
    pub fn without_token(mut self) -> Self {
        self.wants_token = false;
        self
    }

    /// Sets the number of permits.
    #[must_use]
    pub fn limit(mut self, limit: NonZeroU32) -> Self {
        self.limit = limit;
        self
    }

    /// Makes the claim a candidate of an election.
    #[must_use]
    pub fn candidate(mut self) -> Self {
        self.is_candidate = true;
        self
    }

    /// Sets the [locator](Claim::locator) of a detached claim.
    #[must_use]
    pub fn locator(mut self, locator: Option<Arc<str>>) -> Self {
        self.locator = locator;
        self
    }

    /// Sets the wait limit.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Returns the time limit of one call for this claim, where `timeout` is the driver's own
    /// limit: the shorter of `timeout` and a third of the ttl. By default the first renewal starts
    /// after a third of the ttl. If it fails at its limit, one more renewal of that length fits
    /// before the claim expires.
    pub fn time_limit(&self, timeout: Duration) -> Duration {
        timeout.min(self.ttl / 3)
    }
}

/// A connected store, which all claims of a client share.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Returns the name and the capabilities of the store. The result never changes.
    fn info(&self) -> &Info;

    /// Creates a claim. Does no I/O: the store has no entry of the claim before the first
    /// [`Claim::attempt`].
    fn claim(&self, request: Request) -> Box<dyn Claim>;

    /// Grants all these requests in one step, or none of them.
    ///
    /// The names of the requests differ. Each request has the wait limit [`Wait::Never`], and a
    /// kind that waits for all claims ahead of it: [`Kind::Mutex`], [`Kind::Fair`] or
    /// [`Kind::Write`]. The step therefore succeeds if no claim holds or waits for any of the
    /// names.
    ///
    /// The engine calls this method for a [`MultiLock`](crate::MultiLock), only if
    /// [`Info::locks_per_step`] is above one, and with at most that many requests. As with
    /// [`Claim::attempt`], the engine never drops the call in flight, so the call must end by
    /// itself.
    ///
    /// After [`AttemptAll::Busy`] the store has no entry of any of the requests. After
    /// [`AttemptAll::Granted`] each claim is in the state that a granted `attempt` would have left.
    ///
    /// # Errors
    /// The outcome is unknown. The engine then creates a claim for each request with
    /// [`claim`](Self::claim), and calls its `attempt` or its `release`. The new claim must find
    /// the entry that this call may have left in the store: its `attempt` returns the grant, and
    /// its `release` removes the entry.
    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        let what = format!("grant {} locks in one step", requests.len());
        Err(Error::Unsupported { store: "this driver", what })
    }

    /// Returns the time since 1970 on the store's clock, which all clients of the store share. In a
    /// store of several servers, their clocks may differ.
    ///
    /// The engine calls this method only if [`Info::clock`] is true. The call must bound its own
    /// I/O. No decision about a claim depends on the result.
    ///
    /// # Errors
    /// If the store cannot be reached. Default: [`Error::Unsupported`].
    async fn clock(&self) -> Result<Duration> {
        Err(Error::Unsupported { store: "this driver", what: "tell its clients the time".to_owned() })
    }

    /// Returns a source of hints that the holder of a lock may have changed, for observers. Does no
    /// I/O before the first call of [`Watch::changed`]. A watch has no claim. It must not appear in
    /// the queue of the lock or delay any claim.
    ///
    /// Default: `None`. The engine then inspects the lock every third of a ttl, at most once a
    /// second, and when the claim of the holder ends. With a watch it inspects the lock at each
    /// hint, too.
    fn watch(&self, name: &LockName) -> Option<Box<dyn Watch>> {
        let _ = name;
        None
    }

    /// Shuts the client down in this order: waits for calls in flight, then ends sessions and
    /// leases, then closes connections. The engine calls it after the last claim was released.
    /// Default: nothing, because dropping the backend closes its connections.
    ///
    /// Must end by itself within the session's timeout or within seconds, even if the store does
    /// not reply.
    async fn close(&self) {}
}

/// The entry of one contender in one lock: waiting, held or deleted.
///
/// One keeper task is the only caller. It calls one method at a time and never drops `attempt`,
/// `renew`, `detach`, `resume` or `release` in flight, unless its runtime is shut down. Each call
/// must end by itself, so each driver bounds its own I/O.
///
/// # Late requests
/// A driver that stops waiting for a reply cannot recall the request. The store may execute it at
/// any later time, even after newer requests. A late execution must not shorten, extend, free or
/// create a hold. A `release` and a `renew` are safe because no other claim ever has the claim's
/// id, and because a renewal never shortens a hold. An `attempt`, a `detach` and a `resume` need a
/// condition that fails once the caller has given up: a deadline on the store's clock, a revision,
/// or the order of the connection's requests. A driver that uses a deadline may return from a call
/// before that deadline has passed. It then reports the remaining time as
/// [`late_for`](Claim::late_for).
#[async_trait]
pub trait Claim: Send + 'static {
    /// Requests the lock, for the first time or again, and keeps a waiting claim alive for another
    /// ttl.
    ///
    /// Idempotent: the result is the same grant if the claim already holds the lock because the
    /// last reply was lost. After [`Attempt::Busy`] for the wait limit [`Wait::Never`] the store
    /// has no entry of the claim.
    ///
    /// If the claim is a read claim, and its id holds the lock in a kind that [`Info::downgrades`]
    /// lists, the store turns that hold into a read hold. The token stays the same, and the lock is
    /// never free in between. If the reply to this downgrade is lost, the engine continues with the
    /// claim object of the former kind. The `renew` and `release` of that object must therefore
    /// work on the read hold too.
    ///
    /// # Errors
    /// The outcome is unknown. `release` must work in both cases.
    async fn attempt(&mut self) -> Result<Attempt>;

    /// Extends a held claim by its ttl, or reports that the claim was deleted. Never creates a
    /// claim in the store.
    ///
    /// # Errors
    /// The outcome is unknown. The claim is not lost: it holds the lock until its deadline.
    async fn renew(&mut self) -> Result<Renewal>;

    /// Removes every trace of the claim, waiting or held, and wakes the waiters whose turn may have
    /// come.
    ///
    /// Idempotent. Works if the outcome of `attempt` is unknown. Never touches another claim. The
    /// result says whether there was an entry to remove: on [`Gone`](Release::Gone) the engine
    /// reports to the holder that the lock had been lost.
    ///
    /// From [`leave`](Self::leave) or the first call on, the driver must not renew the claim, not
    /// even in a call for other claims. The keeper relies on the claim's expiry if the release
    /// fails, or cannot be sent for longer than the ttl.
    ///
    /// If the claim's session has ended, the result is `Gone`, because the end of the session has
    /// removed the claim.
    ///
    /// # Errors
    /// The release is not confirmed. The keeper repeats it until the store has confirmed it or has
    /// forgotten the claim by itself ([`Info::session`]). A `Gone` after a failed release is not a
    /// loss, because the failed release may have removed the claim.
    async fn release(&mut self) -> Result<Release>;

    /// Announces the [release](Self::release). The engine calls it once, before it waits until
    /// fewer than [`Info::releases_in_flight`] releases are in flight. No renewal may follow.
    /// Default: nothing, which suits drivers that renew a claim only in [`renew`](Self::renew).
    /// Must not block.
    fn leave(&mut self) {}

    /// Hands a held claim over to `ticket`, an id that no client uses.
    ///
    /// From then on the store knows the hold by that id only, keeps it for `lasting` from now, and
    /// needs no renewal for that. The hold survives the end of the client and of its session.
    /// Returns `Lost` if the claim was deleted, and never creates a hold.
    ///
    /// Idempotent: if the store knows the hold as `ticket` already, the call extends its time to
    /// `lasting` from now, and never shortens it. The new id makes late requests harmless, because
    /// a late renewal or release of the old holder finds no claim. The request itself needs a
    /// [condition](#late-requests) too.
    ///
    /// After this call, also after an error, `release` removes the hold under either id, and
    /// [`resume`](Self::resume) with the same `ticket` resumes the hold. After `Lost`, `release`
    /// must not remove a hold known as `ticket`. Another claim may have resumed it from the ticket,
    /// and may return it to the ticket later.
    ///
    /// The engine calls `detach` only if [`Info::detaches`] is true, and with a time within
    /// [`Info::leases`]. It draws `ticket` with [`ClaimId::random_for`] for the
    /// [`who`](Request::who) of the request.
    ///
    /// # Errors
    /// The outcome is unknown.
    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let _ = ticket;
        let what = format!("keep a lock for {} without its holder", duration::text(lasting));
        Err(Error::Unsupported { store: "this driver", what })
    }

    /// Takes over a detached hold: from then on the store knows it as this claim, with this claim's
    /// ttl and client, and no longer as `ticket`. If several clients use one ticket, one of them
    /// gets the hold.
    ///
    /// Idempotent: the result for a claim that already holds is `Resumed`. Returns `Gone` if
    /// neither this claim nor `ticket` holds the lock; a waiting claim does not count. The engine
    /// calls `resume` either on a claim whose `detach` has failed, or as the first call on a new
    /// claim with the name, the kind and the [locator](Request::locator) of the ticket. The request
    /// needs a [condition](#late-requests) against late execution.
    ///
    /// # Errors
    /// The outcome is unknown. The engine repeats the call, or returns the hold to its ticket with
    /// `detach`, which must work whether or not the hold was taken over.
    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let what = format!("take back a lock that was detached as {ticket}");
        Err(Error::Unsupported { store: "this driver", what })
    }

    /// Returns the information that another client needs, beside the id, to find the claim once it
    /// is detached: one word of ASCII letters, digits and dots. The other client receives it as
    /// [`Request::locator`]. Default: `None`, which suits most drivers.
    fn locator(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns whether the store may have received an `attempt` of this claim object. Default:
    /// true.
    ///
    /// A driver returns `false` if it knows that no attempt was sent, because no connection could
    /// be opened for example. The engine then drops the claim without a release. An outage
    /// therefore leaves no releases behind for attempts that never reached the store.
    fn may_be_stored(&self) -> bool {
        true
    }

    /// Returns the time from now for which the store may still execute an earlier `attempt`,
    /// `resume` or `detach` of this claim that the driver no longer waits for. Default: zero.
    ///
    /// The time is above zero if the connection of a request broke before the request's deadline,
    /// whether the driver then sends the request once more or returns an error. After the end of
    /// the claim the engine waits for this time. Then it removes what such a request has created:
    /// it releases a new claim object with the same [`Request`], or returns the hold to its ticket
    /// with [`detach`](Self::detach). A driver that implements this method also sets
    /// [`Info::late_for`].
    fn late_for(&self) -> Duration {
        Duration::ZERO
    }

    /// Waits for a hint that another request to the store may have a new result: a waiting claim
    /// may have its turn, or a held claim may be lost.
    ///
    /// The hint may be unfounded, late, or missing.
    ///
    /// # Cancel safety
    /// The engine drops the future at any await point, so the method must be cancel safe.
    async fn changed(&mut self);
}

/// Result of an [`attempt`](Claim::attempt).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The claim holds the lock.
    Granted(Grant),
    /// Another claim holds the lock or is ahead in the queue.
    Busy {
        /// Time until the next attempt if no hint arrives, for example the rest of the holder's
        /// ttl.
        retry_in: Duration,
    },
}

/// Result of an [`attempt_all`](Backend::attempt_all).
pub enum AttemptAll {
    /// Every claim holds its lock. In the order of the requests.
    Granted(Vec<(Box<dyn Claim>, Grant)>),
    /// Index of the first request whose lock another claim holds or waits for.
    Busy(usize),
}

impl fmt::Debug for AttemptAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted(claims) => f.debug_list().entries(claims.iter().map(|(_, grant)| grant)).finish(),
            Self::Busy(at) => f.debug_tuple("Busy").field(at).finish(),
        }
    }
}

/// Terms on which a claim holds its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Fencing token, greater than every token granted before for this name. `None` if the store
    /// cannot promise that, or if the request does not [want](Request::wants_token) a token.
    pub token: Option<Token>,
    /// Time until the holder must have renewed the claim, counted from before the request was sent.
    pub valid_for: Duration,
}

/// Result of a [`renew`](Claim::renew) or a [`detach`](Claim::detach).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The claim still holds the lock.
    Renewed {
        /// Time until the next renewal must have succeeded, counted from before the request was
        /// sent.
        valid_for: Duration,
    },
    /// The store reports that the claim was deleted.
    Lost,
}

/// Result of a [`resume`](Claim::resume).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumption {
    /// The claim holds the lock.
    Resumed {
        /// Terms of the hold, as for an [`attempt`](Claim::attempt). The token is the one of the
        /// first grant, or `None` if the store does not keep it with the hold. The engine then uses
        /// the token of the ticket.
        grant: Grant,
        /// Time for which the store would still have kept the detached hold. `None` if unknown, as
        /// for a claim that already holds. If the caller has left, the engine returns the hold to
        /// its ticket for this time.
        remaining: Option<Duration>,
    },
    /// No hold has the id of the ticket or of this claim. The hold has expired, was released, or
    /// was taken over by another client.
    Gone,
}

/// Result of a [`release`](Claim::release). For a claim that only waited, both results are correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The claim was in the store, or may have been, and is deleted now.
    Done,
    /// The store reports that no trace of the claim was left. A driver that may have sent the
    /// request more than once returns `Done` instead, because its first request may have removed
    /// the claim.
    Gone,
}

/// A connected backend with the optional capabilities of its store.
#[derive(Clone, Debug)]
pub struct Store {
    /// The driver.
    pub backend: Arc<dyn Backend>,
    /// Inspection of the store and forced release, if supported.
    pub inspect: Option<Arc<dyn Inspect>>,
}

impl Store {
    /// Creates a store without inspection.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, inspect: None }
    }

    /// Adds inspection of the store.
    #[must_use]
    pub fn with_inspect(mut self, inspect: Arc<dyn Inspect>) -> Self {
        self.inspect = Some(inspect);
        self
    }
}
