//! For writers of drivers: the contract between a store and the engine, and what any driver needs.
//!
//! Implement [`Backend`] and [`Claim`], and [`Inspect`] if the store can be looked into; hand out a [`Store`] and a
//! [`Driver`]. What users name as well, such as [`Kind`] or [`LockName`], stands at the root of
//! the crate. The guide is `docs/backends.md`.
//!
//! **The kit** is what drivers of network stores would each write again:
//!
//! - parameters: [`StoreUrl`] reads durations, numbers, choices, [addresses](Address), [logins](Login) and [TLS](Tls) files
//!   from a URL, and refuses everything else with the same messages on all stores;
//! - verdicts: [`Failures`] turns the client crate's errors into ours; a [`Verdict`] says what each means;
//! - links: a [`Link`] is a connection that many callers share; one caller at a time opens it, with pauses from a [`Pace`];
//! - gathering: a [`Gathering`] combines the requests of many callers into few calls;
//! - seats: [`Seats`] know which claims wait for which event, and wake the right ones;
//! - the [`Reaper`] gives each claim a ttl in a store that only knows sessions.

mod backend;
mod clock;
mod connect;
#[cfg(feature = "serde")]
mod data;
pub(crate) mod duration;
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
pub(crate) mod who;

pub use backend::{Attempt, Backend, Claim, Grant, Release, Renewal, Request, Resumption, Store, Together};
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
pub use queue::{Entry, Turn, turn, watched, watchers};
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
pub(crate) use who::Who;
