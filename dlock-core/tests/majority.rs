//! What only a RedLock can do wrong: members that are away, late, or come back with nothing. Over the
//! usual length: one table.

mod watchdog;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_conformance::wrap::Switch;
use dlock_core::{
    Error, Kind, LockOptions, Locks, LostReason, RedLock, Result,
    driver::{Attempt, Backend, Claim, Info, Release, Renewal, Request, Store},
    memory::MemoryBackend,
};
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(30);

/// Five members, and the connections of one client to them.
struct Five {
    members: Vec<MemoryBackend>,
    lines: Vec<Switch>,
}

impl Five {
    fn new() -> Self {
        watchdog::watch();
        Self { members: (0..5).map(|_| MemoryBackend::new()).collect(), lines: vec![Switch::default(); 5] }
    }

    /// A client whose connections can be cut.
    fn client(&mut self) -> Locks {
        self.lines = (0..5).map(|_| Switch::default()).collect();
        let members =
            self.members.iter().zip(&self.lines).map(|(member, line)| line.wrap(member.clone().into_store()));
        locks(members)
    }

    /// A client whose connections to all members work all the time.
    fn bystander(&self) -> Locks {
        locks(self.members.iter().map(|member| member.clone().into_store()))
    }
}

fn locks(members: impl Iterator<Item = Store>) -> Locks {
    let store = RedLock::new(members).expect("five independent members").into_store();
    Locks::new(store).with_defaults(LockOptions::new().ttl(TTL))
}

#[tokio::test(start_paused = true)]
async fn two_members_that_are_cut_off_delay_nobody_and_cost_the_holder_nothing() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[..2].iter().for_each(Switch::cut);
    let asked = Instant::now();
    let guard = client.mutex("x").lock().await.expect("three of five are a majority");
    assert_eq!(
        asked.elapsed(),
        Duration::ZERO,
        "the client waited for more than the majority that answered at once"
    );
    sleep(TTL * 4).await;
    assert!(!guard.is_lost(), "lost, and three of five members go on renewing");
    assert!(five.bystander().mutex("x").try_lock().await.expect("no error").is_none(), "two hold it");
    guard.release().await.expect("a majority has let go");
    assert!(
        five.bystander().mutex("x").try_lock().await.expect("no error").is_some(),
        "the lock is not free after its release"
    );
}

#[tokio::test(start_paused = true)]
async fn two_members_that_hang_delay_nobody_and_cost_the_holder_nothing() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[3..].iter().for_each(Switch::freeze);
    let asked = Instant::now();
    let guard = client.mutex("x").lock().await.expect("three of five are a majority");
    assert_eq!(asked.elapsed(), Duration::ZERO, "the client waited for the two that hang");
    sleep(TTL * 4).await;
    assert!(!guard.is_lost(), "lost, and three of five members go on renewing");
    guard.release().await.expect("a majority has let go");
}

