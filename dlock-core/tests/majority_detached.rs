//! Detached holds on a RedLock. A majority of members keeps them, and a client with the ticket
//! finds the claim on each member.
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
const TEN_MINUTES: Duration = Duration::from_secs(600);

struct Three {
    members: [MemoryBackend; 3],
}

impl Three {
    fn new() -> Self {
        watchdog::watch();
        Self { members: [(); 3].map(|()| MemoryBackend::new()) }
    }

    /// Returns a client whose stores of members are wrapped.
    fn client(&self, wrapped: impl Fn(usize, Store) -> Store) -> Locks {
        let members = self.members.iter().enumerate();
        let store = RedLock::new(members.map(|(index, member)| wrapped(index, member.clone().into_store())));
        Locks::new(store.expect("three independent members").into_store())
            .with_defaults(LockOptions::new().ttl(TTL))
    }

    fn plain(&self) -> Locks {
        self.client(|_, member| member)
    }

    /// Returns a client of one member.
    fn direct(&self, index: usize) -> Locks {
        Locks::new(self.members[index].clone().into_store())
    }

    async fn is_free(&self) -> bool {
        let guard = self.plain().mutex("x").try_lock().await.expect("all members reply");
        match guard {
            Some(guard) => guard.release().await.is_ok(),
            None => false,
        }
    }

    /// Returns whether no member has a claim.
    async fn is_empty(&self) -> bool {
        let mut left = 0;
        for index in 0..3 {
            left += usize::from(
                self.direct(index).inspect("x").await.expect("memory can be inspected").is_some(),
            );
        }
        left == 0
    }
}

async fn detached(locks: &Locks) -> Ticket {
    let guard = locks.mutex("x").lock().await.expect("free");
    guard.detach(TEN_MINUTES).await.expect("all members can")
}

