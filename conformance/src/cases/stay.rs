//! `at_least`: who lets go early leaves the lock taken until its time; who loses it or dies does not.

use std::{sync::Arc, time::Duration};

use dlock_core::{DistributedLock, Error, Guard, Kind, LockOptions, Locks, MultiLock};
use tokio::time::{Instant, sleep};

use super::{
    cancel::{CUTS, cut_off, rival},
    detached::{span, take_at},
    loss::stays_undisturbed,
};
use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind = [
        of("stay", Kind::Mutex, &[Need::Detach]),
        of("stay_fair", Kind::Fair, &[Need::Detach]),
        of("stay_write", Kind::Write, &[Need::Detach]),
        of("stay_permit", Kind::Permit, &[Need::Detach]),
        of("stay_read", Kind::Read, &[Need::Detach, Need::Kind(Kind::Write)]),
    ];
    let others = cases! {
        "stay" (Kind::Mutex) [Need::Detach] {
            a_hold_that_is_cut_off_does_not_stay,
            a_try_that_is_busy_leaves_nothing_that_stays,
            an_acquire_that_is_dropped_leaves_nothing_that_stays,
            of_several_locks_that_were_not_all_free_none_stays,
            of_several_locks_that_are_let_go_each_stays,
        }
        "stay" (Kind::Mutex) [Need::Detach, Need::Inspect] { a_hold_that_was_taken_away_does_not_stay }
    };
    of_one_kind.into_iter().flatten().chain(others).collect()
}

fn of(topic: &'static str, kind: Kind, needs: &'static [Need]) -> Vec<Case> {
    cases! {
        topic (kind) needs {
            a_release_leaves_it_taken_until_its_time,
            a_drop_leaves_it_taken_until_its_time_though_the_client_is_closed,
            a_release_after_its_time_frees_it_at_once,
            a_holder_that_dies_frees_it_after_its_ttl,
        }
    }
}

/// With a time that is far beyond the end of the case.
fn long(arena: &Arena, client: &Locks) -> LockOptions {
    arena.options().at_least((arena.long_ttl(client) * 10).min(*client.info().leases.end()))
}

/// Takes the lock for [`span`] at least. Says when that ends at the earliest.
async fn take(arena: &Arena, client: &Locks) -> (Guard, Instant) {
    let (lock, options) = (arena.lock(client), arena.options().at_least(span(arena)));
    let end = Instant::now() + span(arena);
    let held = arena.soon("nobody holds it", lock.lock(&options)).await.expect("nobody holds it");
    (held, end)
}

pub(super) async fn a_release_leaves_it_taken_until_its_time(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (held, end) = take(&arena, &a).await;
    let (token, signal) = (held.token(), held.lost_signal());
    arena.soon("the release waits for the time", held.release()).await.expect("held until now");
    drop(take_at(&arena, &b, end, token).await);
    assert!(!signal.is_lost(), "a release is no loss");
}

pub(super) async fn a_drop_leaves_it_taken_until_its_time_though_the_client_is_closed(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (held, end) = take(&arena, &a).await;
    let token = held.token();
    drop(held);
    arena.soon("it waits for the time", a.close()).await;
    drop(take_at(&arena, &b, end, token).await);
}

pub(super) async fn a_release_after_its_time_frees_it_at_once(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let least = Duration::from_millis(200).max(*a.info().leases.start());
    let options = arena.options().ttl(arena.long_ttl(&a));
    let held = arena.lock(&a).lock(&options.clone().at_least(least)).await.expect("nobody holds it");
    sleep(least).await;
    let lock = b.of(rival(&arena), arena.name());
    let mut next = lock.lock(&options);
    arena.still_waits("two hold it", &mut next).await;
    held.release().await.expect("held until now");
    let next = arena.soon("its time was over, and nobody wakes the next", next).await.expect("free again");
    drop(next);
}

