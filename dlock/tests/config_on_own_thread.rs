//! Stores of a configuration whose client runs on a thread of its own.
#![cfg(feature = "config")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::time::Duration;

use dlock::{Locks, config::Config};
use pollster::block_on;

const STORES: &str = "
    default = 'most'
    stores.a.url = 'memory:own-thread-a'
    stores.b.url = 'memory:own-thread-b'
    stores.c.url = 'memory:own-thread-c'
    stores.most.redlock = ['a', 'b', 'c']
";

/// There is no runtime in this test, so all members must run on the client's thread.
#[test]
fn a_redlock_of_a_configuration_works_on_a_thread_of_its_own() {
    let config = Config::from_toml(STORES).unwrap();
    let connecting = async move { config.connect_store(&dlock::registry(), "most").await };
    let locks = block_on(Locks::on_own_thread(connecting)).unwrap();
    let held = block_on(locks.mutex("x").lock()).unwrap();
    let member = block_on(dlock::connect_on_own_thread("memory:own-thread-c")).unwrap();
    let free = block_on(member.mutex("x").try_lock()).unwrap();
    assert!(free.is_none(), "the member does not hold the lock");
    // Without a call of `release`, the last drop waits until the members have confirmed the
    // release.
    drop(held);
    drop(locks);
    let mutex = member.mutex("x");
    let held = block_on(mutex.lock().wait(Duration::from_secs(60))).unwrap();
    block_on(held.release()).unwrap();
}