#[tokio::test(start_paused = true)]
async fn a_detached_hold_is_kept_by_a_majority_for_its_time_and_not_longer() {
    let three = Three::new();
    let ticket = detached(&three.plain()).await;
    three.direct(1).force_release("x").await.expect("memory can");
    advance(TEN_MINUTES).await;
    assert!(!three.is_free().await, "two of three members did not keep it for its time");
    advance(TEN_MINUTES / 50).await;
    assert!(three.is_free().await, "the detached hold does not end");
    let error = three.plain().resume(&ticket).await.expect_err("its time has ended");
    assert!(matches!(error, Error::Lost { reason: LostReason::Deleted, .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_valid_whatever_the_order_in_which_the_members_are_listed() {
    let three = Three::new();
    let guard = three.plain().mutex("x").lock().await.expect("free");
    three.direct(0).force_release("x").await.expect("memory can");
    let ticket = guard.detach(TEN_MINUTES).await.expect("two members can");
    let reversed = three.members.iter().rev().map(|member| member.clone().into_store());
    let locks = Locks::new(RedLock::new(reversed).expect("three independent members").into_store());
    locks.resume(&ticket).await.expect("two members keep it").release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn members_with_fast_clocks_do_not_end_a_detached_hold_early() {
    let three = Three::new();
    detached(&three.client(|_, member| fast_clock(member, 10))).await;
    advance(TEN_MINUTES - Duration::from_millis(1)).await;
    assert!(!three.is_free().await, "the hold ended although the clocks are within the allowed drift");
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_resumed_on_each_member_even_if_its_claims_have_different_ids() {
    let three = Three::new();
    // Other clients hold two members, so the contender releases its member and tries again. Its
    // claims on the members then have different numbers.
    let first = three.direct(0).mutex("x").lock().await.expect("free");
    let second = three.direct(1).mutex("x").lock().await.expect("free");
    let contender = three.client(|_, member| queueless(member));
    let lock = contender.mutex("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    sleep(TTL).await;
    drop((first, second));
    let guard = waiting.await.expect("no panic").expect("free");
    let (id, text) = (guard.id(), guard.detach(TEN_MINUTES).await.expect("all members can").to_string());
    let ticket: Ticket = text.parse().expect("its own text");
    let guard = three.plain().resume(&ticket).await.expect("held");
    assert_ne!(guard.id(), id, "the resumed hold has the id of the detached claim");
    guard.release().await.expect("held until now");
    assert!(three.is_empty().await, "a member kept the detached claim");
}

#[tokio::test(start_paused = true)]
async fn a_release_by_ticket_reaches_every_member() {
    let three = Three::new();
    let ticket = detached(&three.plain()).await;
    three.plain().release(&ticket).await.expect("held until now");
    assert!(three.is_empty().await, "a claim is left on a member");
    let error = three.plain().release(&ticket).await.expect_err("released already");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_a_majority_has_granted_to_another_client_is_not_resumed() {
    let three = Three::new();
    let ticket = detached(&three.plain()).await;
    for index in [0, 2] {
        three.direct(index).force_release("x").await.expect("memory can");
    }
    let next = three.plain().mutex("x").lock().await.expect("a majority is free");
    let error = three.plain().resume(&ticket).await.expect_err("another client holds it");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    let error = three.plain().release(&ticket).await.expect_err("another client holds it");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    sleep(2 * TTL).await;
    assert!(!next.is_lost(), "a use of the ticket ended the next hold");
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_resumed_while_a_minority_is_unreachable_but_not_without_a_majority() {
    let three = Three::new();
    let ticket = detached(&three.plain()).await;
    let lines = [(); 3].map(|()| Switch::default());
    let client = three.client(|index, member| lines[index].wrap(member));
    lines[..2].iter().for_each(Switch::cut);
    let error = client.resume(&ticket).await.expect_err("only one of three members replies");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    lines[0].connect();
    let guard = client.resume(&ticket).await.expect("two of three members reply");
    sleep(2 * TEN_MINUTES).await;
    assert!(!guard.is_lost() && !three.is_free().await, "the resumed hold is not renewed");
    lines[1].connect();
    guard.release().await.expect("held until now");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_detached_at_once_is_also_kept_by_members_that_granted_late() {
    let three = Three::new();
    let late = |index, member| if index == 2 { Habit::Slow.wrap(member) } else { member };
    let ticket = detached(&three.client(late)).await;
    three.direct(0).force_release("x").await.expect("memory can");
    let guard = three.plain().resume(&ticket).await.expect("two of three members keep it");
    guard.release().await.expect("held until now");
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_only_a_minority_confirmed_does_not_extend_the_hold() {
    let three = Three::new();
    let lines = [(); 3].map(|()| Switch::default());
    let client = three.client(|index, member| lines[index].wrap(member));
    let guard = client.mutex("x").lock().await.expect("free");
    lines[..2].iter().for_each(Switch::cut);
    let sent = Instant::now();
    let error = guard.detach(TEN_MINUTES).await.expect_err("no majority replies");
    assert!(matches!(error.error(), Error::Lost { .. }), "{error}");
    assert!(sent.elapsed() <= TTL, "the time that one member granted extended the hold");
    assert!(error.into_guard().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_detachment_whose_reply_is_lost_is_repeated() {
    let three = Three::new();
    let lines = [(); 3].map(|()| Switch::default());
    let client = three.client(|index, member| lines[index].wrap(member));
    let guard = client.mutex("x").lock().await.expect("free");
    lines.iter().for_each(Switch::lose_answers);
    let detaching = tokio::spawn(guard.detach(TEN_MINUTES));
    sleep(TTL / 10).await;
    lines.iter().for_each(Switch::connect);
    let ticket = detaching.await.expect("no panic").expect("the members reply again");
    advance(TEN_MINUTES - TTL).await;
    three.plain().release(&ticket).await.expect("still held");
}

#[tokio::test(start_paused = true)]
async fn a_released_lock_stays_taken_on_a_majority_for_the_requested_time() {
    let three = Three::new();
    let granted = Instant::now();
    let guard = three.plain().mutex("x").lock().at_least(TEN_MINUTES).await.expect("free");
    sleep(TTL).await;
    guard.release().await.expect("held until now");
    advance(TEN_MINUTES - granted.elapsed() - Duration::from_millis(1)).await;
    assert!(!three.is_free().await, "the lock is free {:?} after its grant", granted.elapsed());
    advance(TEN_MINUTES / 50).await;
    assert!(three.is_free().await, "the detached hold does not end");
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
