//! MultiLock: all or nothing, no deadlock, nothing left behind.
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
use dlock_conformance::wrap::{Switch, wrap};
use dlock_core::{
    DistributedLock, DistributedLockExt, Error, Kind, LockOptions, Locks, LostReason, MultiLock, Owner,
    Result,
    driver::{Attempt, Backend, Claim, Info, Release, Renewal, Request, Store},
    memory::MemoryBackend,
};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

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
        assert!(!is_free(&locks, name).await, "{name} is held");
    }
    assert_eq!(guard.tokens().len(), 3, "one token per member");
    guard.release().await.expect("held until now");
    for name in ["a", "b", "c"] {
        assert!(is_free(&locks, name).await, "{name} is free again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_is_all_or_nothing() {
    let locks = Locks::memory();
    let busy = locks.mutex("b").lock().await.expect("free");
    let tried =
        mutexes(&locks, &["a", "b", "c"]).try_lock(&LockOptions::new()).await.expect("busy is no error");
    assert!(tried.is_none(), "b is held");
    assert!(is_free(&locks, "a").await && is_free(&locks, "c").await, "nothing was kept");
    busy.release().await.expect("held until now");
    let tried = mutexes(&locks, &["a", "b", "c"]).try_lock(&LockOptions::new()).await.expect("no error");
    assert_eq!(tried.expect("all are free").tokens().len(), 3);
    let shown = format!("{:?}", mutexes(&locks, &["a", "b"]));
    assert!(shown.contains("a + b"), "{shown}");
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
        "c is held while the multilock waits for b, and c comes after b in the common order"
    );
    busy.release().await.expect("held until now");
    let guard = waiting.await.expect("no panic").expect("b is free now");
    assert!(!is_free(&locks, "c").await, "c is free, and the multilock was granted");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn one_deadline_counts_for_all_members() {
    let locks = Locks::memory();
    let (a, b) = (locks.mutex("a").lock().await.expect("free"), locks.mutex("b").lock().await.expect("free"));
    let release_a = async {
        sleep(Duration::from_secs(8)).await;
        drop(a);
    };
    let asked = Instant::now();
    let both = mutexes(&locks, &["a", "b"]);
    let (outcome, ()) = tokio::join!(both.lock_within(Duration::from_secs(10)), release_a);
    let error = outcome.expect_err("b never comes free");
    assert_eq!(error.to_string(), "timed out after 10s waiting for lock `a + b`");
    assert!(asked.elapsed() < Duration::from_secs(11), "the multilock waited ten seconds for each member");
    assert!(is_free(&locks, "a").await, "a is still held after the wait for b ran out");
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
    assert!(locks.rwlock("x").read().try_lock().await.expect("no error").is_none(), "held for writing");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn members_of_different_stores_and_kinds_are_one_lock() {
    let (here, there) = (Locks::memory(), Locks::memory());
    let both = multi([here.of(Kind::Fair, "x"), there.of(Kind::Read, "x")]);
    let guard = both.lock_within(Duration::from_secs(1)).await.expect("two locks, though of one name");
    assert!(!is_free(&here, "x").await && !is_free(&there, "x").await);
    assert!(
        there.rwlock("x").read().try_lock().await.expect("no error").is_some(),
        "another reader is refused"
    );
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_multilock_is_lost_when_any_member_is_lost() {
    let locks = Locks::memory();
    let guard = mutexes(&locks, &["a", "b"]).lock(&LockOptions::new()).await.expect("free");
    let token = guard.lost_signal();
    timeout(Duration::from_secs(100), token.lost()).await.expect_err("nothing is lost yet");
    locks.force_release("b").await.expect("memory can");
    assert_eq!(guard.lost().await, LostReason::Taken);
    assert!(guard.is_lost() && token.is_lost() && guard.remaining().is_zero());
    let error = guard.release().await.expect_err("one was lost");
    assert!(
        matches!(&error, Error::Lost { name, .. } if name.as_str() == "b"),
        "the error names another lock than the one that was lost: {error}"
    );
    locks.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_told_though_another_member_does_not_answer() {
    let stores = [MemoryBackend::new(), MemoryBackend::new()];
    for silent in [0, 1] {
        let line = Switch::default();
        let away = Locks::new(line.wrap(stores[silent].clone().into_store()));
        let here = Locks::new(stores[1 - silent].clone().into_store());
        let both = multi([away.of(Kind::Mutex, "x"), here.of(Kind::Mutex, "x")]);
        let options = LockOptions::new();
        let work = async |_: &_| {
            assert!(here.force_release("x").await.expect("memory can"), "it was held");
            line.cut();
        };
        let told = both.run_with(&options, work).await;
        assert!(matches!(told, Err(Error::Lost { .. })), "a member was lost during the work: {told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_store_is_away_fails_all_and_leaves_nothing() {
    let (here, away) = (Locks::memory(), Switch::default());
    let there = Locks::new(away.wrap(MemoryBackend::new().into_store()));
    away.cut();
    let both = multi([here.of(Kind::Mutex, "x"), there.of(Kind::Mutex, "x")]);
    let error = both.lock_within(Duration::from_secs(5)).await.expect_err("one store is away");
    assert!(error.is_transient(), "{error:?}");
    sleep(Duration::from_millis(1)).await;
    assert!(is_free(&here, "x").await, "the other member is still held");
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_store_hangs_does_not_stretch_the_wait() {
    let (stock, line) = (Locks::memory(), Switch::default());
    let bank = Locks::new(line.wrap(MemoryBackend::new().into_store()));
    let both = multi([stock.of(Kind::Mutex, "item"), bank.of(Kind::Mutex, "account")]);
    line.freeze();
    let wait = Duration::from_secs(5);
    let asked = timeout(wait + Duration::from_secs(1), both.lock_within(wait)).await;
    let told = asked.expect("the multilock waits for longer than it was told to");
    assert!(matches!(told, Err(Error::Timeout { waited, .. }) if waited == wait), "{told:?}");
    assert!(is_free(&stock, "item").await, "the first member is still held after the wait ran out");
    line.connect();
    bank.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_lost_while_another_is_waited_for_begins_all_anew() {
    let locks = Locks::memory();
    let busy = locks.mutex("b").lock().await.expect("free");
    let both = mutexes(&locks, &["a", "b"]);
    let release = async {
        sleep(Duration::from_secs(3600)).await;
        busy.release().await.expect("held until now");
    };
    // The first member's lease ends again and again while the second is waited for.
    let options = LockOptions::new().lease(Duration::from_secs(10));
    let (told, ()) = tokio::join!(both.lock(&options), release);
    let guard = told.expect("both are free by now");
    assert!(!guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_multilock_is_never_granted_with_a_member_that_is_lost_already() {
    let (quick, line) = (Locks::memory(), Switch::default());
    let late = Locks::new(line.wrap(MemoryBackend::new().into_store()));
    let both = multi([quick.of(Kind::Mutex, "a"), late.of(Kind::Mutex, "b")]);
    line.freeze();
    let rob = async {
        sleep(Duration::from_secs(1)).await;
        assert!(quick.force_release("a").await.expect("memory can"), "the first member is granted at once");
        sleep(Duration::from_secs(1)).await;
        line.connect();
    };
    let options = LockOptions::new();
    let (told, ()) = tokio::join!(both.lock(&options), rob);
    assert!(!told.expect("granted in the end").is_lost());
}

/// A claim that takes its time for each attempt, and breaks the lock `a` of another store meanwhile.
struct Robbing {
    claim: Box<dyn Claim>,
    victim: Locks,
    attempts: Arc<AtomicUsize>,
}

#[async_trait]
impl Claim for Robbing {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.attempts.fetch_add(1, Relaxed);
        sleep(Duration::from_millis(1)).await;
        self.victim.force_release("a").await?;
        // The keeper of `a` notices the loss in this time.
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
    let (quick, attempts) = (Locks::memory(), Arc::new(AtomicUsize::new(0)));
    let (victim, counted) = (quick.clone(), Arc::clone(&attempts));
    let late = Locks::new(wrap(MemoryBackend::new().into_store(), move |claim, _| {
        Box::new(Robbing { claim, victim: victim.clone(), attempts: Arc::clone(&counted) })
    }));
    let both = multi([quick.of(Kind::Mutex, "a"), late.of(Kind::Mutex, "b")]);
    let options = LockOptions::new();
    let told = both.try_lock(&options).await;
    assert!(matches!(told, Err(Error::Lost { .. })), "the multilock never held both at once: {told:?}");
    assert_eq!(attempts.swap(0, Relaxed), 1, "a try is one try");
    let told = timeout(Duration::from_secs(60), both.lock(&options))
        .await
        .expect("the multilock begins anew for ever");
    assert!(matches!(told, Err(Error::Lost { .. })), "{told:?}");
    assert!(
        attempts.load(Relaxed) > 1,
        "the multilock gave up after one attempt, and the next one might have been quicker"
    );
    late.close().await;
    assert!(is_free(&quick, "a").await, "a is left behind");
}

#[tokio::test(start_paused = true)]
async fn each_of_several_that_share_an_owners_hold_is_told_of_its_loss() {
    let (locks, me) = (Locks::memory(), Owner::new());
    let with = |other: &str| {
        let shared: Arc<dyn DistributedLock> = Arc::new(locks.mutex("a").owned_by(&me));
        multi([shared, locks.of(Kind::Mutex, other)])
    };
    let first = with("b").lock(&LockOptions::new()).await.expect("free");
    let second = with("c").lock(&LockOptions::new()).await.expect("free, and the owner's own");
    assert!(locks.force_release("a").await.expect("memory can"), "the owner held it");
    for guard in [&first, &second] {
        let told = timeout(Duration::from_secs(1), guard.lost()).await;
        assert_eq!(told.expect("not told"), LostReason::Taken);
    }
}

#[tokio::test(start_paused = true)]
async fn a_multilock_waits_no_longer_than_its_clients_do_by_default() {
    let line = Switch::default();
    let bank = Locks::new(line.wrap(MemoryBackend::new().into_store()));
    let (short, long) = (Duration::from_secs(5), Duration::from_secs(60));
    let stock = Locks::memory().with_defaults(LockOptions::new().wait(long));
    let bank = bank.with_defaults(LockOptions::new().wait(short));
    let both = multi([stock.of(Kind::Mutex, "item"), bank.of(Kind::Mutex, "account")]);
    line.freeze();
    let options = LockOptions::new();
    let asked = timeout(short + Duration::from_secs(1), both.lock(&options)).await;
    let told = asked.expect("the multilock waits for longer than one of its clients would");
    assert!(matches!(told, Err(Error::Timeout { waited, .. }) if waited == short), "{told:?}");
    let asked = timeout(long, both.lock(&LockOptions::new().wait(long))).await;
    assert!(asked.is_err(), "the call set a longer wait than its clients, and was cut short");
    line.connect();
    bank.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_enters_again_through_a_multilock() {
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
async fn a_multilock_of_nothing_or_of_multilocks_is_refused() {
    let locks = Locks::memory();
    let inner: Arc<dyn DistributedLock> = Arc::new(mutexes(&locks, &["a"]));
    assert!(MultiLock::new([]).expect_err("empty").to_string().contains("at least one"));
    assert!(MultiLock::new([inner]).expect_err("nested").to_string().contains("its members"));
}

/// Sixteen contenders make two thousand MultiLocks of overlapping names. Some contenders give up at any moment.
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
            let mut had = 0;
            for _ in 0..125 {
                let picked: Vec<usize> = (0..random.usize(1..5)).map(|_| random.usize(..NAMES * 3)).collect();
                let lock =
                    multi(picked.iter().map(|i| clients[i % 3].of(Kind::Mutex, format!("n{}", i / 3))));
                let patience = Duration::from_micros(random.u64(..40_000));
                let options = LockOptions::new();
                let guard = match random.u8(..4) {
                    // Drops the future wherever it stands when the patience is over.
                    0 => timeout(patience, lock.lock(&options))
                        .await
                        .ok()
                        .map(|guard| guard.expect("no error")),
                    1 => lock.try_lock(&options).await.expect("busy is no error"),
                    _ => Some(lock.lock(&options).await.expect("granted in the end")),
                };
                let Some(guard) = guard else { continue };
                had += 1;
                let mut mine = picked.clone();
                mine.sort_unstable();
                mine.dedup();
                let sole: Vec<_> =
                    mine.iter().map(|i| held[*i].try_lock().expect("two hold one member")).collect();
                sleep(Duration::from_micros(random.u64(..3_000))).await;
                drop(sole);
                if random.bool() {
                    guard.release().await.expect("held until now");
                }
            }
            join_all(clients.iter().map(Locks::close)).await;
            had
        })
    });
    let all = timeout(Duration::from_secs(3600), join_all(contenders)).await.expect("no deadlock");
    let had: usize = all.into_iter().map(|had| had.expect("no overlap")).sum();
    assert!(had > 1000, "most were granted: {had}");
    for store in stores {
        let left = Locks::new(store.into_store()).list("").await.expect("memory can list");
        assert_eq!(left, [], "left behind");
    }
}

/// A memory store that cannot keep a lock without its holder, like a store with sessions.
#[derive(Debug)]
struct Session(Arc<dyn Backend>, Info);

impl Session {
    fn connect() -> Locks {
        let info = Info::new("session", "session:1")
            .kinds(&[Kind::Mutex])
            .session(Duration::from_secs(30), Duration::from_millis(10)..=Duration::from_secs(86_400));
        Locks::new(Store::new(Arc::new(Self(MemoryBackend::new().into_store().backend, info))))
    }
}

impl Backend for Session {
    fn info(&self) -> &Info {
        &self.1
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.0.claim(request)
    }
}

#[tokio::test(start_paused = true)]
async fn the_default_at_least_of_one_client_does_not_reach_the_members_of_another() {
    let s = Duration::from_secs;
    let staying = Locks::memory().with_defaults(LockOptions::new().at_least(s(20)));
    let session = Session::connect();
    let both = multi([staying.of(Kind::Mutex, "a"), session.of(Kind::Mutex, "b")]);
    let began = Instant::now();
    let guard = both.lock_within(s(5)).await.expect("free");
    guard.release().await.expect("no member was asked for what its store cannot do");
    assert!(is_free(&session, "b").await, "the member without `at_least` stays taken");
    session.close().await;
    assert!(began.elapsed() < s(1), "it took {:?}", began.elapsed());
    assert!(!is_free(&staying, "a").await, "the member with `at_least` does not stay taken");
    sleep(s(21)).await;
    assert!(is_free(&staying, "a").await);
}

#[tokio::test(start_paused = true)]
async fn an_explicit_at_least_is_refused_by_the_store_that_cannot_do_it_before_any_request() {
    let (locks, session) = (Locks::memory(), Session::connect());
    let both = multi([locks.of(Kind::Mutex, "a"), session.of(Kind::Mutex, "b")]);
    let refused =
        both.lock(&LockOptions::new().at_least(Duration::from_secs(20))).await.expect_err("it cannot");
    assert!(matches!(refused, Error::Unsupported { store: "session", .. }), "{refused:?}");
    assert!(is_free(&locks, "a").await && is_free(&session, "b").await);
}
