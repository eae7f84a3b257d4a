//! Detached holds on a RedLock: a majority keeps them, and whoever has the ticket finds the claims of each member again.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks; each test awaits its own")]

mod watchdog;

use std::time::Duration;

use async_trait::async_trait;
use dlock_conformance::wrap::{Habit, Switch, fast_clock, queueless, wrap};
use dlock_core::{
    ClaimId, Error, LockOptions, Locks, LostReason, RedLock, Result, Ticket,
    driver::{Attempt, Claim, Release, Renewal, Resumption, Store},
    memory::MemoryBackend,
};
use tokio::time::{Instant, advance, sleep};

const TTL: Duration = Duration::from_secs(30);
const TEN: Duration = Duration::from_secs(600);

struct Three {
    members: [MemoryBackend; 3],
}

impl Three {
    fn new() -> Self {
        watchdog::watch();
        Self { members: [(); 3].map(|()| MemoryBackend::new()) }
    }

    fn client(&self, wrapped: impl Fn(usize, Store) -> Store) -> Locks {
        let members = self.members.iter().enumerate();
        let store = RedLock::new(members.map(|(index, member)| wrapped(index, member.clone().into_store())));
        Locks::new(store.expect("three independent members").into_store())
            .with_defaults(LockOptions::new().ttl(TTL))
    }

    fn plain(&self) -> Locks {
        self.client(|_, member| member)
    }

    /// A client of one member alone.
    fn direct(&self, index: usize) -> Locks {
        Locks::new(self.members[index].clone().into_store())
    }

    async fn is_free(&self) -> bool {
        let guard = self.plain().mutex("x").try_lock().await.expect("all members answer");
        match guard {
            Some(guard) => guard.release().await.is_ok(),
            None => false,
        }
    }

    /// Whether nothing is left on any member.
    async fn is_empty(&self) -> bool {
        let mut left = 0;
        for index in 0..3 {
            left += usize::from(self.direct(index).inspect("x").await.expect("memory tells").is_some());
        }
        left == 0
    }
}

async fn detached(locks: &Locks) -> Ticket {
    let guard = locks.mutex("x").lock().await.expect("free");
    guard.detach(TEN).await.expect("all members can")
}

