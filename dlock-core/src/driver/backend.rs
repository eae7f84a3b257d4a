//! The driver contract: what a store must be able to do, and nothing else.
//!
//! Six methods stand between a store and the engine: [`Backend::info`] and [`Backend::claim`], and four of
//! [`Claim`]. [`Claim::detach`] is for stores that can keep a claim without its client, and [`Backend::attempt_all`] for
//! those that can grant several locks in one step. Waiting, time-outs, cancellation, renewal, loss and reentrancy are the
//! engine's.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{ClaimId, Entry, Error, Info, Inspect, Kind, LockName, Result, Token, Wait, Who};

/// What a claim asks for.
///
/// The engine makes it, and so do tests and drivers that wrap another; later versions may add to it. A driver takes from it
/// what it needs: `let Request { name, id, ttl, .. } = &request;`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The lock. One name is one lock, whatever the kind.
    pub name: LockName,
    /// How to hold it.
    pub kind: Kind,
    /// Names this claim; new for every acquisition. It begins with the [key](Who::key) of `who`.
    pub id: ClaimId,
    /// The store must forget the claim this long after it last heard of it.
    pub ttl: Duration,
    /// How long the caller will wait. For stores that treat a single try differently, or store how long a waiter will wait.
    /// The engine measures this time; a driver never does.
    pub wait: Wait,
    /// Whether the caller wants the fencing token. `false` for the members of a [`RedLock`](crate::RedLock): a store that
    /// must store something for each name to draw tokens should then grant without one. Other stores may ignore it.
    pub wants_token: bool,
    /// How many claims may hold together: the number of permits, as this claim says. Counts for [`Kind::Permit`] only, and
    /// is 1 unless it is set. Claims of one name may say different numbers: see [`turn`](super::turn).
    pub limit: NonZeroU32,
    /// Who asks, in words: for people who look into the store. A driver stores it with the claim, or beside it under its
    /// [key](Who::key), and shows it as [`Contender::who`](crate::Contender::who).
    pub who: Who,
    /// What [`Claim::mark`] gave when the claim was detached, if the claim is to be taken back.
    pub mark: Option<Arc<str>>,
}

impl Request {
    /// A request of [this process](Who::here), with a [new id](ClaimId::of), of a caller who waits for ever. A permit has a
    /// limit of one.
    pub fn new(name: LockName, kind: Kind, ttl: Duration) -> Self {
        Self::by(Who::here(), name, kind, ttl)
    }

    /// The same by somebody else.
    pub fn by(who: Who, name: LockName, kind: Kind, ttl: Duration) -> Self {
        let (wait, limit) = (Wait::Forever, NonZeroU32::MIN);
        Self { name, kind, id: ClaimId::of(&who), ttl, wait, wants_token: true, limit, who, mark: None }
    }

    /// The claim's place in a queue.
    pub const fn entry(&self) -> Entry {
        Entry::new(self.id, self.kind).limit(self.limit)
    }

    /// The same for another claim.
    #[must_use]
    pub fn id(mut self, id: ClaimId) -> Self {
        self.id = id;
        self
    }

    /// The same with another ttl.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The same for a caller who does not want the token.
    #[must_use]
    pub fn without_token(mut self) -> Self {
        self.wants_token = false;
        self
    }

    /// The same with another number of permits.
    #[must_use]
    pub fn limit(mut self, limit: NonZeroU32) -> Self {
        self.limit = limit;
        self
    }

    /// The same for a detached claim that had this [mark](Claim::mark).
    #[must_use]
    pub fn mark(mut self, mark: Option<Arc<str>>) -> Self {
        self.mark = mark;
        self
    }

    /// The same for a caller who waits for so long.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }
}

