//! A RedLock whose members answer late, or not at all: no claim on it counts a vote that a member no longer keeps.
//!
//! The suite does not show such bugs, because each member alone keeps its contract.
//! `dlock_conformance::simulation::simulate_majority` looks for them with random delays.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks; each test awaits its own")]

mod watchdog;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use dlock_conformance::wrap::{Switch, queueless, wrap};
use dlock_core::{
    Error, Kind, LockName, LockOptions, Locks, LostReason, RedLock, Result,
    driver::{Attempt, Backend, Claim, Info, Release, Renewal, Request, Store, pretend_suspend},
    memory::MemoryBackend,
};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

/// The part of the ttl that is not counted as valid, because the clocks of the members may run at different speeds.
const DRIFT: Duration = Duration::from_millis(302);

fn three() -> [MemoryBackend; 3] {
    watchdog::watch();
    [(); 3].map(|()| MemoryBackend::new())
}

fn store(members: impl IntoIterator<Item = Store>) -> Store {
    RedLock::new(members).expect("independent members").into_store()
}

fn locks(members: impl IntoIterator<Item = Store>) -> Locks {
    Locks::new(store(members)).with_defaults(LockOptions::new().ttl(TTL))
}

fn direct(member: &MemoryBackend) -> Locks {
    Locks::new(member.clone().into_store())
}

/// Who holds `x` in one member.
async fn holders(member: &MemoryBackend) -> Vec<String> {
    let state = direct(member).inspect("x").await.expect("memory can be inspected");
    state.map(|state| state.holders.into_iter().map(|one| one.id).collect()).unwrap_or_default()
}

fn request() -> Request {
    let name = LockName::new("x").expect("legal");
    Request::new(name, Kind::Mutex, TTL)
}

#[derive(Clone, Copy, PartialEq)]
enum Call {
    Attempt,
    Renew,
    Release,
}

/// What becomes of one call to a member: how long the call takes on its way there, how long its answer takes on its way back,
/// and what the caller gets.
#[derive(Clone, Copy, Default)]
struct Fate {
    there: Duration,
    back: Duration,
    end: End,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum End {
    #[default]
    Answer,
    /// The member has acted, and the caller gets an error.
    AnswerLost,
    /// The driver panics before it asks the member.
    Panic,
}

impl Fate {
    async fn of<T>(self, answer: impl Future<Output = Result<T>>) -> Result<T> {
        sleep(self.there).await;
        assert!(self.end != End::Panic, "the driver panics, as the test says");
        let answer = answer.await;
        sleep(self.back).await;
        if self.end == End::AnswerLost {
            return Err(Error::Unavailable { store: "fated", source: "the answer was lost".into() });
        }
        answer
    }
}

/// A claim that asks a function for the fate of each call.
struct Fated<F>(Box<dyn Claim>, F);

#[async_trait]
impl<F: FnMut(Call) -> Fate + Send + 'static> Claim for Fated<F> {
    async fn attempt(&mut self) -> Result<Attempt> {
        (self.1)(Call::Attempt).of(self.0.attempt()).await
    }
    async fn renew(&mut self) -> Result<Renewal> {
        (self.1)(Call::Renew).of(self.0.renew()).await
    }
    async fn release(&mut self) -> Result<Release> {
        (self.1)(Call::Release).of(self.0.release()).await
    }
    async fn changed(&mut self) {
        self.0.changed().await;
    }
}

/// Holds up one of the calls of each claim: the request on its way there, and the answer on its way back.
#[derive(Clone, Copy)]
struct Delay {
    call: Call,
    there: Duration,
    back: Duration,
}

impl Delay {
    fn wrap(self, store: Store) -> Store {
        let Self { call: slow, there, back } = self;
        let fate = move |call| match call == slow {
            true => Fate { there, back, ..Fate::default() },
            false => Fate::default(),
        };
        wrap(store, move |claim, _| Box::new(Fated(claim, fate)))
    }
}

