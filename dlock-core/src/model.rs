//! Types that users and drivers share: lock names, kinds, tokens, wait limits, labels, errors.

pub mod duration;
mod error;
mod id;
mod kind;
mod name;
#[cfg(feature = "serde")]
pub(crate) mod serde_impls;
mod wait;
mod who;

pub use error::{BoxError, Error, LostReason, Result};
pub use id::{ClaimId, Token};
pub use kind::Kind;
pub use name::LockName;
pub use wait::Wait;
pub use who::Who;
