//! A holder hears of a loss in time, and never of one that did not happen. A stale holder harms nobody. A few lines over
//! the usual length: one table's rows.

use std::{sync::Arc, time::Duration};

use dlock_core::{Error, Guard, Kind, LockOptions, LockState, Locks, LostReason};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::look::claim_of;
use crate::{
    Arena,
    case::{Case, Need, cases},
    wrap::{Habit, Switch},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "loss" (Kind::Mutex) [] {
            a_holder_that_is_cut_off_is_told_when_its_ttl_is_over,
            a_token_of_the_loss_is_cancelled_by_it,
            everybody_who_waits_for_the_loss_is_told,
            nobody_gets_in_before_the_holder_that_is_cut_off_is_lost,
            nobody_gets_in_before_a_holder_is_lost_that_hears_no_answers,
            a_holder_that_is_cut_off_for_less_than_its_ttl_keeps_its_lock,
            a_renewal_whose_answer_is_lost_is_no_loss,
            a_frozen_holder_sees_its_loss_at_its_first_step,
            what_is_lost_stays_lost,
            a_lost_lock_is_free_when_its_holder_is_back,
            a_renewal_that_comes_too_late_does_not_disturb_the_next_holder,
            releasing_what_is_lost_is_an_error,
            neither_a_release_nor_a_drop_is_a_loss,
            a_crashed_holder_frees_its_lock_within_its_ttl_or_session,
            a_crashed_waiter_lets_others_pass_within_its_ttl_or_session,
        }
        "loss" (Kind::Mutex) [] { a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl }
        "loss_fair" (Kind::Fair) [] { a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl }
        "loss_write" (Kind::Write) [] { a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl }
        "loss_read" (Kind::Read) [Need::Kind(Kind::Write)] { a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl }
        "loss_permit" (Kind::Permit) [] { a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl }
        "loss" (Kind::Mutex) [Need::Session] { a_client_whose_session_ends_holds_nothing_any_more }
        "loss" (Kind::Mutex) [Need::Inspect] {
            whoever_is_robbed_is_told,
            whoever_releases_what_was_taken_is_told,
            a_stale_release_does_not_disturb_the_next_holder,
            a_stale_drop_does_not_disturb_the_next_holder,
        }
    }
}

/// A hold whose client can be cut off, which then dies soon.
async fn mortal(arena: &Arena) -> (Guard, Switch) {
    let (client, line) = arena.client_with_switch().await;
    let held = arena.lock(&client).lock(&arena.short()).await.expect("nobody holds it");
    (held, line)
}

/// The part of a lock's state that contenders change and time does not. On a RedLock these are the holders only: a claim
/// that a stale guard has left on a minority is shown as waiting, and may disappear.
fn lasting(client: &Locks, state: Option<LockState>) -> Vec<String> {
    let waiting = client.info().store != "redlock";
    let all = state
        .into_iter()
        .flat_map(|state| state.holders.into_iter().chain(state.queue.into_iter().filter(move |_| waiting)));
    all.map(|one| format!("{} {} {:?}", claim_of(client, &one), one.kind, one.token)).collect()
}

pub(super) async fn a_holder_that_is_cut_off_is_told_when_its_ttl_is_over(arena: Arc<Arena>) {
    let (held, line) = mortal(&arena).await;
    line.cut();
    let reason = arena.within(arena.short_ttl(), "it was never told", held.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(held.is_lost() && held.remaining().is_zero(), "it says that it is still held");
}

pub(super) async fn a_token_of_the_loss_is_cancelled_by_it(arena: Arc<Arena>) {
    let (held, line) = mortal(&arena).await;
    let lost = held.lost_signal();
    line.cut();
    arena.within(arena.short_ttl(), "the token was never cancelled", lost.lost()).await;
    assert!(held.is_lost(), "cancelled without a loss");
    assert!(held.lost_signal().is_lost(), "one that is asked for later is cancelled already");
}

pub(super) async fn everybody_who_waits_for_the_loss_is_told(arena: Arc<Arena>) {
    let (held, line) = mortal(&arena).await;
    let held = Arc::new(held);
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let held = Arc::clone(&held);
            arena.go(async move { held.lost().await })
        })
        .collect();
    line.cut();
    for task in tasks {
        let told = arena.within(arena.short_ttl(), "one of them was not told", task).await;
        assert_eq!(told.expect("no panic"), LostReason::Expired);
    }
}

pub(super) async fn nobody_gets_in_before_the_holder_that_is_cut_off_is_lost(arena: Arc<Arena>) {
    let (held, line) = mortal(&arena).await;
    let b = arena.client().await;
    line.cut();
    let next = arena
        .within(arena.short_ttl(), "a dead claim is never forgotten", arena.lock(&b).lock(&arena.options()))
        .await;
    assert!(held.is_lost(), "two hold it");
    drop(next.expect("free by now"));
}

