//! The API for writers of drivers. It consists of the contract between a store and the engine, and
//! of a kit of parts that drivers share.
//!
//! Implement [`Backend`] and [`Claim`], and [`Inspect`] if the contents of the store can be listed.
//! Return a [`Store`] from a [`Driver`]. Names that users need as well, such as
//! [`Kind`](crate::Kind) or [`LockName`](crate::LockName), are at the root of the crate. The guide
//! is `docs/backends.md`.
//!
//! **The kit** contains the code that every driver of a network store would otherwise write itself:
//!
//! - URL parameters: [`StoreUrl`] reads durations, numbers, choices, [addresses](Address),
//!   [logins](Login) and [TLS](Tls) files from a URL, and reports unknown parameters
//!   and invalid values in the same words on all stores.
//! - Durations: [`duration`] parses and formats them in one notation, in URLs and in messages.
//! - Errors: [`StoreErrors`] converts errors of the client crate. A [`Verdict`] says whether the
//!   caller should retry.
//! - Connections: a [`Link`] is a connection that many callers share. One caller at a time opens
//!   it, and waits after each failure as a [`Backoff`] says. [`Lanes`] are several links, of which
//!   each call uses the least busy one. A [`CallCounter`] counts the calls in flight.
//!   [`connect_to_first`] tries several hosts within one time limit. [`Retries`] decides whether a
//!   request is sent again after a failure.
//! - Majorities: [`connect_majority`] connects to the members of a [`RedLock`](crate::RedLock) while
//!   some are unreachable.
//! - Batches: a [`Batcher`] combines the requests of many callers into few calls.
//! - Reads: a [`SharedRead`] combines equal reads of many callers, so that at most one is in
//!   flight. A [`WeakMap`] finds the callers that share it.
//! - Waking: [`Seats`] record which claims wait for which event, and wake the right claims.
//! - Late requests: [`LateRequests`] record requests that the store may still execute, and a
//!   [`ClockReading`] gives their deadlines on the store's clock.
//! - Clocks: a [`Moment`] is a time on a clock that also runs during a suspend.
//! - Guards: [`held_claims`] returns the claims of a guard, for a driver that verifies a hold inside
//!   a transaction of the user.
//! - Expiry: a [`Reaper`] gives each claim a ttl in a store that only has sessions.

#[cfg(feature = "test-util")]
pub use crate::kit::{pretend_clock, pretend_suspend};
pub use crate::{
    contract::{
        Attempt, AttemptAll, Backend, Claim, Entry, Grant, Info, Inspect, MARK_PREFIX, Release, Renewal,
        Request, Resumption, Store, Turn, Watch, turn, watched, watchers,
    },
    kit::{
        Address, Backoff, Batch, Batcher, CallCounter, ClockReading, Connect, ConnectFuture, ConnectLater,
        CountedCall, Driver, EventSource, Lane, Lanes, LateExecution, LateRequests, Link, Listener,
        LiveConnection, Login, Moment, OpenLane, Pems, Reaper, Retries, Seat, Seats, Secret, SharedError,
        SharedRead, StoreErrors, StoreUrl, Tls, Verdict, Wake, WeakMap, client_error, connect_to_first,
    },
    lock::{HeldClaim, held_claims},
    model::{BoxError, duration},
    stores::connect_majority,
};
