//! A detached hold goes on by itself: for its time, whatever happens to its client, and no longer. Over the usual length: one
//! table's rows.

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
            a_hold_that_was_told_lost_does_not_go_on,
        }
        "detached" (Kind::Mutex) [Need::Detach, Need::Inspect] { what_was_taken_away_cannot_be_detached }
        "detached_write" (Kind::Write) [Need::Detach, Need::Inspect] { what_was_taken_away_cannot_be_detached }
        "detached_permit" (Kind::Permit) [Need::Detach, Need::Inspect] { what_was_taken_away_cannot_be_detached }
        "detached_read" (Kind::Read) [Need::Detach, Need::Kind(Kind::Write)] {
            a_detached_reader_lets_readers_in_and_keeps_writers_out,
        }
        "detached_permit" (Kind::Permit) [Need::Detach] { a_detached_permit_counts_against_the_limit }
    };
    of_one_kind.into_iter().flatten().chain(others).collect()
}

/// What the cases of every kind need. Only readers need the first, who wait for nobody else.
const NEEDS: [Need; 2] = [Need::Kind(Kind::Write), Need::Detach];

fn of(topic: &'static str, kind: Kind, needs: &'static [Need]) -> Vec<Case> {
    cases! {
        topic (kind) needs {
            it_stays_for_its_time_though_nobody_renews_it,
            it_stays_for_its_time_though_its_client_is_killed,
            it_stays_for_its_time_though_its_client_is_closed,
            a_detachment_whose_answer_is_lost_stands,
            a_detachment_leaves_nothing_wherever_it_is_dropped,
        }
    }
}

/// How much earlier than the case a store may count. Stores count whole milliseconds, and their clocks are not the case's.
const EARLY: Duration = Duration::from_millis(50);

/// For how long a hold is detached that is to end by itself: longer than the ttl that it had.
pub(super) fn span(arena: &Arena) -> Duration {
    arena.ttl() * 3 / 2
}

/// Detaches a hold.
#[track_caller]
pub(super) fn detach(arena: &Arena, held: Guard, lasting: Duration) -> impl Future<Output = Ticket> {
    arena.soon("the detachment is never confirmed", async move {
        held.detach(lasting).await.expect("held until now")
    })
}

/// Takes the lock, and detaches it for so long.
#[track_caller]
pub(super) fn detached(arena: &Arena, client: &Locks, lasting: Duration) -> impl Future<Output = Ticket> {
    let taking = arena.take_soon("nobody holds it", client);
    async move { detach(arena, taking.await, lasting).await }
}

/// Takes the lock when its detached hold ends, as whoever must wait for it. It must end at `end`, no earlier and not much later.
pub(super) async fn take_at(arena: &Arena, client: &Locks, end: Instant, token: Option<Token>) -> Guard {
    let early = |at: Instant| at + EARLY < end;
    arena.leaves_to_its_end();
    let tried = arena.try_take(client, rival(arena)).await;
    assert!(tried.is_none() || !early(Instant::now()), "the lock was free {:?} early", end - Instant::now());
    drop(tried);
    let left = end.saturating_duration_since(Instant::now());
    // At the ttl of the waiter at the latest: nobody wakes it.
    let waiting = arena.take(client, rival(arena));
    let next = arena.within(left + arena.ttl(), "it goes on for ever", waiting).await;
    let at = Instant::now();
    assert!(!early(at), "the lock was free {:?} early", end - at);
    if client.info().tokens {
        assert!(next.token() > token, "{next:?} after {token:?}");
    }
    next
}

/// Whether an answer says that the hold is not the ticket's any more.
pub(super) fn is_gone<T>(told: &dlock_core::Result<T>) -> bool {
    matches!(told, Err(Error::Lost { reason: LostReason::Taken, .. }))
}

pub(super) async fn it_stays_for_its_time_though_nobody_renews_it(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let signal = held.lost_signal();
    let end = Instant::now() + span(&arena);
    let ticket = detach(&arena, held, span(&arena)).await;
    assert_eq!((ticket.name().as_str(), ticket.kind()), (arena.name(), arena.kind()));
    drop(take_at(&arena, &b, end, ticket.token()).await);
    assert!(!signal.is_lost(), "a detached hold is not lost");
}

pub(super) async fn it_stays_for_its_time_though_its_client_is_killed(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let end = Instant::now() + span(&arena);
    let ticket = detach(&arena, held, span(&arena)).await;
    line.kill();
    drop(a);
    drop(take_at(&arena, &b, end, ticket.token()).await);
}

pub(super) async fn it_stays_for_its_time_though_its_client_is_closed(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let end = Instant::now() + span(&arena);
    let ticket = detach(&arena, held, span(&arena)).await;
    arena.soon("it waits for what was detached", a.close()).await;
    drop(a);
    drop(take_at(&arena, &b, end, ticket.token()).await);
}

/// The keeper hears no answer, and asks again until it hears one.
pub(super) async fn a_detachment_whose_answer_is_lost_stands(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    line.lose_answers();
    let mut detaching = Box::pin(held.detach(arena.long_ttl(&b)));
    arena.still_waits("confirmed without an answer", &mut detaching).await;
    line.connect();
    let ticket = arena.soon("not asked again", detaching).await.expect("held until now");
    assert!(arena.try_take(&b, rival(&arena)).await.is_none(), "two hold it");
    b.release(&ticket).await.expect("held until now");
    drop(arena.soon("it was released", arena.take(&b, rival(&arena))).await);
}

