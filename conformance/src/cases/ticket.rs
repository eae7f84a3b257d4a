//! A ticket stands for a detached hold: with it anybody takes the lock back or releases it, as long as the hold is the
//! ticket's. After that it harms nobody.

use std::{sync::Arc, time::Duration};

use dlock_core::{Guard, Kind, Locks, Ticket};
use tokio::time::{Instant, sleep};

use super::{
    cancel::{CUTS, cut_off, rival},
    detached::{detach, detached, is_gone, span, take_at},
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
            what_it_took_back_dies_with_its_client,
            it_is_worth_nothing_when_its_time_is_over,
            it_is_worth_nothing_when_it_was_released,
            it_is_worth_nothing_when_it_was_used_up,
            it_is_worth_nothing_while_it_is_in_use,
            a_use_that_is_given_up_leaves_the_hold_to_the_ticket,
        }
    }
}

/// The same ticket as another process reads it.
fn read(ticket: &Ticket) -> Ticket {
    ticket.to_string().parse().expect("its own text")
}

pub(super) async fn it_releases_the_lock_and_wakes_the_next(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let (lock, options) = (c.of(rival(&arena), arena.name()), arena.options().ttl(arena.long_ttl(&c)));
    let mut next = lock.lock(&options);
    arena.still_waits("two hold it", &mut next).await;
    b.release(&read(&ticket)).await.expect("held until now");
    let next = arena.soon("nobody wakes the next", next).await.expect("free again");
    assert!(!c.info().tokens || next.token() > ticket.token(), "{next:?} after {ticket:?}");
}

pub(super) async fn it_takes_the_lock_back_which_is_then_renewed(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let (token, end) = (held.token(), Instant::now() + arena.ttl());
    let ticket = detach(&arena, held, arena.ttl()).await;
    a.close().await;
    let held =
        arena.soon("it is never taken back", b.resume(&read(&ticket))).await.expect("its time is not over");
    assert_eq!(held.token(), token, "another hold");
    assert!(held.remaining() <= arena.ttl(), "more remains than was asked for: {:?}", held.remaining());
    let renewed = || held.is_lost() || Instant::now() + held.remaining() > end + arena.ttl() / 4;
    arena.until("it was not renewed", renewed).await;
    sleep((end + arena.ttl() / 4).saturating_duration_since(Instant::now())).await;
    assert!(!held.is_lost(), "lost although it was renewed");
    assert!(arena.try_take(&c, rival(&arena)).await.is_none(), "two hold it");
    held.release().await.expect("held until now");
    drop(arena.soon("it was released", arena.take(&c, rival(&arena))).await);
}

/// It was detached for long. That time is over with the first renewal of whoever took it back.
pub(super) async fn what_it_took_back_dies_with_its_client(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (mortal, line) = arena.client_with_switch().await;
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let short = mortal.clone().with_defaults(arena.short());
    let held =
        arena.soon("it is never taken back", short.resume(&ticket)).await.expect("its time is not over");
    line.kill();
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let next = arena.within(limit, "its time goes on after a crash", arena.take(&b, rival(&arena))).await;
    assert!(held.is_lost(), "two hold it");
    drop((next, held));
}

/// Both uses of a ticket whose hold is gone say so, and disturb nobody.
async fn is_worth_nothing(arena: &Arena, ticket: &Ticket, watcher: &Locks, next: &Guard) {
    let client = arena.client().await;
    stays_undisturbed(arena, watcher, next, async || {
        let told = client.resume(ticket).await;
        assert!(is_gone(&told), "the hold is gone, and taking it back says {told:?}");
        let told = client.release(ticket).await;
        // A release that is sent again finds nothing either way.
        let may_be_again = arena.habit() == Some(Habit::Flaky) && told.is_ok();
        assert!(is_gone(&told) || may_be_again, "the hold is gone, and its release says {told:?}");
    })
    .await;
}

pub(super) async fn it_is_worth_nothing_when_its_time_is_over(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    let end = Instant::now() + span(&arena);
    let ticket = detach(&arena, held, span(&arena)).await;
    let next = take_at(&arena, &b, end, ticket.token()).await;
    is_worth_nothing(&arena, &ticket, &b, &next).await;
}

