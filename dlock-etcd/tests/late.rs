//! Tests of delayed requests, lost replies and ended tasks. A claim without a holder must not stay,
//! and no holder may lose its hold.

#[path = "common/mod.rs"]
mod common;

use std::time::Duration;

use common::{Bench, SOON, connect, soon, unique, wait_until};
use dlock_conformance::Proxy;
use dlock_core::{
    ClaimId, DistributedLock, Kind, LockName, LockOptions, Locks, LostReason, MultiLock, Wait,
    driver::{Attempt, Claim, Release, Renewal, Request, Resumption, Store},
};
use etcd_client::LeaseTimeToLiveOptions;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_resumption_that_fails_leaves_the_detached_hold_as_it_was,
        a_hold_that_its_own_client_resumes_is_not_taken_for_a_late_attempt,
        an_attempt_that_arrives_late_keeps_no_lock_taken_for_long,
        an_attempt_whose_reply_is_lost_is_sent_again_and_is_one_claim,
        several_locks_whose_reply_is_lost_are_attempted_again_and_are_one_claim_each,
        a_detachment_whose_reply_is_lost_is_undone_by_a_resumption,
        a_detachment_that_fails_may_leave_an_empty_lease,
        the_only_member_has_the_whole_time_limit_to_reply,
        after_a_break_the_only_member_gets_the_request_once_more,
        a_hold_is_watched_again_after_the_runtime_of_the_pump_has_ended,
        a_claim_whose_runtime_has_ended_is_deleted_after_its_ttl,
        claims_with_a_short_time_limit_find_another_member_too,
        an_abandoned_claim_is_deleted_soon_after_an_outage,
        a_client_that_is_closed_during_a_keep_alive_leaves_no_lease,
        breaking_a_lock_deletes_no_key_of_another_program,
    }])
}

/// Ttl of detached holds. No test waits for its end.
const LONG: Duration = Duration::from_secs(600);

/// Returns the request of a mutex.
fn request(name: &str, ttl: Duration) -> Request {
    Request::new(LockName::new(name).expect("legal"), Kind::Mutex, ttl)
}

/// Acquires a lock that is free.
async fn take(store: &Store, request: &Request) -> Box<dyn Claim> {
    let mut claim = store.backend.claim(request.clone());
    let result = claim.attempt().await;
    assert!(matches!(result, Ok(Attempt::Granted(_))), "{result:?}");
    claim
}

/// Connects a client to one server through two proxies, as if they were two members. Returns the
/// proxy that the client uses now before the other one.
async fn through_two_proxies(bench: &Bench, params: &str) -> (Store, Proxy, Proxy) {
    let server = bench.running.servers()[0].address();
    let (a, b) =
        (Proxy::to(server).await.expect("a port is free"), Proxy::to(server).await.expect("a port is free"));
    let url = format!("etcd://{},{}?session=20s&{params}", a.address(), b.address());
    let store = connect(&url).await.expect("the server is running");
    if a.connections() > 0 { (store, a, b) } else { (store, b, a) }
}

/// Connects a client to the server through a proxy.
async fn through_proxy(bench: &Bench, params: &str) -> (Store, Proxy) {
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
    let (b, proxy) = through_proxy(&bench, "session=20s").await;
    proxy.stall();
    b.backend.claim(self::request(&name, TTL)).resume(ticket).await.expect_err("the proxy passes no reply");
    proxy.pass();
    sleep(TTL + TTL / 2).await;
    assert_eq!(bench.queue(&name).await.len(), 1, "the detached hold was deleted without a resumption");
    let mut claim = b.backend.claim(self::request(&name, TTL));
    wait_until("the hold cannot be resumed", async || {
        matches!(claim.resume(ticket).await, Ok(Resumption::Resumed { .. }))
    })
    .await;
    let mut second = b.backend.claim(self::request(&name, TTL));
    assert_eq!(
        second.resume(ticket).await.expect("a reply"),
        Resumption::Gone,
        "one ticket was resumed twice"
    );
    let mut forged = b.backend.claim(request.id(ticket));
    assert_eq!(
        forged.release().await.expect("a reply"),
        Release::Gone,
        "a used ticket released the lock of its holder"
    );
    assert!(matches!(claim.release().await, Ok(Release::Done)));
}

