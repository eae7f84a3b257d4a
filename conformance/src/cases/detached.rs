//! A detached hold continues by itself for its time, whatever happens to its client, and then ends.

use std::{sync::Arc, time::Duration};

use dlock_core::{Error, Guard, GuardError, Kind, LockOptions, Locks, LostReason, Ticket, Token};
use tokio::time::{Instant, sleep, timeout};

use super::{
    cancel::{CUTS, cut_off, rival},
    semaphore,
};
use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind = [
        of("detached", Kind::Mutex, &NEEDS[1..]),
        of("detached_fair", Kind::Fair, &NEEDS[1..]),
        of("detached_write", Kind::Write, &NEEDS[1..]),
        of("detached_permit", Kind::Permit, &NEEDS[1..]),
        of("detached_read", Kind::Read, &NEEDS),
    ];
    let others = cases! {
        "detached" (Kind::Mutex) [Need::NoDetach] { a_store_that_cannot_keep_a_lock_says_so_before_any_io }
        "detached" (Kind::Mutex) [Need::Detach] {
            a_time_that_the_store_cannot_keep_is_refused_before_any_io,
            a_hold_that_was_reported_lost_does_not_continue,
        }
        "detached" (Kind::Mutex) [Need::Detach, Need::Inspect] { a_force_released_hold_cannot_be_detached }
        "detached_write" (Kind::Write) [Need::Detach, Need::Inspect] { a_force_released_hold_cannot_be_detached }
        "detached_permit" (Kind::Permit) [Need::Detach, Need::Inspect] { a_force_released_hold_cannot_be_detached }
        "detached_read" (Kind::Read) [Need::Detach, Need::Kind(Kind::Write)] {
            a_detached_reader_lets_readers_in_and_keeps_writers_out,
        }
        "detached_permit" (Kind::Permit) [Need::Detach] { a_detached_permit_counts_against_the_limit }
    };
    of_one_kind.into_iter().flatten().chain(others).collect()
}

/// Requirements of the cases for every kind. Only readers need the first, because no other kind
/// must wait for a reader.
const NEEDS: [Need; 2] = [Need::Kind(Kind::Write), Need::Detach];

fn of(topic: &'static str, kind: Kind, needs: &'static [Need]) -> Vec<Case> {
    cases! {
        topic (kind) needs {
            it_stays_for_its_time_without_renewals,
            it_stays_for_its_time_after_its_client_is_killed,
            it_stays_for_its_time_after_its_client_is_closed,
            it_is_taken_over_within_the_longest_time,
            a_detachment_whose_answer_is_lost_stands,
            a_detachment_leaves_nothing_wherever_it_is_dropped,
        }
    }
}

/// Time by which a store may end a hold early by the clock of the case. Stores count whole
/// milliseconds, on clocks of their own.
pub(super) const EARLY: Duration = Duration::from_millis(50);

/// Returns the time of a detached hold that ends during the case. Longer than the ttl of the hold.
pub(super) fn span(arena: &Arena) -> Duration {
    arena.ttl() * 3 / 2
}

/// Detaches a hold.
#[track_caller]
pub(super) fn detach(arena: &Arena, held: Guard, lasting: Duration) -> impl Future<Output = Ticket> {
    arena.soon("the detachment is never confirmed", async move {
        held.detach(lasting).await.expect("the lock is still held")
    })
}

/// Takes the lock and detaches it for `lasting`.
#[track_caller]
pub(super) fn detached(arena: &Arena, client: &Locks, lasting: Duration) -> impl Future<Output = Ticket> {
    let taking = arena.take_soon("a free lock was not granted", client);
    async move { detach(arena, taking.await, lasting).await }
}

/// Takes the lock when its detached hold ends, as a claim that must wait for it. The hold must end
/// at `end`, no earlier and not much later.
pub(super) async fn take_at(arena: &Arena, client: &Locks, end: Instant, token: Option<Token>) -> Guard {
    let is_early = |at: Instant| at + EARLY < end;
    arena.leaves_to_its_end();
    let tried = arena.try_take(client, rival(arena)).await;
    assert!(
        tried.is_none() || !is_early(Instant::now()),
        "the lock was free {:?} early",
        end - Instant::now()
    );
    drop(tried);
    let left = end.saturating_duration_since(Instant::now());
    // A waiter is not woken by the end of the time, and attempts again within its ttl.
    let waiting = arena.take(client, rival(arena));
    let next = arena.within(left + arena.ttl(), "the detached hold never ends", waiting).await;
    let at = Instant::now();
    assert!(!is_early(at), "the lock was free {:?} early", end - at);
    if client.info().tokens {
        assert!(next.token() > token, "the token did not grow: {next:?} after {token:?}");
    }
    next
}