pub(super) async fn a_detachment_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (lock, options) = (arena.lock(&a), arena.options().ttl(arena.long_ttl(&a)));
    for cut in 0..CUTS {
        let held = lock.lock(&options).await.expect("nobody holds it");
        if let Some(told) = cut_off(held.detach(arena.long_ttl(&a)), cut).await {
            let ticket = told.expect("held until now");
            b.release(&ticket).await.expect("held until now");
        }
        drop(arena.soon(&format!("still held after cut {cut}"), arena.take(&b, rival(&arena))).await);
    }
}

pub(super) async fn what_was_taken_away_cannot_be_detached(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    b.force_release(arena.name()).await.expect("the store can be asked");
    let told = arena.soon("it hangs", held.detach(arena.long_ttl(&a))).await;
    assert!(is_lost(&told), "the lock was taken from it, and the detachment says {told:?}");
    drop(arena.soon("a stale holder put its claim back", arena.take(&b, rival(&arena))).await);
}

fn is_lost(told: &Result<Ticket, GuardError>) -> bool {
    told.as_ref().is_err_and(|error| matches!(error.error(), Error::Lost { .. }))
}

/// The last that reached the store may have been a detachment. When the client is back, it must still know that.
pub(super) async fn a_hold_that_was_told_lost_does_not_go_on(arena: Arc<Arena>) {
    let ((a, line), b) = (arena.client_with_switch().await, arena.client().await);
    let held = arena.lock(&a).lock(&arena.short()).await.expect("nobody holds it");
    line.lose_answers();
    let mut detaching = Box::pin(held.detach(arena.long_ttl(&a)));
    let early = timeout(arena.short_ttl() / 4, &mut detaching).await;
    line.cut();
    let told = match early {
        Ok(told) => told,
        Err(_) => arena.within(arena.short_ttl(), "it was never told", detaching).await,
    };
    assert!(is_lost(&told), "its time is over, and it is told {told:?}");
    drop(told);
    sleep(arena.short_ttl() * 3).await;
    line.connect();
    drop(arena.soon("it was told lost, and the hold goes on", arena.take(&b, arena.kind())).await);
}

pub(super) async fn a_store_that_cannot_keep_a_lock_says_so_before_any_io(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    let held = arena.take_soon("nobody holds it", &a).await;
    line.cut();
    let refused = arena.soon("it asks the store", held.detach(arena.ttl())).await;
    let refused = refused.expect_err("the store says that it cannot");
    assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused:?}");
    let held = refused.into_guard();
    assert!(!held.is_lost(), "a refusal is no loss");
    let options = arena.options().at_least(arena.ttl());
    let lock = arena.lock(&a);
    for told in [lock.lock(&options).await.map(Some), lock.try_lock(&options).await] {
        assert!(matches!(told, Err(Error::Unsupported { .. })), "{told:?}");
    }
    let id = held.id().expect("one claim");
    let ticket = format!("dlock1:mutex:1:{id}:{}", arena.name()).parse::<Ticket>().expect("a ticket");
    for told in [a.resume(&ticket).await.map(drop), a.release(&ticket).await] {
        assert!(matches!(told, Err(Error::Unsupported { .. })), "{told:?}");
    }
    line.connect();
    held.release().await.expect("held until now");
}

pub(super) async fn a_time_that_the_store_cannot_keep_is_refused_before_any_io(arena: Arc<Arena>) {
    let (a, line) = arena.client_with_switch().await;
    let longest = *a.info().leases.end();
    let mut held = arena.take_soon("nobody holds it", &a).await;
    line.cut();
    for lasting in [Duration::ZERO, longest.saturating_add(Duration::from_millis(1)), Duration::MAX] {
        let refused = arena.soon("it asks the store", held.detach(lasting)).await;
        let refused = refused.expect_err("no store keeps a lock for so long");
        assert!(matches!(refused.error(), Error::InvalidOptions { .. }), "{refused:?}");
        held = refused.into_guard();
    }
    let options = LockOptions::new().at_least(longest.saturating_add(Duration::from_millis(1)));
    let told = arena.lock(&a).try_lock(&options).await;
    assert!(matches!(told, Err(Error::InvalidOptions { .. })), "{told:?}");
    line.connect();
    held.release().await.expect("a refusal is no loss");
}

pub(super) async fn a_detached_reader_lets_readers_in_and_keeps_writers_out(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    let beside = arena.take_soon("nobody holds it", &b).await;
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let late = arena.take_soon("readers share, detached or not", &c).await;
    beside.release().await.expect("held until now");
    late.release().await.expect("held until now");
    let (lock, options) = (c.of(Kind::Write, arena.name()), arena.options().ttl(arena.long_ttl(&c)));
    let mut writer = lock.lock(&options);
    arena.still_waits("a writer beside a detached reader", &mut writer).await;
    b.release(&ticket).await.expect("held until now");
    let writer = arena.soon("nobody wakes the writer", writer).await.expect("free again");
    drop(writer);
}

pub(super) async fn a_detached_permit_counts_against_the_limit(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let first = semaphore::take(&arena, &a, 2, "nobody holds one").await;
    let ticket = detach(&arena, first, arena.long_ttl(&a)).await;
    let second = semaphore::take(&arena, &b, 2, "a detached permit took both").await;
    assert!(semaphore::is_full(&arena, &b, 2).await, "a detached permit does not count");
    let waiter = semaphore::arrive(&arena, 2, 3).await;
    b.release(&ticket).await.expect("held until now");
    let third = arena.soon("nobody wakes the waiter", waiter).await.expect("no panic");
    assert!(semaphore::is_full(&arena, &b, 2).await, "three hold it, and the limit is two");
    // A permit that was taken back keeps its limit.
    let ticket = detach(&arena, second, arena.long_ttl(&b)).await;
    let second = a.resume(&ticket).await.expect("held until now");
    assert!(semaphore::is_full(&arena, &b, 3).await, "a third came in beside one that knows of two");
    drop((second, third));
}
