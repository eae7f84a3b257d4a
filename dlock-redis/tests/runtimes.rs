//! One client in several runtimes: the end of one is not noticed in another.

mod common;

use std::time::Duration;

use common::{Bench, claim, granted, soon};
use dlock_core::{Kind, Locks, Renewal, Wait};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

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

#[test]
fn holds_are_renewed_when_a_runtime_ends_that_was_about_to_renew_them() {
    let (mine, first) = (runtime(), runtime());
    let Some(bench) = mine.block_on(Bench::new()) else { return };
    let store = mine.block_on(bench.store(""));
    let (mut leading, _) = claim(&store, "bar", Kind::Mutex, 3000, Wait::Never);
    let (mut held, _) = claim(&store, "foo", Kind::Mutex, 3000, Wait::Never);
    let gathering = first.spawn(async move {
        granted(leading.attempt().await);
        // It renews for all that come within a moment, and does not live to see it.
        timeout(Duration::from_millis(5), leading.renew()).await.expect_err("it gathers for longer");
    });
    first.block_on(gathering).unwrap();
    drop(first);
    mine.block_on(async {
        granted(held.attempt().await);
        // That one who was to renew it is gone is an error at the worst, and the next renewal is another's.
        soon("a renewal never ends", held.renew()).await.ok();
        let renewed = soon("a renewal never ends", held.renew()).await.unwrap();
        assert!(matches!(renewed, Renewal::Renewed { .. }), "{renewed:?}");
    });
}

#[test]
fn holds_are_renewed_while_a_runtime_is_blocked_that_was_about_to_renew_them() {
    let (mine, blocked) = (runtime(), runtime());
    let Some(bench) = mine.block_on(Bench::new()) else { return };
    let locks = mine.block_on(bench.locks(""));
    let (leading, led) = (locks.mutex("bar"), locks.mutex("foo"));
    let held = mine.block_on(led.lock().ttl(Duration::from_secs(6)).into_future()).unwrap();
    let (let_go, blocks) = std::sync::mpsc::channel::<()>();
    blocked.spawn(async move {
        let _leading = leading.lock().ttl(Duration::from_secs(3)).await.unwrap();
        // Its renewal gathers from 1000 to 1020 ms; its runtime stands still from 1010 ms on.
        tokio::time::sleep(Duration::from_millis(1010)).await;
        blocks.recv().ok();
    });
    let lost = mine.block_on(async { timeout(Duration::from_secs(8), held.lost()).await });
    drop(let_go);
    assert!(lost.is_err(), "a runtime that does nothing renews, and nobody else does: {lost:?}");
}
