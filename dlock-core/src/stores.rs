//! Stores that need no other crate: the reference model, and a majority of other stores.

pub mod memory;
mod redlock;

pub use redlock::RedLock;