/// Returns whether the result reports that the ticket no longer has the hold.
pub(super) fn was_taken<T>(result: &dlock_core::Result<T>) -> bool {
    matches!(result, Err(Error::Lost { reason: LostReason::Deleted, .. }))
}

pub(super) async fn it_stays_for_its_time_without_renewals(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let signal = held.lost_signal();
    let end = Instant::now() + span(&arena);
    let ticket = detach(&arena, held, span(&arena)).await;
    assert_eq!((ticket.name().as_str(), ticket.kind()), (arena.name(), arena.kind()));
    drop(take_at(&arena, &b, end, ticket.token()).await);
    assert!(!signal.is_lost(), "a detached hold was reported as lost");
}

pub(super) async fn it_stays_for_its_time_after_its_client_is_killed(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let end = Instant::now() + span(&arena);
    let ticket = detach(&arena, held, span(&arena)).await;
    switch.kill();
    drop(a);
    drop(take_at(&arena, &b, end, ticket.token()).await);
}

pub(super) async fn it_stays_for_its_time_after_its_client_is_closed(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let end = Instant::now() + span(&arena);
    let ticket = detach(&arena, held, span(&arena)).await;
    arena.soon("closing a client waits for its detached hold", a.close()).await;
    drop(a);
    drop(take_at(&arena, &b, end, ticket.token()).await);
}

/// The keeper receives no reply, and repeats the detachment until it does.
pub(super) async fn a_detachment_whose_answer_is_lost_stands(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    switch.lose_answers();
    let mut detaching = Box::pin(held.detach(arena.long_ttl(&b)));
    arena.still_waits("the detachment was confirmed without a reply", &mut detaching).await;
    switch.connect();
    let ticket =
        arena.soon("the detachment was not repeated", detaching).await.expect("the lock is still held");
    assert!(arena.try_take(&b, rival(&arena)).await.is_none(), "two claims hold the lock");
    b.release(&ticket).await.expect("the lock is still held");
    drop(arena.soon("a released lock is not free", arena.take(&b, rival(&arena))).await);
}

pub(super) async fn a_detachment_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), arena.options().ttl(arena.long_ttl(&a)));
    for cut in 0..CUTS {
        let held = lock.lock(&options).await.expect("the lock is free");
        if let Some(result) = cut_off(held.detach(arena.long_ttl(&a)), cut).await {
            let ticket = result.expect("the lock is still held");
            b.release(&ticket).await.expect("the lock is still held");
        }
        drop(
            arena
                .soon(&format!("the lock is still held after cut {cut}"), arena.take(&b, rival(&arena)))
                .await,
        );
    }
}

pub(super) async fn a_force_released_hold_cannot_be_detached(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    b.force_release(arena.name()).await.expect("the store is reachable");
    let result = arena.soon("the call does not return", held.detach(arena.long_ttl(&a))).await;
    assert!(is_lost(&result), "the lock was taken from it, but the detachment returned {result:?}");
    drop(arena.soon("a stale holder created its claim again", arena.take(&b, rival(&arena))).await);
}

fn is_lost(result: &Result<Ticket, GuardError>) -> bool {
    result.as_ref().is_err_and(|error| matches!(error.error(), Error::Lost { .. }))
}

/// The last request that reached the store may have been a detachment. The client must remember
/// that when it is connected again.
pub(super) async fn a_hold_that_was_reported_lost_does_not_continue(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.lock(&a).lock(&arena.short()).await.expect("the lock is free");
    switch.lose_answers();
    let mut detaching = Box::pin(held.detach(arena.long_ttl(&a)));
    let first_result = timeout(arena.short_ttl() / 4, &mut detaching).await;
    switch.cut();
    let result = match first_result {
        Ok(result) => result,
        Err(_) => arena.within(arena.short_ttl(), "the loss is never reported", detaching).await,
    };
    assert!(is_lost(&result), "the time of the hold is over, but the detachment returned {result:?}");
    drop(result);
    sleep(arena.short_ttl() * 3).await;
    switch.connect();
    drop(arena.soon("the hold was reported lost, but it continues", arena.take(&b, arena.kind())).await);
}

