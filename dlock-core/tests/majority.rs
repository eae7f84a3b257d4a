//! Faults that only a RedLock can have, with members that are unreachable, late, or back without
//! their data.

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

/// Five members, and one client's connections to them.
struct Five {
    members: Vec<MemoryBackend>,
    lines: Vec<Switch>,
}

impl Five {
    fn new() -> Self {
        watchdog::watch();
        Self { members: (0..5).map(|_| MemoryBackend::new()).collect(), lines: vec![Switch::default(); 5] }
    }

    /// Returns a client whose connections can be cut.
    fn client(&mut self) -> Locks {
        self.lines = (0..5).map(|_| Switch::default()).collect();
        let members =
            self.members.iter().zip(&self.lines).map(|(member, line)| line.wrap(member.clone().into_store()));
        locks(members)
    }

    /// Returns a client whose connections to all members work all the time.
    fn connected_client(&self) -> Locks {
        locks(self.members.iter().map(|member| member.clone().into_store()))
    }
}

fn locks(members: impl Iterator<Item = Store>) -> Locks {
    let store = RedLock::new(members).expect("five independent members").into_store();
    Locks::new(store).with_defaults(LockOptions::new().ttl(TTL))
}

#[tokio::test(start_paused = true)]
async fn two_members_that_are_cut_off_delay_no_grant_and_end_no_hold() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[..2].iter().for_each(Switch::cut);
    let sent = Instant::now();
    let guard = client.mutex("x").lock().await.expect("three of five are a majority");
    assert_eq!(
        sent.elapsed(),
        Duration::ZERO,
        "the client waited longer than for the majority, which replied at once"
    );
    sleep(TTL * 4).await;
    assert!(!guard.is_lost(), "lost although three of five members renew it");
    assert!(
        five.connected_client().mutex("x").try_lock().await.expect("no error").is_none(),
        "two clients hold the lock"
    );
    guard.release().await.expect("a majority has confirmed");
    assert!(
        five.connected_client().mutex("x").try_lock().await.expect("no error").is_some(),
        "the lock is not free after its release"
    );
}

#[tokio::test(start_paused = true)]
async fn two_members_that_hang_delay_no_grant_and_end_no_hold() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[3..].iter().for_each(Switch::freeze);
    let sent = Instant::now();
    let guard = client.mutex("x").lock().await.expect("three of five are a majority");
    assert_eq!(sent.elapsed(), Duration::ZERO, "the client waited for the two members that hang");
    sleep(TTL * 4).await;
    assert!(!guard.is_lost(), "lost although three of five members renew it");
    guard.release().await.expect("a majority has confirmed");
}

