//! Requests that a network holds back, answers that get lost, and tasks that end: nothing stays that nobody holds, and no hold goes
//! that somebody has.

#[path = "common/mod.rs"]
mod common;

use std::time::Duration;

use common::{Bench, SOON, connect, soon, unique, wait_until};
use dlock_conformance::Proxy;
use dlock_core::{
    ClaimId, DistributedLock, Kind, LockName, LockOptions, Locks, LostReason, MultiLock, Wait,
    driver::{Attempt, Claim, Release, Renewal, Request, Resumption, Store},
};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_resumption_that_fails_leaves_the_detached_hold_as_it_was,
        an_attempt_that_arrives_late_keeps_no_lock_taken_for_long,
        an_attempt_whose_answer_is_lost_is_sent_again_and_is_one_claim,
        several_locks_whose_answer_is_lost_are_asked_for_again_and_are_one_claim_each,
        a_detachment_whose_answer_is_lost_is_undone_by_a_resumption,
        a_hold_is_watched_again_when_the_runtime_of_the_watching_ends,
        claims_with_little_time_find_another_member_too,
        a_silent_claim_is_deleted_soon_after_an_outage,
        a_client_that_is_closed_during_a_sign_of_life_leaves_no_lease,
        breaking_a_lock_deletes_no_key_of_another_program,
    }])
}

/// Longer than a detached hold is looked at.
const LONG: Duration = Duration::from_secs(600);

/// The name of a lock as a key begins.
fn request(name: &str, ttl: Duration) -> Request {
    Request::new(LockName::new(name).expect("legal"), Kind::Mutex, ttl)
}

async fn take(store: &Store, request: &Request) -> Box<dyn Claim> {
    let mut claim = store.backend.claim(request.clone());
    let told = claim.attempt().await;
    assert!(matches!(told, Ok(Attempt::Granted(_))), "{told:?}");
    claim
}

/// A client that reaches one server on two ways: the first way is the one it uses now.
async fn two_ways(bench: &Bench, params: &str) -> (Store, Proxy, Proxy) {
    let server = bench.running.servers()[0].address();
    let (a, b) =
        (Proxy::to(server).await.expect("a port is free"), Proxy::to(server).await.expect("a port is free"));
    let url = format!("etcd://{},{}?session=20s&{params}", a.address(), b.address());
    let store = connect(&url).await.expect("the server is running");
    if a.connections() > 0 { (store, a, b) } else { (store, b, a) }
}

async fn one_way(bench: &Bench, params: &str) -> (Store, Proxy) {
    let proxy = Proxy::to(bench.running.servers()[0].address()).await.expect("a port is free");
    let store =
        connect(&format!("etcd://{}?{params}", proxy.address())).await.expect("the server is running");
    (store, proxy)
}

async fn a_resumption_that_fails_leaves_the_detached_hold_as_it_was() {
    const TTL: Duration = Duration::from_secs(6);
    let Some(bench) = Bench::standalone().await else { return };
    let (a, name) = (connect(bench.running.url()).await.expect("the server is running"), unique());
    let request = request(&name, TTL);
    let ticket = ClaimId::random();
    take(&a, &request).await.detach(LONG, ticket).await.expect("the lock is held");
    let (b, proxy) = one_way(&bench, "session=20s").await;
    proxy.stall();
    b.backend.claim(self::request(&name, TTL)).resume(ticket).await.expect_err("nobody answers");
    proxy.pass();
    sleep(TTL + TTL / 2).await;
    assert_eq!(bench.queue(&name).await.len(), 1, "a hold that nobody has taken back is gone");
    let mut claim = b.backend.claim(self::request(&name, TTL));
    wait_until("it cannot be taken back", async || {
        matches!(claim.resume(ticket).await, Ok(Resumption::Resumed { .. }))
    })
    .await;
    let mut second = b.backend.claim(self::request(&name, TTL));
    assert_eq!(second.resume(ticket).await.expect("a reply"), Resumption::Gone, "two clients hold the lock");
    let mut forged = b.backend.claim(request.id(ticket));
    assert_eq!(forged.release().await.expect("a reply"), Release::Gone, "released under its holder");
    assert!(matches!(claim.release().await, Ok(Release::Done)));
}

