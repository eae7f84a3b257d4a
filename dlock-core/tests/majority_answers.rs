//! What the calls of a claim on a RedLock answer, and how long they take, while members are away, slow, or somebody else's.

mod watchdog;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_conformance::wrap::{Habit, Switch};
use dlock_core::{
    Error, Guard, Kind, LockName, LockState, Locks, RedLock, Result, Wait,
    driver::{Attempt, Backend as _, Claim, Inspect, Renewal, Request},
    memory::MemoryBackend,
};
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

/// How long a member may take.
const LIMIT: Duration = Duration::from_secs(1);

/// The members of a RedLock, and its connections to them.
struct Members(Vec<(MemoryBackend, Switch)>);

impl Members {
    fn new(count: usize) -> Self {
        watchdog::watch();
        Self((0..count).map(|_| (MemoryBackend::new(), Switch::default())).collect())
    }

    /// A RedLock of these members. The first `quick` ones answer at once; the others take 20 ms for each answer.
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

    /// A claim that all members have granted.
    async fn held(&self, quick: usize) -> Box<dyn Claim> {
        let mut claim = self.claim(quick, TTL, Wait::Forever);
        assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "nobody else is there");
        // A grant waits for no more than a majority. The answers of the other members count from the next call on.
        sleep(LIMIT).await;
        claim
    }

    fn direct(&self, number: usize) -> Locks {
        Locks::new(self.0[number].0.clone().into_store())
    }

    /// Lets another program take the lock on the first `count` members.
    async fn occupy(&self, count: usize) -> Vec<Guard> {
        let mut guards = Vec::new();
        for number in 0..count {
            guards.push(self.direct(number).mutex("x").lock().ttl(TTL * 100).await.expect("free"));
        }
        guards
    }

    /// Breaks the lock on the first `count` members.
    async fn rob(&self, count: usize) {
        for number in 0..count {
            assert!(self.direct(number).force_release("x").await.expect("memory can"), "it was held there");
        }
    }

    /// Who holds the lock on a member.
    async fn holders(&self, number: usize) -> Vec<String> {
        let state = self.direct(number).inspect("x").await.expect("memory can");
        state.into_iter().flat_map(|state| state.holders).map(|holder| holder.id).collect()
    }

    fn freeze(&self, from: usize) {
        self.0[from..].iter().for_each(|(_, line)| line.freeze());
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_waits_for_no_more_than_a_majority() {
    let five = Members::new(5);
    let mut claim = five.held(5).await;
    five.freeze(3);
    let asked = Instant::now();
    let told = claim.renew().await;
    assert!(matches!(told, Ok(Renewal::Renewed { .. })), "three of five renewed: {told:?}");
    assert_eq!(asked.elapsed(), Duration::ZERO, "the call waited for members that hang");
}

#[tokio::test(start_paused = true)]
async fn what_a_majority_disowns_is_lost_before_the_others_have_answered() {
    let five = Members::new(5);
    let mut claim = five.held(5).await;
    five.rob(3).await;
    five.freeze(3);
    let asked = Instant::now();
    let told = claim.renew().await;
    assert!(matches!(told, Ok(Renewal::Lost)), "three of five disowned it: {told:?}");
    assert_eq!(asked.elapsed(), Duration::ZERO, "the call waited for members that hang");
}

#[tokio::test(start_paused = true)]
async fn a_minority_that_disowns_a_hold_at_once_does_not_keep_the_others_from_renewing_it() {
    let five = Members::new(5);
    let mut claim = five.held(2).await;
    five.rob(2).await;
    let told = claim.renew().await;
    assert!(matches!(told, Ok(Renewal::Renewed { .. })), "the three slow ones renewed: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_a_member_disowned_is_renewed_by_a_majority_of_its_votes_only() {
    let five = Members::new(5);
    let mut claim = five.held(5).await;
    let told = claim.renew().await;
    assert!(matches!(told, Ok(Renewal::Renewed { .. })), "all are there: {told:?}");
    five.rob(1).await;
    five.freeze(3);
    // What the silent members said in an earlier round is no answer in this one.
    let told = claim.renew().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "two of five renewed: {told:?}");
}

/// The hold is renewed without the second member. When the second member is back, the ttl that it granted is over, and it has
/// forgotten the hold.
#[tokio::test(start_paused = true)]
async fn a_member_that_forgot_a_hold_when_its_time_was_over_has_not_disowned_it() {
    let three = Members::new(3);
    let [_, second, third] = [0, 1, 2].map(|number| three.0[number].1.clone());
    let mut claim = three.claim(3, TTL, Wait::Forever);
    third.freeze();
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "two of three");
    third.connect();
    second.cut();
    for _ in 0..2 {
        sleep(TTL / 3).await;
        let told = claim.renew().await;
        assert!(
            matches!(told, Ok(Renewal::Renewed { .. })),
            "not renewed by the first and the third: {told:?}"
        );
    }
    sleep(TTL / 3 + MS).await;
    second.connect();
    let told = claim.renew().await;
    assert!(
        matches!(told, Ok(Renewal::Renewed { .. })),
        "not renewed by the majority that knows the hold: {told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_slow_member_goes_on_while_nobody_waits_for_its_answer() {
    let three = Members::new(3);
    let mut claim = three.held(3).await;
    three.freeze(2);
    sleep(TTL / 3).await;
    assert!(matches!(claim.renew().await, Ok(Renewal::Renewed { .. })), "two of three");
    three.0[2].1.connect();
    // The member hears of the claim now, a third of the ttl after its grant.
    sleep(TTL * 5 / 6).await;
    assert_eq!(three.holders(2).await.len(), 1, "the renewal did not go on after its caller had its answer");
}

#[tokio::test(start_paused = true)]
async fn a_try_that_a_majority_refuses_waits_for_members_that_hang_no_longer_than_for_one_answer() {
    let five = Members::new(5);
    let _others = five.occupy(3).await;
    five.freeze(3);
    let asked = Instant::now();
    let told = five.claim(5, TTL, Wait::Never).attempt().await;
    assert!(matches!(told, Ok(Attempt::Busy { .. })), "somebody else has a majority: {told:?}");
    // The time for one answer: that of the release from the members that hang.
    assert!(asked.elapsed() <= LIMIT, "the try waited for {:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_try_is_busy_and_no_error_while_a_minority_is_away() {
    let three = Members::new(3);
    let _others = three.occupy(2).await;
    three.0[2].1.cut();
    let told = three.claim(3, TTL, Wait::Never).attempt().await;
    assert!(matches!(told, Ok(Attempt::Busy { .. })), "somebody else has a majority: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_try_is_granted_by_a_majority_that_is_slower_than_a_refusal() {
    for refusing in [0, 1] {
        let three = Members::new(3);
        let _others = three.occupy(refusing).await;
        let told = three.claim(refusing, TTL, Wait::Never).attempt().await;
        assert!(matches!(told, Ok(Attempt::Granted(_))), "{refusing} of three refused: {told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_claim_that_is_gone_is_confirmed() {
    let three = Members::new(3);
    let mut claim = three.held(3).await;
    for _ in 0..3 {
        claim.release().await.expect("no member has anything left of the claim");
    }
}

/// A member whose locks work, but that refuses every look at them.
#[derive(Debug)]
struct Mute;

impl Mute {
    fn error() -> Error {
        Error::Unavailable { store: "mute", source: "no answer".into() }
    }
}

#[async_trait]
impl Inspect for Mute {
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
async fn what_a_majority_of_members_can_tell_is_told() {
    for mute in [1, 2] {
        let three = Members::new(3);
        let stores = three.0.iter().enumerate().map(|(number, (member, _))| {
            let store = member.clone().into_store();
            if number < mute { store.with_inspect(Arc::new(Mute)) } else { store }
        });
        let locks = Locks::new(RedLock::new(stores).expect("independent members").into_store());
        let _held = locks.mutex("x").lock().await.expect("free");
        let (state, list) = (locks.inspect("x").await, locks.list("").await);
        let broken = locks.force_release("x").await;
        if mute == 1 {
            assert_eq!(state.expect("two can tell").expect("it is held").holders.len(), 1);
            assert_eq!(list.expect("two can tell").len(), 1);
            assert!(broken.expect("two can be asked"), "it was held");
        } else {
            let told = (state.is_err(), list.is_err(), broken.is_err());
            assert_eq!(told, (true, true, true), "one of three is no majority");
        }
    }
}

/// A contender with too few members lets go of them, so that another contender can get a majority. That is of no use while
/// somebody holds a majority. So the contender keeps its members longer each time, but never longer than a third of the ttl:
/// it may be the one for which all others wait.
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
    assert!(kept[0] >= 10 * MS, "no time for the others to let go: {kept:?}");
    assert!(kept[1] > kept[0] * 3 / 2 && kept[2] > kept[1] * 3 / 2, "not longer each time: {kept:?}");
    assert!(kept.iter().all(|span| *span <= ttl / 3 + 5 * MS), "longer than a third of the ttl: {kept:?}");
}
