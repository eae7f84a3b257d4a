//! Tests of one client in several runtimes. When one runtime ends, the locks in the others still
//! work.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::{pin::pin, sync::mpsc, time::Duration};

use common::{Bench, claim, granted, soon};
use dlock_core::{
    Kind, Locks, Wait,
    driver::{Claim, Renewal},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_waiter_is_woken_after_the_runtime_of_an_earlier_waiter_has_ended on no runtime,
        a_waiter_is_woken_if_the_runtime_of_an_earlier_waiter_ends_during_its_wait on no runtime,
        holds_are_renewed_after_the_end_of_a_runtime_that_was_about_to_renew_them on no runtime,
        holds_are_renewed_while_the_runtime_that_gathers_their_renewals_is_blocked on no runtime,
        holds_are_renewed_while_the_runtime_that_should_send_their_renewals_is_blocked on no runtime,
    }])
}

/// Returns a runtime with its own thread, whose tasks run also while no test blocks on it.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime can be built")
}

/// Waits for `foo` until the wait limit.
async fn wait_until_timeout(locks: &Locks) {
    let lock = locks.mutex("foo").lock().wait(Wait::For(Duration::from_millis(50)));
    lock.await.expect_err("another client holds the lock");
}

/// Waits for `foo`, which another client holds, until it is released.
async fn wait(locks: &Locks) {
    let held = locks
        .mutex("foo")
        .lock()
        .ttl(Duration::from_secs(600))
        .await
        .expect("the other client releases the lock");
    held.release().await.expect("the server is running");
}

fn a_waiter_is_woken_after_the_runtime_of_an_earlier_waiter_has_ended() {
    let (mine, first) = (runtime(), runtime());
    let Some(bench) = mine.block_on(Bench::new()) else { return };
    let (locks, other) = mine.block_on(async { (bench.locks("").await, bench.locks("").await) });
    let held = mine.block_on(other.mutex("foo").lock().into_future()).unwrap();
    first.block_on(wait_until_timeout(&locks));
    drop(first);
    let waiter = mine.spawn(async move { wait(&locks).await });
    mine.block_on(async {
        bench.wait_for_subscriber("redisson_lock__channel:{foo}").await;
        held.release().await.unwrap();
        soon("the waiter was not woken", waiter).await.unwrap();
    });
}

fn a_waiter_is_woken_if_the_runtime_of_an_earlier_waiter_ends_during_its_wait() {
    let (mine, first) = (runtime(), runtime());
    let Some(bench) = mine.block_on(Bench::new()) else { return };
    let (locks, other) = mine.block_on(async { (bench.locks("").await, bench.locks("").await) });
    let held = mine.block_on(other.mutex("foo").lock().into_future()).unwrap();
    first.block_on(wait_until_timeout(&locks));
    let waiter = mine.spawn(async move { wait(&locks).await });
    mine.block_on(bench.wait_for_subscriber("redisson_lock__channel:{foo}"));
    drop(first);
    mine.block_on(async {
        bench.wait_for_subscriber("redisson_lock__channel:{foo}").await;
        held.release().await.unwrap();
        soon("the waiter was not woken", waiter).await.unwrap();
    });
}

fn holds_are_renewed_after_the_end_of_a_runtime_that_was_about_to_renew_them() {
    let (mine, first) = (runtime(), runtime());
    let Some(bench) = mine.block_on(Bench::new()) else { return };
    let store = mine.block_on(bench.store(""));
    let (mut leading, _) = claim(&store, "bar", Kind::Mutex, 3000, Wait::Never);
    let (mut held, _) = claim(&store, "foo", Kind::Mutex, 3000, Wait::Never);
    let gathering = first.spawn(async move {
        granted(leading.attempt().await);
        // This claim leads a batch. It gathers renewals for some milliseconds, and is dropped
        // before it sends them.
        timeout(Duration::from_millis(5), leading.renew())
            .await
            .expect_err("the leader gathers for longer than 5 ms");
    });
    first.block_on(gathering).unwrap();
    drop(first);
    mine.block_on(async {
        granted(held.attempt().await);
        // The leader was dropped, so this renewal may fail. The next one has another leader.
        soon("the renewal does not end", held.renew()).await.ok();
        let renewed = soon("the renewal does not end", held.renew()).await.unwrap();
        assert!(matches!(renewed, Renewal::Renewed { .. }), "{renewed:?}");
    });
}

/// Starts a renewal in a runtime, and blocks the runtime until the sender is dropped.
fn start_and_block(runtime: &Runtime, mut claim: Box<dyn Claim>) -> mpsc::Sender<()> {
    let (unblock, blocked) = mpsc::channel();
    let (started, start) = mpsc::channel();
    runtime.spawn(async move {
        let mut renewal = pin!(claim.renew());
        timeout(Duration::from_millis(1), &mut renewal)
            .await
            .expect_err("the claim gathers renewals, or waits for the leader that does");
        started.send(()).expect("the test waits");
        blocked.recv().ok();
        renewal.await.ok();
    });
    start.recv().expect("the renewal starts");
    unblock
}

fn holds_are_renewed_while_the_runtime_that_gathers_their_renewals_is_blocked() {
    let (mine, blocked) = (runtime(), runtime());
    let Some(bench) = mine.block_on(Bench::new()) else { return };
    let store = mine.block_on(bench.store(""));
    let (leader, _) = claim(&store, "bar", Kind::Mutex, 30_000, Wait::Never);
    let (mut held, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
    mine.block_on(async { granted(held.attempt().await) });
    let unblock = start_and_block(&blocked, leader);
    let renewed = mine.block_on(soon("the renewal waits for a blocked runtime", held.renew())).unwrap();
    assert!(matches!(renewed, Renewal::Renewed { .. }), "{renewed:?}");
    drop(unblock);
}

fn holds_are_renewed_while_the_runtime_that_should_send_their_renewals_is_blocked() {
    let (mine, blocked) = (runtime(), runtime());
    let Some(bench) = mine.block_on(Bench::new()) else { return };
    let store = mine.block_on(bench.store(""));
    let (mut held, _) = claim(&store, "foo", Kind::Mutex, 8_000, Wait::Never);
    mine.block_on(async { granted(held.attempt().await) });
    let renewed = mine.spawn(async move { held.renew().await });
    // The claim with the least remaining time sends the batch, if it arrives while the other claim
    // gathers.
    let (sender, _) = claim(&store, "bar", Kind::Mutex, 2_000, Wait::Never);
    let unblock = start_and_block(&blocked, sender);
    let renewed = mine.block_on(soon("the renewal waits for a blocked runtime", renewed)).unwrap().unwrap();
    assert!(matches!(renewed, Renewal::Renewed { .. }), "{renewed:?}");
    drop(unblock);
}
