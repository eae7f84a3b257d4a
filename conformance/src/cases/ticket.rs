//! A ticket refers to a detached hold. Any client can resume or release the hold with it, until the
//! ticket has been used or the hold has ended. After that the ticket has no effect.

use std::{sync::Arc, time::Duration};

use dlock_core::{Guard, Kind, Locks, Ticket};
use tokio::time::{Instant, sleep};

use super::{
    cancel::{CUTS, cut_off, rival},
    detached::{detach, detached, span, take_at, was_taken},
    loss::stays_undisturbed,
};
use crate::{
    Arena,
    case::{Case, Need, cases},
    wrap::Habit,
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind = [
        of("ticket", Kind::Mutex, &[Need::Detach]),
        of("ticket_fair", Kind::Fair, &[Need::Detach]),
        of("ticket_write", Kind::Write, &[Need::Detach]),
        of("ticket_permit", Kind::Permit, &[Need::Detach]),
        of("ticket_read", Kind::Read, &[Need::Detach, Need::Kind(Kind::Write)]),
    ];
    let others = cases! {
        "ticket" (Kind::Mutex) [Need::Detach] { of_two_detachments_the_second_counts }
        "ticket" (Kind::Mutex) [Need::Detach, Need::Inspect] { it_is_worth_nothing_when_its_lock_was_broken }
        "ticket" (Kind::Mutex) [Need::Detach] { a_ticket_of_another_lock_takes_nothing }
    };
    of_one_kind.into_iter().flatten().chain(others).collect()
}

fn of(topic: &'static str, kind: Kind, needs: &'static [Need]) -> Vec<Case> {
    cases! {
        topic (kind) needs {
            it_releases_the_lock_and_wakes_the_next,
            it_takes_the_lock_back_which_is_then_renewed,
            a_resumed_hold_dies_with_its_client,
            it_is_worth_nothing_when_its_time_is_over,
            it_is_worth_nothing_when_it_was_released,
            it_is_worth_nothing_when_it_was_used_up,
            it_is_worth_nothing_while_it_is_in_use,
            a_use_that_is_given_up_leaves_the_hold_to_the_ticket,
        }
    }
}

/// Returns the ticket as another process parses it.
fn read(ticket: &Ticket) -> Ticket {
    ticket.to_string().parse().expect("a ticket's text can be parsed")
}

pub(super) async fn it_releases_the_lock_and_wakes_the_next(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let (lock, options) = (c.of(rival(&arena), arena.name()), arena.options().ttl(arena.long_ttl(&c)));
    let mut next = lock.lock(&options);
    arena.still_waits("two claims hold the lock", &mut next).await;
    b.release(&read(&ticket)).await.expect("the lock is still held");
    let next = arena.soon("the release wakes no waiter", next).await.expect("the lock is free");
    assert!(
        !c.info().tokens || next.token() > ticket.token(),
        "the token did not grow: {next:?} after {ticket:?}"
    );
}

pub(super) async fn it_takes_the_lock_back_which_is_then_renewed(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let (token, end) = (held.token(), Instant::now() + arena.ttl());
    let ticket = detach(&arena, held, arena.ttl()).await;
    a.close().await;
    let held = arena
        .soon("the hold is never resumed", b.resume(&read(&ticket)))
        .await
        .expect("the time of the hold has not ended");
    assert_eq!(held.token(), token, "the token belongs to another hold");
    assert!(held.remaining() <= arena.ttl(), "more time remains than was requested: {:?}", held.remaining());
    let renewed = || held.is_lost() || Instant::now() + held.remaining() > end + arena.ttl() / 4;
    arena.until("the lock was not renewed", renewed).await;
    sleep((end + arena.ttl() / 4).saturating_duration_since(Instant::now())).await;
    assert!(!held.is_lost(), "the lock was lost although it was renewed");
    assert!(arena.try_take(&c, rival(&arena)).await.is_none(), "two claims hold the lock");
    held.release().await.expect("the lock is still held");
    drop(arena.soon("a released lock is not free", arena.take(&c, rival(&arena))).await);
}

/// The hold was detached for a long time. The first renewal by the client that resumed it ends that
/// time.
pub(super) async fn a_resumed_hold_dies_with_its_client(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (killed, switch) = arena.client_with_switch().await;
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let short = killed.clone().with_defaults(arena.short());
    let held = arena
        .soon("the hold is never resumed", short.resume(&ticket))
        .await
        .expect("the time of the hold has not ended");
    switch.kill();
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let next =
        arena.within(limit, "the detached time continues after a crash", arena.take(&b, rival(&arena))).await;
    assert!(held.is_lost(), "two claims hold the lock");
    drop((next, held));
}

