//! The driver contract: what a store must be able to do, and nothing else.
//!
//! Six methods stand between a store and the engine: [`Backend::info`] and [`Backend::claim`], and the
//! four of [`Claim`]. Waiting, time-outs, cancellation, renewal, loss and reentrancy are the engine's.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{ClaimId, Info, Inspect, Kind, LockName, Result, Token, Wait};

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
    /// Names this claim; new for every acquisition.
    pub id: ClaimId,
    /// The store must forget the claim this long after it last heard of it.
    pub ttl: Duration,
    /// How long the caller will wait, for stores that treat a try differently or note a waiter's patience.
    /// The engine keeps the time; a driver never does.
    pub wait: Wait,
    /// Whether the caller wants the fencing token. `false` for the members of a [`RedLock`](crate::RedLock): a store that keeps
    /// something for each name's token should then draw none and grant without. Other stores may ignore it.
    pub wants_token: bool,
}

impl Request {
    /// A request with a [new id](ClaimId::random), of a caller who waits for ever.
    pub fn new(name: LockName, kind: Kind, ttl: Duration) -> Self {
        Self { name, kind, id: ClaimId::random(), ttl, wait: Wait::Forever, wants_token: true }
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

    /// The same for a caller who waits for so long.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }
}

/// A connected store. Cheap to share; holds connections, never lock state.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What the store is and can do. Never changes.
    fn info(&self) -> &Info;

    /// Prepares a claim. Does no I/O: nothing is in the store before the first [`Claim::attempt`].
    fn claim(&self, request: Request) -> Box<dyn Claim>;

    /// Ends what the client has with the store, in order: calls that are still under way, then sessions and leases, then
    /// connections. The engine calls it once the last claim has been released. Default: nothing; dropping the backend ends
    /// its connections.
    ///
    /// Must end by itself even if the store does not answer: within the session's time-out, or within seconds.
    async fn close(&self) {}
}

/// One contender's stake in one lock: waiting, then held, then gone.
///
/// One keeper task is the only caller. It calls one method at a time and never drops `attempt`, `renew` or
/// `release` in flight, unless its runtime is shut down. Each must end by itself, so each bounds its own I/O.
#[async_trait]
pub trait Claim: Send + 'static {
    /// Joins the contest, or asks again, and keeps a waiting claim alive for another ttl.
    ///
    /// Idempotent: a claim that holds the lock already, because the last reply was lost, gets the same grant.
    /// After [`Attempt::Busy`] to a request whose wait is [`Wait::Never`] nothing is left in the store.
    ///
    /// A read claim whose id holds the lock in a kind that [`Info::downgrades`] names turns that hold into a read hold in
    /// place: same token, never a moment without it. If that answer is lost, the engine goes on with the claim that asked
    /// for the other kind: its `renew` and `release` must be right for the read hold too.
    ///
    /// # Errors
    /// The outcome is unknown, and `release` must be right all the same.
    async fn attempt(&mut self) -> Result<Attempt>;

    /// Extends a held claim by its ttl, or learns that it is gone. Never acquires, never creates.
    ///
    /// # Errors
    /// Unknown, not lost: the claim stays the holder's until its deadline.
    async fn renew(&mut self) -> Result<Renewal>;

    /// Removes every trace of the claim, waiting or held, and wakes whom that concerns.
    ///
    /// Idempotent; right even if the outcome of `attempt` is unknown; never touches another claim. Tells whether there was
    /// anything to remove: a holder whose claim is [`Gone`](Release::Gone) is told that it had lost the lock.
    ///
    /// If the claim's session is over, the answer is `Gone`: the session's end has removed the claim.
    ///
    /// # Errors
    /// Not confirmed; the keeper asks again until the store has confirmed it or has forgotten the claim by itself
    /// ([`Info::session`]), and then takes `Gone` for its own doing.
    async fn release(&mut self) -> Result<Release>;

    /// Ends when asking again may pay: for a waiting claim its turn may have come, for a held one it may be lost.
    ///
    /// Only a hint: it may fire without cause, late, or never. It may be dropped at any await.
    async fn changed(&mut self);
}

/// What an [`attempt`](Claim::attempt) was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The claim holds the lock.
    Granted(Grant),
    /// Somebody else is first.
    Busy {
        /// When asking again pays even without a hint, for example when the holder's ttl ends.
        retry_in: Duration,
    },
}

/// What a claim is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Greater than every token granted before for this name; `None` if the store cannot promise that, or may be if the request
    /// does not [want](Request::wants_token) it.
    pub token: Option<Token>,
    /// How long the holder may go without a renewal, counted from before the request was sent.
    pub valid_for: Duration,
}

/// What a [`renew`](Claim::renew) was told.
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

/// What a [`release`](Claim::release) was told. Of a claim that only waited either may be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was there, or may have been; now it is not.
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
    /// Looking into the store and breaking locks, where it can.
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
