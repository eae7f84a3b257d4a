//! Distributed locks over any store: the traits, the engine, and the in-memory reference store.
//!
//! Four rooms, each a folder; each knows only those below it. There are two doors: users find their names here, at the root,
//! and writers of stores find theirs in [`driver`].
//!
//! ```text
//! lock/      you ── Locks ── mutex(name) ── lock() ──► Guard        locks, guard, options, owners, several locks as one
//!                                            │          │
//! stores/    memory, the model; redlock, a majority of other stores
//!                                            │          │
//! engine/                                  keeper: one task a claim  waiting, renewing, loss, release
//!                                            │
//! driver/                       Backend ── Claim ──► the store      the contract, and what every driver needs
//! ```
//!
//! A [`Guard`] carries a fencing [`Token`], is renewed while it lives, and says at once when it is lost. Dropping a
//! guard or a future at any point leaves nothing behind. What a lock cannot promise is in `docs/semantics.md`.
//!
//! To lock, take [`Locks`] from a [`Registry`] or from the `dlock-rs` crate. To bring a store, implement
//! [`Backend`](driver::Backend) and [`Claim`](driver::Claim), and let `dlock-conformance` judge it.

pub mod driver;
mod engine;
mod lock;
mod stores;

pub use driver::{
    error::{Error, LostReason, Result},
    id::{ClaimId, Token},
    inspect::{Contender, LockState},
    kind::Kind,
    name::LockName,
    wait::Wait,
    who::Who,
};
pub use lock::{
    Acquire, DistributedLock, DistributedLockExt, FairLock, FairMutex, Guard, GuardError, Lock, LockOptions,
    Locks, LostSignal, Member, MultiLock, Mutex, Owner, ReadLock, Registry, RwLock, RwPair, Semaphore,
    Ticket, TryAcquire, WriteLock, kind,
};
pub use stores::{RedLock, memory};
