//! The contract between a store and the engine. It has the traits that a driver implements, the
//! capabilities that a driver declares, and the rule for the order of claims. It depends on no
//! async runtime.

mod backend;
mod info;
mod inspect;
mod queue;
mod watch;

pub use backend::{Attempt, AttemptAll, Backend, Claim, Grant, Release, Renewal, Request, Resumption, Store};
pub use info::Info;
pub use inspect::{Contender, Inspect, LockState, MARK_PREFIX};
pub use queue::{Entry, Turn, turn, watched, watchers};
pub use watch::Watch;