/// A connected store. Cheap to share. Holds connections, and no state of locks.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What the store is and can do. Never changes.
    fn info(&self) -> &Info;

    /// Prepares a claim. Does no I/O: nothing is in the store before the first [`Claim::attempt`].
    fn claim(&self, request: Request) -> Box<dyn Claim>;

    /// Grants all these requests in one step, or none of them. Each has another name, the wait [`Wait::Never`], and a kind
    /// that waits for everybody ahead of it: [`Kind::Mutex`], [`Kind::Fair`] or [`Kind::Write`]. So the step succeeds if nobody
    /// holds or waits for any of the names.
    ///
    /// The engine calls it for a [`MultiLock`](crate::MultiLock), only if [`Info::together`] is above one, and with that many
    /// requests at the most. A task of the engine waits for the answer to the end, as with [`Claim::attempt`]. Like every call
    /// it must end by itself.
    ///
    /// After [`Together::Busy`] nothing of the requests is in the store. After [`Together::Granted`] each claim is as if its own
    /// `attempt` had been granted.
    ///
    /// # Errors
    /// The outcome is unknown. The engine then makes a claim of each request with [`claim`](Self::claim), and calls its
    /// `attempt` or its `release`. That claim must find what this call may have left in the store: its `attempt` gets the grant,
    /// its `release` removes it.
    async fn attempt_all(&self, requests: Vec<Request>) -> Result<Together> {
        let what = format!("grant {} locks in one step", requests.len());
        Err(Error::Unsupported { store: "this driver", what })
    }

    /// Ends the client's business with the store, in this order: waits for calls under way, then ends sessions and leases,
    /// then connections. The engine calls it once the last claim has been released. Default: nothing; dropping the backend
    /// ends its connections.
    ///
    /// Must end by itself even if the store does not answer: within the session's time-out, or within seconds.
    async fn close(&self) {}
}

/// One contender's stake in one lock: waiting, then held, then gone.
///
/// One keeper task is the only caller. It calls one method at a time and never drops `attempt`, `renew`, `detach`, `resume`
/// or `release` in flight, unless its runtime is shut down. Each must end by itself, so each bounds its own I/O.
///
/// # Late requests
/// A driver that stops waiting for a reply cannot recall the request: the store may execute it at any later time, also after
/// newer requests. A late execution must not shorten, extend, free or create a hold. A `release` and a `renew` are made safe
/// by the claim's id, which no other claim ever has, and by the rule that a renewal never shortens. An `attempt`, a `detach`
/// and a `resume` need a condition that fails once the caller has given up: a deadline on the store's clock, a revision, or
/// the order of the connection's requests.
#[async_trait]
pub trait Claim: Send + 'static {
    /// Asks for the lock, the first time or again, and keeps a waiting claim alive for another ttl.
    ///
    /// Idempotent: a claim that holds the lock already, because the last reply was lost, gets the same grant.
    /// After [`Attempt::Busy`] to a request whose wait is [`Wait::Never`] nothing is left in the store.
    ///
    /// If the claim is a read claim, and its id holds the lock in a kind that [`Info::downgrades`] names, the store turns
    /// that hold into a read hold: with the same token, and without a moment in which the lock is free. If that answer is
    /// lost, the engine goes on with the claim that asked for the other kind: its `renew` and `release` must be right for
    /// the read hold too.
    ///
    /// # Errors
    /// The outcome is unknown, and `release` must be right all the same.
    async fn attempt(&mut self) -> Result<Attempt>;

    /// Extends a held claim by its ttl, or finds that the claim is gone. Never puts a claim into the store.
    ///
    /// # Errors
    /// Whether the claim was extended is then unknown. It is not lost: it stays the holder's until its deadline.
    async fn renew(&mut self) -> Result<Renewal>;

    /// Removes every trace of the claim, waiting or held, and wakes the waiters whose turn that may make it.
    ///
    /// Idempotent; right even if the outcome of `attempt` is unknown; never touches another claim. Tells whether there was
    /// anything to remove: a holder whose claim is [`Gone`](Release::Gone) is told that it had lost the lock.
    ///
    /// If the claim's session is over, the answer is `Gone`: the session's end has removed the claim.
    ///
    /// # Errors
    /// The release is not confirmed. The keeper repeats it until the store has confirmed it or has forgotten the claim by
    /// itself ([`Info::session`]). A `Gone` after that is no loss: the failed release may have removed the claim.
    async fn release(&mut self) -> Result<Release>;

    /// Hands a held claim over to `ticket`, an id that no client uses: from now on the store knows the hold by that id only,
    /// keeps it for `lasting` from now, and needs no renewal for that. Neither the end of the client nor that of its session
    /// ends it. Returns `Lost` if the claim is gone, and never creates a hold.
    ///
    /// Idempotent: if the store knows the hold as `ticket` already, the call extends its time to `lasting` from now, and never
    /// shortens it. The change of the id makes late requests harmless: a renewal or a release of the old holder that is executed
    /// later finds nothing. The request itself needs a [condition](#late-requests) too.
    ///
    /// After this call, whatever its outcome, `release` removes the hold under either id, and [`resume`](Self::resume) with the
    /// same `ticket` takes it back. The engine calls `detach` only if [`Info::detaches`] is true, with a time within
    /// [`Info::leases`], and draws `ticket` with [`ClaimId::of`] for the [`who`](Request::who) of the request.
    ///
    /// # Errors
    /// Whether the claim was detached is then unknown.
    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let _ = ticket;
        let what = format!("keep a lock for {lasting:?} without its holder");
        Err(Error::Unsupported { store: "this driver", what })
    }

    /// Takes a detached hold over: the store knows it as this claim from now on, with this claim's ttl and client, and no
    /// longer as `ticket`. So only one of several clients that use one ticket gets the hold.
    ///
    /// Idempotent: a claim that holds already is `Resumed`. Returns `Gone` if neither this claim nor `ticket` is a hold of the
    /// name: a claim that only waits is not. The engine calls it on a claim that has never made another call, with the name,
    /// the kind and the [mark](Request::mark) of the ticket, or on a claim whose `detach` has failed. The request needs a
    /// [condition](#late-requests) against late execution.
    ///
    /// # Errors
    /// Whether the hold was taken over is then unknown. The engine repeats the call, or hands the hold back to its ticket with
    /// `detach`, which must be right for a hold that was taken over and for one that was not.
    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let what = format!("take back a lock that was detached as {ticket}");
        Err(Error::Unsupported { store: "this driver", what })
    }

    /// What another client needs beside the id to find a detached claim, as one word of ASCII letters, digits and dots. It
    /// gets it back as [`Request::mark`]. Most drivers need nothing.
    fn mark(&self) -> Option<Arc<str>> {
        None
    }

    /// Ends when it is worth asking the store again: a waiting claim's turn may have come, or a held claim may be lost.
    ///
    /// Only a hint: it may fire without cause, late, or never. It may be dropped at any await.
    async fn changed(&mut self);
}