/// The attempt is sent to two members, so the session expects that one of its requests is executed
/// late. The resumption keeps the key of the claim.
async fn a_hold_that_its_own_client_resumes_is_not_taken_for_a_late_attempt() {
    const TTL: Duration = Duration::from_secs(8);
    let Some(bench) = Bench::standalone().await else { return };
    let ((store, proxy, _other), name) = (through_two_proxies(&bench, "timeout=2400ms").await, unique());
    proxy.hold_answers();
    let transactions = bench.requests("Txn").await;
    let mut first = take(&store, &request(&name, TTL)).await;
    assert!(bench.requests("Txn").await - transactions >= 2, "no attempt can be late");
    let ticket = ClaimId::random();
    first.detach(LONG, ticket).await.expect("the lock is held");
    let mut second = store.backend.claim(request(&name, TTL));
    let resumed = second.resume(ticket).await.expect("a reply");
    assert!(matches!(resumed, Resumption::Resumed { .. }), "{resumed:?}");
    let end = Instant::now() + TTL * 2;
    while Instant::now() < end {
        sleep(TTL / 8).await;
        assert_eq!(bench.queue(&name).await.len(), 1, "the client has deleted its own hold");
        let renewal = second.renew().await.expect("a reply");
        assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
    }
    assert!(matches!(second.release().await, Ok(Release::Done)));
}

