//! Tests of attempts that are executed after their claim was given up. Such an attempt must create
//! no key, not even for a short time.

use std::time::Duration;

use dlock_conformance::Proxy;
use dlock_core::{
    ClaimId, DistributedLock, Kind, LockOptions, Locks, MultiLock, Wait,
    driver::{Attempt, Claim, Release, Request, Store},
};
use etcd_client::{DeleteOptions, EventType, WatchOptions, WatchStream};
use futures_util::{StreamExt, future::join_all};
use tokio::time::{Instant, sleep, timeout};

use super::{LONG, request, take, through_proxy, through_two_proxies};
use crate::common::{Bench, SOON, connect, spawn, unique, wait_until};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        an_attempt_that_arrives_late_creates_no_key,
        attempts_of_a_crowd_that_arrive_late_create_no_key_and_cost_no_further_request,
        a_tombstone_costs_no_request_and_its_deletion_no_acquisition,
        a_claim_that_is_attempted_again_after_its_release_holds_the_lock,
        a_release_after_the_end_of_the_session_needs_no_tombstone,
        an_abandoned_claim_leaves_no_key_after_its_client,
        a_claim_that_no_keeper_releases_gets_a_tombstone_too,
    }
}

/// Time in which a request that was held back arrives and would take effect.
const ARRIVAL: Duration = Duration::from_millis(500);

/// A watch on the claims of a lock.
struct Watched(WatchStream);

impl Watched {
    async fn of(bench: &Bench, name: &str) -> Self {
        let options = WatchOptions::new().with_prefix();
        let stream = bench.raw.watch_client().watch(format!("{name}/"), Some(options)).await;
        Self(stream.expect("the server is running"))
    }

    /// Returns the number of keys that were created or changed since the last call. The watch has
    /// delivered all events of the past once it delivers the key that this creates.
    async fn changes(&mut self, bench: &Bench, name: &str) -> usize {
        let mark = format!("{name}/end");
        bench.raw.kv_client().put(mark.as_str(), "", None).await.expect("a reply");
        let mut count = 0;
        loop {
            let message = timeout(SOON, self.0.next()).await.expect("the watch delivers events");
            for event in message.expect("the stream is open").expect("the watch exists").events() {
                let key = event.kv().expect("an event has a key");
                if key.key() == mark.as_bytes() && event.event_type() == EventType::Put {
                    bench.raw.kv_client().delete(mark.as_str(), None).await.expect("a reply");
                    return count;
                }
                count += usize::from(event.event_type() == EventType::Put);
            }
        }
    }
}

/// Attempts the lock while the requests of the client's connection are held back. From then on new
/// connections pass.
async fn give_up(proxy: &Proxy, claims: &mut [Box<dyn Claim>]) {
    proxy.hold_requests();
    for result in join_all(claims.iter_mut().map(|claim| claim.attempt())).await {
        result.expect_err("the request is held back");
    }
    proxy.hold_open_connections();
}

/// Releases a claim as its keeper does.
async fn release(claim: &mut dyn Claim) -> Release {
    let mut released = None;
    wait_until("the claim cannot be released", async || {
        released = claim.release().await.ok();
        released.is_some()
    })
    .await;
    released.expect("the claim was released")
}

/// Returns the claims of this many requests for one lock.
fn claims(store: &Store, request: &Request, count: usize) -> Vec<Box<dyn Claim>> {
    (0..count).map(|_| store.backend.claim(request.clone().id(ClaimId::random()))).collect()
}

/// Delivers the requests that were held back, and returns the number of changes that the server has
/// executed.
async fn deliver(bench: &Bench, proxy: &Proxy) -> u64 {
    let before = bench.committed().await;
    proxy.pass();
    sleep(ARRIVAL).await;
    bench.committed().await - before
}

/// The calls that precede the delivery of a delayed attempt.
#[derive(Clone, Copy, Debug)]
enum After {
    RefusedTry,
    SeveralRefused,
    Release,
    Detach,
    Downgrade,
    Several,
}

impl After {
    const ALL: [Self; 6] =
        [Self::RefusedTry, Self::SeveralRefused, Self::Release, Self::Detach, Self::Downgrade, Self::Several];

