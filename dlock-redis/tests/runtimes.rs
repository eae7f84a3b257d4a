//! One client in several runtimes: the end of one is not noticed in another.

mod common;

use std::time::Duration;

use common::{Bench, soon};
use dlock_core::{Locks, Wait};
use tokio::runtime::{Builder, Runtime};

/// Works on a thread of its own, also while nobody looks.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime can be built")
}

/// Waits for `foo` in vain.
async fn wait_in_vain(locks: &Locks) {
    let lock = locks.mutex("foo").lock().wait(Wait::For(Duration::from_millis(50)));
    lock.await.expect_err("it is held");
}

/// Waits for `foo`, held elsewhere, until it is let go of.
async fn wait(locks: &Locks) {
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(600)).await.expect("it is let go of");
    held.release().await.expect("the server is there");
}

#[test]
fn whoever_comes_after_the_runtime_of_the_first_waiter_is_woken() {
    let (mine, first) = (runtime(), runtime());
    let Some(bench) = mine.block_on(Bench::new()) else { return };
    let (locks, other) = mine.block_on(async { (bench.locks("").await, bench.locks("").await) });
    let held = mine.block_on(other.mutex("foo").lock().into_future()).unwrap();
    first.block_on(wait_in_vain(&locks));
    drop(first);
    let waiter = mine.spawn(async move { wait(&locks).await });
    mine.block_on(async {
        bench.until_heard("redisson_lock__channel:{foo}").await;
        held.release().await.unwrap();
        soon("nobody woke it", waiter).await.unwrap();
    });
}

#[test]
fn whoever_waits_when_the_runtime_of_the_first_waiter_ends_is_woken() {
    let (mine, first) = (runtime(), runtime());
    let Some(bench) = mine.block_on(Bench::new()) else { return };
    let (locks, other) = mine.block_on(async { (bench.locks("").await, bench.locks("").await) });
    let held = mine.block_on(other.mutex("foo").lock().into_future()).unwrap();
    first.block_on(wait_in_vain(&locks));
    let waiter = mine.spawn(async move { wait(&locks).await });
    mine.block_on(bench.until_heard("redisson_lock__channel:{foo}"));
    drop(first);
    mine.block_on(async {
        bench.until_heard("redisson_lock__channel:{foo}").await;
        held.release().await.unwrap();
        soon("nobody woke it", waiter).await.unwrap();
    });
}
