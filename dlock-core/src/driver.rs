//! For writers of drivers: the contract between a store and the engine, and what any driver needs.
//!
//! Implement [`Backend`] and [`Claim`], and [`Inspect`] if the store can be looked into; hand out a [`Store`] and a
//! [`Driver`]. What users name as well, such as [`Kind`] or [`LockName`], stands at the root of
//! the crate. The guide is `docs/backends.md`.
//!
//! **The kit** is what drivers of network stores would each write again:
//!
//! - parameters: [`StoreUrl`] reads durations, numbers, choices, [addresses](Address), [logins](Login) and [TLS](Tls) files from a
//!   URL, and refuses all else in the same words on all stores;
//! - verdicts: [`Failures`] makes errors of the client crate's, each with a [`Verdict`];
//! - links: a [`Link`] is a connection that many share, opened by one of them at a time, at a [`Pace`];
//! - gathering: a [`Gathering`] makes few calls of the requests of many callers;
//! - seats: [`Seats`] know who waits for which event, and whom it wakes;
//! - the [`Reaper`], for stores that know sessions and no claims.

mod backend;
mod clock;
mod connect;
pub(crate) mod error;
mod gathering;
pub(crate) mod id;
mod info;
pub(crate) mod inspect;
pub(crate) mod kind;
mod link;
pub(crate) mod name;
mod pace;
mod params;
mod queue;
mod reaper;
mod seats;
mod url;
mod verdict;
pub(crate) mod wait;

pub use backend::{Attempt, Backend, Claim, Grant, Release, Renewal, Request, Store};
pub use clock::Moment;
#[cfg(feature = "test-util")]
pub use clock::{pretend_clock, pretend_suspend};
pub use connect::{Connecting, Driver};
pub use error::Source;
pub use gathering::{Batch, Gathering};
pub use info::Info;
pub use inspect::Inspect;
pub use link::{Connect, Link, Live};
pub use pace::Pace;
pub use params::{Address, Login, Pems, Secret, Tls};
pub use queue::{Entry, Turn, turn, watchers};
pub use reaper::Reaper;
pub use seats::{EventSource, Listener, Seat, Seats, Wake};
pub use url::StoreUrl;
pub use verdict::{Failures, Retold, Verdict, client_error};

// What users name as well: public at the root of the crate, and only there.
pub(crate) use error::{Error, LostReason, Result};
pub(crate) use id::{ClaimId, Token};
pub(crate) use inspect::{Contender, LockState};
pub(crate) use kind::Kind;
pub(crate) use name::LockName;
pub(crate) use wait::Wait;