#[tokio::test(start_paused = true)]
async fn members_that_reply_late_are_also_released() {
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
async fn with_three_of_five_members_unreachable_no_lock_is_granted() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[..3].iter().for_each(Switch::cut);
    let error = client.mutex("x").try_lock().await.expect_err("two are no majority");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = client.mutex("x").lock().await.expect_err("two are no majority");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let source =
        std::error::Error::source(&error).expect("the error has a source that names the members").to_string();
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
async fn a_holder_that_loses_its_majority_is_notified_before_its_validity_ends() {
    let mut five = Five::new();
    let client = five.client();
    let guard = client.mutex("x").lock().await.expect("free");
    sleep(TTL / 2).await;
    five.lines[..3].iter().for_each(Switch::cut);
    let left = guard.remaining();
    let cut = Instant::now();
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(cut.elapsed() <= left, "reported after the deadline");
    assert!(left < TTL, "the validity is a whole ttl, without an allowance for clock drift");
}

#[tokio::test(start_paused = true)]
async fn a_holder_whose_claim_a_majority_has_deleted_is_notified_at_the_next_renewal() {
    let mut five = Five::new();
    let client = five.client();
    let guard = client.mutex("x").lock().await.expect("free");
    for member in &five.members[..3] {
        Locks::new(member.clone().into_store()).force_release("x").await.expect("memory can");
    }
    // Three members have deleted the claim, and two still have it. A member that deleted it grants
    // it again, and that grant counts only if no other client held the lock in between. The guard
    // therefore either stays valid on five members or is lost at once.
    sleep(TTL / 2).await;
    let is_held = !guard.is_lost();
    let other = five.connected_client().mutex("x").try_lock().await.expect("no error");
    assert_ne!(is_held, other.is_some(), "not exactly one of the two clients holds the lock");
}

#[tokio::test(start_paused = true)]
async fn a_hold_does_not_count_a_silent_member_whose_ttl_has_ended() {
    let mut five = Five::new();
    let client = five.client();
    let guard = client.mutex("x").lock().await.expect("free");
    sleep(Duration::from_millis(1)).await;
    five.lines[4].cut();
    sleep(TTL * 5 / 6).await;
    for member in &five.members[..2] {
        Locks::new(member.clone().into_store()).force_release("x").await.expect("memory can");
    }
    // Two members have deleted the hold, and the last reply of a third member is older than a ttl.
    sleep(TTL / 2).await;
    let other = five.connected_client().mutex("x").try_lock().await.expect("no error");
    assert!(other.is_some() && guard.is_lost(), "two clients hold the lock: {:?} left", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_reachable_again_counts_after_its_renewal() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[..2].iter().for_each(Switch::cut);
    let guard = client.mutex("x").lock().await.expect("a majority");
    five.lines[..2].iter().for_each(Switch::connect);
    // The first renewal makes an attempt on these members. The second one counts them.
    sleep(TTL * 9 / 10).await;
    five.lines[3..].iter().for_each(Switch::cut);
    sleep(TTL * 3).await;
    assert!(
        !guard.is_lost(),
        "lost although the two members that are reachable again and a third one are a majority"
    );
}

/// A limit of RedLock. Its members must keep their claims across a restart, or stay unreachable for
/// a ttl after they lose them.
#[tokio::test(start_paused = true)]
async fn a_member_that_restarts_empty_at_once_lets_a_second_holder_in() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[..2].iter().for_each(Switch::cut);
    let first = client.mutex("x").lock().await.expect("a majority of the last three");
    // One of the three members restarts without its data, and the two others are reachable again.
    five.members[2] = MemoryBackend::new();
    let second = five.connected_client().mutex("x").try_lock().await.expect("no error");
    assert!(
        second.is_some() && !first.is_lost(),
        "only one client holds the lock, and docs/semantics.md warns that two may"
    );
}

#[tokio::test(start_paused = true)]
async fn a_member_that_restarts_empty_after_a_ttl_lets_no_second_holder_in() {
    let mut five = Five::new();
    let client = five.client();
    five.lines[..2].iter().for_each(Switch::cut);
    let first = client.mutex("x").lock().await.expect("a majority of the last three");
    // The member stays unreachable for a ttl. By then the first holder has lost its majority, and
    // its guard is lost.
    five.lines[2].cut();
    sleep(TTL).await;
    five.members[2] = MemoryBackend::new();
    let second = five.connected_client().mutex("x").try_lock().await.expect("no error");
    assert!(first.is_lost() && second.is_some(), "not exactly one client holds the lock");
}

#[tokio::test(start_paused = true)]
async fn contenders_that_split_the_members_are_all_granted_in_the_end() {
    let mut five = Five::new();
    for round in 0..20 {
        fastrand::seed(round);
        let mut contenders = Vec::new();
        for late in 0..5 {
            let client = five.client();
            // Each contender reaches a different member first.
            for (i, line) in five.lines.iter().enumerate() {
                if i != late {
                    line.freeze();
                }
            }
            let lines = std::mem::take(&mut five.lines);
            contenders.push(async move {
                let acquiring = client.mutex("split").lock().ttl(TTL);
                let thaw = async {
                    tokio::task::yield_now().await;
                    lines.iter().for_each(Switch::connect);
                    std::future::pending::<()>().await
                };
                let guard = tokio::select! {
                    guard = acquiring => guard.expect("every contender is granted in the end"),
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

/// A member that refuses every attempt permanently, as a store does for a kind that it cannot order
/// with the kind of the holder.
#[derive(Debug)]
struct Refusing(MemoryBackend);

/// A member that supports only short ttls.
#[derive(Debug)]
struct ShortTtl(MemoryBackend, Info);

impl Backend for ShortTtl {
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
        Err(Error::WrongKind { name, kind, reason: "it is of another kind".to_owned() })
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
async fn a_release_that_finds_no_claim_on_a_majority_is_a_loss() {
    for (broken, silent, is_loss) in [(2, 0, false), (2, 2, false), (3, 0, true), (3, 2, true), (5, 0, true)]
    {
        let mut five = Five::new();
        let client = five.client();
        let guard = client.mutex("x").lock().await.expect("free");
        for member in &five.members[..broken] {
            let had_holder = Locks::new(member.clone().into_store()).force_release("x").await;
            assert!(had_holder.expect("memory can"), "the member had not granted the lock");
        }
        five.lines[5 - silent..].iter().for_each(Switch::cut);
        let result = guard.release().await;
        match is_loss {
            true => {
                assert!(matches!(result, Err(Error::Lost { reason: LostReason::Deleted, .. })), "{result:?}")
            }
            false => assert!(result.is_ok(), "{broken} broken, {silent} silent: {result:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_by_a_majority_is_reported_as_a_refusal() {
    let refusing = || Store::new(Arc::new(Refusing(MemoryBackend::new())));
    let line = Switch::default();
    line.cut();
    let unreachable = || line.wrap(MemoryBackend::new().into_store());
    let reachable = || MemoryBackend::new().into_store();
    let lock = async |members: [Store; 3]| locks(members.into_iter()).mutex("x").lock().await;
    let error = lock([unreachable(), refusing(), refusing()]).await.expect_err("two refuse");
    assert!(
        matches!(error, Error::WrongKind { .. }),
        "not the error of the majority, which a retry does not change: {error:?}"
    );
    let error = lock([unreachable(), reachable(), refusing()]).await.expect_err("one is no majority");
    assert!(
        matches!(error, Error::Unavailable { .. }),
        "the majority may grant when the first member is reachable again: {error:?}"
    );
    lock([reachable(), reachable(), refusing()])
        .await
        .expect("two are a majority")
        .release()
        .await
        .expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_member_timeout_may_be_of_any_length() {
    let members = [(); 3].map(|()| MemoryBackend::new().into_store());
    let unlimited = RedLock::new(members).expect("three").member_timeout(Duration::MAX).into_store();
    let held = Locks::new(unlimited).mutex("x").lock().await.expect("no deadline overflows");
    held.release().await.expect("held until now");
}

#[test]
fn too_few_or_dependent_members_are_refused() {
    let store = || MemoryBackend::new().into_store();
    let two = RedLock::new([store(), store()]).expect_err("two members tolerate no failure").to_string();
    assert_eq!(two, "a redlock needs at least three stores, not 2");
    let same = MemoryBackend::new();
    let twice =
        RedLock::new([store(), same.clone().into_store(), same.clone().into_store()]).expect_err("dependent");
    assert!(twice.to_string().contains(&same.info().identity), "{twice}");
}

#[test]
fn members_whose_longest_ttl_is_shorter_than_the_drift_are_refused() {
    let ms = Duration::from_millis;
    let short_ttl = || {
        let memory = MemoryBackend::new();
        let info = memory.info().clone().ttl(ms(1)..=ms(5));
        Store::new(Arc::new(ShortTtl(memory, info)))
    };
    let error = RedLock::new([short_ttl(), short_ttl(), short_ttl()]).expect_err("5 ms are too short");
    assert!(error.to_string().contains("no ttl"), "{error}");
}

/// A member that supports only some kinds.
#[derive(Debug)]
struct SomeKinds(MemoryBackend, Info);

impl Backend for SomeKinds {
    fn info(&self) -> &Info {
        &self.1
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.0.claim(request)
    }
}

#[test]
fn a_redlock_supports_the_kinds_that_all_its_members_support() {
    // Without permits, although all members support them.
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
            Store::new(Arc::new(SomeKinds(memory, info)))
        });
        let redlock = RedLock::new(members).expect("a kind in common");
        assert!(format!("{redlock:?}").contains("memory:"), "{redlock:?}");
        assert_eq!(redlock.info().kinds, common, "of {kinds:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_redlock_refuses_permits_with_advice() {
    let members = [(); 3].map(|()| MemoryBackend::new().into_store());
    let locks = Locks::new(RedLock::new(members).expect("three members").into_store());
    for error in [
        locks.semaphore("pool", 4).acquire().await.expect_err("the limit would not be kept"),
        locks.semaphore("pool", 4).try_acquire().await.expect_err("the limit would not be kept"),
    ] {
        assert!(matches!(error, Error::Unsupported { store: "redlock", .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("take one store for a semaphore"), "no advice: {text}");
    }
}

/// The reason why a RedLock has no permits. Three contenders hold a semaphore with a limit of two,
/// each on a majority of the members, and every member keeps the limit.
#[tokio::test(start_paused = true)]
async fn a_majority_of_members_that_keep_a_limit_does_not_keep_it() {
    let members = [(); 3].map(|()| Locks::memory());
    let mut held = Vec::new();
    for majority in [[0, 1], [1, 2], [2, 0]] {
        for member in majority {
            let permit = members[member].semaphore("pool", 2).try_acquire().await.expect("no error");
            held.push(permit.expect("each member keeps the limit of two"));
        }
    }
    assert_eq!(held.len(), 6, "not three holders with two members each");
}