pub(super) async fn a_holder_that_dies_frees_it_after_its_ttl(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    let options = long(&arena, &a).ttl(arena.short_ttl());
    let held = arena.lock(&a).lock(&options).await.expect("nobody holds it");
    line.kill();
    drop(held);
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    drop(arena.within(limit, "the lock of a dead holder stays", arena.take(&b, rival(&arena))).await);
}

pub(super) async fn a_hold_that_is_cut_off_does_not_stay(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    let options = long(&arena, &a).ttl(arena.short_ttl());
    let held = arena.lock(&a).lock(&options).await.expect("nobody holds it");
    line.cut();
    arena.within(arena.short_ttl(), "it was never told", held.lost()).await;
    line.connect();
    let told = held.release().await;
    assert!(matches!(told, Err(Error::Lost { .. })), "{told:?}");
    drop(arena.take_soon("what was lost stays", &b).await);
}

pub(super) async fn a_hold_that_was_taken_away_does_not_stay(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.lock(&a).lock(&long(&arena, &a)).await.expect("nobody holds it");
    b.force_release(arena.name()).await.expect("the store can be asked");
    let next = arena.take_soon("it was broken", &b).await;
    stays_undisturbed(&arena, &b, &next, async || drop(held)).await;
    next.release().await.expect("held until now");
    drop(arena.take_soon("what was taken away stays", &a).await);
}

pub(super) async fn a_try_that_is_busy_leaves_nothing_that_stays(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let tried = arena.lock(&b).try_lock(&long(&arena, &b)).await.expect("busy is no error");
    assert!(tried.is_none(), "two hold it");
    let late = arena.lock(&b).lock(&long(&arena, &b).wait(Duration::from_millis(100))).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    held.release().await.expect("held until now");
    drop(arena.take_soon("nobody was granted, and something stays", &a).await);
}

pub(super) async fn an_acquire_that_is_dropped_leaves_nothing_that_stays(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), long(&arena, &a));
    for cut in 0..CUTS {
        if let Some(granted) = cut_off(lock.lock(&options), cut).await {
            // Whoever has the guard can do with it what it likes.
            let ticket = granted.expect("nobody holds it").detach(arena.ttl()).await.expect("held until now");
            b.release(&ticket).await.expect("held until now");
        }
        drop(arena.take_soon(&format!("granted to nobody at cut {cut}, and it stays"), &b).await);
    }
}

/// A MultiLock of this many names, of one client.
fn several(arena: &Arena, client: &Locks, names: &[String]) -> MultiLock {
    let members = names.iter().map(|name| -> Arc<dyn DistributedLock> { client.of(arena.kind(), name) });
    MultiLock::new(members).expect("at least one")
}

pub(super) async fn of_several_locks_that_were_not_all_free_none_stays(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let names = ["-1", "-2", "-3"].map(|suffix| arena.name_with(suffix));
    let held = b.mutex(&names[1]).lock().await.expect("nobody holds it");
    let all = several(&arena, &a, &names);
    let tried = all.try_lock(&long(&arena, &a)).await.expect("busy is no error");
    assert!(tried.is_none(), "two hold it");
    let late = all.lock(&long(&arena, &a).wait(Duration::from_millis(100))).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    held.release().await.expect("held until now");
    for name in &names {
        let taken = b.mutex(name).lock();
        drop(arena.soon("nobody has all of them, and one stays", taken).await.expect("nobody holds it"));
    }
}

pub(super) async fn of_several_locks_that_are_let_go_each_stays(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let names = ["-1", "-2"].map(|suffix| arena.name_with(suffix));
    let options = arena.options().at_least(span(&arena));
    let end = Instant::now() + span(&arena);
    let held = several(&arena, &a, &names).lock(&options).await.expect("nobody holds them");
    held.release().await.expect("held until now");
    for name in &names {
        let tried = b.mutex(name).try_lock().await.expect("busy is no error");
        assert!(tried.is_none() || Instant::now() >= end, "free before its time");
    }
    for name in &names {
        let left = end.saturating_duration_since(Instant::now());
        let taken = b.mutex(name).lock();
        drop(arena.within(left + arena.ttl(), "it stays for ever", taken).await.expect("free by now"));
    }
}
