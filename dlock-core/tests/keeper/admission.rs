//! The limits on attempts and releases in flight.
#![expect(clippy::disallowed_methods, reason = "each caller is a task, as in a program")]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Guard, Kind, Locks, Result,
    driver::{Attempt, Backend, Claim, Grant, Info, Release, Renewal, Request, Store, StoreErrors},
};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    script::{MS, S, TTL, is_about},
    watchdog::watch,
};

const STORE: StoreErrors = StoreErrors::new("slow");

/// A store whose attempts and releases take a fixed time, and whose other calls take none.
#[derive(Clone, Debug)]
struct SlowStore {
    record: Arc<Mutex<Record>>,
    info: Info,
    attempt_time: Duration,
    release_time: Duration,
    /// Whether releases fail.
    is_down: bool,
}

#[derive(Debug, Default)]
struct Record {
    in_flight: usize,
    max_in_flight: usize,
    /// Lock names of all attempts, in order.
    attempts: Vec<String>,
    renewed: usize,
    detached: usize,
    /// Number of claims that are about to be released.
    left: usize,
    releases_in_flight: usize,
    max_releases_in_flight: usize,
    /// Number of releases that have ended.
    released: usize,
}

impl SlowStore {
    fn new(limit: usize, attempt_time: Duration) -> Self {
        watch();
        let info = Info::new("slow", "slow").kinds(&[Kind::Mutex]).ttl(MS..=TTL * 1000);
        let info = info.attempts_in_flight(limit).releases_in_flight(limit).detaches(true);
        Self { record: Arc::default(), info, attempt_time, release_time: Duration::ZERO, is_down: false }
    }

    fn with_release_time(limit: usize, release_time: Duration) -> Self {
        Self { release_time, ..Self::new(limit, Duration::ZERO) }
    }

    fn client(&self) -> Locks {
        Locks::new(Store::new(Arc::new(self.clone())))
    }
}

impl Backend for SlowStore {
    fn info(&self) -> &Info {
        &self.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(SlowClaim(self.clone(), request))
    }
}

struct SlowClaim(SlowStore, Request);

