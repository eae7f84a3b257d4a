//! Distributed locks over any store: the traits, the engine, and the in-memory reference store.
//!
//! ```text
//! you ── Locks ── mutex(name) ── lock() ──► Guard        the user contract: locks.rs, handles.rs, lock.rs, acquire.rs, guard.rs
//!                                  │          │
//!                                keeper: one task a claim  the engine: keeper.rs; who is next: queue.rs
//!                                  │
//!                     Backend ── Claim ──► the store      the driver contract: backend.rs; its model: memory.rs
//! ```
//!
//! A [`Guard`] carries a fencing [`Token`], is renewed while it lives, and says at once when it is lost. Dropping a
//! guard or a future at any point leaves nothing behind. What a lock cannot promise is in `docs/semantics.md`.
//!
//! To lock, take [`Locks`] from a [`Registry`] or from the `dlock-rs` crate. To bring a store, implement [`Backend`] and
//! [`Claim`], and let `dlock-conformance` judge it.

mod acquire;
mod backend;
mod clock;
mod error;
mod guard;
mod handles;
mod hold;
mod inspect;
mod keeper;
mod lock;
mod locks;
pub mod memory;
mod multi;
mod name;
mod observe;
mod options;
mod owner;
mod queue;
mod redlock;
mod registry;
mod stake;
mod url;

pub use acquire::{Acquire, TryAcquire};
pub use backend::{
    Attempt, Backend, Claim, ClaimId, Grant, Info, Kind, Release, Renewal, Request, Store, Token,
};
pub use error::{Error, LostReason, Result, Source};
pub use guard::Guard;
pub use handles::{FairMutex, Lock, Mutex, ReadLock, RwPair, WriteLock, kind};
pub use inspect::{Contender, Inspect, LockState};
pub use lock::{DistributedLock, DistributedLockExt, FairLock, RwLock};
pub use locks::Locks;
pub use multi::MultiLock;
pub use name::LockName;
pub use options::{LockOptions, Wait};
pub use owner::Owner;
pub use queue::{Entry, Turn, turn, watchers};
pub use redlock::RedLock;
pub use registry::{Connecting, Driver, Registry};
pub use url::StoreUrl;