    /// Attempts the lock through `late`, whose first connection is held back, and gives it up.
    /// `other` is another client.
    async fn give_up(self, late: &Store, other: &Store, proxy: &Proxy, name: &str) {
        let request = request(name, LATE_TTL);
        let locks = Locks::new(late.clone());
        let several = || {
            let both = [name.to_owned(), unique()].map(|name| locks.of(Kind::Mutex, name));
            MultiLock::new(both).expect("two names")
        };
        let options = LockOptions::new().ttl(LATE_TTL);
        match self {
            Self::RefusedTry | Self::SeveralRefused => {
                let mut holder = take(other, &self::request(name, LATE_TTL * 2)).await;
                if matches!(self, Self::RefusedTry) {
                    let result = late.backend.claim(request.wait(Wait::Never)).attempt().await;
                    assert!(matches!(result, Ok(Attempt::Busy { .. })), "{result:?}");
                } else {
                    let result = several().try_lock(&options).await.expect("a reply");
                    assert!(result.is_none(), "two clients hold one of the locks");
                }
                holder.release().await.expect("the lock is held");
            }
            Self::Release => {
                take(late, &request).await.release().await.expect("the lock is held");
            }
            Self::Detach => {
                let ticket = ClaimId::random();
                take(late, &request).await.detach(LONG, ticket).await.expect("the lock is held");
                other.backend.claim(request.id(ticket)).release().await.expect("a reply");
            }
            Self::Downgrade => {
                let mut writer = take(late, &request).await;
                proxy.hold_requests();
                let mut reader = request.clone().wait(Wait::Never);
                reader.kind = Kind::Read;
                // The reply is lost, and the engine continues with the writer.
                drop(late.backend.claim(reader).attempt().await);
                writer.release().await.expect("a reply");
            }
            Self::Several => {
                let held = several().lock(&options).await.expect("the lock is free");
                held.release().await.expect("the lock is held");
            }
        }
    }
}

/// Ttl of attempts that are sent to two members.
const LATE_TTL: Duration = Duration::from_secs(12);

async fn an_attempt_that_arrives_late_creates_no_key() {
    /// Number of locks whose attempts are delayed. The server does not execute every attempt whose
    /// client has cancelled it.
    const LOCKS: usize = 8;
    let Some(bench) = Bench::standalone().await else { return };
    let other = connect(bench.running.url()).await.expect("the server is running");
    for after in After::ALL {
        let (late, proxy, _other_proxy) = through_two_proxies(&bench, "timeout=3s").await;
        let names: Vec<_> = (0..LOCKS).map(|_| unique()).collect();
        if !matches!(after, After::Downgrade) {
            proxy.hold_requests();
        }
        join_all(names.iter().map(|name| after.give_up(&late, &other, &proxy, name))).await;
        let mut watched = Vec::new();
        for name in &names {
            assert_eq!(bench.queue(name).await.len(), 0, "{after:?}");
            watched.push(Watched::of(&bench, name).await);
        }
        let executed = deliver(&bench, &proxy).await;
        assert!(executed > 0, "no delayed attempt was executed, so the test proves nothing: {after:?}");
        for (watched, name) in watched.iter_mut().zip(&names) {
            assert_eq!(watched.changes(&bench, name).await, 0, "a late attempt created a key: {after:?}");
        }
    }
}

async fn attempts_of_a_crowd_that_arrive_late_create_no_key_and_cost_no_further_request() {
    const CROWD: usize = 300;
    let Some(bench) = Bench::standalone().await else { return };
    let (store, proxy) = through_proxy(&bench, "session=5s&timeout=1s").await;
    let (locks, name) = (Locks::new(store), unique());
    // Opens the session.
    locks.mutex(unique()).lock().await.expect("the lock is free").release().await.expect("the lock is held");
    let mut watched = Watched::of(&bench, &name).await;
    let sent = bench.requests("Txn").await;
    proxy.hold_requests();
    let wait = |_| {
        let lock = locks.mutex(&name);
        spawn(async move { lock.lock().ttl(Duration::from_secs(3)).wait(Duration::from_secs(2)).await })
    };
    let waiting: Vec<_> = (0..CROWD).map(wait).collect();
    for waiter in join_all(waiting).await {
        assert!(waiter.expect("no panic").is_err(), "the lock was acquired without a reply");
    }
    proxy.hold_open_connections();
    let mut count = 0;
    wait_until("the client still sends transactions", async || {
        let before = std::mem::replace(&mut count, bench.requests("Txn").await);
        sleep(Duration::from_millis(700)).await;
        bench.requests("Txn").await == before && before > sent
    })
    .await;
    assert!(bench.keys(&name).await.len() <= CROWD, "a claim has two tombstones");
    assert!(deliver(&bench, &proxy).await > 0, "no delayed attempt was executed, so the test proves nothing");
    assert_eq!(watched.changes(&bench, &name).await, 0, "a late attempt created a key");
    // Some sessions are long enough for the deletion of keys that are past their ttl.
    let (before, revision) = (bench.requests("Txn").await, bench.revision().await);
    sleep(Duration::from_secs(11)).await;
    assert_eq!(bench.requests("Txn").await, before, "the client deletes keys that cannot exist");
    assert_eq!(bench.revision().await, revision);
}