#[tokio::test(start_paused = true)]
async fn a_detached_hold_is_kept_by_a_majority_for_its_time_and_no_longer() {
    let three = Three::new();
    let ticket = detached(&three.plain()).await;
    three.direct(1).force_release("x").await.expect("memory can");
    advance(TEN).await;
    assert!(!three.is_free().await, "two of three members keep it for its time");
    advance(TEN / 50).await;
    assert!(three.is_free().await, "it does not end");
    let told = three.plain().resume(&ticket).await.expect_err("its time is over");
    assert!(matches!(told, Error::Lost { reason: LostReason::Taken, .. }), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn members_with_fast_clocks_do_not_end_a_detached_hold_early() {
    let three = Three::new();
    detached(&three.client(|_, member| fast_clock(member, 10))).await;
    advance(TEN - Duration::from_millis(1)).await;
    assert!(
        !three.is_free().await,
        "the members' clocks are as fast as the drift allows, and the hold is over"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_taken_back_from_each_member_whichever_claim_it_has_there() {
    let three = Three::new();
    // Somebody has one member, so the contender yields: its claims on the members get different numbers.
    let in_the_way = three.direct(0).mutex("x").lock().await.expect("free");
    let other = three.direct(1).mutex("x").lock().await.expect("free");
    let contender = three.client(|_, member| queueless(member));
    let lock = contender.mutex("x");
    let asking = tokio::spawn(async move { lock.lock().await });
    sleep(TTL).await;
    drop((in_the_way, other));
    let guard = asking.await.expect("no panic").expect("free");
    let (id, text) = (guard.id(), guard.detach(TEN).await.expect("all members can").to_string());
    let ticket: Ticket = text.parse().expect("its own text");
    let guard = three.plain().resume(&ticket).await.expect("held");
    assert_ne!(guard.id(), id, "a ticket hands the hold over to a new claim");
    guard.release().await.expect("held until now");
    assert!(three.is_empty().await, "it was not taken back from every member");
}

#[tokio::test(start_paused = true)]
async fn a_ticket_releases_on_every_member() {
    let three = Three::new();
    let ticket = detached(&three.plain()).await;
    three.plain().release(&ticket).await.expect("held until now");
    assert!(three.is_empty().await, "something is left");
    let told = three.plain().release(&ticket).await.expect_err("released already");
    assert!(matches!(told, Error::Lost { .. }), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_a_majority_has_given_to_somebody_else_is_not_taken_back() {
    let three = Three::new();
    let ticket = detached(&three.plain()).await;
    for index in [0, 2] {
        three.direct(index).force_release("x").await.expect("memory can");
    }
    let next = three.plain().mutex("x").lock().await.expect("a majority is free");
    let told = three.plain().resume(&ticket).await.expect_err("somebody else holds it");
    assert!(matches!(told, Error::Lost { .. }), "{told:?}");
    let told = three.plain().release(&ticket).await.expect_err("somebody else holds it");
    assert!(matches!(told, Error::Lost { .. }), "{told:?}");
    sleep(2 * TTL).await;
    assert!(!next.is_lost(), "the ticket hurt the next holder");
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_taken_back_while_a_minority_is_away_and_not_without_a_majority() {
    let three = Three::new();
    let ticket = detached(&three.plain()).await;
    let lines = [(); 3].map(|()| Switch::default());
    let client = three.client(|index, member| lines[index].wrap(member));
    lines[..2].iter().for_each(Switch::cut);
    let told = client.resume(&ticket).await.expect_err("one of three members answers");
    assert!(matches!(told, Error::Unavailable { .. }), "{told:?}");
    lines[0].connect();
    let guard = client.resume(&ticket).await.expect("two of three members answer");
    sleep(2 * TEN).await;
    assert!(!guard.is_lost() && !three.is_free().await, "nobody renews it");
    lines[1].connect();
    guard.release().await.expect("held until now");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_detached_at_once_rests_on_members_that_granted_late_too() {
    let three = Three::new();
    let late = |index, member| if index == 2 { Habit::Slow.wrap(member) } else { member };
    let ticket = detached(&three.client(late)).await;
    three.direct(0).force_release("x").await.expect("memory can");
    let guard = three.plain().resume(&ticket).await.expect("two of three members keep it");
    guard.release().await.expect("held until now");
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_only_a_minority_confirmed_prolongs_nothing() {
    let three = Three::new();
    let lines = [(); 3].map(|()| Switch::default());
    let client = three.client(|index, member| lines[index].wrap(member));
    let guard = client.mutex("x").lock().await.expect("free");
    lines[..2].iter().for_each(Switch::cut);
    let asked = Instant::now();
    let error = guard.detach(TEN).await.expect_err("no majority answers");
    assert!(matches!(error.error(), Error::Lost { .. }), "{error}");
    assert!(asked.elapsed() <= TTL, "the holder believes in the time that one member granted");
    assert!(error.into_guard().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_a_detachment_is_asked_for_again() {
    let three = Three::new();
    let lines = [(); 3].map(|()| Switch::default());
    let client = three.client(|index, member| lines[index].wrap(member));
    let guard = client.mutex("x").lock().await.expect("free");
    lines.iter().for_each(Switch::lose_answers);
    let detaching = tokio::spawn(guard.detach(TEN));
    sleep(TTL / 10).await;
    lines.iter().for_each(Switch::connect);
    let ticket = detaching.await.expect("no panic").expect("the members answer again");
    advance(TEN - TTL).await;
    three.plain().release(&ticket).await.expect("still held");
}

#[tokio::test(start_paused = true)]
async fn a_released_lock_stays_taken_on_a_majority_for_as_long_as_was_asked_for() {
    let three = Three::new();
    let granted = Instant::now();
    let guard = three.plain().mutex("x").lock().at_least(TEN).await.expect("free");
    sleep(TTL).await;
    guard.release().await.expect("held until now");
    advance(TEN - granted.elapsed() - Duration::from_millis(1)).await;
    assert!(!three.is_free().await, "it is free {:?} after its grant", granted.elapsed());
    advance(TEN / 50).await;
    assert!(three.is_free().await, "it does not end");
}

/// A claim whose detachments reach the member half a ttl late.
struct DetachesLate(Box<dyn Claim>);

#[async_trait]
impl Claim for DetachesLate {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.0.attempt().await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.renew().await
    }

    async fn release(&mut self) -> Result<Release> {
        self.0.release().await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        sleep(TTL / 2).await;
        self.0.detach(lasting, ticket).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        self.0.resume(ticket).await
    }

    async fn changed(&mut self) {
        self.0.changed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_detaches_after_the_release_by_ticket_keeps_nothing() {
    let three = Three::new();
    let late = |index, member| match index {
        2 => wrap(member, |claim, _| Box::new(DetachesLate(claim))),
        _ => member,
    };
    let ticket = detached(&three.client(late)).await;
    three.plain().release(&ticket).await.expect("two of three members keep it");
    sleep(TTL).await;
    assert!(three.is_empty().await, "the member keeps a part that no ticket leads to");
}