/// Checks that both uses of a ticket whose hold has ended return an error, and disturb no client.
async fn is_worth_nothing(arena: &Arena, ticket: &Ticket, watcher: &Locks, next: &Guard) {
    let client = arena.client().await;
    stays_undisturbed(arena, watcher, next, async || {
        let result = client.resume(ticket).await;
        assert!(was_taken(&result), "the hold has ended, but resuming it returned {result:?}");
        let result = client.release(ticket).await;
        // A repeated release finds nothing in either case.
        let may_be_repeated = arena.habit() == Some(Habit::Flaky) && result.is_ok();
        assert!(
            was_taken(&result) || may_be_repeated,
            "the hold has ended, but its release returned {result:?}"
        );
    })
    .await;
}

pub(super) async fn it_is_worth_nothing_when_its_time_is_over(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let end = Instant::now() + span(&arena);
    let ticket = detach(&arena, held, span(&arena)).await;
    let next = take_at(&arena, &b, end, ticket.token()).await;
    is_worth_nothing(&arena, &ticket, &b, &next).await;
}

pub(super) async fn it_is_worth_nothing_when_it_was_released(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    a.release(&ticket).await.expect("the lock is still held");
    let next = arena.soon("a released lock is not free", arena.take(&b, rival(&arena))).await;
    is_worth_nothing(&arena, &ticket, &b, &next).await;
}

pub(super) async fn it_is_worth_nothing_when_it_was_used_up(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let held = a.resume(&ticket).await.expect("the lock is still held");
    held.release().await.expect("the lock is still held");
    let next = arena.soon("a released lock is not free", arena.take(&b, rival(&arena))).await;
    is_worth_nothing(&arena, &ticket, &b, &next).await;
}

pub(super) async fn it_is_worth_nothing_while_it_is_in_use(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let held = arena
        .soon("the hold is never resumed", b.resume(&read(&ticket)))
        .await
        .expect("the time of the hold has not ended");
    is_worth_nothing(&arena, &ticket, &b, &held).await;
    assert!(arena.try_take(&a, rival(&arena)).await.is_none(), "a second use of a ticket freed the lock");
    held.release().await.expect("the lock is still held");
}

pub(super) async fn a_use_that_is_given_up_leaves_the_hold_to_the_ticket(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let mut ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    for cut in 0..CUTS {
        let used = cut_off(b.resume(&ticket), cut).await;
        if let Some(held) = used {
            ticket =
                detach(&arena, held.expect("the time of the hold has not ended"), arena.long_ttl(&a)).await;
        }
        assert!(arena.try_take(&a, rival(&arena)).await.is_none(), "the lock was free after cut {cut}");
    }
    // The last abandoned use may still be in flight, and holds the lock until it hands the hold
    // back.
    let taken = async {
        loop {
            match a.resume(&ticket).await {
                Ok(held) => return held,
                result => {
                    assert!(was_taken(&result), "the use was abandoned, but the ticket returned {result:?}")
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let failure = "an abandoned use of the ticket made it invalid";
    arena.soon(failure, taken).await.release().await.expect("the lock is still held");
    drop(arena.soon("a released lock is not free", arena.take(&b, rival(&arena))).await);
}

pub(super) async fn a_ticket_of_another_lock_takes_nothing(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (other, held) = (arena.name_with("-other"), arena.take_soon("a free lock was not granted", &a).await);
    let ticket = a.of(arena.kind(), &other).lock(&arena.options()).await.expect("the lock is free");
    let ticket = detach(&arena, ticket, arena.long_ttl(&a)).await.to_string();
    // The ticket of another lock with this lock's name. Its id identifies no claim of this lock.
    let forged =
        ticket.replace(&other, arena.name()).parse::<Ticket>().expect("a ticket's text can be parsed");
    is_worth_nothing(&arena, &forged, &b, &held).await;
    held.release().await.expect("the lock is still held");
    b.release(&ticket.parse().expect("a ticket's text can be parsed")).await.expect("the lock is still held");
}

pub(super) async fn it_is_worth_nothing_when_its_lock_was_broken(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let waiting = arena.go({
        let (lock, options) = (arena.lock(&b), arena.options());
        async move { lock.lock(&options).await.expect("an acquisition without a limit is granted") }
    });
    arena.until_contenders(&b, 2).await;
    assert!(
        a.force_release(arena.name()).await.expect("the store is reachable"),
        "a detached hold was not broken"
    );
    let next = arena
        .soon("a lock is not free after a forced release", waiting)
        .await
        .expect("the task does not panic");
    is_worth_nothing(&arena, &ticket, &b, &next).await;
}

pub(super) async fn of_two_detachments_the_second_counts(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    for (first, second) in [(arena.long_ttl(&a), span(&arena)), (arena.ttl(), span(&arena))] {
        let ticket = detached(&arena, &a, first).await;
        let held = arena
            .soon("the hold is never resumed", b.resume(&ticket))
            .await
            .expect("the time of the hold has not ended");
        let end = Instant::now() + second;
        let again = detach(&arena, held, second).await;
        assert_eq!(again.token(), ticket.token(), "the token belongs to another hold");
        assert_ne!(again.id(), ticket.id(), "the first ticket still finds the hold");
        drop(take_at(&arena, &a, end, again.token()).await);
    }
}