async fn an_attempt_that_arrives_late_keeps_no_lock_taken_for_long() {
    const TTL: Duration = Duration::from_secs(8);
    /// After which calls of the claim the network delivers its first attempt, and how long after them.
    #[derive(Clone, Copy, Debug)]
    enum After {
        RefusedTry,
        Release(Duration),
        Detach,
        Downgrade,
        Several,
    }
    let Some(bench) = Bench::standalone().await else { return };
    let bench = &bench;
    let one = async |after: After| {
        let ((b, held_back, _other), name) = (two_ways(bench, "timeout=2400ms").await, unique());
        let (a, request) =
            (connect(bench.running.url()).await.expect("the server is running"), request(&name, TTL));
        let holder = self::request(&name, TTL * 2);
        held_back.hold_requests();
        match after {
            After::RefusedTry => {
                let mut holder = take(&a, &holder).await;
                let told = b.backend.claim(request.wait(Wait::Never)).attempt().await;
                assert!(matches!(told, Ok(Attempt::Busy { .. })), "{told:?}");
                holder.release().await.expect("the lock is held");
            }
            After::Release(later) => {
                take(&b, &request).await.release().await.expect("the lock is held");
                sleep(later).await;
            }
            After::Detach => {
                let ticket = ClaimId::random();
                take(&b, &request).await.detach(LONG, ticket).await.expect("the lock is held");
                a.backend.claim(request.id(ticket)).release().await.expect("a reply");
            }
            After::Downgrade => {
                held_back.pass();
                let mut writer = take(&b, &request).await;
                held_back.hold_requests();
                let mut reader = request.clone().wait(Wait::Never);
                reader.kind = Kind::Read;
                // The answer gets lost, and the engine goes on with the writer.
                drop(b.backend.claim(reader).attempt().await);
                writer.release().await.expect("a reply");
            }
            After::Several => {
                let locks = Locks::new(b.clone());
                let both = [name.clone(), unique()].map(|name| locks.of(Kind::Mutex, name));
                let options = LockOptions::new().ttl(TTL);
                let held =
                    MultiLock::new(both).expect("two names").lock(&options).await.expect("the lock is free");
                held.release().await.expect("the lock is held");
            }
        }
        assert_eq!(bench.queue(&name).await.len(), 0, "{after:?}");
        held_back.pass();
        sleep(Duration::from_millis(500)).await;
        let came = bench.queue(&name).await.len();
        let gone = async {
            while !bench.queue(&name).await.is_empty() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(TTL * 3, gone).await.unwrap_or_else(|_| panic!("nobody has it, and it stays: {after:?}"));
        came
    };
    let all = [After::RefusedTry, After::Release(Duration::ZERO), After::Release(TTL + TTL / 3)];
    let came =
        join_all(all.into_iter().chain([After::Detach, After::Downgrade, After::Several]).map(one)).await;
    assert!(came.iter().sum::<usize>() > 0, "no attempt has arrived late, so this shows nothing");
}

async fn an_attempt_whose_answer_is_lost_is_sent_again_and_is_one_claim() {
    let Some(bench) = Bench::standalone().await else { return };
    let ((store, silent, _other), name) = (two_ways(&bench, "timeout=6s").await, unique());
    silent.hold_answers();
    let mut claim = take(&store, &request(&name, SOON * 3)).await;
    assert_eq!(bench.queue(&name).await.len(), 1, "it has joined twice");
    assert!(matches!(claim.release().await, Ok(Release::Done)));
    assert_eq!(bench.queue(&name).await.len(), 0, "a part of it is left");
}

async fn several_locks_whose_answer_is_lost_are_asked_for_again_and_are_one_claim_each() {
    let Some(bench) = Bench::standalone().await else { return };
    let (store, silent, _other) = two_ways(&bench, "timeout=6s").await;
    let (locks, names) = (Locks::new(store), [unique(), unique(), unique()]);
    let asked = bench.requests("Txn").await;
    silent.hold_answers();
    let all = MultiLock::new(names.iter().map(|name| locks.of(Kind::Mutex, name))).expect("at least one");
    let held = all.lock(&LockOptions::new().ttl(SOON * 3)).await.expect("the lock is free");
    assert_eq!(bench.requests("Txn").await - asked, 2, "the second answer tells all");
    for name in &names {
        assert_eq!(bench.queue(name).await.len(), 1, "it has joined twice");
    }
    held.release().await.expect("the lock is held");
    for name in &names {
        assert_eq!(bench.queue(name).await.len(), 0, "a part of it is left");
    }
}

async fn a_detachment_whose_answer_is_lost_is_undone_by_a_resumption() {
    const DELAY: Duration = Duration::from_millis(400);
    let Some(bench) = Bench::standalone().await else { return };
    // The key is read, a lease is made, and the key is moved to it, which is answered late.
    let (store, proxy) = one_way(&bench, "session=20s&timeout=2200ms").await;
    let (name, leases) =
        (unique(), async || bench.raw.lease_client().leases().await.expect("the server is running"));
    let mut claim = take(&store, &request(&name, Duration::from_secs(12))).await;
    let before = bench.queue(&name).await.remove(0);
    proxy.delay(DELAY);
    let ticket = ClaimId::random();
    claim.detach(LONG, ticket).await.expect_err("the answer takes too long");
    sleep(DELAY * 2).await;
    proxy.pass();
    wait_until("it is not undone", async || {
        matches!(claim.resume(ticket).await, Ok(Resumption::Resumed { .. }))
    })
    .await;
    assert!(matches!(claim.renew().await, Ok(Renewal::Renewed { .. })), "not held as before");
    let now = bench.queue(&name).await.remove(0);
    assert_eq!((now.lease(), now.create_revision()), (before.lease(), before.create_revision()));
    assert_eq!(leases().await.leases().len(), 1, "a lease is left that nobody ends");
    assert!(matches!(claim.release().await, Ok(Release::Done)));
}

async fn a_hold_is_watched_again_when_the_runtime_of_the_watching_ends() {
    let Some(bench) = Bench::standalone().await else { return };
    let (url, name) = (format!("{}?session=20s", bench.running.url()), unique());
    let (give, given) = tokio::sync::oneshot::channel();
    let (end, is_over) = tokio::sync::oneshot::channel::<()>();
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let store = connect(&url).await.expect("the server is running");
            let first = Locks::new(store.clone()).mutex(unique()).lock().await.expect("the lock is free");
            first.release().await.expect("the lock is held");
            give.send(store).ok();
            is_over.await.ok();
        });
    });
    let store = given.await.expect("it connects");
    let held =
        Locks::new(store).mutex(&name).lock().ttl(Duration::from_secs(12)).await.expect("the lock is free");
    sleep(Duration::from_millis(500)).await;
    drop(end);
    other.join().expect("no panic");
    sleep(Duration::from_secs(1)).await;
    assert!(bench.locks("").await.force_release(&name).await.expect("a reply"));
    // With its next renewal, if it was not watched again in time.
    assert_eq!(soon("the loss was never reported", held.lost()).await, LostReason::Taken);
}