pub(super) async fn it_is_worth_nothing_when_it_was_released(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    a.release(&ticket).await.expect("held until now");
    let next = arena.soon("it was released", arena.take(&b, rival(&arena))).await;
    is_worth_nothing(&arena, &ticket, &b, &next).await;
}

pub(super) async fn it_is_worth_nothing_when_it_was_used_up(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let held = a.resume(&ticket).await.expect("held until now");
    held.release().await.expect("held until now");
    let next = arena.soon("it was released", arena.take(&b, rival(&arena))).await;
    is_worth_nothing(&arena, &ticket, &b, &next).await;
}

pub(super) async fn it_is_worth_nothing_while_it_is_in_use(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let held = arena.soon("it is never taken back", b.resume(&read(&ticket))).await.expect("in time");
    is_worth_nothing(&arena, &ticket, &b, &held).await;
    assert!(arena.try_take(&a, rival(&arena)).await.is_none(), "a second use of a ticket freed the lock");
    held.release().await.expect("held until now");
}

pub(super) async fn a_use_that_is_given_up_leaves_the_hold_to_the_ticket(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let mut ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    for cut in 0..CUTS {
        let used = cut_off(b.resume(&ticket), cut).await;
        if let Some(held) = used {
            ticket = detach(&arena, held.expect("its time is not over"), arena.long_ttl(&a)).await;
        }
        assert!(arena.try_take(&a, rival(&arena)).await.is_none(), "free after cut {cut}");
    }
    // The last use that was given up may still be on its way, and holds until it hands the lock back.
    let taken = async {
        loop {
            match a.resume(&ticket).await {
                Ok(held) => return held,
                told => assert!(is_gone(&told), "it was given up, and the ticket says {told:?}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let what = "a use of the ticket that was given up used it up";
    arena.soon(what, taken).await.release().await.expect("held until now");
    drop(arena.soon("it was released", arena.take(&b, rival(&arena))).await);
}

pub(super) async fn a_ticket_of_another_lock_takes_nothing(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (other, held) = (arena.name_with("-other"), arena.take_soon("nobody holds it", &a).await);
    let ticket = a.of(arena.kind(), &other).lock(&arena.options()).await.expect("nobody holds it");
    let ticket = detach(&arena, ticket, arena.long_ttl(&a)).await.to_string();
    // The ticket of another lock, with this lock's name: its id holds nothing here.
    let forged = ticket.replace(&other, arena.name()).parse::<Ticket>().expect("its own text");
    is_worth_nothing(&arena, &forged, &b, &held).await;
    held.release().await.expect("held until now");
    b.release(&ticket.parse().expect("its own text")).await.expect("held until now");
}

pub(super) async fn it_is_worth_nothing_when_its_lock_was_broken(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let ticket = detached(&arena, &a, arena.long_ttl(&a)).await;
    let waiting = arena.go({
        let (lock, options) = (arena.lock(&b), arena.options());
        async move { lock.lock(&options).await.expect("granted in the end") }
    });
    arena.until_contenders(&b, 2).await;
    assert!(
        a.force_release(arena.name()).await.expect("the store can be asked"),
        "a detached hold is a hold"
    );
    let next = arena.soon("it was broken", waiting).await.expect("no panic");
    is_worth_nothing(&arena, &ticket, &b, &next).await;
}

pub(super) async fn of_two_detachments_the_second_counts(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    for (first, second) in [(arena.long_ttl(&a), span(&arena)), (arena.ttl(), span(&arena))] {
        let ticket = detached(&arena, &a, first).await;
        let held = arena.soon("it is never taken back", b.resume(&ticket)).await.expect("in time");
        let end = Instant::now() + second;
        let again = detach(&arena, held, second).await;
        assert_eq!(again.token(), ticket.token(), "another hold");
        assert_ne!(again.id(), ticket.id(), "the first ticket would still find the hold");
        drop(take_at(&arena, &a, end, again.token()).await);
    }
}
