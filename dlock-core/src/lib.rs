//! Distributed locks over any store, with the traits, the engine, and the in-memory reference
//! store.
//!
//! The folders are layers. Each layer uses only the layers below it. Users find their names at the
//! root of the crate, and writers of drivers find theirs in [`driver`].
//!
//! ```text
//! lock/      caller ── Locks ── mutex(name) ── lock() ──► Guard    locks, guards, options, owners
//!                                                │          │
//! stores/    memory, the reference model; redlock, a majority of other stores
//!                                                │          │
//! engine/                                     keeper: one task     waiting, renewal, loss, release
//!                                             for each claim
//! kit/                                           │                 parts for network drivers
//! contract/                        Backend ── Claim ──► the store  what a store must do
//! model/     names, kinds, tokens, errors                          terms of users and drivers
//! ```
//!
//! A [`Guard`] carries a fencing [`Token`]. Its lock is renewed while the guard lives, and the
//! guard reports a lost lock at once. Dropping a guard or a future at any point leaves nothing
//! behind in the store. `docs/semantics.md` lists what a lock cannot promise.
//!
//! To lock, take [`Locks`] from a [`Registry`] or from the `dlock-rs` crate. To add a store,
//! implement [`Backend`](driver::Backend) and [`Claim`](driver::Claim), and test them with
//! `dlock-conformance`.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod contract;
pub mod driver;
mod engine;
mod kit;
mod lock;
mod model;
mod stores;

pub use contract::{Contender, LockState};
pub use lock::{
    Acquire, Candidate, DistributedLock, DistributedLockExt, Election, FairLock, FairMutex, Guard,
    GuardError, Leader, Lock, LockOptions, Locks, LostSignal, Mark, Member, MultiLock, Mutex, Next, Observed,
    Observer, Occurrence, Once, OnceError, Owner, ReadLock, Registry, RwLock, RwPair, Semaphore, Term,
    Ticket, TryAcquire, WriteLock, kind,
};
pub use model::{ClaimId, Error, Kind, LockName, LostReason, Result, Token, Wait, Who};
pub use stores::{RedLock, memory};
