//! A RedLock whose members reply late or not at all. Its claims never count a vote that a member no
//! longer keeps.
//!
//! The suite cannot detect such faults, because each member alone satisfies its contract.
//! `dlock_conformance::simulation::simulate_majority` searches for them with random delays.
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
use dlock_conformance::wrap::{Switch, fast_clock, queueless, wrap};
use dlock_core::{
    Error, Kind, LockName, LockOptions, Locks, LostReason, RedLock, Result,
    driver::{
        Attempt, Backend, Claim, Info, Release, Renewal, Request, Store, pretend_clock, pretend_suspend,
    },
    memory::MemoryBackend,
};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

/// Part of the ttl that a RedLock does not count as valid, because the members' clocks may run at
/// different speeds.
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

/// Returns the ids of the holders of `x` on one member.
async fn holders(member: &MemoryBackend) -> Vec<String> {
    let state = direct(member).inspect("x").await.expect("memory can be inspected");
    state.map(|state| state.holders.into_iter().map(|holder| holder.id).collect()).unwrap_or_default()
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

/// The course of one call to a member.
#[derive(Clone, Copy, Default)]
struct Fate {
    /// Delay of the request.
    request: Duration,
    /// Delay of the reply.
    reply: Duration,
    end: End,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum End {
    #[default]
    Reply,
    /// The member executes the request, and the caller gets an error.
    ReplyLost,
    /// The driver panics before it sends the request.
    Panic,
}

impl Fate {
    async fn apply<T>(self, call: impl Future<Output = Result<T>>) -> Result<T> {
        sleep(self.request).await;
        assert!(self.end != End::Panic, "the driver panics, as the test requires");
        let result = call.await;
        sleep(self.reply).await;
        if self.end == End::ReplyLost {
            return Err(Error::Unavailable { store: "fated", source: "the reply was lost".into() });
        }
        result
    }
}

/// A claim whose calls have the fates that a function returns.
struct Fated<F>(Box<dyn Claim>, F);

#[async_trait]
impl<F: FnMut(Call) -> Fate + Send + 'static> Claim for Fated<F> {
    async fn attempt(&mut self) -> Result<Attempt> {
        (self.1)(Call::Attempt).apply(self.0.attempt()).await
    }
    async fn renew(&mut self) -> Result<Renewal> {
        (self.1)(Call::Renew).apply(self.0.renew()).await
    }
    async fn release(&mut self) -> Result<Release> {
        (self.1)(Call::Release).apply(self.0.release()).await
    }
    async fn changed(&mut self) {
        self.0.changed().await;
    }
}

/// Delays all calls of one method, of every claim.
#[derive(Clone, Copy)]
struct Delay {
    call: Call,
    /// Delay of the request.
    request: Duration,
    /// Delay of the reply.
    reply: Duration,
}

impl Delay {
    fn wrap(self, store: Store) -> Store {
        let Self { call: slow, request, reply } = self;
        let fate = move |call| match call == slow {
            true => Fate { request, reply, ..Fate::default() },
            false => Fate::default(),
        };
        wrap(store, move |claim, _| Box::new(Fated(claim, fate)))
    }
}

/// X has one member of three, as when contenders split the members, and releases that member. Then
/// Y takes that member and another one. Then the third member becomes free. `lose` runs before X
/// releases its member. Returns whether X holds the lock by its own knowledge, and whether Y does.
async fn after_a_yield(line: impl FnOnce(Store) -> Store, lose: impl FnOnce()) -> (bool, bool) {
    let members @ [a, b, c] = &three();
    let x =
        locks([line(a.clone().into_store()), b.clone().into_store(), c.clone().into_store()].map(queueless));
    let y = locks(members.clone().map(|member| queueless(member.into_store())));
    let others = [direct(b).mutex("x").lock().await, direct(c).mutex("x").lock().await];
    let [first, second] = others.map(|guard| guard.expect("free"));
    let lock = x.mutex("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    sleep(5 * MS).await;
    assert_eq!(holders(a).await.len(), 1, "X has the first member");
    lose();
    timeout(TTL * 10, async {
        while !holders(a).await.is_empty() {
            sleep(MS).await;
        }
    })
    .await
    .expect("X has no majority, so it releases its member");
    first.release().await.expect("held until now");
    let held = y.mutex("x").try_lock().await.expect("no error").expect("two members are free");
    second.release().await.expect("held until now");
    let result = timeout(TTL / 2, waiting).await;
    let x_holds = result.is_ok_and(|joined| joined.expect("no panic").is_ok_and(|guard| !guard.is_lost()));
    (x_holds, !held.is_lost())
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_reply_to_a_release_was_lost_does_not_vote() {
    let line = Switch::default();
    let both = after_a_yield(|member| line.wrap(member), || line.lose_answers()).await;
    assert_ne!(both, (true, true), "two contenders hold the lock");
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_reply_to_a_release_is_late_does_not_vote() {
    let late = Delay { call: Call::Release, request: Duration::ZERO, reply: TTL / 3 };
    let both = after_a_yield(|member| late.wrap(member), || ()).await;
    assert_ne!(both, (true, true), "two contenders hold the lock");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_was_taken_over_does_not_vote() {
    let members @ [a, b, c] = &three();
    let x = locks(members.clone().map(|member| queueless(member.into_store())));
    let others = [direct(b).mutex("x").lock().await, direct(c).mutex("x").lock().await];
    let [first, second] = others.map(|guard| guard.expect("free"));
    let lock = x.mutex("x");
    let mut waiting = Box::pin(async move { lock.lock().await });
    timeout(5 * MS, &mut waiting).await.expect_err("one of three is no majority");
    // Another client waits in the queue of the first member, so that it is the next holder there.
    let next = direct(a);
    let next = tokio::spawn(async move { next.mutex("x").lock().await });
    tokio::task::yield_now().await;
    assert!(direct(a).force_release("x").await.expect("memory can"), "X has the first member");
    let third = next.await.expect("no panic").expect("granted");
    first.release().await.expect("held until now");
    timeout(TTL / 2, &mut waiting).await.expect_err("two of three are held by others");
    drop((second, third));
    let held = timeout(TTL, waiting).await.expect("all are free").expect("granted");
    held.release().await.expect("held until now");
}

/// A release that is still in flight to a member does not delete the grant of the next round.
#[tokio::test(start_paused = true)]
async fn a_late_release_does_not_delete_the_grant_of_the_next_round() {
    let members @ [a, b, c] = &three();
    let late = Delay { call: Call::Release, request: TTL / 3, reply: Duration::ZERO };
    let x = locks([late.wrap(a.clone().into_store()), b.clone().into_store(), c.clone().into_store()]);
    let others = [direct(b).mutex("x").lock().await, direct(c).mutex("x").lock().await];
    let lock = x.mutex("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    // During this time X releases the first member, and sends it a new attempt.
    sleep(TTL / 4).await;
    drop(others);
    let held = timeout(TTL, waiting).await.expect("all are free").expect("no panic").expect("granted");
    sleep(TTL / 2).await;
    assert!(!held.is_lost());
    let mine = held.id().expect("one lock").to_string();
    for member in members {
        let ids = holders(member).await;
        assert!(ids.iter().all(|id| id[..30] == mine[..30]) && ids.len() == 1, "{ids:?} instead of {mine}");
    }
}

/// The machine is suspended between two rounds of a contender. Votes from before the suspend do not
/// count after it.
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
    let waiting = tokio::spawn(async move { lock.lock().await });
    sleep(2 * MS).await;
    assert_eq!(holders(a).await.len(), 1, "X has the first member");
    line.freeze();
    pretend_suspend(TTL + MS);
    assert!(holders(a).await.is_empty(), "the first member still has the claim of X after its ttl");
    let y = locks(members.clone().map(|member| queueless(member.into_store())));
    let held = y.mutex("x").try_lock().await.expect("no error").expect("two members are free");
    other.release().await.expect("held until now");
    let result = timeout(TTL / 2, waiting).await;
    let x_holds = result.is_ok_and(|joined| joined.expect("no panic").is_ok_and(|guard| !guard.is_lost()));
    assert!(!x_holds, "two contenders hold the lock after a suspend");
    assert!(!held.is_lost(), "Y has lost the lock, but it has two members of three");
}

/// A hold was broken on two members of three. Neither the vote of the third member nor new grants
/// of the two members keep the hold alive.
#[tokio::test(start_paused = true)]
async fn a_hold_that_lost_its_majority_is_not_restored_from_new_grants() {
    let members @ [a, b, _] = &three();
    let lines = [(); 3].map(|()| Switch::default());
    let x = locks(members.iter().zip(&lines).map(|(member, line)| line.wrap(member.clone().into_store())));
    let held = x.mutex("x").lock().await.expect("free");
    for member in [a, b] {
        assert!(direct(member).force_release("x").await.expect("memory can"), "X held it there");
    }
    let next = locks(members.clone().map(MemoryBackend::into_store)).mutex("x").try_lock().await;
    drop(next.expect("no error").expect("two are a majority"));
    // One of the two members reports that the claim was deleted. The replies of the other member
    // are lost. A RedLock that replaced its votes one by one would continue to hold.
    lines[1].lose_answers();
    assert!(matches!(timeout(TTL, held.lost()).await, Ok(LostReason::Expired | LostReason::Deleted)));
}

/// While a member's reply was in flight, the hold was broken on that member, and Y held the lock
/// for 300 ms. Then a third member granted the lock to X. The grant of the third member does not
/// replace the vote of the member where the hold was broken.
#[tokio::test(start_paused = true)]
async fn a_hold_does_not_rest_on_a_member_that_joined_in_the_same_round() {
    let members @ [_, b, c] = &three();
    let late = Delay { call: Call::Renew, request: Duration::ZERO, reply: 1500 * MS };
    let joins = Delay { call: Call::Attempt, request: 1000 * MS, reply: Duration::ZERO };
    let [mine, others] = [0, 1].map(|_| members.clone().map(MemoryBackend::into_store));
    let [a, to_b, to_c] = mine;
    let line = Switch::default();
    let x = store([line.wrap(joins.wrap(to_c)), a, late.wrap(to_b)]);
    let mut claim = x.backend.claim(request());
    line.cut();
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "two of three");
    line.connect();
    let y = locks(others);
    let break_hold = async {
        sleep(200 * MS).await;
        assert!(direct(b).force_release("x").await.expect("memory can"), "X held it there");
        let held = y.mutex("x").try_lock().await.expect("no error").expect("two are free");
        sleep(300 * MS).await;
        held.release().await.expect("held until now");
    };
    let (result, ()) = tokio::join!(claim.renew(), break_hold);
    assert!(matches!(result, Ok(Renewal::Renewed { .. })), "no reply reported the break: {result:?}");
    assert_eq!(holders(c).await.len(), 1, "the third member did not grant the lock after Y had released it");
    let result = claim.renew().await;
    assert!(matches!(result, Ok(Renewal::Lost)), "Y held the lock in between: {result:?}");
}

/// Like the test above, but the late reply arrives several rounds after the grant of the third
/// member.
#[tokio::test(start_paused = true)]
async fn a_hold_does_not_rest_on_a_member_that_joined_while_a_reply_was_late() {
    let members @ [_, b, c] = &three();
    let [mine, others] = [0, 1].map(|_| members.clone().map(MemoryBackend::into_store));
    let [a, to_b, to_c] = mine;
    let late = Delay { call: Call::Renew, request: Duration::ZERO, reply: TTL / 4 };
    let joins = Delay { call: Call::Attempt, request: TTL / 30, reply: Duration::ZERO };
    let line = Switch::default();
    let x = store([line.wrap(joins.wrap(to_c)), a, late.wrap(to_b)]);
    let mut claim = x.backend.claim(request());
    line.cut();
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "two of three");
    line.connect();
    let y = locks(others);
    let break_hold = async {
        sleep(TTL / 150).await;
        assert!(direct(b).force_release("x").await.expect("memory can"), "X held it there");
        let held = y.mutex("x").try_lock().await.expect("no error").expect("two are free");
        sleep(TTL / 100).await;
        held.release().await.expect("held until now");
    };
    let (result, ()) = tokio::join!(claim.renew(), break_hold);
    assert!(result.is_err(), "renewed although only one of two members has replied: {result:?}");
    for _ in 0..10 {
        sleep(TTL / 10).await;
        assert!(holders(c).await.len() <= 1);
        if matches!(claim.renew().await, Ok(Renewal::Lost)) {
            return;
        }
    }
    panic!("Y held the lock in between, and the loss is never reported to X");
}

/// X holds all three members. Y breaks the hold on two of them, then acquires and releases the
/// lock. One of the two members then reports the hold of X as lost. The other member confirms the
/// hold, but it executed the request before the break, so its reply proves nothing. Afterwards that
/// member does not reply any more. Returns whether the loss is reported to X.
async fn is_loss_reported_after_two_were_broken(
    delays: [Option<Delay>; 3],
    break_after: Option<Duration>,
) -> bool {
    let members @ [a, b, _] = &three();
    let line = Switch::default();
    let mine = members.iter().zip(delays).map(|(member, delay)| {
        let member = member.clone().into_store();
        delay.map_or(member.clone(), |delay| delay.wrap(member))
    });
    let mut mine: Vec<_> = mine.collect();
    mine[1] = line.wrap(mine[1].clone());
    let x = store(mine);
    let mut claim = x.backend.claim(request());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "free");
    let y = locks(members.clone().map(MemoryBackend::into_store));
    let break_hold = async {
        for member in [a, b] {
            assert!(direct(member).force_release("x").await.expect("memory can"), "X held it there");
        }
        let held = y.mutex("x").try_lock().await.expect("no error").expect("two are free");
        held.release().await.expect("held until now");
    };
    if let Some(break_after) = break_after {
        let (result, ()) = tokio::join!(claim.renew(), async {
            sleep(break_after).await;
            break_hold.await;
        });
        assert!(matches!(result, Ok(Renewal::Renewed { .. })), "no reply reported the break: {result:?}");
    } else {
        assert!(matches!(claim.renew().await, Ok(Renewal::Renewed { .. })), "all hold");
        break_hold.await;
        sleep(TTL / 3).await;
        let result = claim.renew().await;
        assert!(matches!(result, Ok(Renewal::Renewed { .. })), "no reply reported the break: {result:?}");
    }
    line.freeze();
    let end = Instant::now() + TTL;
    for _ in 0..30 {
        sleep(TTL / 10).await;
        let sent = Instant::now();
        match claim.renew().await {
            Ok(Renewal::Lost) => return true,
            Ok(Renewal::Renewed { valid_for }) if sent + valid_for > end => return false,
            _ => {}
        }
    }
    false
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_does_not_confirm_a_hold_that_was_reported_lost_since() {
    let late = Delay { call: Call::Renew, request: Duration::ZERO, reply: TTL / 3 + 500 * MS };
    let is_reported = is_loss_reported_after_two_were_broken([None, Some(late), None], None).await;
    assert!(is_reported, "Y held the lock in between, and the loss is never reported to X");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_does_not_confirm_a_hold_that_is_reported_lost_in_the_same_round() {
    let after = |request| Some(Delay { call: Call::Renew, request, reply: Duration::ZERO });
    let delays = [after(500 * MS), None, after(1000 * MS)];
    let is_reported = is_loss_reported_after_two_were_broken(delays, Some(200 * MS)).await;
    assert!(is_reported, "Y held the lock in between, and the loss is never reported to X");
}

/// The reply of a member arrives after the end of the ttl that the member had granted, and confirms
/// the claim. From then on the vote of that member counts again, like that of a member that has
/// just granted.
#[tokio::test(start_paused = true)]
async fn a_member_that_confirms_a_renewal_after_its_ttl_counts_again() {
    let [a, b, c] = three();
    let line = Switch::default();
    // Only the first reply is late, by less than a ttl, but by more than the rest of the grant
    // before it.
    let renewals = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&renewals);
    let slow = wrap(a.into_store(), move |claim, _| {
        let counted = Arc::clone(&counted);
        Box::new(Fated(claim, move |call| {
            let is_first = call == Call::Renew && counted.fetch_add(1, Relaxed) == 0;
            Fate { reply: if is_first { TTL * 5 / 6 } else { Duration::ZERO }, ..Fate::default() }
        }))
    });
    let x = locks([slow, line.wrap(b.into_store()), c.into_store()]);
    let held = x.mutex("x").lock().await.expect("free");
    sleep(TTL * 4).await;
    assert!(
        !held.is_lost() && renewals.load(Relaxed) > 1,
        "two of three members were reachable all the time"
    );
    line.cut();
    sleep(TTL * 4).await;
    assert!(!held.is_lost(), "lost although the first and the third member were reachable all the time");
    held.release().await.expect("held until now");
}

/// X has the vote of the first member, and sends that member another attempt. Before it arrives, a
/// second member grants, so X holds the lock. Then the hold is broken on the first member, and Y
/// has the lock. The new grant of the first member therefore does not count.
#[tokio::test(start_paused = true)]
async fn a_vote_that_replaces_a_broken_one_does_not_count() {
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
    panic!("Y held the lock in between, and the loss is never reported to X");
}

/// A holds with the votes of X and Y, and Z has joined. The hold is broken on all members, and A
/// reaches only Z, which denies the hold and then grants again. The vote of X expires. B holds the
/// lock on X and Y in between, so the members that A reaches afterwards prove nothing.
#[tokio::test(start_paused = true)]
async fn a_hold_that_only_a_joined_member_denies_is_not_regained_after_another_holder() {
    let members = &three();
    let lines = [(); 3].map(|()| Switch::default());
    let wrapped = members.iter().zip(&lines).map(|(member, line)| line.wrap(member.clone().into_store()));
    let mut a = store(wrapped).backend.claim(request());
    let b = locks(members.clone().map(MemoryBackend::into_store));
    let reach = |reached: [bool; 3]| {
        for (line, is_reached) in lines.iter().zip(reached) {
            if is_reached { line.connect() } else { line.cut() }
        }
    };
    reach([true, true, false]);
    assert!(matches!(a.attempt().await, Ok(Attempt::Granted(_))), "two of three");
    sleep(TTL / 3).await;
    reach([false, false, true]);
    a.renew().await.expect_err("Z grants, and has not joined yet");
    reach([false, true, true]);
    assert!(matches!(a.renew().await, Ok(Renewal::Renewed { .. })), "Y renews, and Z joins");
    for member in members {
        assert!(direct(member).force_release("x").await.expect("memory can"), "A held it there");
    }
    reach([false, false, true]);
    for pause in [Duration::ZERO, TTL * 2 / 3, Duration::ZERO] {
        assert!(!matches!(a.renew().await, Ok(Renewal::Renewed { .. })), "one of three");
        sleep(pause).await;
    }
    let held = b.mutex("x").try_lock().await.expect("no error").expect("X and Y are free");
    held.release().await.expect("held until now");
    reach([true, false, true]);
    for _ in 0..5 {
        let renewal = a.renew().await;
        assert!(!matches!(renewal, Ok(Renewal::Renewed { .. })), "B held the lock in between");
        sleep(MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_panics_on_one_member_is_called_again_and_the_hold_continues() {
    for late in [Duration::ZERO, TTL / 6] {
        let members @ [a, b, c] = &three();
        let line = Switch::default();
        let panicking = wrap(a.clone().into_store(), move |claim, _| {
            let mut first = Some(Fate { request: late, end: End::Panic, ..Fate::default() });
            let fate = move |call| first.take_if(|_| call == Call::Renew).unwrap_or_default();
            Box::new(Fated(claim, fate))
        });
        let x = locks([panicking, b.clone().into_store(), line.wrap(c.clone().into_store())]);
        let held = x.mutex("x").lock().await.expect("free");
        sleep(TTL * 2).await;
        assert!(!held.is_lost(), "lost although two of three members were reachable all the time");
        line.cut();
        sleep(TTL * 2).await;
        assert!(!held.is_lost(), "lost, so the member whose driver panicked was not called again");
        line.connect();
        held.release().await.expect("held until now");
        x.close().await;
        for member in members {
            assert_eq!(holders(member).await, [] as [String; 0], "left behind");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_forgot_a_claim_gets_a_claim_with_another_id() {
    let members @ [a, ..] = &three();
    let x = locks(members.clone().map(MemoryBackend::into_store));
    let held = x.mutex("x").lock().await.expect("free");
    let before = holders(a).await;
    assert!(direct(a).force_release("x").await.expect("memory can"), "X held it there");
    sleep(TTL).await;
    let after = holders(a).await;
    assert!(!held.is_lost() && after.len() == 1, "two of three members kept the claim: {after:?}");
    assert_ne!(before, after, "the same id, although a request for the old claim may still be in flight");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_release_is_not_confirmed_before_it_is_executed() {
    let members = three();
    let slow = Delay { call: Call::Release, request: TTL / 3, reply: Duration::ZERO };
    let x = store(members.clone().map(|member| slow.wrap(member.into_store())));
    let mut claim = x.backend.claim(request());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    let mut failures = 0;
    while let Err(error) = claim.release().await {
        assert!(error.is_transient(), "{error:?}");
        failures += 1;
        assert!(failures < 100, "the release is never confirmed");
    }
    assert!(failures > 0, "confirmed before a member had replied");
    for member in &members {
        assert_eq!(holders(member).await, [] as [String; 0], "confirmed too early");
    }
}

/// Each member has to release two claims. The request for the first claim is late. The reply for
/// the second claim is lost, after the round in which its request was sent.
#[tokio::test(start_paused = true)]
async fn a_release_is_not_confirmed_while_the_release_of_an_earlier_claim_is_in_flight() {
    let members = three();
    let x = store(members.clone().map(|member| {
        let released = Arc::new(AtomicUsize::new(0));
        wrap(member.into_store(), move |claim, _| {
            let released = Arc::clone(&released);
            Box::new(Fated(claim, move |call| match call {
                Call::Release => match released.fetch_add(1, Relaxed) {
                    0 => Fate { request: TTL * 2 / 3, ..Fate::default() },
                    1 => Fate { request: TTL / 6, end: End::ReplyLost, ..Fate::default() },
                    _ => Fate::default(),
                },
                _ => Fate::default(),
            }))
        })
    }));
    let mut claim = x.backend.claim(request());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    claim.release().await.expect_err("no member has replied");
    assert!(
        matches!(claim.attempt().await, Ok(Attempt::Busy { .. })),
        "granted while the earlier claim still holds the members"
    );
    let mut failures = 0;
    while claim.release().await.is_err() {
        failures += 1;
        assert!(failures < 100, "the release is never confirmed");
    }
    for member in &members {
        assert_eq!(holders(member).await, [] as [String; 0], "confirmed too early");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_repeated_many_times_keeps_no_tasks() {
    let lines = [(); 3].map(|()| Switch::default());
    let members = three();
    let x = store(members.iter().zip(&lines).map(|(member, line)| line.wrap(member.clone().into_store())));
    let mut claim = x.backend.claim(request().ttl(TTL * 1000));
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    lines.iter().for_each(Switch::cut);
    for _ in 0..100 {
        claim.release().await.expect_err("the members are unreachable");
    }
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks <= 3, "{tasks} tasks for three claims that are being released");
    lines.iter().for_each(Switch::connect);
    claim.release().await.expect("the members are reachable again");
    for member in &members {
        assert_eq!(holders(member).await, [] as [String; 0], "left behind");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_valid_for_the_ttl_minus_the_drift_from_before_the_request() {
    let members = three();
    let quick = locks(members.clone().map(MemoryBackend::into_store));
    let held = quick.mutex("x").lock().await.expect("free");
    assert!(
        held.remaining() <= TTL - DRIFT,
        "the validity leaves no room for clock drift: {:?}",
        held.remaining()
    );
    held.release().await.expect("held until now");
    let slow = Delay { call: Call::Attempt, request: Duration::ZERO, reply: Duration::from_secs(1) };
    let slow = locks(members.map(|member| slow.wrap(member.into_store())));
    let held = slow.mutex("x").lock().await.expect("free");
    let most = TTL - DRIFT - Duration::from_secs(1);
    assert!(held.remaining() <= most, "the delay of the reply was counted as valid: {:?}", held.remaining());
}

/// The members delete the claim of a client that is cut off before a whole ttl has passed on the
/// client's clock.
#[tokio::test(start_paused = true)]
async fn clocks_of_members_may_be_one_percent_fast_and_no_more() {
    pretend_clock();
    for (thousandths, is_lost_in_time) in [(10, true), (30, false)] {
        let (members, line) = (three(), Switch::default());
        let fast = members.clone().map(|member| line.wrap(fast_clock(member.into_store(), thousandths)));
        let held = locks(fast).mutex("x").lock().await.expect("free");
        assert_eq!(held.remaining(), TTL - DRIFT);
        line.cut();
        let next = locks(members.map(MemoryBackend::into_store)).mutex("x").lock();
        let next = timeout(TTL * 2, next).await.expect("the members delete the claim").expect("no error");
        assert_eq!(held.is_lost(), is_lost_in_time, "with clocks that are {thousandths} thousandths fast");
        drop(next);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_arrives_rounds_later_counts_from_before_its_request() {
    let [a, b, c] = three();
    // The reply of one member takes longer than a round, and another client holds another member.
    let late = TTL / 3;
    let slow = Delay { call: Call::Attempt, request: Duration::ZERO, reply: late };
    let _other = direct(&b).mutex("x").lock().await.expect("free");
    let store = store([slow.wrap(a.into_store()), b.into_store(), c.into_store()]);
    let mut claim = store.backend.claim(request());
    let started_at = Instant::now();
    let grant = loop {
        assert!(started_at.elapsed() < TTL, "never granted");
        match claim.attempt().await.expect("two of three reply") {
            Attempt::Granted(grant) => break grant,
            Attempt::Busy { retry_in } => sleep(retry_in).await,
        }
    };
    assert!(started_at.elapsed() >= late, "granted before the slow member replied");
    // The validity counts from before the last attempt, which took a round at most.
    let round = TTL / 10;
    assert!(grant.valid_for <= TTL - DRIFT - late + round, "counted from the reply: {:?}", grant.valid_for);
    claim.release().await.expect("a majority has confirmed");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_valid_for_the_ttl_minus_the_drift_from_before_the_request() {
    let slow = Delay { call: Call::Renew, request: Duration::ZERO, reply: Duration::from_secs(1) };
    let store = store(three().map(|member| slow.wrap(member.into_store())));
    let mut claim = store.backend.claim(request());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    let sent = Instant::now();
    let Ok(Renewal::Renewed { valid_for }) = claim.renew().await else { panic!("all have renewed") };
    assert_eq!(sent.elapsed(), Duration::from_secs(1));
    assert!(valid_for <= TTL - DRIFT, "no room for clock drift: {valid_for:?}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_only_a_minority_confirmed_fails() {
    let lines = [(); 3].map(|()| Switch::default());
    let store =
        store(three().iter().zip(&lines).map(|(member, line)| line.wrap(member.clone().into_store())));
    let mut claim = store.backend.claim(request());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    lines[..2].iter().for_each(Switch::cut);
    // The grants of these two members are still valid, but they confirm no renewal.
    let result = claim.renew().await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    lines[..2].iter().for_each(Switch::connect);
    assert!(matches!(claim.renew().await, Ok(Renewal::Renewed { .. })), "the members are reachable again");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_on_a_member_is_repeated_until_the_member_confirms_it() {
    let [a, b, c] = three();
    let line = Switch::default();
    let x = locks([line.wrap(a.clone().into_store()), b.into_store(), c.into_store()]);
    let held = x.mutex("x").lock().await.expect("free");
    sleep(MS).await;
    line.cut();
    held.release().await.expect("a majority has confirmed");
    sleep(TTL / 10).await;
    assert_eq!(holders(&a).await.len(), 1, "the release reached a member that is cut off");
    line.connect();
    sleep(Duration::from_secs(3)).await;
    assert!(holders(&a).await.is_empty(), "left behind for the rest of its ttl");
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_no_minority_that_is_unreachable() {
    for fail in [Switch::cut, Switch::lose_answers, Switch::freeze] {
        let [a, b, c] = three();
        let line = Switch::default();
        let x = locks([line.wrap(a.clone().into_store()), b.into_store(), c.into_store()]);
        fail(&line);
        let held = x.mutex("x").lock().await.expect("two of three");
        held.release().await.expect("a majority has confirmed");
        let released_at = Instant::now();
        x.close().await;
        let elapsed = released_at.elapsed();
        assert!(elapsed <= Duration::from_secs(2), "close() took {elapsed:?} for a minority");
        line.connect();
        sleep(TTL / 2).await;
        assert!(holders(&a).await.is_empty(), "the release was not repeated after close()");
    }
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_a_release_that_no_majority_has_confirmed() {
    let [a, b, c] = three();
    let lines = [(); 2].map(|()| Switch::default());
    let [one, two] = &lines;
    let x = locks([one.wrap(a.clone().into_store()), two.wrap(b.clone().into_store()), c.into_store()]);
    let held = x.mutex("x").lock().await.expect("free");
    sleep(MS).await;
    lines.iter().for_each(Switch::freeze);
    drop(held);
    let thaw = async {
        sleep(Duration::from_secs(5)).await;
        lines.iter().for_each(Switch::connect);
    };
    tokio::join!(x.close(), thaw);
    for member in [&a, &b] {
        assert!(holders(member).await.is_empty(), "close() ended before a majority had executed the release");
    }
}

/// Wraps a member whose replies to attempts are late, so that the other members grant the lock.
fn late_to_grant(store: Store, late: Duration) -> Store {
    Delay { call: Call::Attempt, request: Duration::ZERO, reply: late }.wrap(store)
}

#[tokio::test(start_paused = true)]
async fn a_hold_survives_the_loss_of_a_member_if_others_have_granted_since() {
    for members in [3, 5] {
        let backends: Vec<_> = (0..members).map(|_| MemoryBackend::new()).collect();
        let lines: Vec<_> = backends.iter().map(|_| Switch::default()).collect();
        let quorum = members / 2 + 1;
        let x = locks(backends.iter().zip(&lines).enumerate().map(|(number, (member, line))| {
            let member = line.wrap(member.clone().into_store());
            // The majority replies at once, the other members 50 ms later.
            if number < quorum { member } else { late_to_grant(member, 50 * MS) }
        }));
        let held = x.mutex("x").lock().await.expect("free");
        lines[0].cut();
        sleep(TTL * 5).await;
        assert!(!held.is_lost(), "lost although all of {members} members except one are reachable");
        held.release().await.expect("held until now");
        lines[0].connect();
        x.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_survives_members_that_become_unreachable_one_after_the_other() {
    let backends: Vec<_> = (0..5).map(|_| MemoryBackend::new()).collect();
    let lines: Vec<_> = backends.iter().map(|_| Switch::default()).collect();
    let x = locks(backends.iter().zip(&lines).map(|(member, line)| line.wrap(member.clone().into_store())));
    lines[1].cut();
    let held = x.mutex("x").lock().await.expect("four of five");
    sleep(TTL).await;
    // The grant of this member ends before the next member becomes unreachable. Then a member that
    // has not granted yet becomes reachable.
    lines[2].cut();
    sleep(TTL * 2).await;
    lines[4].cut();
    lines[1].connect();
    sleep(TTL * 2).await;
    assert!(!held.is_lost(), "lost although three of five members were reachable all the time");
    lines[2].connect();
    lines[4].connect();
    sleep(TTL).await;
    assert!(
        !held.is_lost(),
        "lost although only the members that are reachable again had forgotten the hold"
    );
}

#[tokio::test(start_paused = true)]
async fn a_member_that_has_just_granted_does_not_extend_the_validity() {
    let line = Switch::default();
    let [a, b, c] = three();
    let late = Delay { call: Call::Renew, request: Duration::ZERO, reply: TTL * 3 / 4 };
    let x = store([line.wrap(a.into_store()), late.wrap(b.into_store()), c.into_store()]);
    let mut claim = x.backend.claim(request());
    line.cut();
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))), "two of three");
    sleep(TTL / 5).await;
    let sent = Instant::now();
    assert!(claim.renew().await.is_err(), "one of two members replies late");
    line.connect();
    // The late reply arrives during an attempt on the first member, which grants.
    sleep(sent + TTL * 3 / 4 - Instant::now() - TTL / 60).await;
    let begun = Instant::now();
    let Ok(Renewal::Renewed { valid_for }) = claim.renew().await else {
        panic!("not renewed although both members confirmed, one of them late")
    };
    let most = sent + TTL - begun;
    assert!(
        valid_for <= most,
        "the validity counts from later than the request of the late reply: {valid_for:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hold_survives_a_member_that_forgets_if_others_have_granted_since() {
    let backends: Vec<_> = (0..5).map(|_| MemoryBackend::new()).collect();
    let x = locks(backends.iter().enumerate().map(|(number, member)| {
        let member = member.clone().into_store();
        if number < 3 { member } else { late_to_grant(member, 50 * MS) }
    }));
    let held = x.mutex("x").lock().await.expect("free");
    // Long before the first renewal is due.
    sleep(TTL / 30).await;
    assert!(direct(&backends[0]).force_release("x").await.expect("memory can"), "X held it there");
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "lost although four of five members never forgot the hold");
}

#[tokio::test(start_paused = true)]
async fn a_slow_member_does_not_cause_extra_renewals() {
    let calls = Arc::new(AtomicUsize::new(0));
    let [a, b, c] = three();
    let slow = Delay { call: Call::Renew, request: Duration::ZERO, reply: 100 * MS };
    let counted = {
        let calls = Arc::clone(&calls);
        wrap(c.into_store(), move |claim, _| {
            calls.fetch_add(1, Relaxed);
            claim
        })
    };
    let x = locks([a.into_store(), b.into_store(), slow.wrap(late_to_grant(counted, 50 * MS))]);
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
        "renewed {renewed} times in three ttls, so each late reply caused another renewal"
    );
    assert_eq!(calls.load(Relaxed), 1, "not exactly one claim on the slow member");
}

#[tokio::test(start_paused = true)]
async fn a_ttl_that_is_shorter_than_a_round_trip_to_the_members_is_an_error() {
    let far = Delay { call: Call::Attempt, request: 10 * MS, reply: 10 * MS };
    let x = locks(three().map(|member| far.wrap(member.into_store())));
    let result = timeout(TTL, x.mutex("x").lock().ttl(10 * MS)).await.expect("the attempt never ends");
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
}

/// A store with another identity, so that it can be a member twice.
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
async fn one_server_with_two_identities_has_one_vote() {
    let [one, other, _] = three();
    let alias = || {
        let mut info = one.info().clone();
        info.identity = "the same under another name".to_owned();
        Store::new(Arc::new(Alias(one.clone(), info)))
    };
    let line = Switch::default();
    let x = locks([one.clone().into_store(), alias(), line.wrap(other.clone().into_store())]);
    line.cut();
    let result = x.mutex("x").lock().wait(TTL).await;
    assert!(result.is_err(), "one server of two is no majority, even under two names");
    line.connect();
    let held = x.mutex("x").lock().await.expect("both servers are reachable");
    let mutex = Arc::new(x.mutex("x"));
    assert!(mutex.try_lock().await.expect("no error").is_none(), "two contenders hold the lock");
    drop(held);
}
