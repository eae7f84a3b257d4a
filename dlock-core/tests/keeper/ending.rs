//! What ends early: drivers that panic, clients that are closed, runtimes that end.

use std::mem;

use dlock_core::{
    Error, Locks, LostReason, Owner,
    driver::{Attempt, Grant},
};
use tokio::time::sleep;

use super::script::{BUSY, Call, GRANTED, Late, MS, Panic, Play, S, Say, TTL};

#[test]
fn a_lock_outside_of_a_runtime_is_an_error_that_says_so() {
    let locks = Locks::memory();
    for owner in [None, Some(Owner::new())] {
        let lock = owner.iter().fold(locks.mutex("x"), |lock, owner| lock.owned_by(owner));
        let told = futures_util::FutureExt::now_or_never(lock.lock().wait(S)).expect("at once");
        assert!(matches!(told, Err(Error::NoRuntime { .. })), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_panics_in_a_renewal_loses_the_lock() {
    let play = Play::new().renew([Panic]);
    let held = play.hold().await;
    assert_eq!(held.lost().await, LostReason::Abandoned);
    assert!(held.is_lost() && held.remaining().is_zero());
    let told = held.release().await;
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Abandoned, .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_panics_in_an_attempt_is_an_error() {
    let play = Play::new().attempt([Panic]);
    let told = play.client().mutex("x").lock().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_panics_in_a_release_is_an_error() {
    let play = Play::new().release([Panic]);
    let told = play.hold().await.release().await;
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Abandoned, .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_lets_the_attempt_in_flight_end() {
    let play = Play::new().attempt([Late(S, BUSY)]);
    let client = play.client();
    let lock = client.mutex("x").lock();
    let (told, ()) = tokio::join!(lock, async {
        sleep(S / 2).await;
        client.close().await;
    });
    assert!(matches!(told, Err(Error::Closed { .. })), "{told:?}");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_lets_no_other_task_of_an_owner_in() {
    let play = Play::new().attempt([Say(BUSY), Say(GRANTED)]);
    let (client, me) = (play.client(), Owner::new());
    let lock = client.mutex("x").owned_by(&me);
    let told = tokio::join!(lock.lock(), lock.lock(), async {
        sleep(S).await;
        client.close().await;
    });
    assert!(matches!(told, (Err(Error::Closed { .. }), Err(Error::Closed { .. }), ())), "{told:?}");
    play.over(&client).await;
    assert_eq!(play.count(Call::Attempt), 1, "a closed client asked the store again");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built")
}

#[test]
fn a_runtime_that_ends_takes_its_locks_along_and_says_so() {
    let play = Play::new();
    let runtime = runtime();
    let held = runtime.block_on(play.hold());
    assert!(!held.is_lost());
    drop(runtime);
    assert!(held.is_lost(), "nobody renews the hold any more, and the guard does not say so");
    let reason = self::runtime().block_on(held.lost());
    assert_eq!(reason, LostReason::Abandoned);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "to block the runtime is what this is about")]
fn a_guard_is_lost_at_the_first_look_after_its_runtime_was_blocked() {
    let ttl = 50 * MS;
    let play = Play::new().attempt([Say(Attempt::Granted(Grant { token: None, valid_for: ttl }))]);
    runtime().block_on(async {
        let held = play.client().mutex("x").lock().ttl(ttl).await.expect("granted");
        std::thread::sleep(ttl * 2);
        assert!(
            held.is_lost(),
            "the store may have given the lock to somebody else, and the guard does not say so"
        );
    });
}

#[test]
fn a_guard_dropped_on_a_thread_without_a_runtime_is_released() {
    let play = Play::new();
    let client = play.client();
    runtime().block_on(async {
        let held = client.mutex("x").lock().await.expect("granted");
        std::thread::spawn(move || drop(held)).join().expect("no panic");
        play.over(&client).await;
    });
    assert_eq!(play.count(Call::Release), 1);
}

#[test]
fn a_guard_that_is_forgotten_is_renewed_for_as_long_as_its_runtime_lives() {
    let play = Play::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime can be built").block_on(async {
        mem::forget(play.hold().await);
        sleep(TTL * 2 + S).await;
    });
    assert_eq!((play.count(Call::Renew), play.count(Call::Release)), (6, 0));
}

#[tokio::test(start_paused = true)]
async fn what_a_driver_that_panicked_may_have_left_is_released() {
    for play in [Play::new().attempt([Panic]), Play::new().renew([Panic])] {
        let client = play.client();
        if let Ok(held) = client.mutex("x").lock().await {
            held.lost().await;
        }
        play.over(&client).await;
        assert_eq!(play.count(Call::Release), 1);
    }
}