pub(super) async fn a_store_that_cannot_keep_a_lock_says_so_before_any_io(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    switch.cut();
    let refused = arena.soon("the refused call sends a request", held.detach(arena.ttl())).await;
    let refused = refused.expect_err("the store declares that it cannot keep the lock");
    assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused:?}");
    let held = refused.into_guard();
    assert!(!held.is_lost(), "a refusal was reported as a loss");
    let options = arena.options().at_least(arena.ttl());
    let lock = arena.lock(&a);
    for result in [lock.lock(&options).await.map(Some), lock.try_lock(&options).await] {
        assert!(matches!(result, Err(Error::Unsupported { .. })), "{result:?}");
    }
    let id = held.id().expect("the guard has one claim");
    let ticket =
        format!("dlock1:mutex:1:{id}:{}", arena.name()).parse::<Ticket>().expect("the ticket can be parsed");
    for result in [a.resume(&ticket).await.map(drop), a.release(&ticket).await] {
        assert!(matches!(result, Err(Error::Unsupported { .. })), "{result:?}");
    }
    switch.connect();
    held.release().await.expect("the lock is still held");
}

/// The times in the store are then as great as they can be.
pub(super) async fn it_is_taken_over_within_the_longest_time(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let longest = *a.info().leases.end();
    let ticket = detached(&arena, &a, longest).await;
    let is_free = async || arena.try_take(&b, rival(&arena)).await.is_some();
    assert!(!is_free().await, "a hold that is detached for {longest:?} has ended");
    let resumed = arena.soon("the ticket is not accepted", b.resume(&ticket)).await;
    let resumed = resumed.expect("the ticket has the hold");
    assert_eq!(resumed.token(), ticket.token());
    let ticket = detach(&arena, resumed, longest).await;
    assert!(!is_free().await, "a hold that is detached for {longest:?} again has ended");
    let released = arena.soon("the release by ticket does not return", a.release(&ticket)).await;
    released.expect("the ticket has the hold");
    drop(arena.take_soon("the lock is not free after the release by ticket", &b).await);
}

pub(super) async fn a_time_that_the_store_cannot_keep_is_refused_before_any_io(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    let longest = *a.info().leases.end();
    let mut held = arena.take_soon("a free lock was not granted", &a).await;
    switch.cut();
    for lasting in [Duration::ZERO, longest.saturating_add(Duration::from_millis(1)), Duration::MAX] {
        let refused = arena.soon("the refused call sends a request", held.detach(lasting)).await;
        let refused = refused.expect_err("no store keeps a lock for this time");
        assert!(matches!(refused.error(), Error::InvalidOptions { .. }), "{refused:?}");
        held = refused.into_guard();
    }
    let options = LockOptions::new().at_least(longest.saturating_add(Duration::from_millis(1)));
    let result = arena.lock(&a).try_lock(&options).await;
    assert!(matches!(result, Err(Error::InvalidOptions { .. })), "{result:?}");
    switch.connect();
    held.release().await.expect("the lock is still held");
}

pub(super) async fn a_detached_reader_lets_readers_in_and_keeps_writers_out(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    let beside = arena.take_soon("a free lock was not granted", &b).await;
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let late = arena.take_soon("a reader was not granted beside a detached reader", &c).await;
    beside.release().await.expect("the lock is still held");
    late.release().await.expect("the lock is still held");
    let (lock, options) = (c.of(Kind::Write, arena.name()), arena.options().ttl(arena.long_ttl(&c)));
    let mut writer = lock.lock(&options);
    arena.still_waits("a writer was granted beside a detached reader", &mut writer).await;
    b.release(&ticket).await.expect("the lock is still held");
    let writer = arena.soon("the release wakes no writer", writer).await.expect("the lock is free");
    drop(writer);
}

pub(super) async fn a_detached_permit_counts_against_the_limit(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let first = semaphore::take(&arena, &a, 2, "a free permit was not granted").await;
    let ticket = detach(&arena, first, arena.long_ttl(&a)).await;
    let second = semaphore::take(&arena, &b, 2, "a detached permit uses both permits").await;
    assert!(semaphore::is_full(&arena, &b, 2).await, "a detached permit does not count");
    let waiter = semaphore::arrive(&arena, 2, 3).await;
    b.release(&ticket).await.expect("the lock is still held");
    let third = arena.soon("the release wakes no waiter", waiter).await.expect("the task does not panic");
    assert!(semaphore::is_full(&arena, &b, 2).await, "three claims hold the semaphore, but its limit is two");
    // A resumed permit keeps its limit.
    let ticket = detach(&arena, second, arena.long_ttl(&b)).await;
    let second = a.resume(&ticket).await.expect("the lock is still held");
    assert!(
        semaphore::is_full(&arena, &b, 3).await,
        "a third permit was granted beside one with a limit of two"
    );
    drop((second, third));
}
