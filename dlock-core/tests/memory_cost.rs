//! Test of the memory that a held lock takes in the process of its holder.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::alloc::System;

use cap::Cap;
use dlock_core::Locks;

#[global_allocator]
static ALLOCATED: Cap<System> = Cap::new(System, usize::MAX);

#[tokio::test]
async fn a_held_lock_takes_less_than_2048_bytes() {
    const HOLDS: usize = 1000;
    let locks = Locks::memory();
    let names: Vec<_> = (0..HOLDS).map(|number| format!("lock/{number}")).collect();
    let mut held = Vec::with_capacity(HOLDS);
    // The runtime and the store allocate their own memory at first.
    drop(locks.mutex("first").lock().await.unwrap());
    let before = ALLOCATED.allocated();
    for name in &names {
        held.push(locks.mutex(name).lock().await.unwrap());
    }
    let bytes = (ALLOCATED.allocated() - before) / HOLDS;
    assert!(bytes < 2048, "each held lock takes {bytes} bytes");
}