async fn an_attempt_that_arrives_late_keeps_no_lock_taken_for_long() {
    const TTL: Duration = Duration::from_secs(8);
    /// The calls that precede the delivery of the delayed attempt.
    #[derive(Clone, Copy, Debug)]
    enum After {
        RefusedTry,
        /// The delivery follows the release after this duration.
        Release(Duration),
        Detach,
        Downgrade,
        Several,
    }
    let Some(bench) = Bench::standalone().await else { return };
    let bench = &bench;
    // Returns the number of claims that the delayed attempt has created.
    let deliver_after = async |after: After| {
        let ((b, proxy, _other), name) = (through_two_proxies(bench, "timeout=2400ms").await, unique());
        let (a, request) =
            (connect(bench.running.url()).await.expect("the server is running"), request(&name, TTL));
        let holder = self::request(&name, TTL * 2);
        proxy.hold_requests();
        match after {
            After::RefusedTry => {
                let mut holder = take(&a, &holder).await;
                let result = b.backend.claim(request.wait(Wait::Never)).attempt().await;
                assert!(matches!(result, Ok(Attempt::Busy { .. })), "{result:?}");
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
                proxy.pass();
                let mut writer = take(&b, &request).await;
                proxy.hold_requests();
                let mut reader = request.clone().wait(Wait::Never);
                reader.kind = Kind::Read;
                // The reply is lost, and the engine continues with the writer.
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
        proxy.pass();
        sleep(Duration::from_millis(500)).await;
        let created = bench.queue(&name).await.len();
        let deletion = async {
            while !bench.queue(&name).await.is_empty() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(TTL * 3, deletion)
            .await
            .unwrap_or_else(|_| panic!("a claim without a holder stays: {after:?}"));
        created
    };
    let all = [After::RefusedTry, After::Release(Duration::ZERO), After::Release(TTL + TTL / 3)];
    let created =
        join_all(all.into_iter().chain([After::Detach, After::Downgrade, After::Several]).map(deliver_after))
            .await;
    assert!(
        created.iter().sum::<usize>() > 0,
        "no delayed attempt created a claim, so the test proves nothing"
    );
}

async fn an_attempt_whose_reply_is_lost_is_sent_again_and_is_one_claim() {
    let Some(bench) = Bench::standalone().await else { return };
    let ((store, proxy, _other), name) = (through_two_proxies(&bench, "timeout=6s").await, unique());
    proxy.hold_answers();
    let mut claim = take(&store, &request(&name, SOON * 3)).await;
    assert_eq!(bench.queue(&name).await.len(), 1, "the claim is in the queue twice");
    assert!(matches!(claim.release().await, Ok(Release::Done)));
    assert_eq!(bench.queue(&name).await.len(), 0, "a key of the claim is left");
}

async fn several_locks_whose_reply_is_lost_are_attempted_again_and_are_one_claim_each() {
    let Some(bench) = Bench::standalone().await else { return };
    let (store, proxy, _other) = through_two_proxies(&bench, "timeout=6s").await;
    let (locks, names) = (Locks::new(store), [unique(), unique(), unique()]);
    let transactions = bench.requests("Txn").await;
    proxy.hold_answers();
    let all = MultiLock::new(names.iter().map(|name| locks.of(Kind::Mutex, name))).expect("at least one");
    let held = all.lock(&LockOptions::new().ttl(SOON * 3)).await.expect("the lock is free");
    assert_eq!(bench.requests("Txn").await - transactions, 2, "the second reply reports all claims");
    for name in &names {
        assert_eq!(bench.queue(name).await.len(), 1, "the claim is in the queue twice");
    }
    held.release().await.expect("the lock is held");
    for name in &names {
        assert_eq!(bench.queue(name).await.len(), 0, "a key of the claim is left");
    }
}

async fn a_detachment_whose_reply_is_lost_is_undone_by_a_resumption() {
    const DELAY: Duration = Duration::from_millis(400);
    let Some(bench) = Bench::standalone().await else { return };
    // A detachment reads the key, creates a lease, and moves the key to the lease. The timeout
    // ends before the reply to the last request.
    let (store, proxy) = through_proxy(&bench, "session=20s&timeout=2200ms").await;
    let (name, leases) =
        (unique(), async || bench.raw.lease_client().leases().await.expect("the server is running"));
    let mut claim = take(&store, &request(&name, Duration::from_secs(12))).await;
    let before = bench.queue(&name).await.remove(0);
    proxy.delay(DELAY);
    let ticket = ClaimId::random();
    claim.detach(LONG, ticket).await.expect_err("the timeout ends before the reply");
    sleep(DELAY * 2).await;
    proxy.pass();
    wait_until("the resumption did not undo the detachment", async || {
        matches!(claim.resume(ticket).await, Ok(Resumption::Resumed { .. }))
    })
    .await;
    assert!(
        matches!(claim.renew().await, Ok(Renewal::Renewed { .. })),
        "the claim is not held after its resumption"
    );
    let now = bench.queue(&name).await.remove(0);
    assert_eq!((now.lease(), now.create_revision()), (before.lease(), before.create_revision()));
    assert_eq!(leases().await.leases().len(), 1, "the lease of the detached hold is left");
    assert!(matches!(claim.release().await, Ok(Release::Done)));
}

/// A limit that the README documents. The client cannot revoke the lease.
async fn a_detachment_that_fails_may_leave_an_empty_lease() {
    let Some(bench) = Bench::standalone().await else { return };
    let (store, proxy) = through_proxy(&bench, "session=20s&timeout=2s").await;
    let (name, mut leases) = (unique(), bench.raw.lease_client());
    let mut claim = take(&store, &request(&name, Duration::from_secs(12))).await;
    let used = bench.queue(&name).await[0].lease();
    // The reply to the request for the lease is still on its way when the link breaks.
    proxy.delay(Duration::from_millis(400));
    let mut created = Vec::new();
    let breaks = async {
        wait_until("the detachment creates no lease", async || {
            created =
                leases.leases().await.expect("a reply").leases().iter().map(|lease| lease.id()).collect();
            created.retain(|lease| *lease != used);
            !created.is_empty()
        })
        .await;
        proxy.stall();
    };
    let (detached, ()) = tokio::join!(claim.detach(LONG, ClaimId::random()), breaks);
    detached.expect_err("the link is broken");
    assert!(claim.release().await.is_err(), "the link is broken");
    assert_eq!(bench.queue(&name).await[0].lease(), used, "the hold was detached");
    let options = LeaseTimeToLiveOptions::new().with_keys();
    let left = bench.raw.lease_client().time_to_live(created[0], Some(options)).await.expect("a reply");
    assert_eq!(left.keys().len(), 0, "the lease is not empty");
    assert_eq!(left.granted_ttl(), 600, "the lease does not last as long as the detached hold");
}

/// With several members, the client would send the request again after a third of the time limit.
async fn the_only_member_has_the_whole_time_limit_to_reply() {
    const LIMIT: Duration = Duration::from_secs(3);
    let Some(bench) = Bench::standalone().await else { return };
    let (store, proxy) = through_proxy(&bench, "session=20s&timeout=3s").await;
    let (before, began) = (bench.requests("Txn").await, Instant::now());
    proxy.hold_answers();
    let mut claim = store.backend.claim(request(&unique(), LIMIT * 4));
    timeout(LIMIT + SOON, claim.attempt())
        .await
        .expect("the time limit of the call is over")
        .expect_err("the proxy passes no reply");
    assert!(began.elapsed() >= LIMIT, "the client waited for {:?}", began.elapsed());
    assert_eq!(bench.requests("Txn").await - before, 1, "the request was sent again");
}

async fn after_a_break_the_only_member_gets_the_request_once_more() {
    let Some(bench) = Bench::standalone().await else { return };
    let ((store, proxy), name) = (through_proxy(&bench, "session=20s&timeout=9s").await, unique());
    let mut claim = take(&store, &request(&name, SOON * 3)).await;
    let before = bench.requests("Txn").await;
    proxy.hold_answers();
    let breaks = async {
        wait_until("the request was not sent", async || bench.requests("Txn").await > before).await;
        proxy.cut();
        proxy.pass();
    };
    let (released, ()) = tokio::join!(claim.release(), breaks);
    assert!(matches!(released, Ok(Release::Done)), "{released:?}");
    assert_eq!(bench.requests("Txn").await - before, 2, "the request is executed twice");
}

async fn a_hold_is_watched_again_after_the_runtime_of_the_pump_has_ended() {
    let Some(bench) = Bench::standalone().await else { return };
    let (url, name) = (format!("{}?session=20s", bench.running.url()), unique());
    let (store_sender, store_receiver) = tokio::sync::oneshot::channel();
    let (end_sender, end_receiver) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let store = connect(&url).await.expect("the server is running");
            let first = Locks::new(store.clone()).mutex(unique()).lock().await.expect("the lock is free");
            first.release().await.expect("the lock is held");
            store_sender.send(store).ok();
            end_receiver.await.ok();
        });
    });
    let store = store_receiver.await.expect("the other thread connects");
    let held =
        Locks::new(store).mutex(&name).lock().ttl(Duration::from_secs(12)).await.expect("the lock is free");
    sleep(Duration::from_millis(500)).await;
    drop(end_sender);
    thread.join().expect("no panic");
    sleep(Duration::from_secs(1)).await;
    assert!(bench.locks("").await.force_release(&name).await.expect("a reply"));
    // If the key is not watched again in time, the next renewal reports the loss.
    assert_eq!(soon("the loss was not reported", held.lost()).await, LostReason::Deleted);
}

