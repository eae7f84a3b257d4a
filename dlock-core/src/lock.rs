//! Locks for users, with their guards, options, owners and tickets.

mod acquire;
mod contract;
mod election;
mod guard;
mod handles;
mod held_claim;
mod locks;
mod lost_signal;
mod mark;
mod member;
mod multi;
mod once;
mod options;
mod owner;
mod period;
mod registry;
mod semaphore;
mod ticket;

pub use acquire::{Acquire, TryAcquire};
pub use contract::{DistributedLock, DistributedLockExt, FairLock, RwLock};
pub use election::{Candidate, Election, Leader, Next, Observed, Observer, Term};
pub use guard::{Guard, GuardError};
pub use handles::{FairMutex, Lock, Mutex, ReadLock, RwPair, WriteLock, kind};
pub use held_claim::{HeldClaim, held_claims};
pub use locks::Locks;
pub use lost_signal::LostSignal;
pub use mark::Mark;
pub use member::Member;
pub use multi::MultiLock;
pub use once::{Occurrence, Once, OnceError};
pub use options::LockOptions;
pub use owner::Owner;
pub use registry::Registry;
pub use semaphore::Semaphore;
pub use ticket::Ticket;