#[tokio::test(start_paused = true)]
async fn members_that_answer_late_are_released_too() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[3..].iter().for_each(Switch::freeze);
    client.mutex("x").lock().await.expect("a majority").release().await.expect("a majority");
    five.lines[3..].iter().for_each(Switch::connect);
    sleep(Duration::from_millis(1)).await;
    for member in &five.members {
        let left =
            Locks::new(member.clone().into_store()).inspect("x").await.expect("memory can be inspected");
        assert_eq!(left, None, "left behind in {member:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_three_of_five_gone_nobody_is_granted() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[..3].iter().for_each(Switch::cut);
    let error = client.mutex("x").try_lock().await.expect_err("two are no majority");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = client.mutex("x").lock().await.expect_err("two are no majority");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let source = std::error::Error::source(&error)
        .expect("the error has a source that says which members")
        .to_string();
    assert!(source.starts_with("3 of 5 members did not answer"), "{source}");
    five.lines.iter().for_each(Switch::connect);
    client.close().await;
    for member in &five.members {
        let left =
            Locks::new(member.clone().into_store()).inspect("x").await.expect("memory can be inspected");
        assert_eq!(left, None, "a minority grant was left in {member:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_loses_its_majority_is_told_before_its_validity_ends() {
    let mut five = Five::new();
    let client = five.client();
    let guard = client.mutex("x").lock().await.expect("free");
    sleep(TTL / 2).await;
    five.lines[..3].iter().for_each(Switch::cut);
    let left = guard.remaining();
    let cut = Instant::now();
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(cut.elapsed() <= left, "told after the deadline");
    assert!(left < TTL, "the validity is a whole ttl, without the allowance for clock drift");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_the_majority_disowns_is_told_at_the_next_renewal() {
    let mut five = Five::new();
    let client = five.client();
    let guard = client.mutex("x").lock().await.expect("free");
    for member in &five.members[..3] {
        Locks::new(member.clone().into_store()).force_release("x").await.expect("memory can");
    }
    // Three members have forgotten the claim, and two know it. A member that forgot grants it again, and that grant counts
    // only if nobody else held the lock in between. So the guard either goes on with five members or is lost at once.
    sleep(TTL / 2).await;
    let stands = !guard.is_lost();
    let other = five.bystander().mutex("x").try_lock().await.expect("no error");
    assert_ne!(stands, other.is_some(), "not exactly one of the two holds the lock");
}

#[tokio::test(start_paused = true)]
async fn a_holder_whose_silent_members_time_is_over_does_not_rest_on_it() {
    let mut five = Five::new();
    let client = five.client();
    let guard = client.mutex("x").lock().await.expect("free");
    sleep(Duration::from_millis(1)).await;
    five.lines[4].cut();
    sleep(TTL * 5 / 6).await;
    for member in &five.members[..2] {
        Locks::new(member.clone().into_store()).force_release("x").await.expect("memory can");
    }
    // Two members disown the hold, and a third was last heard of a ttl ago.
    sleep(TTL / 2).await;
    let other = five.bystander().mutex("x").try_lock().await.expect("no error");
    assert!(other.is_some() && guard.is_lost(), "two hold: {:?} left", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_member_that_comes_back_is_counted_again_once_it_was_renewed() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[..2].iter().for_each(Switch::cut);
    let guard = client.mutex("x").lock().await.expect("a majority");
    five.lines[..2].iter().for_each(Switch::connect);
    // The first renewal asks these members for the lock again. The second one counts them.
    sleep(TTL * 9 / 10).await;
    five.lines[3..].iter().for_each(Switch::cut);
    sleep(TTL * 3).await;
    assert!(!guard.is_lost(), "lost, though the two members that came back and the third are a majority");
}

/// This shows the limit of RedLock. It needs members that remember their claims, or that stay away for a ttl after they forgot.
#[tokio::test(start_paused = true)]
async fn members_that_come_back_empty_at_once_let_a_second_holder_in() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[..2].iter().for_each(Switch::cut);
    let first = client.mutex("x").lock().await.expect("a majority of the last three");
    // One of the three restarts without its data, and the two that were away are there again.
    five.members[2] = MemoryBackend::new();
    let second = five.bystander().mutex("x").try_lock().await.expect("no error");
    assert!(second.is_some() && !first.is_lost(), "only one holds, and docs/semantics.md warns that two may");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_comes_back_empty_after_a_ttl_lets_nobody_in() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[..2].iter().for_each(Switch::cut);
    let first = client.mutex("x").lock().await.expect("a majority of the last three");
    // The member stays away for a ttl. By then the first holder has lost its majority, and knows that it has.
    five.lines[2].cut();
    sleep(TTL).await;
    five.members[2] = MemoryBackend::new();
    let second = five.bystander().mutex("x").try_lock().await.expect("no error");
    assert!(first.is_lost() && second.is_some(), "one holder at a time");
}

#[tokio::test(start_paused = true)]
async fn contenders_that_split_the_members_between_them_come_to_an_end() {
    let mut five = Five::new();
    for round in 0..20 {
        fastrand::seed(round);
        let mut contenders = Vec::new();
        for late in 0..5 {
            let client = five.client();
            // Each contender reaches another member first.
            for (i, line) in five.lines.iter().enumerate() {
                if i != late {
                    line.freeze();
                }
            }
            let lines = std::mem::take(&mut five.lines);
            contenders.push(async move {
                let asking = client.mutex("split").lock().ttl(TTL);
                let thaw = async {
                    tokio::task::yield_now().await;
                    lines.iter().for_each(Switch::connect);
                    std::future::pending::<()>().await
                };
                let guard = tokio::select! {
                    guard = asking => guard.expect("every contender is granted in the end"),
                    () = thaw => unreachable!(),
                };
                sleep(Duration::from_millis(5)).await;
                guard.release().await.expect("held");
            });
        }
        let begun = Instant::now();
        futures_util::future::join_all(contenders).await;
        assert!(
            begun.elapsed() < TTL / 10,
            "the contenders kept their members for too long: {:?}",
            begun.elapsed()
        );
    }
}

/// A member that refuses, and will refuse again. A store does so with a kind that it cannot order with the kind that holds.
#[derive(Debug)]
struct Refusing(MemoryBackend);

/// A member that keeps no claim for long.
#[derive(Debug)]
struct Forgetful(MemoryBackend, Info);

impl Backend for Forgetful {
    fn info(&self) -> &Info {
        &self.1
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.0.claim(request)
    }
}

struct Refusal(Request);

impl Backend for Refusing {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(Refusal(request))
    }
}

#[async_trait]
impl Claim for Refusal {
    async fn attempt(&mut self) -> Result<Attempt> {
        let Request { name, kind, .. } = self.0.clone();
        Err(Error::WrongKind { name, kind, reason: "it is something else".to_owned() })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Ok(Renewal::Lost)
    }

    async fn release(&mut self) -> Result<Release> {
        Ok(Release::Gone)
    }

    async fn changed(&mut self) {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_a_majority_does_not_know_is_a_loss() {
    for (robbed, silent, is_loss) in [(2, 0, false), (2, 2, false), (3, 0, true), (3, 2, true), (5, 0, true)]
    {
        let mut five = Five::new();
        let client = five.client();
        let guard = client.mutex("x").lock().await.expect("nobody holds it");
        for member in &five.members[..robbed] {
            let broken = Locks::new(member.clone().into_store()).force_release("x").await;
            assert!(broken.expect("memory can be asked"), "the member had not granted the lock");
        }
        five.lines[5 - silent..].iter().for_each(Switch::cut);
        let told = guard.release().await;
        match is_loss {
            true => assert!(matches!(told, Err(Error::Lost { reason: LostReason::Taken, .. })), "{told:?}"),
            false => assert!(told.is_ok(), "{robbed} robbed, {silent} silent: {told:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_by_a_majority_is_a_refusal() {
    let refusing = || Store::new(Arc::new(Refusing(MemoryBackend::new())));
    let away = Switch::default();
    away.cut();
    let gone = || away.wrap(MemoryBackend::new().into_store());
    let there = || MemoryBackend::new().into_store();
    let asked = async |members: [Store; 3]| locks(members.into_iter()).mutex("x").lock().await;
    let error = asked([gone(), refusing(), refusing()]).await.expect_err("two refuse");
    assert!(
        matches!(error, Error::WrongKind { .. }),
        "not the error of the majority, to which asking again does not help: {error:?}"
    );
    let error = asked([gone(), there(), refusing()]).await.expect_err("one is no majority");
    assert!(
        matches!(error, Error::Unavailable { .. }),
        "the majority may grant when the first member is back: {error:?}"
    );
    asked([there(), there(), refusing()]).await.expect("two are a majority").release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_member_may_take_as_long_as_it_likes() {
    let members = [(); 3].map(|()| MemoryBackend::new().into_store());
    let patient = RedLock::new(members).expect("three").member_timeout(Duration::MAX).into_store();
    let held = Locks::new(patient).mutex("x").lock().await.expect("no clock overflows");
    held.release().await.expect("held until now");
}

#[test]
fn too_few_or_dependent_members_are_refused() {
    let store = || MemoryBackend::new().into_store();
    let two = RedLock::new([store(), store()]).expect_err("two have no majority worth the name").to_string();
    assert_eq!(two, "a redlock needs at least three stores, not 2");
    let same = MemoryBackend::new();
    let twice =
        RedLock::new([store(), same.clone().into_store(), same.clone().into_store()]).expect_err("dependent");
    assert!(twice.to_string().contains(&same.info().identity), "{twice}");
}

#[test]
fn members_that_keep_a_lock_for_less_than_the_drift_are_refused() {
    let ms = Duration::from_millis;
    let forgetful = || {
        let memory = MemoryBackend::new();
        let info = memory.info().clone().ttl(ms(1)..=ms(5));
        Store::new(Arc::new(Forgetful(memory, info)))
    };
    let told = RedLock::new([forgetful(), forgetful(), forgetful()]).expect_err("5 ms are too few");
    assert!(told.to_string().contains("no ttl"), "{told}");
}

/// A member that has only these kinds.
#[derive(Debug)]
struct Only(MemoryBackend, Info);

impl Backend for Only {
    fn info(&self) -> &Info {
        &self.1
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.0.claim(request)
    }
}

#[test]
fn a_redlock_has_the_kinds_that_all_its_members_have() {
    // No permits, though all members have them.
    const FOUR: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];
    const MUTEX: &[Kind] = &[Kind::Mutex];
    const FAIR: &[Kind] = &[Kind::Mutex, Kind::Fair];
    const PAIR: &[Kind] = &[Kind::Mutex, Kind::Read, Kind::Write];
    const SIDES: &[Kind] = &[Kind::Read, Kind::Write];
    for (kinds, common) in [
        ([Kind::ALL, Kind::ALL, Kind::ALL], FOUR),
        ([Kind::ALL, PAIR, Kind::ALL], PAIR),
        ([Kind::ALL, FAIR, Kind::ALL], FAIR),
        ([FAIR, PAIR, Kind::ALL], MUTEX),
        ([SIDES, PAIR, Kind::ALL], SIDES),
        ([&[Kind::Fair], FAIR, Kind::ALL], &[Kind::Fair]),
    ] {
        let members = kinds.map(|kinds| {
            let memory = MemoryBackend::new();
            let info = memory.info().clone().kinds(kinds);
            Store::new(Arc::new(Only(memory, info)))
        });
        let redlock = RedLock::new(members).expect("a kind in common");
        assert!(format!("{redlock:?}").contains("memory:"), "{redlock:?}");
        assert_eq!(redlock.info().kinds, common, "of {kinds:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_redlock_refuses_permits_and_says_what_to_do() {
    let members = [(); 3].map(|()| MemoryBackend::new().into_store());
    let locks = Locks::new(RedLock::new(members).expect("three members").into_store());
    for error in [
        locks.semaphore("pool", 4).acquire().await.expect_err("the limit would not be kept"),
        locks.semaphore("pool", 4).try_acquire().await.expect_err("the limit would not be kept"),
    ] {
        assert!(matches!(error, Error::Unsupported { store: "redlock", .. }), "{error:?}");
        let told = error.to_string();
        assert!(told.contains("take one store for a semaphore"), "does not say what to do: {told}");
    }
}

/// Why: three holders of a limit of two, each with a majority of members that all keep the limit.
#[tokio::test(start_paused = true)]
async fn a_majority_of_members_that_keep_a_limit_does_not_keep_it() {
    let members = [(); 3].map(|()| Locks::memory());
    let mut held = Vec::new();
    for of_one in [[0, 1], [1, 2], [2, 0]] {
        for member in of_one {
            let permit = members[member].semaphore("pool", 2).try_acquire().await.expect("no error");
            held.push(permit.expect("each member keeps the limit of two"));
        }
    }
    assert_eq!(held.len(), 6, "three holders of two members each");
}
