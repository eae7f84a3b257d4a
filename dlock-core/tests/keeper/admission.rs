//! The bound on attempts in flight.
#![expect(clippy::disallowed_methods, reason = "each caller is a task, as in a program")]

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Kind, Locks, Result,
    driver::{Attempt, Backend, Claim, Grant, Info, Release, Renewal, Request, Store},
};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::{
    script::{MS, S, TTL, about},
    watchdog::watch,
};

/// A store on which every attempt takes a while, and everything else no time.
#[derive(Clone, Debug)]
struct Slow(Arc<Mutex<Book>>, Info, Duration);

#[derive(Debug, Default)]
struct Book {
    flying: usize,
    most: usize,
    /// Names for which an attempt was sent, in order.
    asked: Vec<String>,
    renewed: usize,
    released: usize,
}

impl Slow {
    fn new(bound: usize, takes: Duration) -> Self {
        watch();
        let info =
            Info::new("slow", "slow").kinds(&[Kind::Mutex]).ttl(MS..=TTL * 1000).attempts_in_flight(bound);
        Self(Arc::default(), info, takes)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> Locks {
        Locks::new(Store::new(Arc::new(self.clone())))
    }
}

impl Backend for Slow {
    fn info(&self) -> &Info {
        &self.1
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(SlowClaim(self.clone(), request))
    }
}

struct SlowClaim(Slow, Request);

#[async_trait]
impl Claim for SlowClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let Self(store, request) = self;
        {
            let mut book = store.book();
            book.flying += 1;
            book.most = book.most.max(book.flying);
            book.asked.push(request.name.to_string());
        }
        sleep(store.2).await;
        store.book().flying -= 1;
        if request.name.as_str().starts_with("busy") {
            return Ok(Attempt::Busy { retry_in: TTL });
        }
        Ok(Attempt::Granted(Grant { token: None, valid_for: request.ttl }))
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.book().renewed += 1;
        Ok(Renewal::Renewed { valid_for: self.1.ttl })
    }

    async fn detach(&mut self, lasting: Duration, _ticket: ClaimId) -> Result<Renewal> {
        Ok(Renewal::Renewed { valid_for: lasting })
    }

    async fn release(&mut self) -> Result<Release> {
        self.0.book().released += 1;
        Ok(Release::Done)
    }

    async fn changed(&mut self) {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_of_one_client_and_its_clones_are_bounded() {
    let store = Slow::new(3, 10 * MS);
    let client = store.client();
    let start = Instant::now();
    let asking = (0..30).map(|number| {
        let client = client.clone();
        async move { client.mutex(format!("x{number}")).lock().await.expect("free") }
    });
    let held = join_all(asking).await;
    assert_eq!(store.book().most, 3);
    assert!(start.elapsed() >= 100 * MS, "30 attempts of 10 ms, three at once, took {:?}", start.elapsed());
    assert!(start.elapsed() < 200 * MS, "places were left unused: {:?}", start.elapsed());
    let order: Vec<_> = (0..30).map(|number| format!("x{number}")).collect();
    assert_eq!(store.book().asked, order, "attempts overtook each other");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn two_clients_do_not_wait_for_each_other() {
    let store = Slow::new(1, 10 * MS);
    let (one, other) = (store.client(), store.client());
    let start = Instant::now();
    let (one, other) = (one.mutex("x"), other.mutex("y"));
    let (one, other) = tokio::join!(one.lock(), other.lock());
    assert!(one.is_ok() && other.is_ok());
    assert!(about(start.elapsed(), 10 * MS), "{:?}", start.elapsed());
    assert_eq!(store.book().most, 2);
}

#[tokio::test(start_paused = true)]
async fn renewals_and_releases_pass_a_crowd_of_attempts_that_hang() {
    let store = Slow::new(2, TTL * 20);
    let client = store.client();
    let guard = client.mutex("held").lock().ttl(TTL * 30).await.expect("free");
    let crowd: Vec<_> = (0..500)
        .map(|number| {
            let lock = client.mutex(format!("busy{number}"));
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    sleep(TTL * 19).await;
    assert_eq!(store.book().flying, 2, "the crowd is to fill the store");
    assert!(!guard.is_lost() && store.book().renewed > 0, "a renewal waited for the crowd");
    let before = Instant::now();
    guard.release().await.expect("held until now");
    assert!(before.elapsed() < S, "the release waited for the crowd: {:?}", before.elapsed());
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_before_its_attempt_was_sent_costs_the_store_nothing() {
    let store = Slow::new(1, 10 * S);
    let client = store.client();
    let first = client.mutex("first");
    let (first, second) = tokio::join!(first.lock(), timeout(S, client.mutex("second").lock()));
    second.expect_err("the first attempt is still in flight");
    first.expect("free").release().await.expect("held");
    client.mutex("third").lock().await.expect("free").release().await.expect("held");
    client.close().await;
    assert_eq!(store.book().asked, ["first", "third"]);
    assert_eq!(store.book().released, 2, "there was nothing to release for the second caller");
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_ends_those_that_were_not_asked_yet() {
    let store = Slow::new(1, 10 * S);
    let client = store.client();
    let crowd: Vec<_> = (0..50)
        .map(|number| {
            let lock = client.mutex(format!("busy{number}"));
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    sleep(S).await;
    client.close().await;
    for waiter in crowd {
        let told = waiter.await.expect("no panic");
        assert!(matches!(told, Err(Error::Closed { .. })), "{told:?}");
    }
    let book = store.book();
    assert_eq!((book.asked.len(), book.released), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_time_before_an_attempt_is_sent_is_no_part_of_the_hold() {
    let store = Slow::new(1, TTL * 3 / 4);
    let client = store.client();
    let (busy, lock) = (client.mutex("busy"), client.mutex("x"));
    let (busy, held) = tokio::join!(busy.try_lock(), lock.lock());
    assert!(busy.expect("busy is no error").is_none());
    let held = held.expect("free");
    assert!(!held.is_lost());
    assert_eq!(store.book().asked, ["busy", "x"], "the grant was thrown away as too late");
}