pub(super) async fn nobody_gets_in_before_a_holder_is_lost_that_hears_no_answers(arena: Arc<Arena>) {
    let (held, line) = mortal(&arena).await;
    let b = arena.client().await;
    line.lose_answers();
    let next = arena
        .within(arena.short_ttl(), "a lost claim is never left", arena.lock(&b).lock(&arena.options()))
        .await;
    assert!(held.is_lost(), "two hold it");
    drop(next.expect("free by now"));
}

/// Asks again and again towards the end, since a waiter asks a moment after it. Takes several names, since a store that rounds its
/// times is wrong by a part of a millisecond, and not every hold shows it.
pub(super) async fn a_hold_that_is_cut_off_lasts_to_the_last_moment_of_its_ttl(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    let foe = if arena.kind() == Kind::Read { Kind::Write } else { arena.kind() };
    let mut holds = Vec::new();
    for number in 0..8 {
        let name = arena.name_with(&format!("-{number}"));
        let held = a.of(arena.kind(), &name).lock(&arena.short()).await.expect("nobody holds it");
        holds.push((held, b.of(foe, &name)));
    }
    line.cut();
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let all = join_all(holds.into_iter().map(|(held, other)| async move {
        sleep(held.remaining() / 10 * 9).await;
        while other.try_lock(&LockOptions::new()).await.ok().flatten().is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(held.is_lost(), "two hold it for the last {:?}", held.remaining());
    }));
    arena.within(limit, "a dead claim is never forgotten", all).await;
}

pub(super) async fn a_holder_that_is_cut_off_for_less_than_its_ttl_keeps_its_lock(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    line.cut();
    let end = Instant::now() + held.remaining();
    sleep(arena.ttl() / 2).await;
    line.connect();
    arena.until("it was not renewed again", || held.is_lost() || held.remaining() > arena.ttl() / 2).await;
    assert!(!held.is_lost(), "a failed renewal is not yet a loss");
    assert!(Instant::now() + held.remaining() > end, "nobody renewed it");
    assert!(arena.is_busy(&b).await, "two hold it");
}

pub(super) async fn a_renewal_whose_answer_is_lost_is_no_loss(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    let held = arena.take_soon("nobody holds it", &a).await;
    line.lose_answers();
    sleep(arena.ttl() / 2).await;
    assert!(!held.is_lost(), "unknown is not lost");
    line.connect();
    arena.until("it was not renewed again", || held.is_lost() || held.remaining() > arena.ttl() / 2).await;
    held.release().await.expect("held until now");
}

pub(super) async fn a_frozen_holder_sees_its_loss_at_its_first_step(arena: Arc<Arena>) {
    let (held, line) = mortal(&arena).await;
    line.freeze();
    sleep(arena.short_ttl()).await;
    assert!(held.is_lost(), "its time is over, whatever its keeper does");
}