async fn claims_with_little_time_find_another_member_too() {
    let Some(bench) = Bench::standalone().await else { return };
    let (store, dead, _other) = two_ways(&bench, "timeout=6s").await;
    dead.stall();
    let (began, lock) = (Instant::now(), Locks::new(store).mutex(unique()));
    // Each call has a third of that: less than a member has to answer.
    while lock.lock().ttl(Duration::from_secs(3)).wait(Wait::Never).await.is_err() {
        assert!(began.elapsed() < SOON * 3, "it asks a dead member for ever");
        sleep(Duration::from_millis(50)).await;
    }
}

async fn a_silent_claim_is_deleted_soon_after_an_outage() {
    let Some(bench) = Bench::standalone().await else { return };
    let (store, proxy) = one_way(&bench, "session=100s").await;
    let name = unique();
    let began = Instant::now();
    drop(take(&store, &request(&name, Duration::from_secs(3))).await);
    sleep(Duration::from_millis(500)).await;
    proxy.hang_up();
    sleep(Duration::from_millis(3500)).await;
    proxy.pass();
    bench.wait_for_claims(&name, 0).await;
    // Long before the next sign of life of the session, a fifth of it after it began.
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
}

async fn a_client_that_is_closed_during_a_sign_of_life_leaves_no_lease() {
    let Some(bench) = Bench::standalone().await else { return };
    let (store, proxy) = one_way(&bench, "session=10s").await;
    take(&store, &request(&unique(), Duration::from_secs(6)))
        .await
        .release()
        .await
        .expect("the lock is held");
    proxy.delay(Duration::from_millis(300));
    // The sign of life is sent after two seconds, and answered after 2.6 s.
    sleep(Duration::from_millis(2200)).await;
    store.backend.close().await;
    sleep(Duration::from_millis(500)).await;
    let left = bench.raw.lease_client().leases().await.expect("a reply");
    assert!(left.leases().is_empty(), "a lease is left");
    store.backend.claim(request(&unique(), SOON)).attempt().await.expect_err("it is closed");
    assert!(bench.raw.lease_client().leases().await.expect("a reply").leases().is_empty());
}

async fn breaking_a_lock_deletes_no_key_of_another_program() {
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    let key = format!("{name}/db");
    bench.raw.kv_client().put(key.as_str(), "secret", None).await.expect("a reply");
    assert!(!locks.force_release(&name).await.expect("a reply"), "nothing was held");
    assert_eq!(bench.queue(&name).await.len(), 1, "a key is gone that is no lock");
    assert_eq!(locks.list(&name).await.expect("a reply"), []);
}
