//! Stores that need no other crate: the memory store, which is the reference model, and RedLock, a majority of other
//! stores.

pub mod memory;
mod redlock;

pub use redlock::RedLock;