/// X has one member of three, as happens when contenders split the members, and lets go of that member. Then Y takes that
/// member and another one. Then the third is free. Returns whether X believes that it holds, and whether Y does.
async fn after_a_yield(line: impl FnOnce(Store) -> Store, lose: impl FnOnce()) -> (bool, bool) {
    let members @ [a, b, c] = &three();
    let x =
        locks([line(a.clone().into_store()), b.clone().into_store(), c.clone().into_store()].map(queueless));
    let y = locks(members.clone().map(|member| queueless(member.into_store())));
    let others = [direct(b).mutex("x").lock().await, direct(c).mutex("x").lock().await];
    let [first, second] = others.map(|guard| guard.expect("free"));
    let lock = x.mutex("x");
    let asking = tokio::spawn(async move { lock.lock().await });
    sleep(5 * MS).await;
    assert_eq!(holders(a).await.len(), 1, "X has the first member");
    lose();
    timeout(TTL * 10, async {
        while !holders(a).await.is_empty() {
            sleep(MS).await;
        }
    })
    .await
    .expect("X has no majority, and lets go in the end");
    first.release().await.expect("held until now");
    let held = y.mutex("x").try_lock().await.expect("no error").expect("two members are free");
    second.release().await.expect("held until now");
    let told = timeout(TTL / 2, asking).await;
    let x_holds = told.is_ok_and(|told| told.expect("no panic").is_ok_and(|guard| !guard.is_lost()));
    (x_holds, !held.is_lost())
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_release_answer_was_lost_does_not_vote() {
    let line = Switch::default();
    let both = after_a_yield(|member| line.wrap(member), || line.lose_answers()).await;
    assert_ne!(both, (true, true), "two hold");
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_release_answer_is_late_does_not_vote() {
    let late = Delay { call: Call::Release, there: Duration::ZERO, back: TTL / 3 };
    let both = after_a_yield(|member| late.wrap(member), || ()).await;
    assert_ne!(both, (true, true), "two hold");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_was_taken_over_does_not_vote() {
    let members @ [a, b, c] = &three();
    let x = locks(members.clone().map(|member| queueless(member.into_store())));
    let others = [direct(b).mutex("x").lock().await, direct(c).mutex("x").lock().await];
    let [first, second] = others.map(|guard| guard.expect("free"));
    let lock = x.mutex("x");
    let mut asking = Box::pin(async move { lock.lock().await });
    timeout(5 * MS, &mut asking).await.expect_err("one of three is no majority");
    // Another client waits in the queue of the first member, and so is the next holder there.
    let next = direct(a);
    let next = tokio::spawn(async move { next.mutex("x").lock().await });
    tokio::task::yield_now().await;
    assert!(direct(a).force_release("x").await.expect("memory can"), "X has the first member");
    let third = next.await.expect("no panic").expect("granted");
    first.release().await.expect("held until now");
    timeout(TTL / 2, &mut asking).await.expect_err("two of three are held by others");
    drop((second, third));
    let held = timeout(TTL, asking).await.expect("all are free").expect("granted");
    held.release().await.expect("held until now");
}

/// A release that is still on its way to a member does not remove what the member granted in the next round.
#[tokio::test(start_paused = true)]
async fn a_late_release_does_not_hit_the_next_round() {
    let members @ [a, b, c] = &three();
    let late = Delay { call: Call::Release, there: TTL / 3, back: Duration::ZERO };
    let x = locks([late.wrap(a.clone().into_store()), b.clone().into_store(), c.clone().into_store()]);
    let others = [direct(b).mutex("x").lock().await, direct(c).mutex("x").lock().await];
    let lock = x.mutex("x");
    let asking = tokio::spawn(async move { lock.lock().await });
    // In this time X lets go of the first member, and asks the first member again.
    sleep(TTL / 4).await;
    drop(others);
    let held = timeout(TTL, asking).await.expect("all are free").expect("no panic").expect("granted");
    sleep(TTL / 2).await;
    assert!(!held.is_lost());
    let mine = held.id().expect("one lock").to_string();
    for member in members {
        let shown = holders(member).await;
        assert!(
            shown.iter().all(|id| id[..30] == mine[..30]) && shown.len() == 1,
            "{shown:?} instead of {mine}"
        );
    }
}

/// The machine is suspended between two rounds of a contender. Votes from before the suspend do not count after it.
#[tokio::test(start_paused = true)]
async fn a_vote_from_before_a_suspend_does_not_count() {
    let members @ [a, b, c] = &three();
    let (line, line_c) = (Switch::default(), Switch::default());
    let mine =
        [line.wrap(a.clone().into_store()), b.clone().into_store(), line_c.wrap(c.clone().into_store())];
    let x = locks(mine.map(queueless));
    let long = LockOptions::new().ttl(TTL * 10);
    let other = direct(b).with_defaults(long).mutex("x").lock().await.expect("free");
    line_c.cut();
    let lock = x.mutex("x");
    let asking = tokio::spawn(async move { lock.lock().await });
    sleep(2 * MS).await;
    assert_eq!(holders(a).await.len(), 1, "X has the first member");
    line.freeze();
    pretend_suspend(TTL + MS);
    assert!(holders(a).await.is_empty(), "the member has forgotten X meanwhile");
    let y = locks(members.clone().map(|member| queueless(member.into_store())));
    let held = y.mutex("x").try_lock().await.expect("no error").expect("two members are free");
    other.release().await.expect("held until now");
    let told = timeout(TTL / 2, asking).await;
    let x_holds = told.is_ok_and(|told| told.expect("no panic").is_ok_and(|guard| !guard.is_lost()));
    assert!(!x_holds, "two hold after a suspend");
    assert!(!held.is_lost(), "Y has two members of three, and X took none of them away");
}

/// A hold was broken on two members of three. Neither the vote of the third nor new grants of the two keep the hold alive.
#[tokio::test(start_paused = true)]
async fn a_hold_that_lost_its_majority_is_not_put_together_again() {
    let members @ [a, b, _] = &three();
    let lines = [(); 3].map(|()| Switch::default());
    let x = locks(members.iter().zip(&lines).map(|(member, line)| line.wrap(member.clone().into_store())));
    let held = x.mutex("x").lock().await.expect("free");
    for member in [a, b] {
        assert!(direct(member).force_release("x").await.expect("memory can"), "X held it there");
    }
    let next = locks(members.clone().map(MemoryBackend::into_store)).mutex("x").try_lock().await;
    drop(next.expect("no error").expect("two are a majority"));
    // One of the two members says that the hold is gone. The answers of the other are lost. A RedLock that replaces its votes
    // one by one would go on.
    lines[1].lose_answers();
    assert!(matches!(timeout(TTL, held.lost()).await, Ok(LostReason::Expired | LostReason::Taken)));
}

/// While a member's answer was on its way back, the hold was broken on that member, and Y held the lock for a moment. Then a
/// third member granted the lock to X. The grant of the third does not replace the vote of the member where the hold was broken.
#[tokio::test(start_paused = true)]
async fn a_hold_does_not_rest_on_a_member_that_joined_in_the_same_round() {
    let members @ [_, b, c] = &three();
    let late = Delay { call: Call::Renew, there: Duration::ZERO, back: 1500 * MS };
    let joins = Delay { call: Call::Attempt, there: 1000 * MS, back: Duration::ZERO };
    let [mine, others] = [0, 1].map(|_| members.clone().map(MemoryBackend::into_store));
    let [a, to_b, to_c] = mine;
    let line = Switch::default();
    let x = store([line.wrap(joins.wrap(to_c)), a, late.wrap(to_b)]);
    let mut claim = x.backend.claim(request());
    line.cut();
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "two of three");
    line.connect();
    let y = locks(others);
    let rob = async {
        sleep(200 * MS).await;
        assert!(direct(b).force_release("x").await.expect("memory can"), "X held it there");
        let held = y.mutex("x").try_lock().await.expect("no error").expect("two are free");
        sleep(300 * MS).await;
        held.release().await.expect("held until now");
    };
    let (told, ()) = tokio::join!(claim.renew(), rob);
    assert!(matches!(told, Ok(Renewal::Renewed { .. })), "no answer told of the break: {told:?}");
    assert_eq!(holders(c).await.len(), 1, "the third member did not grant the lock after Y had released it");
    let told = claim.renew().await;
    assert!(matches!(told, Ok(Renewal::Lost)), "Y held the lock in between: {told:?}");
}

/// As above, but the late answer arrives several rounds after the third member granted.
#[tokio::test(start_paused = true)]
async fn a_hold_does_not_rest_on_a_member_that_joined_while_an_answer_was_late() {
    let members @ [_, b, c] = &three();
    let [mine, others] = [0, 1].map(|_| members.clone().map(MemoryBackend::into_store));
    let [a, to_b, to_c] = mine;
    let late = Delay { call: Call::Renew, there: Duration::ZERO, back: TTL / 4 };
    let joins = Delay { call: Call::Attempt, there: TTL / 30, back: Duration::ZERO };
    let line = Switch::default();
    let x = store([line.wrap(joins.wrap(to_c)), a, late.wrap(to_b)]);
    let mut claim = x.backend.claim(request());
    line.cut();
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "two of three");
    line.connect();
    let y = locks(others);
    let rob = async {
        sleep(TTL / 150).await;
        assert!(direct(b).force_release("x").await.expect("memory can"), "X held it there");
        let held = y.mutex("x").try_lock().await.expect("no error").expect("two are free");
        sleep(TTL / 100).await;
        held.release().await.expect("held until now");
    };
    let (told, ()) = tokio::join!(claim.renew(), rob);
    assert!(told.is_err(), "renewed, and only one of two members has answered: {told:?}");
    for _ in 0..10 {
        sleep(TTL / 10).await;
        assert!(holders(c).await.len() <= 1);
        if matches!(claim.renew().await, Ok(Renewal::Lost)) {
            return;
        }
    }
    panic!("Y held the lock in between, and X is never told");
}

/// X holds all three members. Y breaks the hold on two of them, and has the lock for a moment. One of the two then disowns the
/// hold of X. The other says that it holds, but was asked before the break, so its answer proves nothing. From then on that
/// member is silent. Returns whether X is told of the loss.
async fn told_after_two_were_robbed(late: [Option<Delay>; 3], rob_in: Option<Duration>) -> bool {
    let members @ [a, b, _] = &three();
    let line = Switch::default();
    let mine = members.iter().zip(late).map(|(member, late)| {
        let member = member.clone().into_store();
        late.map_or(member.clone(), |late| late.wrap(member))
    });
    let mut mine: Vec<_> = mine.collect();
    mine[1] = line.wrap(mine[1].clone());
    let x = store(mine);
    let mut claim = x.backend.claim(request());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "free");
    let y = locks(members.clone().map(MemoryBackend::into_store));
    let rob = async {
        for member in [a, b] {
            assert!(direct(member).force_release("x").await.expect("memory can"), "X held it there");
        }
        let held = y.mutex("x").try_lock().await.expect("no error").expect("two are free");
        held.release().await.expect("held until now");
    };
    if let Some(rob_in) = rob_in {
        let (told, ()) = tokio::join!(claim.renew(), async {
            sleep(rob_in).await;
            rob.await;
        });
        assert!(matches!(told, Ok(Renewal::Renewed { .. })), "no answer told of the break: {told:?}");
    } else {
        assert!(matches!(claim.renew().await, Ok(Renewal::Renewed { .. })), "all hold");
        rob.await;
        sleep(TTL / 3).await;
        let told = claim.renew().await;
        assert!(matches!(told, Ok(Renewal::Renewed { .. })), "no answer told of the break: {told:?}");
    }
    line.freeze();
    let end = Instant::now() + TTL;
    for _ in 0..30 {
        sleep(TTL / 10).await;
        let asked = Instant::now();
        match claim.renew().await {
            Ok(Renewal::Lost) => return true,
            Ok(Renewal::Renewed { valid_for }) if asked + valid_for > end => return false,
            _ => {}
        }
    }
    false
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_does_not_confirm_a_hold_that_was_disowned_since() {
    let late = Delay { call: Call::Renew, there: Duration::ZERO, back: TTL / 3 + 500 * MS };
    let told = told_after_two_were_robbed([None, Some(late), None], None).await;
    assert!(told, "Y held the lock in between, and X is never told");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_does_not_confirm_a_hold_that_is_disowned_in_the_same_round() {
    let after = |there| Some(Delay { call: Call::Renew, there, back: Duration::ZERO });
    let told = told_after_two_were_robbed([after(500 * MS), None, after(1000 * MS)], Some(200 * MS)).await;
    assert!(told, "Y held the lock in between, and X is never told");
}

/// The answer of a member arrives after the ttl that the member had granted, and says that the member still holds the claim.
/// From then on the vote of that member counts again, as that of a member that has just granted.
#[tokio::test(start_paused = true)]
async fn a_member_whose_renewal_is_answered_after_its_time_counts_again() {
    let [a, b, c] = three();
    let line = Switch::default();
    // Only the first answer is late: by less than a ttl, but by more than is left of the grant before it.
    let renewals = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&renewals);
    let slow = wrap(a.into_store(), move |claim, _| {
        let counted = Arc::clone(&counted);
        Box::new(Fated(claim, move |call| {
            let is_first = call == Call::Renew && counted.fetch_add(1, Relaxed) == 0;
            Fate { back: if is_first { TTL * 5 / 6 } else { Duration::ZERO }, ..Fate::default() }
        }))
    });
    let x = locks([slow, line.wrap(b.into_store()), c.into_store()]);
    let held = x.mutex("x").lock().await.expect("free");
    sleep(TTL * 4).await;
    assert!(!held.is_lost() && renewals.load(Relaxed) > 1, "two of three were there all the time");
    line.cut();
    sleep(TTL * 4).await;
    assert!(!held.is_lost(), "lost, and the first and the third member were there all the time");
    held.release().await.expect("held until now");
}

/// X has the vote of the first member, and asks that member again. Meanwhile a second member grants, so X holds. Before the
/// question of X arrives at the first member, Y has held that member. So the first member's new grant does not count.
#[tokio::test(start_paused = true)]
async fn a_vote_that_replaces_one_that_was_taken_away_does_not_count() {
    let members @ [a, b, c] = &three();
    let line = Switch::default();
    let x = store([
        queueless(line.wrap(a.clone().into_store())),
        queueless(b.clone().into_store()),
        queueless(c.clone().into_store()),
    ]);
    let y = locks(members.clone().map(|member| queueless(member.into_store())));
    let others = [direct(b).mutex("x").lock().await, direct(c).mutex("x").lock().await];
    let [first, second] = others.map(|guard| guard.expect("free"));
    let mut claim = x.backend.claim(request());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Busy { .. })), "one of three");
    first.release().await.expect("held until now");
    line.freeze();
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "two of three");
    assert!(direct(a).force_release("x").await.expect("memory can"), "X held it there");
    second.release().await.expect("held until now");
    let held = y.mutex("x").try_lock().await.expect("no error").expect("two are free");
    held.release().await.expect("held until now");
    line.connect();
    sleep(MS).await;
    for _ in 0..5 {
        if matches!(claim.renew().await, Ok(Renewal::Lost)) {
            return;
        }
        sleep(TTL / 10).await;
    }
    panic!("Y held the lock in between, and X is never told");
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_driver_panics_costs_the_others_nothing_and_is_asked_again() {
    for late in [Duration::ZERO, TTL / 6] {
        let members @ [a, b, c] = &three();
        let line = Switch::default();
        let panicking = wrap(a.clone().into_store(), move |claim, _| {
            let mut first = Some(Fate { there: late, end: End::Panic, ..Fate::default() });
            let fate = move |call| first.take_if(|_| call == Call::Renew).unwrap_or_default();
            Box::new(Fated(claim, fate))
        });
        let x = locks([panicking, b.clone().into_store(), line.wrap(c.clone().into_store())]);
        let held = x.mutex("x").lock().await.expect("free");
        sleep(TTL * 2).await;
        assert!(!held.is_lost(), "two of three were there all the time");
        line.cut();
        sleep(TTL * 2).await;
        assert!(!held.is_lost(), "lost, so the member that panicked was not asked again");
        line.connect();
        held.release().await.expect("held until now");
        x.close().await;
        for member in members {
            assert_eq!(holders(member).await, [] as [String; 0], "left behind");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_forgot_a_claim_is_asked_anew_under_another_id() {
    let members @ [a, ..] = &three();
    let x = locks(members.clone().map(MemoryBackend::into_store));
    let held = x.mutex("x").lock().await.expect("free");
    let before = holders(a).await;
    assert!(direct(a).force_release("x").await.expect("memory can"), "X held it there");
    sleep(TTL).await;
    let after = holders(a).await;
    assert!(!held.is_lost() && after.len() == 1, "two of three went on: {after:?}");
    assert_ne!(before, after, "the same id, and a call for the old claim may still be on its way");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_asked_for_again_is_not_confirmed_before_it_is_done() {
    let members = three();
    let slow = Delay { call: Call::Release, there: TTL / 3, back: Duration::ZERO };
    let x = store(members.clone().map(|member| slow.wrap(member.into_store())));
    let mut claim = x.backend.claim(request());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    let mut asked = 0;
    while let Err(error) = claim.release().await {
        assert!(error.is_transient(), "{error:?}");
        asked += 1;
        assert!(asked < 100, "the release is never confirmed");
    }
    assert!(asked > 0, "no member had answered");
    for member in &members {
        assert_eq!(holders(member).await, [] as [String; 0], "confirmed too early");
    }
}

/// Each member has to let go of two claims. The release of the first claim takes long to get there. The answer to the
/// release of the second is lost, after the round in which it was asked for.
#[tokio::test(start_paused = true)]
async fn a_release_is_not_confirmed_while_an_earlier_claim_still_leaves() {
    let members = three();
    let x = store(members.clone().map(|member| {
        let released = Arc::new(AtomicUsize::new(0));
        wrap(member.into_store(), move |claim, _| {
            let released = Arc::clone(&released);
            Box::new(Fated(claim, move |call| match call {
                Call::Release => match released.fetch_add(1, Relaxed) {
                    0 => Fate { there: TTL * 2 / 3, ..Fate::default() },
                    1 => Fate { there: TTL / 6, end: End::AnswerLost, ..Fate::default() },
                    _ => Fate::default(),
                },
                _ => Fate::default(),
            }))
        })
    }));
    let mut claim = x.backend.claim(request());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    claim.release().await.expect_err("no member has answered");
    assert!(
        matches!(claim.attempt().await, Ok(Attempt::Busy { .. })),
        "granted while the released claim still holds the members"
    );
    let mut asked = 0;
    while claim.release().await.is_err() {
        asked += 1;
        assert!(asked < 100, "the release is never confirmed");
    }
    for member in &members {
        assert_eq!(holders(member).await, [] as [String; 0], "confirmed too early");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_asked_for_again_and_again_keeps_no_tasks() {
    let lines = [(); 3].map(|()| Switch::default());
    let members = three();
    let x = store(members.iter().zip(&lines).map(|(member, line)| line.wrap(member.clone().into_store())));
    let mut claim = x.backend.claim(request().ttl(TTL * 1000));
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    lines.iter().for_each(Switch::cut);
    for _ in 0..100 {
        claim.release().await.expect_err("the members are away");
    }
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks <= 3, "{tasks} tasks, and three claims that leave");
    lines.iter().for_each(Switch::connect);
    claim.release().await.expect("the members are back");
    for member in &members {
        assert_eq!(holders(member).await, [] as [String; 0], "left behind");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_valid_for_the_ttl_less_the_drift_from_before_it_was_asked_for() {
    let members = three();
    let quick = locks(members.clone().map(MemoryBackend::into_store));
    let held = quick.mutex("x").lock().await.expect("free");
    assert!(
        held.remaining() <= TTL - DRIFT,
        "the validity leaves no room for clock drift: {:?}",
        held.remaining()
    );
    held.release().await.expect("held until now");
    let slow = Delay { call: Call::Attempt, there: Duration::ZERO, back: Duration::from_secs(1) };
    let slow = locks(members.map(|member| slow.wrap(member.into_store())));
    let held = slow.mutex("x").lock().await.expect("free");
    let most = TTL - DRIFT - Duration::from_secs(1);
    assert!(
        held.remaining() <= most,
        "the time of the answer's way back was counted as valid: {:?}",
        held.remaining()
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_arrives_rounds_later_counts_from_before_its_request() {
    let [a, b, c] = three();
    // The answer of one member takes longer than a round, and somebody else holds another member.
    let back = TTL / 3;
    let slow = Delay { call: Call::Attempt, there: Duration::ZERO, back };
    let _other = direct(&b).mutex("x").lock().await.expect("free");
    let store = store([slow.wrap(a.into_store()), b.into_store(), c.into_store()]);
    let mut claim = store.backend.claim(request());
    let asked = Instant::now();
    let grant = loop {
        assert!(asked.elapsed() < TTL, "never granted");
        match claim.attempt().await.expect("two of three answer") {
            Attempt::Granted(grant) => break grant,
            Attempt::Busy { retry_in } => sleep(retry_in).await,
        }
    };
    assert!(asked.elapsed() >= back, "granted before the slow member answered");
    // The validity counts from before the last attempt, which took a round at most.
    let round = TTL / 10;
    assert!(grant.valid_for <= TTL - DRIFT - back + round, "counted from the answer: {:?}", grant.valid_for);
    claim.release().await.expect("a majority has let go");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_valid_for_the_ttl_less_the_drift_from_before_it_was_asked_for() {
    let slow = Delay { call: Call::Renew, there: Duration::ZERO, back: Duration::from_secs(1) };
    let store = store(three().map(|member| slow.wrap(member.into_store())));
    let mut claim = store.backend.claim(request());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    let sent = Instant::now();
    let Ok(Renewal::Renewed { valid_for }) = claim.renew().await else { panic!("all have renewed") };
    assert_eq!(sent.elapsed(), Duration::from_secs(1));
    assert!(valid_for <= TTL - DRIFT, "counted from the call: {valid_for:?}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_a_majority_did_not_confirm_is_none() {
    let lines = [(); 3].map(|()| Switch::default());
    let store =
        store(three().iter().zip(&lines).map(|(member, line)| line.wrap(member.clone().into_store())));
    let mut claim = store.backend.claim(request());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    lines[..2].iter().for_each(Switch::cut);
    // The grants of these two members are still valid, but they confirm no renewal.
    let told = claim.renew().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    lines[..2].iter().for_each(Switch::connect);
    assert!(matches!(claim.renew().await, Ok(Renewal::Renewed { .. })), "the members are back");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_on_a_member_is_repeated_until_the_member_confirms_it() {
    let [a, b, c] = three();
    let line = Switch::default();
    let x = locks([line.wrap(a.clone().into_store()), b.into_store(), c.into_store()]);
    let held = x.mutex("x").lock().await.expect("free");
    sleep(MS).await;
    line.cut();
    held.release().await.expect("a majority has let go");
    sleep(TTL / 10).await;
    assert_eq!(holders(&a).await.len(), 1, "the release reached a member that is cut off");
    line.connect();
    x.close().await;
    assert!(holders(&a).await.is_empty(), "left behind for the rest of its ttl");
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_members_that_are_late() {
    let [a, b, c] = three();
    let line = Switch::default();
    let x = locks([line.wrap(a.clone().into_store()), b.into_store(), c.into_store()]);
    let held = x.mutex("x").lock().await.expect("free");
    sleep(MS).await;
    line.freeze();
    held.release().await.expect("a majority has let go");
    let thaw = async {
        sleep(Duration::from_secs(3)).await;
        line.connect();
    };
    tokio::join!(x.close(), thaw);
    assert!(holders(&a).await.is_empty(), "close() ended before the last member had let go");
}

/// A member whose answers to attempts are late, so that the other members grant the lock.
fn late_first(store: Store, late: Duration) -> Store {
    Delay { call: Call::Attempt, there: Duration::ZERO, back: late }.wrap(store)
}

#[tokio::test(start_paused = true)]
async fn a_member_that_granted_may_go_away_when_others_have_granted_since() {
    for members in [3, 5] {
        let backends: Vec<_> = (0..members).map(|_| MemoryBackend::new()).collect();
        let lines: Vec<_> = backends.iter().map(|_| Switch::default()).collect();
        let quorum = members / 2 + 1;
        let x = locks(backends.iter().zip(&lines).enumerate().map(|(number, (member, line))| {
            let member = line.wrap(member.clone().into_store());
            // The majority answers at once, the others a little later.
            if number < quorum { member } else { late_first(member, 50 * MS) }
        }));
        let held = x.mutex("x").lock().await.expect("free");
        lines[0].cut();
        sleep(TTL * 5).await;
        assert!(!held.is_lost(), "all but one of {members} are there");
        held.release().await.expect("held until now");
        lines[0].connect();
        x.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_outlives_members_that_go_away_one_after_the_other() {
    let backends: Vec<_> = (0..5).map(|_| MemoryBackend::new()).collect();
    let lines: Vec<_> = backends.iter().map(|_| Switch::default()).collect();
    let x = locks(backends.iter().zip(&lines).map(|(member, line)| line.wrap(member.clone().into_store())));
    lines[1].cut();
    let held = x.mutex("x").lock().await.expect("four of five");
    sleep(TTL).await;
    // The grant of the member that goes away now is over before the next member goes away. Then a member comes back that has
    // not granted yet.
    lines[2].cut();
    sleep(TTL * 2).await;
    lines[4].cut();
    lines[1].connect();
    sleep(TTL * 2).await;
    assert!(!held.is_lost(), "three of five were there all the time");
    lines[2].connect();
    lines[4].connect();
    sleep(TTL).await;
    assert!(!held.is_lost(), "lost, and only the members that are back had forgotten the hold");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_has_just_joined_prolongs_no_promise() {
    let line = Switch::default();
    let [a, b, c] = three();
    let late = Delay { call: Call::Renew, there: Duration::ZERO, back: TTL * 3 / 4 };
    let x = store([line.wrap(a.into_store()), late.wrap(b.into_store()), c.into_store()]);
    let mut claim = x.backend.claim(request());
    line.cut();
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "two of three");
    sleep(TTL / 5).await;
    let asked = Instant::now();
    assert!(claim.renew().await.is_err(), "one of two answers late");
    line.connect();
    // The late answer arrives while the first member is asked again, and grants.
    sleep(asked + TTL * 3 / 4 - Instant::now() - TTL / 60).await;
    let begun = Instant::now();
    let Ok(Renewal::Renewed { valid_for }) = claim.renew().await else {
        panic!("not renewed, and both members did, one of them late")
    };
    let most = asked + TTL - begun;
    assert!(
        valid_for <= most,
        "the validity counts from a later moment than the request of the late answer: {valid_for:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_member_that_granted_may_forget_when_others_have_granted_since() {
    let backends: Vec<_> = (0..5).map(|_| MemoryBackend::new()).collect();
    let x = locks(backends.iter().enumerate().map(|(number, member)| {
        let member = member.clone().into_store();
        if number < 3 { member } else { late_first(member, 50 * MS) }
    }));
    let held = x.mutex("x").lock().await.expect("free");
    // Long before the first renewal is due.
    sleep(TTL / 30).await;
    assert!(direct(&backends[0]).force_release("x").await.expect("memory can"), "X held it there");
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "four of five never forgot");
}

#[tokio::test(start_paused = true)]
async fn a_slow_member_does_not_make_a_holder_hammer() {
    let calls = Arc::new(AtomicUsize::new(0));
    let [a, b, c] = three();
    let slow = Delay { call: Call::Renew, there: Duration::ZERO, back: 100 * MS };
    let counted = {
        let calls = Arc::clone(&calls);
        wrap(c.into_store(), move |claim, _| {
            calls.fetch_add(1, Relaxed);
            claim
        })
    };
    let x = locks([a.into_store(), b.into_store(), slow.wrap(late_first(counted, 50 * MS))]);
    let held = x.mutex("x").lock().await.expect("free");
    let begun = Instant::now();
    let mut renewed = 0;
    let mut last = held.remaining();
    while begun.elapsed() < TTL * 3 {
        sleep(50 * MS).await;
        renewed += usize::from(held.remaining() > last);
        last = held.remaining();
    }
    assert!(
        renewed <= 12,
        "renewed {renewed} times in three ttls: each late answer made the holder ask again"
    );
    assert_eq!(calls.load(Relaxed), 1, "one claim on the slow member");
}

#[tokio::test(start_paused = true)]
async fn a_ttl_that_is_shorter_than_the_way_to_the_members_is_an_error() {
    let far = Delay { call: Call::Attempt, there: 10 * MS, back: 10 * MS };
    let x = locks(three().map(|member| far.wrap(member.into_store())));
    let told = timeout(TTL, x.mutex("x").lock().ttl(10 * MS)).await.expect("the attempt never ends");
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
}

/// A server under another name, so that it can be a member twice.
#[derive(Debug)]
struct Alias(MemoryBackend, Info);

impl Backend for Alias {
    fn info(&self) -> &Info {
        &self.1
    }
    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.0.claim(request)
    }
}

#[tokio::test(start_paused = true)]
async fn one_server_under_two_names_has_one_vote() {
    let [one, other, _] = three();
    let alias = || {
        let mut info = one.info().clone();
        info.identity = "the same under another name".to_owned();
        Store::new(Arc::new(Alias(one.clone(), info)))
    };
    let line = Switch::default();
    let x = locks([one.clone().into_store(), alias(), line.wrap(other.clone().into_store())]);
    line.cut();
    let told = x.mutex("x").lock().wait(TTL).await;
    assert!(told.is_err(), "one server of two is no majority, whatever its names");
    line.connect();
    let held = x.mutex("x").lock().await.expect("both servers");
    let mutex = Arc::new(x.mutex("x"));
    assert!(mutex.try_lock().await.expect("no error").is_none(), "two hold");
    drop(held);
}