pub(super) async fn what_is_lost_stays_lost(arena: Arc<Arena>) {
    let (held, line) = mortal(&arena).await;
    line.cut();
    arena.within(arena.short_ttl(), "it was never told", held.lost()).await;
    line.connect();
    for _ in 0..10 {
        assert!(held.is_lost(), "it was lost before");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(held.lost().await, LostReason::Expired, "the first reason stays");
}

pub(super) async fn a_lost_lock_is_free_when_its_holder_is_back(arena: Arc<Arena>) {
    let (held, line) = mortal(&arena).await;
    let b = arena.client().await;
    line.freeze();
    arena.within(arena.short_ttl(), "it was never told", held.lost()).await;
    line.connect();
    drop(arena.take_soon("the renewal that came too late revived it", &b).await);
    assert!(held.is_lost());
}

pub(super) async fn a_renewal_that_comes_too_late_does_not_disturb_the_next_holder(arena: Arc<Arena>) {
    let (held, line) = mortal(&arena).await;
    let b = arena.client().await;
    line.freeze();
    let next = arena
        .within(arena.short_ttl(), "a dead claim is never forgotten", arena.lock(&b).lock(&arena.options()))
        .await;
    let next = next.expect("free by now");
    line.connect();
    stays_undisturbed(&arena, &b, &next, async || drop(held)).await;
}

pub(super) async fn releasing_what_is_lost_is_an_error(arena: Arc<Arena>) {
    let (held, line) = mortal(&arena).await;
    line.cut();
    arena.within(arena.short_ttl(), "it was never told", held.lost()).await;
    let released = held.release().await;
    assert!(
        matches!(released, Err(Error::Lost { reason: LostReason::Expired, .. })),
        "the release of a lock that expired says {released:?}"
    );
}

pub(super) async fn neither_a_release_nor_a_drop_is_a_loss(arena: Arc<Arena>) {
    let a = arena.client().await;
    let released = arena.take_soon("nobody holds it", &a).await;
    let dropped = a.mutex(arena.name_with("-dropped")).lock().await.expect("nobody holds it");
    let lost = [released.lost_signal(), dropped.lost_signal()];
    released.release().await.expect("held until now");
    drop(dropped);
    sleep(arena.ttl() * 11 / 10).await;
    assert_eq!(lost.map(|lost| lost.is_lost()), [false, false]);
}

pub(super) async fn a_crashed_holder_frees_its_lock_within_its_ttl_or_session(arena: Arc<Arena>) {
    let (held, line) = mortal(&arena).await;
    let b = arena.client().await;
    line.kill();
    drop(held);
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let next = arena.within(limit, "its claim outlives it", arena.lock(&b).lock(&arena.options())).await;
    drop(next.expect("free by now"));
}

/// The longest ttl, so that in a store with sessions the session ends first.
pub(super) async fn a_client_whose_session_ends_holds_nothing_any_more(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    let options = arena.options().ttl(arena.long_ttl(&a));
    let held = arena.lock(&a).lock(&options).await.expect("nobody holds it");
    line.kill();
    let limit = arena.forgotten_after(&b, Duration::ZERO);
    let next = arena.within(limit, "its claim outlives its session", arena.take(&b, arena.kind())).await;
    assert!(held.is_lost(), "its session was over, and its guard says that it still holds");
    drop(next);
}

pub(super) async fn a_crashed_waiter_lets_others_pass_within_its_ttl_or_session(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (crashed, line) = arena.client_with_switch().await;
    let held = arena.take_soon("nobody holds it", &a).await;
    let (lock, options) = (arena.lock(&crashed), arena.short());
    let waiter = arena.go(async move { lock.lock(&options).await });
    arena.until_contenders(&b, 2).await;
    line.kill();
    held.release().await.expect("held until now");
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let next =
        arena.within(limit, "a dead waiter blocks the queue", arena.lock(&b).lock(&arena.options())).await;
    drop(next.expect("free by now"));
    // The store may have granted the request that the client had sent before it crashed. That lets others pass too, once
    // the claim of the crashed holder is forgotten.
    match waiter.await.expect("no panic") {
        Ok(guard) => assert!(guard.is_lost(), "two hold it"),
        Err(error) => {
            assert!(matches!(error, Error::Unavailable { .. }), "a waiter that is cut off is told {error:?}");
        }
    }
}

/// Takes the lock from its holder without telling the holder, and lets another in.
async fn robbed(arena: &Arena) -> (Guard, Locks, Guard) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    b.force_release(arena.name()).await.expect("the store can be asked");
    let next = arena.take_soon("force_release left it held", &b).await;
    (held, b, next)
}

/// Does something with a stale guard, and checks that the present holder is not disturbed: not at once, and not at its next
/// renewal.
pub(super) async fn stays_undisturbed(
    arena: &Arena,
    client: &Locks,
    holder: &Guard,
    stale: impl AsyncFnOnce(),
) {
    let before = client.inspect(arena.name()).await;
    stale().await;
    let end = Instant::now() + holder.remaining();
    let renewed = || holder.is_lost() || Instant::now() + holder.remaining() > end + arena.ttl() / 10;
    arena.until("it was not renewed", renewed).await;
    assert!(!holder.is_lost(), "a stale guard took the lock from its holder");
    if let Ok(before) = before {
        let after = client.inspect(arena.name()).await.expect("as before");
        assert_eq!(
            lasting(client, after),
            lasting(client, before),
            "a stale guard changed what is in the store"
        );
    }
}

pub(super) async fn whoever_is_robbed_is_told(arena: Arc<Arena>) {
    let (held, _, next) = robbed(&arena).await;
    assert_eq!(arena.within(arena.short_ttl(), "it was never told", held.lost()).await, LostReason::Taken);
    assert!(held.is_lost());
    drop(next);
}

pub(super) async fn whoever_releases_what_was_taken_is_told(arena: Arc<Arena>) {
    if arena.habit() == Some(Habit::Flaky) {
        // A release that is sent again finds nothing either way.
        return;
    }
    let (a, b) = (arena.client().await, arena.client().await);
    // So long that no renewal comes before, and that a majority has time to answer.
    let options = LockOptions::new().ttl(arena.long_ttl(&a));
    let held = arena.lock(&a).lock(&options).await.expect("nobody holds it");
    b.force_release(arena.name()).await.expect("the store can be asked");
    let released = held.release().await;
    assert!(
        matches!(released, Err(Error::Lost { reason: LostReason::Taken, .. })),
        "the release of a lock that was taken away says {released:?}"
    );
}

pub(super) async fn a_stale_release_does_not_disturb_the_next_holder(arena: Arc<Arena>) {
    let (held, b, next) = robbed(&arena).await;
    stays_undisturbed(&arena, &b, &next, async || {
        // It may not know of its loss yet.
        held.release().await.ok();
    })
    .await;
}

pub(super) async fn a_stale_drop_does_not_disturb_the_next_holder(arena: Arc<Arena>) {
    let (held, b, next) = robbed(&arena).await;
    stays_undisturbed(&arena, &b, &next, async || drop(held)).await;
}