/// The pump has ended with that runtime, too. The next renewal of the client starts it again.
async fn a_claim_whose_runtime_has_ended_is_deleted_after_its_ttl() {
    let Some(bench) = Bench::standalone().await else { return };
    let (ttl, name) = (Duration::from_secs(4), unique());
    let store = connect(&format!("{}?session=60s", bench.running.url())).await;
    let client = Locks::new(store.expect("the server is running"));
    let ended = std::thread::spawn({
        let lock = client.mutex(&name).lock().ttl(ttl);
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(lock.into_future()).expect("the lock is free")
        }
    });
    let lost = ended.join().expect("no panic");
    assert!(lost.is_lost(), "the keeper has ended with its runtime");
    let held = client.mutex(unique()).lock().ttl(ttl).await.expect("the lock is free");
    let other = bench.locks("").await;
    let next = timeout(ttl + SOON, other.mutex(&name).lock().into_future()).await;
    next.expect("the claim is not deleted").expect("the lock is free").release().await.expect("held");
    assert!(!held.is_lost(), "the hold of the other runtime is lost");
    held.release().await.expect("the lock is held");
}

async fn claims_with_a_short_time_limit_find_another_member_too() {
    let Some(bench) = Bench::standalone().await else { return };
    let (store, dead, _other) = through_two_proxies(&bench, "timeout=6s").await;
    dead.stall();
    let (began, lock) = (Instant::now(), Locks::new(store).mutex(unique()));
    // The time limit of a call is a third of the ttl. This is less than the time for which a
    // client waits for one member.
    while lock.lock().ttl(Duration::from_secs(3)).wait(Wait::Never).await.is_err() {
        assert!(began.elapsed() < SOON * 3, "the client does not try the other member");
        sleep(Duration::from_millis(50)).await;
    }
}

async fn an_abandoned_claim_is_deleted_soon_after_an_outage() {
    let Some(bench) = Bench::standalone().await else { return };
    let (store, proxy) = through_proxy(&bench, "session=100s").await;
    let name = unique();
    let began = Instant::now();
    drop(take(&store, &request(&name, Duration::from_secs(3))).await);
    sleep(Duration::from_millis(500)).await;
    proxy.hang_up();
    sleep(Duration::from_millis(3500)).await;
    proxy.pass();
    bench.wait_for_claims(&name, 0).await;
    // Keep-alives are sent at intervals of a fifth of the session. The claim is deleted long
    // before the next one.
    assert!(began.elapsed() < Duration::from_secs(15), "the deletion took {:?}", began.elapsed());
}

async fn a_client_that_is_closed_during_a_keep_alive_leaves_no_lease() {
    let Some(bench) = Bench::standalone().await else { return };
    let (store, proxy) = through_proxy(&bench, "session=10s").await;
    take(&store, &request(&unique(), Duration::from_secs(6)))
        .await
        .release()
        .await
        .expect("the lock is held");
    proxy.delay(Duration::from_millis(300));
    // The keep-alive is sent after 2 s, and its reply arrives after 2.6 s.
    sleep(Duration::from_millis(2200)).await;
    store.backend.close().await;
    sleep(Duration::from_millis(500)).await;
    let leases = bench.raw.lease_client().leases().await.expect("a reply");
    assert!(leases.leases().is_empty(), "a lease is left");
    store.backend.claim(request(&unique(), SOON)).attempt().await.expect_err("the client is closed");
    assert!(bench.raw.lease_client().leases().await.expect("a reply").leases().is_empty());
}

async fn breaking_a_lock_deletes_no_key_of_another_program() {
    let Some(bench) = Bench::standalone().await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    let key = format!("{name}/db");
    bench.raw.kv_client().put(key.as_str(), "secret", None).await.expect("a reply");
    assert!(!locks.force_release(&name).await.expect("a reply"), "no client held the lock");
    assert_eq!(bench.queue(&name).await.len(), 1, "the key of another program was deleted");
    assert_eq!(locks.list(&name).await.expect("a reply"), []);
}