async fn a_tombstone_costs_no_request_and_its_deletion_no_acquisition() {
    let Some(bench) = Bench::standalone().await else { return };
    let ((store, proxy), name) = (through_proxy(&bench, "session=20s&timeout=4s").await, unique());
    let mut abandoned = claims(&store, &request(&name, SOON), 4);
    give_up(&proxy, &mut abandoned).await;
    let before = bench.requests("Txn").await;
    for claim in &mut abandoned {
        release(claim.as_mut()).await;
    }
    assert_eq!(bench.requests("Txn").await - before, 4, "a tombstone costs a request of its own");
    proxy.pass();
    assert_eq!(bench.keys(&name).await.len(), 4, "an abandoned claim has no tombstone");
    assert_eq!(bench.locks("").await.list(&name).await.expect("a reply"), [], "a tombstone is listed");
    let all = DeleteOptions::new().with_prefix();
    bench.raw.kv_client().delete(name.as_str(), Some(all)).await.expect("a reply");
    for wait in [Wait::Never, Wait::Forever] {
        let mut next = take(&store, &request(&name, SOON).wait(wait)).await;
        assert_eq!(release(next.as_mut()).await, Release::Done);
    }
    assert_eq!(bench.keys(&name).await, [""; 0], "a key is left");
}

async fn a_claim_that_is_attempted_again_after_its_release_holds_the_lock() {
    let Some(bench) = Bench::standalone().await else { return };
    for wait in [Wait::Never, Wait::Forever] {
        let ((store, proxy), name) = (through_proxy(&bench, "session=20s&timeout=1s").await, unique());
        let mut abandoned = claims(&store, &request(&name, SOON).wait(wait), 1);
        give_up(&proxy, &mut abandoned).await;
        let claim = &mut abandoned[0];
        release(claim.as_mut()).await;
        let result = claim.attempt().await;
        assert!(matches!(result, Ok(Attempt::Granted(_))), "{result:?}");
        assert_eq!(release(claim.as_mut()).await, Release::Done);
        assert_eq!(bench.queue(&name).await.len(), 0, "a key of the claim is left");
    }
}

async fn a_release_after_the_end_of_the_session_needs_no_tombstone() {
    let Some(bench) = Bench::standalone().await else { return };
    let ((store, proxy), name) = (through_proxy(&bench, "session=20s&timeout=1s").await, unique());
    let lease = async || bench.raw.lease_client().leases().await.expect("a reply").leases()[0].id();
    let mut abandoned = claims(&store, &request(&name, SOON), 1);
    give_up(&proxy, &mut abandoned).await;
    bench.raw.lease_client().revoke(lease().await).await.expect("the lease exists");
    release(abandoned[0].as_mut()).await;
    proxy.pass();
    let next = Locks::new(store).mutex(&name).lock().ttl(SOON).await.expect("the lock is free");
    next.release().await.expect("the lock is held");
    assert_eq!(bench.keys(&name).await, [""; 0], "a key is left");
}

async fn an_abandoned_claim_leaves_no_key_after_its_client() {
    let Some(bench) = Bench::standalone().await else { return };
    let ((store, proxy), name) = (through_proxy(&bench, "session=20s&timeout=1s").await, unique());
    let mut abandoned = claims(&store, &request(&name, SOON), 1);
    give_up(&proxy, &mut abandoned).await;
    release(abandoned[0].as_mut()).await;
    proxy.pass();
    store.backend.close().await;
    assert_eq!(bench.keys(&name).await, [""; 0], "a key is left");
}

async fn a_claim_that_no_keeper_releases_gets_a_tombstone_too() {
    const TTL: Duration = Duration::from_secs(3);
    let Some(bench) = Bench::standalone().await else { return };
    let ((store, proxy), name) = (through_proxy(&bench, "session=20s&timeout=1s").await, unique());
    let mut abandoned = claims(&store, &request(&name, TTL), 8);
    give_up(&proxy, &mut abandoned).await;
    drop(abandoned);
    let began = Instant::now();
    wait_until("the claims have no tombstones", async || bench.keys(&name).await.len() == 8).await;
    assert!(began.elapsed() >= TTL / 2, "the claims were deleted before the end of their ttl");
    let mut watched = Watched::of(&bench, &name).await;
    assert!(deliver(&bench, &proxy).await > 0, "no delayed attempt was executed, so the test proves nothing");
    assert_eq!(watched.changes(&bench, &name).await, 0, "a late attempt created a key");
}
