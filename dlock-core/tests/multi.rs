//! MultiLock. A call gets all members or none, never deadlocks, and leaves no claim.
#![expect(clippy::disallowed_methods, reason = "each contender is a task, which its test awaits")]

mod watchdog;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use async_trait::async_trait;
use dlock_conformance::wrap::{Switch, wrap};
use dlock_core::{
    DistributedLock, DistributedLockExt, Error, Guard, Kind, LockName, LockOptions, Locks, LostReason,
    MultiLock, Owner, Result,
    driver::{Attempt, Backend, Claim, Info, Release, Renewal, Request, Store},
    memory::MemoryBackend,
};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns a MultiLock, after starting the watchdog.
fn multi(members: impl IntoIterator<Item = Arc<dyn DistributedLock>>) -> MultiLock {
    watchdog::watch();
    MultiLock::new(members).expect("at least one, and no multilock among them")
}

fn mutexes(locks: &Locks, names: &[&str]) -> MultiLock {
    multi(names.iter().map(|name| locks.of(Kind::Mutex, name)))
}

async fn is_free(locks: &Locks, name: &str) -> bool {
    locks.mutex(name).try_lock().await.expect("no error").is_some()
}

#[tokio::test(start_paused = true)]
async fn all_members_are_held_and_all_are_released() {
    let locks = Locks::memory();
    let guard = mutexes(&locks, &["b", "a", "c"]).lock(&LockOptions::new()).await.expect("free");
    for name in ["a", "b", "c"] {
        assert!(!is_free(&locks, name).await, "{name} is not held");
    }
    assert_eq!(guard.tokens().len(), 3, "not one token for each member");
    guard.release().await.expect("held until now");
    for name in ["a", "b", "c"] {
        assert!(is_free(&locks, name).await, "{name} is not free after the release");
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_is_all_or_nothing() {
    let locks = Locks::memory();
    let busy = locks.mutex("b").lock().await.expect("free");
    let result =
        mutexes(&locks, &["a", "b", "c"]).try_lock(&LockOptions::new()).await.expect("busy is no error");
    assert!(result.is_none(), "granted although b is held");
    assert!(is_free(&locks, "a").await && is_free(&locks, "c").await, "a member stays held after a busy try");
    busy.release().await.expect("held until now");
    let result = mutexes(&locks, &["a", "b", "c"]).try_lock(&LockOptions::new()).await.expect("no error");
    assert_eq!(result.expect("all are free").tokens().len(), 3);
    let text = format!("{:?}", mutexes(&locks, &["a", "b"]));
    assert!(text.contains("a + b"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn while_it_waits_only_members_before_the_busy_one_are_held() {
    let locks = Locks::memory();
    let busy = locks.mutex("b").lock().await.expect("free");
    let waiting = mutexes(&locks, &["c", "b", "a"]);
    let waiting = tokio::spawn(async move { waiting.lock_within(Duration::from_secs(60)).await });
    sleep(Duration::from_secs(1)).await;
    assert!(
        is_free(&locks, "c").await,
        "c is held while the multilock waits for b, but c is after b in the common order"
    );
    busy.release().await.expect("held until now");
    let guard = waiting.await.expect("no panic").expect("b is free now");
    assert!(!is_free(&locks, "c").await, "the multilock was granted without c");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn one_deadline_applies_to_all_members() {
    let locks = Locks::memory();
    let (a, b) = (locks.mutex("a").lock().await.expect("free"), locks.mutex("b").lock().await.expect("free"));
    let release_a = async {
        sleep(Duration::from_secs(8)).await;
        drop(a);
    };
    let started_at = Instant::now();
    let both = mutexes(&locks, &["a", "b"]);
    let (outcome, ()) = tokio::join!(both.lock_within(Duration::from_secs(10)), release_a);
    let error = outcome.expect_err("b is never released");
    assert_eq!(error.to_string(), "timed out after 10s waiting for lock `a + b`");
    assert!(
        started_at.elapsed() < Duration::from_secs(11),
        "the multilock waited ten seconds for each member"
    );
    assert!(is_free(&locks, "a").await, "a is still held after the timeout");
    drop(b);
}

#[tokio::test(start_paused = true)]
async fn the_same_lock_given_twice_counts_once_and_the_exclusive_side_wins() {
    let locks = Locks::memory();
    let sides = multi([locks.of(Kind::Read, "x"), locks.of(Kind::Write, "x"), locks.of(Kind::Read, "x")]);
    let guard = sides
        .lock_within(Duration::from_secs(1))
        .await
        .expect("the multilock does not wait for a side that it holds itself");
    assert_eq!(guard.tokens().len(), 1);
    assert!(
        locks.rwlock("x").read().try_lock().await.expect("no error").is_none(),
        "the multilock does not hold the write side"
    );
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn members_of_different_stores_and_kinds_are_one_lock() {
    let (first, second) = (Locks::memory(), Locks::memory());
    let both = multi([first.of(Kind::Fair, "x"), second.of(Kind::Read, "x")]);
    let guard = both.lock_within(Duration::from_secs(1)).await.expect("two locks, although of one name");
    assert!(!is_free(&first, "x").await && !is_free(&second, "x").await);
    assert!(
        second.rwlock("x").read().try_lock().await.expect("no error").is_some(),
        "another reader is refused"
    );
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_multilock_is_lost_when_any_member_is_lost() {
    let locks = Locks::memory();
    let guard = mutexes(&locks, &["a", "b"]).lock(&LockOptions::new()).await.expect("free");
    let signal = guard.lost_signal();
    timeout(Duration::from_secs(100), signal.lost()).await.expect_err("nothing is lost yet");
    locks.force_release("b").await.expect("memory can");
    assert_eq!(guard.lost().await, LostReason::Deleted);
    assert!(guard.is_lost() && signal.is_lost() && guard.remaining().is_zero());
    let error = guard.release().await.expect_err("a member was lost");
    assert!(
        matches!(&error, Error::Lost { name, .. } if name.as_str() == "b"),
        "the error does not name the lost member: {error}"
    );
    locks.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_although_another_member_does_not_reply() {
    let stores = [MemoryBackend::new(), MemoryBackend::new()];
    for silent in [0, 1] {
        let line = Switch::default();
        let unreachable = Locks::new(line.wrap(stores[silent].clone().into_store()));
        let reachable = Locks::new(stores[1 - silent].clone().into_store());
        let both = multi([unreachable.of(Kind::Mutex, "x"), reachable.of(Kind::Mutex, "x")]);
        let options = LockOptions::new();
        let work = async |_: &_| {
            assert!(reachable.force_release("x").await.expect("memory can"), "it was held");
            line.cut();
        };
        let result = both.run_with(&options, work).await;
        assert!(matches!(result, Err(Error::Lost { .. })), "a member was lost during the work: {result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_store_is_unreachable_fails_the_call_and_leaves_no_claim() {
    let (reachable, line) = (Locks::memory(), Switch::default());
    let unreachable = Locks::new(line.wrap(MemoryBackend::new().into_store()));
    line.cut();
    let both = multi([reachable.of(Kind::Mutex, "x"), unreachable.of(Kind::Mutex, "x")]);
    let error = both.lock_within(Duration::from_secs(5)).await.expect_err("one store is unreachable");
    assert!(error.is_transient(), "{error:?}");
    sleep(Duration::from_millis(1)).await;
    assert!(is_free(&reachable, "x").await, "the other member is still held");
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_store_hangs_does_not_extend_the_wait() {
    let (stock, line) = (Locks::memory(), Switch::default());
    let bank = Locks::new(line.wrap(MemoryBackend::new().into_store()));
    let both = multi([stock.of(Kind::Mutex, "item"), bank.of(Kind::Mutex, "account")]);
    line.freeze();
    let wait = Duration::from_secs(5);
    let result = timeout(wait + Duration::from_secs(1), both.lock_within(wait)).await;
    let result = result.expect("the multilock waits longer than its wait limit");
    assert!(matches!(result, Err(Error::Timeout { limit, .. }) if limit == wait), "{result:?}");
    assert!(is_free(&stock, "item").await, "the first member is still held after the timeout");
    line.connect();
    bank.close().await;
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_a_member_during_the_wait_for_another_restarts_the_acquisition() {
    let locks = Locks::memory();
    let busy = locks.mutex("b").lock().await.expect("free");
    let both = mutexes(&locks, &["a", "b"]);
    let release = async {
        sleep(Duration::from_secs(3600)).await;
        busy.release().await.expect("held until now");
    };
    // The first member's lease ends many times during the wait for the second member.
    let options = LockOptions::new().lease(Duration::from_secs(10));
    let (result, ()) = tokio::join!(both.lock(&options), release);
    let guard = result.expect("both are free by now");
    assert!(!guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_multilock_is_never_granted_with_a_lost_member() {
    let (fast, line) = (Locks::memory(), Switch::default());
    let slow = Locks::new(line.wrap(MemoryBackend::new().into_store()));
    let both = multi([fast.of(Kind::Mutex, "a"), slow.of(Kind::Mutex, "b")]);
    line.freeze();
    let break_first = async {
        sleep(Duration::from_secs(1)).await;
        assert!(
            fast.force_release("a").await.expect("memory can"),
            "the first member was not granted at once"
        );
        sleep(Duration::from_secs(1)).await;
        line.connect();
    };
    let options = LockOptions::new();
    let (result, ()) = tokio::join!(both.lock(&options), break_first);
    assert!(!result.expect("granted in the end").is_lost());
}

/// A claim that breaks the lock `a` of another store during each of its attempts.
struct BreakingClaim {
    claim: Box<dyn Claim>,
    victim: Locks,
    attempts: Arc<AtomicUsize>,
}

#[async_trait]
impl Claim for BreakingClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.attempts.fetch_add(1, Relaxed);
        sleep(Duration::from_millis(1)).await;
        self.victim.force_release("a").await?;
        // During this time the keeper of `a` detects the loss.
        sleep(Duration::from_millis(100)).await;
        self.claim.attempt().await
    }
    async fn renew(&mut self) -> Result<Renewal> {
        self.claim.renew().await
    }
    async fn release(&mut self) -> Result<Release> {
        self.claim.release().await
    }
    async fn changed(&mut self) {
        self.claim.changed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_multilock_ends_with_the_loss_if_a_member_is_lost_before_each_grant_of_the_last() {
    let (fast, attempts) = (Locks::memory(), Arc::new(AtomicUsize::new(0)));
    let (victim, counted) = (fast.clone(), Arc::clone(&attempts));
    let slow = Locks::new(wrap(MemoryBackend::new().into_store(), move |claim, _| {
        Box::new(BreakingClaim { claim, victim: victim.clone(), attempts: Arc::clone(&counted) })
    }));
    let both = multi([fast.of(Kind::Mutex, "a"), slow.of(Kind::Mutex, "b")]);
    let options = LockOptions::new();
    let result = both.try_lock(&options).await;
    assert!(
        matches!(result, Err(Error::Lost { .. })),
        "the multilock never held both members at once: {result:?}"
    );
    assert_eq!(attempts.swap(0, Relaxed), 1, "not one attempt in a try");
    let result =
        timeout(Duration::from_secs(60), both.lock(&options)).await.expect("the multilock retries for ever");
    assert!(matches!(result, Err(Error::Lost { .. })), "{result:?}");
    assert_eq!(attempts.load(Relaxed), 5, "not one attempt in each of five rounds");
    slow.close().await;
    assert!(is_free(&fast, "a").await, "a is still held");
}

#[tokio::test(start_paused = true)]
async fn each_multilock_that_shares_an_owners_hold_reports_its_loss() {
    let (locks, me) = (Locks::memory(), Owner::new());
    let with = |other: &str| {
        let shared: Arc<dyn DistributedLock> = Arc::new(locks.mutex("a").owned_by(&me));
        multi([shared, locks.of(Kind::Mutex, other)])
    };
    let first = with("b").lock(&LockOptions::new()).await.expect("free");
    let second =
        with("c").lock(&LockOptions::new()).await.expect("one is free, and the owner holds the other");
    assert!(locks.force_release("a").await.expect("memory can"), "the owner held it");
    for guard in [&first, &second] {
        let result = timeout(Duration::from_secs(1), guard.lost()).await;
        assert_eq!(result.expect("the loss is not reported"), LostReason::Deleted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_multilock_waits_no_longer_than_the_shortest_default_of_its_clients() {
    let line = Switch::default();
    let bank = Locks::new(line.wrap(MemoryBackend::new().into_store()));
    let (short, long) = (Duration::from_secs(5), Duration::from_secs(60));
    let stock = Locks::memory().with_defaults(LockOptions::new().wait(long));
    let bank = bank.with_defaults(LockOptions::new().wait(short));
    let both = multi([stock.of(Kind::Mutex, "item"), bank.of(Kind::Mutex, "account")]);
    line.freeze();
    let options = LockOptions::new();
    let result = timeout(short + Duration::from_secs(1), both.lock(&options)).await;
    let result = result.expect("the multilock waits longer than the default of one client");
    assert!(matches!(result, Err(Error::Timeout { limit, .. }) if limit == short), "{result:?}");
    let result = timeout(long, both.lock(&LockOptions::new().wait(long))).await;
    assert!(result.is_err(), "the call did not wait for its own, longer limit");
    line.connect();
    bank.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_re_enters_its_hold_through_a_multilock() {
    let (locks, me) = (Locks::memory(), Owner::new());
    let outer = locks.mutex("a").owned_by(&me).lock().await.expect("free");
    let both = multi([
        Arc::new(locks.mutex("a").owned_by(&me)) as Arc<dyn DistributedLock>,
        Arc::new(locks.mutex("b").owned_by(&me)),
    ]);
    let guard = both.lock_within(Duration::from_secs(1)).await.expect("a is held by the same owner");
    assert_eq!(outer.hold_count(), 2);
    drop((guard, outer));
}

#[tokio::test(start_paused = true)]
async fn a_multilock_without_members_or_of_multilocks_is_refused() {
    let locks = Locks::memory();
    let inner: Arc<dyn DistributedLock> = Arc::new(mutexes(&locks, &["a"]));
    assert!(MultiLock::new([]).expect_err("empty").to_string().contains("at least one"));
    assert!(MultiLock::new([inner]).expect_err("nested").to_string().contains("its members"));
}

/// Sixteen contenders take two thousand MultiLocks with overlapping names. Some of the calls are
/// dropped at a random time.
#[tokio::test(start_paused = true)]
async fn random_multilocks_never_deadlock_and_leave_nothing() {
    const NAMES: usize = 6;
    let stores: Vec<_> = (0..3).map(|_| MemoryBackend::new()).collect();
    let held: Arc<Vec<tokio::sync::Mutex<()>>> =
        Arc::new((0..NAMES * 3).map(|_| tokio::sync::Mutex::default()).collect());
    let contenders = (0..16u64).map(|contender| {
        let clients: Vec<_> = stores.iter().map(|store| Locks::new(store.clone().into_store())).collect();
        let held = Arc::clone(&held);
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(contender);
            let mut grants = 0;
            for _ in 0..125 {
                let picked: Vec<usize> = (0..random.usize(1..5)).map(|_| random.usize(..NAMES * 3)).collect();
                let lock =
                    multi(picked.iter().map(|i| clients[i % 3].of(Kind::Mutex, format!("n{}", i / 3))));
                let drop_after = Duration::from_micros(random.u64(..40_000));
                let options = LockOptions::new();
                let guard = match random.u8(..4) {
                    // Drops the future in any of its states.
                    0 => timeout(drop_after, lock.lock(&options))
                        .await
                        .ok()
                        .map(|guard| guard.expect("no error")),
                    1 => lock.try_lock(&options).await.expect("busy is no error"),
                    _ => Some(lock.lock(&options).await.expect("granted in the end")),
                };
                let Some(guard) = guard else { continue };
                grants += 1;
                let mut mine = picked.clone();
                mine.sort_unstable();
                mine.dedup();
                let exclusive: Vec<_> = mine
                    .iter()
                    .map(|i| held[*i].try_lock().expect("two contenders hold one member"))
                    .collect();
                sleep(Duration::from_micros(random.u64(..3_000))).await;
                drop(exclusive);
                if random.bool() {
                    guard.release().await.expect("held until now");
                }
            }
            join_all(clients.iter().map(Locks::close)).await;
            grants
        })
    });
    let all = timeout(Duration::from_secs(3600), join_all(contenders)).await.expect("no deadlock");
    let grants: usize = all.into_iter().map(|grants| grants.expect("no overlap")).sum();
    assert!(grants > 1000, "only {grants} of 2000 were granted");
    for store in stores {
        let left = Locks::new(store.into_store()).list("").await.expect("memory can list");
        assert_eq!(left, [], "claims are left");
    }
}

/// A memory store with an [`Info`] of its own.
#[derive(Debug)]
struct OwnInfo(Arc<dyn Backend>, Info);

impl OwnInfo {
    /// Returns a client of a store that cannot keep a lock without its holder, like a store with
    /// sessions.
    fn session() -> Locks {
        let info = Info::new("session", "session:1")
            .kinds(&[Kind::Mutex])
            .session(Duration::from_secs(30), Duration::from_millis(10)..=Duration::from_secs(86_400));
        Locks::new(Store::new(Arc::new(Self(MemoryBackend::new().into_store().backend, info))))
    }

    /// Returns a client whose URL has this host.
    fn at(host: &str, store: &MemoryBackend) -> Locks {
        let info = Info::new("named", format!("named://{host}")).kinds(&[Kind::Mutex]);
        Locks::new(Store::new(Arc::new(Self(store.clone().into_store().backend, info))))
    }
}

impl Backend for OwnInfo {
    fn info(&self) -> &Info {
        &self.1
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.0.claim(request)
    }
}

#[tokio::test(start_paused = true)]
async fn multilocks_of_clients_that_name_a_store_differently_can_deadlock() {
    for (host, is_granted) in [("localhost", true), ("127.0.0.1", false)] {
        let (first, second) = (MemoryBackend::new(), MemoryBackend::new());
        let busy = [&first, &second].map(|store| Locks::new(store.clone().into_store()).mutex("x").lock());
        let busy = join_all(busy).await;
        assert!(busy.iter().all(Result::is_ok), "free");
        let contend = async |host: &str| {
            let clients = [OwnInfo::at(host, &first), OwnInfo::at("db", &second)];
            let both = multi(clients.map(|client| client.of(Kind::Mutex, "x")));
            let held = both.lock(&LockOptions::new()).await.expect("the store replies");
            held.release().await.expect("held until now");
        };
        let release = async {
            // Each MultiLock now waits for the member that comes first in its order.
            sleep(Duration::from_secs(1)).await;
            drop(busy);
        };
        let all = async { tokio::join!(contend("localhost"), contend(host), release) };
        let result = timeout(HOUR, all).await;
        assert_eq!(result.is_ok(), is_granted, "clients that say `localhost` and `{host}`");
    }
}

/// A task that takes single locks need not follow the order of MultiLocks.
#[tokio::test(start_paused = true)]
async fn a_multilock_and_single_locks_can_deadlock_until_one_of_them_stops_waiting() {
    for (wait, is_granted) in [(2 * HOUR, false), (HOUR / 2, true)] {
        let locks = Locks::memory();
        let b = locks.mutex("b").lock().await.expect("free");
        let single = async {
            // The MultiLock now holds `a`, and waits for `b`.
            sleep(Duration::from_secs(1)).await;
            let result = locks.mutex("a").lock().wait(wait).await;
            drop(b);
            result
        };
        let (both, options) = (mutexes(&locks, &["a", "b"]), LockOptions::new());
        let (both, single) = tokio::join!(timeout(HOUR, both.lock(&options)), timeout(HOUR, single));
        let both = both.ok().map(|result| result.is_ok());
        let single = single.ok().map(|result| matches!(result, Err(Error::Timeout { .. })));
        let expected = is_granted.then_some(true);
        assert_eq!((both, single), (expected, expected), "with a wait limit of {wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_default_at_least_of_one_client_does_not_apply_to_members_of_another() {
    let s = Duration::from_secs;
    let keeping = Locks::memory().with_defaults(LockOptions::new().at_least(s(20)));
    let session = OwnInfo::session();
    let both = multi([keeping.of(Kind::Mutex, "a"), session.of(Kind::Mutex, "b")]);
    let started_at = Instant::now();
    let guard = both.lock_within(s(5)).await.expect("free");
    guard.release().await.expect("no store got an option that it does not support");
    assert!(is_free(&session, "b").await, "the member without `at_least` stays taken");
    session.close().await;
    assert!(started_at.elapsed() < s(1), "the close took {:?}", started_at.elapsed());
    assert!(!is_free(&keeping, "a").await, "the member with `at_least` does not stay taken");
    sleep(s(21)).await;
    assert!(is_free(&keeping, "a").await);
}

#[tokio::test(start_paused = true)]
async fn an_explicit_at_least_is_refused_before_any_request_if_a_store_does_not_support_it() {
    let (locks, session) = (Locks::memory(), OwnInfo::session());
    let both = multi([locks.of(Kind::Mutex, "a"), session.of(Kind::Mutex, "b")]);
    let refused = both
        .lock(&LockOptions::new().at_least(Duration::from_secs(20)))
        .await
        .expect_err("the store with sessions cannot");
    assert!(matches!(refused, Error::Unsupported { store: "session", .. }), "{refused:?}");
    assert!(is_free(&locks, "a").await && is_free(&session, "b").await);
}

/// A lock that wraps another lock.
struct Wrapped(Arc<dyn DistributedLock>);

#[async_trait]
impl DistributedLock for Wrapped {
    fn name(&self) -> &LockName {
        self.0.name()
    }

    fn kind(&self) -> Kind {
        self.0.kind()
    }

    fn store(&self) -> &str {
        self.0.store()
    }

    fn check(&self, options: &LockOptions) -> Result<()> {
        self.0.check(options)
    }

    async fn lock(&self, options: &LockOptions) -> Result<Guard> {
        self.0.lock(options).await
    }

    async fn try_lock(&self, options: &LockOptions) -> Result<Option<Guard>> {
        self.0.try_lock(options).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrapped_member_refuses_the_options_that_the_lock_refuses() {
    let (locks, session) = (Locks::memory(), OwnInfo::session());
    let wrapped = Arc::new(Wrapped(session.of(Kind::Mutex, "b")));
    let both = multi([locks.of(Kind::Mutex, "a"), wrapped]);
    let options = LockOptions::new().at_least(Duration::from_secs(20));
    let refused = both.lock(&options).await.expect_err("the store with sessions cannot");
    assert!(matches!(refused, Error::Unsupported { store: "session", .. }), "{refused:?}");
    assert!(is_free(&locks, "a").await && is_free(&session, "b").await);
}

#[tokio::test(start_paused = true)]
async fn options_that_are_set_after_the_first_poll_have_no_effect() {
    let session = OwnInfo::session();
    let mut acquiring = session.mutex("a").lock();
    let polled = Pin::new(&mut acquiring).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "the first poll starts the keeper");
    let guard = acquiring.at_least(Duration::from_secs(20)).await.expect("free");
    guard.release().await.expect("the option that the store does not support has no effect");
    assert!(is_free(&session, "a").await);
}

/// The memory store needs no runtime, but stores with servers do.
#[test]
fn a_call_outside_of_a_runtime_is_refused() {
    let locks = Locks::memory();
    let calls: [Pin<Box<dyn Future<Output = Option<Error>>>>; 5] = [
        Box::pin(async { locks.mutex("a").lock().await.err() }),
        Box::pin(async { locks.inspect("a").await.err() }),
        Box::pin(async { locks.list("a").await.err() }),
        Box::pin(async { locks.force_release("a").await.err() }),
        Box::pin(async { locks.period_key(Duration::from_secs(60)).await.err() }),
    ];
    for (at, mut call) in calls.into_iter().enumerate() {
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Error::NoRuntime { .. })) => {}
            other => panic!("call {at}: {other:?}"),
        }
    }
}
