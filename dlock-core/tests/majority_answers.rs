//! Results and durations of the calls of a RedLock's claim while members are unreachable, slow, or
//! held by another client.

mod watchdog;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_conformance::wrap::{Habit, Switch};
use dlock_core::{
    Error, Guard, Kind, LockName, LockState, Locks, RedLock, Result, Wait,
    driver::{Attempt, Backend as _, Claim, Inspect, Release, Renewal, Request, pretend_clock},
    memory::MemoryBackend,
};
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

/// Timeout of a member.
const LIMIT: Duration = Duration::from_secs(1);

/// The members of a RedLock, and its connections to them.
struct Members(Vec<(MemoryBackend, Switch)>);

impl Members {
    fn new(count: usize) -> Self {
        watchdog::watch();
        Self((0..count).map(|_| (MemoryBackend::new(), Switch::default())).collect())
    }

    /// Returns a RedLock of these members. The first `quick` members reply at once, the others
    /// after 20 ms.
    fn redlock(&self, quick: usize) -> RedLock {
        let members = self.0.iter().enumerate().map(|(number, (member, line))| {
            let store = line.wrap(member.clone().into_store());
            if number < quick { store } else { Habit::Slow.wrap(store) }
        });
        RedLock::new(members).expect("independent members").member_timeout(LIMIT)
    }

    fn claim(&self, quick: usize, ttl: Duration, wait: Wait) -> Box<dyn Claim> {
        let name = LockName::new("x").expect("legal");
        let request = Request::new(name, Kind::Mutex, ttl).wait(wait);
        self.redlock(quick).claim(request)
    }