#[async_trait]
impl Claim for SlowClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let Self(store, request) = self;
        {
            let mut record = store.record.lock();
            record.in_flight += 1;
            record.max_in_flight = record.max_in_flight.max(record.in_flight);
            record.attempts.push(request.name.to_string());
        }
        sleep(store.attempt_time).await;
        store.record.lock().in_flight -= 1;
        if request.name.as_str().starts_with("busy") {
            return Ok(Attempt::Busy { retry_in: TTL });
        }
        Ok(Attempt::Granted(Grant { token: None, valid_for: request.ttl }))
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.record.lock().renewed += 1;
        Ok(Renewal::Renewed { valid_for: self.1.ttl })
    }

    async fn detach(&mut self, lasting: Duration, _ticket: ClaimId) -> Result<Renewal> {
        self.0.record.lock().detached += 1;
        Ok(Renewal::Renewed { valid_for: lasting })
    }

    fn leave(&mut self) {
        self.0.record.lock().left += 1;
    }

    async fn release(&mut self) -> Result<Release> {
        let store = &self.0;
        {
            let mut record = store.record.lock();
            record.releases_in_flight += 1;
            record.max_releases_in_flight = record.max_releases_in_flight.max(record.releases_in_flight);
        }
        sleep(store.release_time).await;
        let mut record = store.record.lock();
        record.releases_in_flight -= 1;
        record.released += 1;
        if store.is_down { Err(STORE.timed_out(store.release_time)) } else { Ok(Release::Done) }
    }

    async fn changed(&mut self) {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_in_flight_of_one_client_and_its_clones_are_limited() {
    let store = SlowStore::new(3, 10 * MS);
    let client = store.client();
    let start = Instant::now();
    let acquiring = (0..30).map(|number| {
        let client = client.clone();
        async move { client.mutex(format!("x{number}")).lock().await.expect("free") }
    });
    let held = join_all(acquiring).await;
    assert_eq!(store.record.lock().max_in_flight, 3);
    assert!(start.elapsed() >= 100 * MS, "30 attempts of 10 ms, three at once, took {:?}", start.elapsed());
    assert!(start.elapsed() < 200 * MS, "fewer than three attempts were in flight: {:?}", start.elapsed());
    let order: Vec<_> = (0..30).map(|number| format!("x{number}")).collect();
    assert_eq!(store.record.lock().attempts, order, "attempts overtook each other");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn two_clients_do_not_wait_for_each_other() {
    let store = SlowStore::new(1, 10 * MS);
    let (one, other) = (store.client(), store.client());
    let start = Instant::now();
    let (one, other) = (one.mutex("x"), other.mutex("y"));
    let (one, other) = tokio::join!(one.lock(), other.lock());
    assert!(one.is_ok() && other.is_ok());
    assert!(is_about(start.elapsed(), 10 * MS), "{:?}", start.elapsed());
    assert_eq!(store.record.lock().max_in_flight, 2);
}

#[tokio::test(start_paused = true)]
async fn renewals_and_releases_do_not_wait_for_500_attempts_that_hang() {
    let store = SlowStore::new(2, TTL * 20);
    let client = store.client();
    let guard = client.mutex("held").lock().ttl(TTL * 30).await.expect("free");
    let waiters: Vec<_> = (0..500)
        .map(|number| {
            let lock = client.mutex(format!("busy{number}"));
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    sleep(TTL * 19).await;
    assert_eq!(
        store.record.lock().in_flight,
        2,
        "the test needs as many attempts in flight as the limit allows"
    );
    assert!(!guard.is_lost() && store.record.lock().renewed > 0, "a renewal waited for the attempts");
    let before = Instant::now();
    guard.release().await.expect("held until now");
    assert!(before.elapsed() < S, "the release waited for the attempts: {:?}", before.elapsed());
    waiters.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_free_lock_does_not_wait_for_500_waiters_that_repeat_their_attempts() {
    let store = SlowStore::new(4, S);
    let client = store.client();
    let waiters: Vec<_> = (0..500)
        .map(|number| {
            let lock = client.mutex(format!("busy{number}")).lock().ttl(TTL * 30);
            tokio::spawn(async move { lock.await.map(drop) })
        })
        .collect();
    while store.record.lock().attempts.len() < 2000 {
        sleep(S).await;
    }
    let start = Instant::now();
    client.mutex("free").lock().await.expect("free").release().await.expect("held");
    assert!(is_about(start.elapsed(), S), "the attempt waited for those of waiters: {:?}", start.elapsed());
    assert_eq!(store.record.lock().max_in_flight, 8, "four first attempts and four repeated ones");
    waiters.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_before_its_attempt_is_sent_causes_no_request() {
    let store = SlowStore::new(1, 10 * S);
    let client = store.client();
    let first = client.mutex("first");
    let (first, second) = tokio::join!(first.lock(), timeout(S, client.mutex("second").lock()));
    second.expect_err("the first attempt is still in flight");
    first.expect("free").release().await.expect("held");
    client.mutex("third").lock().await.expect("free").release().await.expect("held");
    client.close().await;
    assert_eq!(store.record.lock().attempts, ["first", "third"]);
    assert_eq!(
        store.record.lock().released,
        2,
        "the claim of the second caller was released, but never sent"
    );
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_ends_the_calls_whose_attempts_were_not_sent_yet() {
    let store = SlowStore::new(1, 10 * S);
    let client = store.client();
    let waiters: Vec<_> = (0..50)
        .map(|number| {
            let lock = client.mutex(format!("busy{number}"));
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    sleep(S).await;
    client.close().await;
    for waiter in waiters {
        let result = waiter.await.expect("no panic");
        assert!(matches!(result, Err(Error::Closed { .. })), "{result:?}");
    }
    let record = store.record.lock();
    assert_eq!((record.attempts.len(), record.released), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_wait_before_an_attempt_is_sent_does_not_shorten_the_hold() {
    let store = SlowStore::new(1, TTL * 3 / 4);
    let client = store.client();
    let (busy, lock) = (client.mutex("busy"), client.mutex("x"));
    let (busy, held) = tokio::join!(busy.try_lock(), lock.lock());
    assert!(busy.expect("busy is no error").is_none());
    let held = held.expect("free");
    assert!(!held.is_lost());
    assert_eq!(store.record.lock().attempts, ["busy", "x"], "the grant was discarded as too late");
}

/// Starts this many waiters, which wait until the returned tasks are aborted.
async fn start_waiters(
    store: &SlowStore,
    client: &Locks,
    count: usize,
    ttl: Duration,
) -> Vec<JoinHandle<Result<()>>> {
    let before = store.record.lock().attempts.len();
    let waiters = (0..count).map(|number| {
        let lock = client.mutex(format!("busy{number}")).lock().ttl(ttl);
        tokio::spawn(async move { lock.await.map(drop) })
    });
    let waiters = waiters.collect();
    while store.record.lock().attempts.len() < before + count {
        sleep(MS).await;
    }
    waiters
}

#[tokio::test(start_paused = true)]
async fn releases_in_flight_of_waiters_that_leave_are_limited() {
    let store = SlowStore::with_release_time(3, 10 * MS);
    let client = store.client();
    let waiters = start_waiters(&store, &client, 300, TTL).await;
    let start = Instant::now();
    waiters.iter().for_each(JoinHandle::abort);
    client.close().await;
    let record = store.record.lock();
    assert_eq!((record.released, record.max_releases_in_flight), (300, 3));
    assert!(start.elapsed() < 1100 * MS, "fewer than three were in flight: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn releases_in_flight_of_holds_are_limited() {
    let store = SlowStore::with_release_time(3, 10 * MS);
    let client = store.client();
    let locks = (0..300).map(|number| client.mutex(format!("x{number}")));
    let held = join_all(locks.map(|lock| async move { lock.lock().await.expect("free") })).await;
    let released = join_all(held.into_iter().map(Guard::release)).await;
    released.into_iter().for_each(|released| released.expect("held"));
    let record = store.record.lock();
    assert_eq!((record.released, record.max_releases_in_flight), (300, 3));
}

#[tokio::test(start_paused = true)]
async fn a_hold_does_not_wait_for_the_releases_of_500_waiters_that_leave() {
    let store = SlowStore::with_release_time(2, TTL / 3);
    let client = store.client();
    let guard = client.mutex("held").lock().await.expect("free");
    let waiters = start_waiters(&store, &client, 500, TTL * 1000).await;
    waiters.iter().for_each(JoinHandle::abort);
    sleep(TTL * 10 - MS).await;
    assert_eq!(store.record.lock().releases_in_flight, 2, "the test needs as many as the limit allows");
    assert_eq!(store.record.lock().left, 500, "a claim that waits for its release may be renewed");
    assert!(!guard.is_lost() && store.record.lock().renewed > 20, "a renewal waited for the releases");
    let before = Instant::now();
    guard.release().await.expect("held until now");
    assert!(is_about(before.elapsed(), TTL / 3), "the release waited for others: {:?}", before.elapsed());
}

/// The hold is not renewed any more, so it would expire during the wait.
#[tokio::test(start_paused = true)]
async fn a_hold_that_stays_taken_does_not_wait_for_the_releases_of_others() {
    let store = SlowStore::with_release_time(1, TTL / 3);
    let client = store.client();
    let report = client.mutex("report").lock().at_least(TTL * 100).await.expect("free");
    let locks = (0..50).map(|number| client.mutex(format!("x{number}")));
    let held = join_all(locks.map(|lock| async move { lock.lock().await.expect("free") })).await;
    drop(held);
    sleep(MS).await;
    drop(report);
    sleep(10 * MS).await;
    let record = store.record.lock();
    assert_eq!((record.releases_in_flight, record.detached), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_closes_soon_although_the_store_does_not_reply_to_500_releases() {
    let timeout = TTL / 10;
    let store = SlowStore { is_down: true, ..SlowStore::with_release_time(2, timeout) };
    let client = store.client();
    let waiters = start_waiters(&store, &client, 500, TTL).await;
    let start = Instant::now();
    waiters.iter().for_each(JoinHandle::abort);
    client.close().await;
    assert!(start.elapsed() < TTL * 2, "{:?}, although the store forgets after {TTL:?}", start.elapsed());
    let record = store.record.lock();
    assert_eq!(record.releases_in_flight, 0);
    assert!(record.released <= 30, "{} requests for claims that were forgotten", record.released);
}