/// The answer to an [`attempt`](Claim::attempt).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The claim holds the lock.
    Granted(Grant),
    /// Somebody else is first.
    Busy {
        /// When to ask again even without a hint, for example when the holder's ttl ends.
        retry_in: Duration,
    },
}

/// The answer to [`attempt_all`](Backend::attempt_all).
pub enum Together {
    /// Every claim holds its lock. In the order of the requests.
    Granted(Vec<(Box<dyn Claim>, Grant)>),
    /// Somebody holds or waits for the lock of one request. This is the place of the first such request in the list.
    Busy(usize),
}

impl fmt::Debug for Together {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted(claims) => f.debug_list().entries(claims.iter().map(|(_, grant)| grant)).finish(),
            Self::Busy(at) => f.debug_tuple("Busy").field(at).finish(),
        }
    }
}

/// What a granted claim gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Greater than every token granted before for this name. `None` if the store cannot promise that. May be `None` too if
    /// the request does not [want](Request::wants_token) a token.
    pub token: Option<Token>,
    /// How long the holder may go without a renewal, counted from before the request was sent.
    pub valid_for: Duration,
}

/// The answer to a [`renew`](Claim::renew).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still ours.
    Renewed {
        /// How long the holder may go without the next renewal, counted from before the request was sent.
        valid_for: Duration,
    },
    /// The store says that the claim is gone.
    Lost,
}

/// The answer to a [`resume`](Claim::resume).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumption {
    /// The claim holds the lock.
    Resumed {
        /// As for an [`attempt`](Claim::attempt). The token is the one of the first grant, or `None` if the store does not
        /// keep it with the hold: the engine then uses the token of the ticket.
        grant: Grant,
        /// How long the store would still have kept the detached hold. `None` if this is not known, as for a claim that
        /// holds already. If the caller has gone, the engine hands the hold back for this time.
        remaining: Option<Duration>,
    },
    /// No hold has the ticket's id or that of this claim: its time is over, it was released, or another client has taken it
    /// over.
    Gone,
}

/// The answer to a [`release`](Claim::release). For a claim that only waited, both answers are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The claim was there, or may have been; now it is not.
    Done,
    /// The store says that nothing of the claim was there any more. A driver that may have sent the request more than once
    /// says `Done`: it may have removed the claim itself.
    Gone,
}

/// A connected backend with the optional abilities its store has.
#[derive(Clone, Debug)]
pub struct Store {
    /// The driver.
    pub backend: Arc<dyn Backend>,
    /// Looking into the store and breaking locks, if it can do that.
    pub inspect: Option<Arc<dyn Inspect>>,
}

impl Store {
    /// A store that can only lock.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, inspect: None }
    }

    /// Adds the ability to look into the store.
    #[must_use]
    pub fn with_inspect(mut self, inspect: Arc<dyn Inspect>) -> Self {
        self.inspect = Some(inspect);
        self
    }
}