    /// Returns a claim that all members have granted.
    async fn held(&self, quick: usize) -> Box<dyn Claim> {
        let mut claim = self.claim(quick, TTL, Wait::Forever);
        assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "no other client holds the lock");
        // A grant waits only for a majority. The replies of the other members count from the next
        // call on.
        sleep(LIMIT).await;
        claim
    }

    fn direct(&self, number: usize) -> Locks {
        Locks::new(self.0[number].0.clone().into_store())
    }

    /// Takes the lock for another client on the first `count` members.
    async fn occupy(&self, count: usize) -> Vec<Guard> {
        let mut guards = Vec::new();
        for number in 0..count {
            guards.push(self.direct(number).mutex("x").lock().ttl(TTL * 100).await.expect("free"));
        }
        guards
    }

    /// Breaks the lock on the first `count` members.
    async fn break_hold(&self, count: usize) {
        for number in 0..count {
            assert!(self.direct(number).force_release("x").await.expect("memory can"), "it was held there");
        }
    }

    /// Returns the ids of the lock's holders on a member.
    async fn holders(&self, number: usize) -> Vec<String> {
        let state = self.direct(number).inspect("x").await.expect("memory can");
        state.into_iter().flat_map(|state| state.holders).map(|holder| holder.id).collect()
    }

    /// Freezes the connections to all members from this index on.
    fn freeze(&self, from: usize) {
        self.0[from..].iter().for_each(|(_, line)| line.freeze());
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_waits_only_for_a_majority() {
    let five = Members::new(5);
    let mut claim = five.held(5).await;
    five.freeze(3);
    let sent = Instant::now();
    let result = claim.renew().await;
    assert!(matches!(result, Ok(Renewal::Renewed { .. })), "three of five renewed: {result:?}");
    assert_eq!(sent.elapsed(), Duration::ZERO, "the call waited for the frozen members");
}

#[tokio::test(start_paused = true)]
async fn by_default_a_member_has_a_tenth_of_the_ttl_but_50_ms_at_least_and_2_s_at_most() {
    pretend_clock();
    for (ttl, limit) in [(100, 50), (500, 50), (700, 70), (10_000, 1000), (20_000, 2000), (600_000, 2000)] {
        let (ttl, limit) = (ttl * MS, limit * MS);
        let three = Members::new(3);
        let stores = three.0.iter().map(|(member, line)| line.wrap(member.clone().into_store()));
        let redlock = RedLock::new(stores).expect("independent members");
        let name = LockName::new("x").expect("legal");
        let mut claim = redlock.claim(Request::new(name, Kind::Mutex, ttl));
        assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "no other client holds the lock");
        three.freeze(1);
        let sent = Instant::now();
        let result = claim.renew().await;
        assert!(matches!(result, Err(Error::Unavailable { .. })), "one of three renewed: {result:?}");
        let elapsed = sent.elapsed();
        assert!((limit..=limit + 2 * MS).contains(&elapsed), "{elapsed:?} with a ttl of {ttl:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_ends_soon_after_a_majority_has_confirmed_it() {
    let five = Members::new(5);
    let mut claim = five.held(3).await;
    five.freeze(4);
    let sent = Instant::now();
    let result = claim.release().await;
    assert!(matches!(result, Ok(Release::Done)), "three of five released at once: {result:?}");
    let elapsed = sent.elapsed();
    assert!(elapsed >= 20 * MS, "the fourth member was not waited for, which replies after 20 ms");
    assert!(elapsed <= LIMIT / 5, "the call waited {elapsed:?} for the frozen member");
    assert_eq!(five.holders(3).await, [] as [String; 0], "left behind on the fourth member");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_a_majority_reports_lost_is_lost_before_the_other_members_have_replied() {
    let five = Members::new(5);
    let mut claim = five.held(5).await;
    five.break_hold(3).await;
    five.freeze(3);
    let sent = Instant::now();
    let result = claim.renew().await;
    assert!(matches!(result, Ok(Renewal::Lost)), "three of five reported it lost: {result:?}");
    assert_eq!(sent.elapsed(), Duration::ZERO, "the call waited for the frozen members");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_a_minority_reports_lost_at_once_is_renewed_by_the_other_members() {
    let five = Members::new(5);
    let mut claim = five.held(2).await;
    five.break_hold(2).await;
    let result = claim.renew().await;
    assert!(matches!(result, Ok(Renewal::Renewed { .. })), "the three slow ones renewed: {result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_a_member_reports_lost_is_renewed_only_by_a_majority_in_the_same_round() {
    let five = Members::new(5);
    let mut claim = five.held(5).await;
    let result = claim.renew().await;
    assert!(matches!(result, Ok(Renewal::Renewed { .. })), "all members reply: {result:?}");
    five.break_hold(1).await;
    five.freeze(3);
    // Replies of the frozen members from an earlier round do not count in this round.
    let result = claim.renew().await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "two of five renewed: {result:?}");
}

/// The hold is renewed without the second member. When that member is reachable again, the ttl that
/// it granted has ended, and it has deleted the claim.
#[tokio::test(start_paused = true)]
async fn a_member_that_deletes_a_hold_at_the_end_of_its_ttl_does_not_count_as_a_loss() {
    let three = Members::new(3);
    let [_, second, third] = [0, 1, 2].map(|number| three.0[number].1.clone());
    let mut claim = three.claim(3, TTL, Wait::Forever);
    third.freeze();
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "two of three");
    third.connect();
    second.cut();
    for _ in 0..2 {
        sleep(TTL / 3).await;
        let result = claim.renew().await;
        assert!(
            matches!(result, Ok(Renewal::Renewed { .. })),
            "not renewed by the first and the third: {result:?}"
        );
    }
    sleep(TTL / 3 + MS).await;
    second.connect();
    let result = claim.renew().await;
    assert!(
        matches!(result, Ok(Renewal::Renewed { .. })),
        "not renewed by the majority that knows the hold: {result:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_slow_member_is_executed_after_the_call_has_returned() {
    let three = Members::new(3);
    let mut claim = three.held(3).await;
    three.freeze(2);
    sleep(TTL / 3).await;
    assert!(matches!(claim.renew().await, Ok(Renewal::Renewed { .. })), "two of three");
    three.0[2].1.connect();
    // The renewal reaches the member now, a third of the ttl after its grant.
    sleep(TTL * 5 / 6).await;
    assert_eq!(three.holders(2).await.len(), 1, "the renewal was dropped when its call returned");
}

#[tokio::test(start_paused = true)]
async fn a_try_that_is_busy_on_a_majority_waits_for_frozen_members_for_at_most_one_member_timeout() {
    let five = Members::new(5);
    let _others = five.occupy(3).await;
    five.freeze(3);
    let sent = Instant::now();
    let result = five.claim(5, TTL, Wait::Never).attempt().await;
    assert!(matches!(result, Ok(Attempt::Busy { .. })), "another client has a majority: {result:?}");
    // One timeout of a member, for the release on the frozen members.
    assert!(sent.elapsed() <= LIMIT, "the try waited for {:?}", sent.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_try_is_busy_and_not_an_error_while_a_minority_is_unreachable() {
    let three = Members::new(3);
    let _others = three.occupy(2).await;
    three.0[2].1.cut();
    let result = three.claim(3, TTL, Wait::Never).attempt().await;
    assert!(matches!(result, Ok(Attempt::Busy { .. })), "another client has a majority: {result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_try_is_granted_by_a_majority_that_is_slower_than_a_busy_member() {
    for busy in [0, 1] {
        let three = Members::new(3);
        let _others = three.occupy(busy).await;
        let result = three.claim(busy, TTL, Wait::Never).attempt().await;
        assert!(matches!(result, Ok(Attempt::Granted(_))), "{busy} of three members were busy: {result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_deleted_claim_is_confirmed() {
    let three = Members::new(3);
    let mut claim = three.held(3).await;
    for _ in 0..3 {
        claim.release().await.expect("no member has the claim any more");
    }
}

/// The inspection of a member that fails every call. The locks of the member work.
#[derive(Debug)]
struct NoInspection;

impl NoInspection {
    fn error() -> Error {
        Error::Unavailable { store: "no-inspection", source: "no reply".into() }
    }
}

#[async_trait]
impl Inspect for NoInspection {
    async fn inspect(&self, _: &LockName) -> Result<Option<LockState>> {
        Err(Self::error())
    }
    async fn list(&self, _: &str) -> Result<Vec<LockState>> {
        Err(Self::error())
    }
    async fn force_release(&self, _: &LockName) -> Result<bool> {
        Err(Self::error())
    }
}

#[tokio::test(start_paused = true)]
async fn an_inspection_needs_a_majority_of_members() {
    for failing in [1, 2] {
        let three = Members::new(3);
        let stores = three.0.iter().enumerate().map(|(number, (member, _))| {
            let store = member.clone().into_store();
            if number < failing { store.with_inspect(Arc::new(NoInspection)) } else { store }
        });
        let locks = Locks::new(RedLock::new(stores).expect("independent members").into_store());
        let _held = locks.mutex("x").lock().await.expect("free");
        let (state, list) = (locks.inspect("x").await, locks.list("").await);
        let broken = locks.force_release("x").await;
        if failing == 1 {
            assert_eq!(state.expect("two members reply").expect("it is held").holders.len(), 1);
            assert_eq!(list.expect("two members reply").len(), 1);
            assert!(broken.expect("two members reply"), "no holder was found");
        } else {
            let are_errors = (state.is_err(), list.is_err(), broken.is_err());
            assert_eq!(are_errors, (true, true, true), "one of three is no majority");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_members_do_not_reply_is_not_reported_as_absent() {
    let three = Members::new(3);
    let view = |failing: usize| {
        let stores = three.0.iter().enumerate().map(|(number, (member, _))| {
            let store = member.clone().into_store();
            if number < failing { store.with_inspect(Arc::new(NoInspection)) } else { store }
        });
        Locks::new(RedLock::new(stores).expect("independent members").into_store())
    };
    let (all, two) = (view(0).election("x"), view(1).election("x"));
    let _held = all.candidate().elect().await.expect("there is no rival");

    assert!(three.direct(1).force_release("x").await.expect("memory can"));
    assert!(all.leader().await.expect("three members reply").is_some(), "two members keep the claim");
    let leader = two.leader().await;
    assert!(leader.is_err(), "a silent member may keep the claim, but the reply is {leader:?}");

    assert!(three.direct(0).force_release("x").await.expect("memory can"));
    assert_eq!(all.leader().await.expect("three members reply"), None, "one member is no majority");
}

/// A contender with too few members releases them, so that another contender can get a majority.
/// While another client holds a majority, this does not help. The contender therefore keeps its
/// members longer each time, but never longer than a third of the ttl, because all other contenders
/// may be waiting for it.
#[tokio::test(start_paused = true)]
async fn a_contender_with_too_few_members_keeps_them_longer_each_time() {
    let three = Members::new(3);
    let _others = three.occupy(2).await;
    let ttl = 300 * MS;
    let mut claim = three.claim(3, ttl, Wait::Forever);
    let mut kept: Vec<(Vec<String>, Duration)> = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < ttl * 3 {
        assert!(matches!(claim.attempt().await, Ok(Attempt::Busy { .. })), "one of three");
        sleep(MS).await;
        let holders = three.holders(2).await;
        match kept.last_mut() {
            Some((same, span)) if *same == holders => *span += MS,
            _ => kept.push((holders, MS)),
        }
    }
    let kept: Vec<_> =
        kept.into_iter().filter(|(holders, _)| !holders.is_empty()).map(|(_, span)| span).collect();
    assert!(kept[0] >= 10 * MS, "too short for the other contenders to release their members: {kept:?}");
    assert!(kept[1] > kept[0] * 3 / 2 && kept[2] > kept[1] * 3 / 2, "the times do not grow: {kept:?}");
    assert!(kept.iter().all(|span| *span <= ttl / 3 + 5 * MS), "longer than a third of the ttl: {kept:?}");
}
