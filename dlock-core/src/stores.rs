//! Stores that need no other crate. The memory store is the reference model, and RedLock combines a
//! majority of other stores.

pub mod memory;
mod redlock;

pub use redlock::{RedLock, connect_majority};
