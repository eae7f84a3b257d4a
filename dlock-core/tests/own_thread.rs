//! A client on a thread of its own. Its locks are renewed while the caller's runtime is blocked,
//! and are released when the client is dropped.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]
#![allow(clippy::disallowed_methods, reason = "these tests block their threads on purpose")]

use std::{
    sync::Arc,
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use dlock_core::{
    DistributedLock, Error, Kind, LockOptions, Locks, MultiLock, RedLock, Registry, Result,
    driver::{Attempt, Backend, Claim, Info, Release, Renewal, Request, Store},
    memory::MemoryBackend,
};
use pollster::block_on;
use tokio::{runtime::Builder, time::sleep};

fn connect(url: &str) -> Locks {
    block_on(Registry::new().connect_on_own_thread(url)).unwrap()
}

#[test]
fn a_lock_is_renewed_while_the_callers_runtime_is_blocked() {
    let ttl = Duration::from_secs(2);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    for (has_thread, lost) in [(false, true), (true, false)] {
        let is_lost = runtime.block_on(async {
            let locks = if has_thread { connect("memory:blocked") } else { Locks::memory() };
            let held = locks.mutex("x").lock().ttl(ttl).await.unwrap();
            thread::sleep(2 * ttl);
            held.is_lost()
        });
        assert_eq!(is_lost, lost, "on a thread of its own: {has_thread}");
    }
}

#[test]
fn all_calls_work_without_a_runtime() {
    let locks = connect("memory:");
    let (name, ms) = ("x", Duration::from_millis);
    let held = block_on(locks.mutex(name).lock()).unwrap();
    assert!(block_on(locks.mutex(name).try_lock()).unwrap().is_none());
    let late = block_on(locks.mutex(name).lock().wait(ms(20))).unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late:?}");
    assert_eq!(block_on(locks.inspect(name)).unwrap().unwrap().holders.len(), 1);
    assert_eq!(block_on(locks.list("")).unwrap().len(), 1);
    let ticket = block_on(held.detach(Duration::from_secs(600))).unwrap();
    let held = block_on(locks.resume(&ticket)).unwrap();
    let ticket = block_on(held.detach(Duration::from_secs(600))).unwrap();
    block_on(locks.release(&ticket)).unwrap();
    let held = block_on(locks.fair(name).lock()).unwrap();
    assert!(block_on(locks.force_release(name)).unwrap());
    block_on(held.lost());
    let done = block_on(locks.mutex(name).try_run(async |_| 7)).unwrap();
    assert_eq!(done, Some(7));
    block_on(locks.close());
    let closed = block_on(locks.mutex(name).lock()).unwrap_err();
    assert!(matches!(closed, Error::Closed { .. }), "{closed:?}");
}

#[test]
fn without_a_runtime_a_client_without_a_thread_returns_an_error_with_advice() {
    let plain = block_on(Locks::memory().mutex("x").lock()).unwrap_err();
    assert!(plain.to_string().contains("connect_on_own_thread"), "{plain}");
    let member: Arc<dyn DistributedLock> = Arc::new(connect("memory:").mutex("x"));
    let both = MultiLock::new([member]).unwrap();
    let refused = block_on(both.lock(&LockOptions::new().wait(Duration::from_secs(1)))).unwrap_err();
    assert!(matches!(refused, Error::NoRuntime { .. }), "{refused:?}");
}

/// The close of a RedLock has a time limit, and a timer panics outside of a runtime.
#[test]
fn a_client_without_a_thread_is_closed_outside_of_a_runtime() {
    let members = (0..3).map(|_| MemoryBackend::new().into_store());
    let locks = Locks::new(RedLock::new(members).unwrap().into_store());
    block_on(locks.close());
    let closed = block_on(locks.mutex("x").lock()).unwrap_err();
    assert!(matches!(closed, Error::Closed { .. }), "{closed:?}");
}

#[test]
fn a_dropped_future_leaves_no_trace() {
    let locks = connect("memory:");
    let held = block_on(locks.mutex("x").lock()).unwrap();
    let mut waiting = Box::pin(locks.mutex("x").lock());
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    let queued = || block_on(locks.inspect("x")).unwrap().is_some_and(|state| !state.queue.is_empty());
    let began = Instant::now();
    while !queued() {
        assert!(began.elapsed() < Duration::from_secs(60), "the claim never enters the queue");
    }
    drop(waiting);
    while queued() {
        assert!(began.elapsed() < Duration::from_secs(60), "the claim stays in the queue");
    }
    drop(held);
}

/// A memory store whose releases are delayed.
#[derive(Debug)]
struct SlowReleases(Arc<dyn Backend>, Delay);

/// Delay of a release.
#[derive(Clone, Copy, Debug)]
enum Delay {
    Sleep(Duration),
    /// The driver blocks the client's thread.
    Block(Duration),
}

const RELEASE_TIME: Duration = Duration::from_millis(500);

impl Backend for SlowReleases {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(SlowClaim(self.0.claim(request), self.1))
    }
}

struct SlowClaim(Box<dyn Claim>, Delay);

#[async_trait]
impl Claim for SlowClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        self.0.attempt().await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.renew().await
    }

    async fn release(&mut self) -> Result<Release> {
        match self.1 {
            Delay::Sleep(time) => sleep(time).await,
            Delay::Block(time) => thread::sleep(time),
        }
        self.0.release().await
    }

    async fn changed(&mut self) {
        self.0.changed().await;
    }
}

#[test]
fn the_last_drop_of_a_client_or_guard_waits_until_the_lock_is_released() {
    let store = MemoryBackend::new().into_store();
    for (guard_last, name) in [(false, "x"), (true, "y")] {
        let slow = SlowReleases(Arc::clone(&store.backend), Delay::Sleep(RELEASE_TIME));
        let slow = Store::new(Arc::new(slow));
        let locks = block_on(Locks::on_own_thread(async { Ok(Locks::new(slow)) })).unwrap();
        let guard = block_on(locks.mutex(name).lock()).unwrap();
        let began = Instant::now();
        if guard_last {
            drop(locks);
            assert!(began.elapsed() < RELEASE_TIME, "a drop that is not the last one waits");
            drop(guard);
        } else {
            drop((guard, locks));
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let other = Locks::new(store.clone());
        let free = runtime.block_on(async { other.mutex(name).try_lock().await });
        assert!(free.unwrap().is_some(), "the lock is still taken after the last drop");
    }
}

/// Returns the duration of the last drop of a client whose releases are delayed.
fn duration_of_last_drop(release: Delay) -> Duration {
    let slow = Store::new(Arc::new(SlowReleases(MemoryBackend::new().into_store().backend, release)));
    let locks = block_on(Locks::on_own_thread(async { Ok(Locks::new(slow)) })).unwrap();
    let guard = block_on(locks.mutex("x").lock()).unwrap();
    let began = Instant::now();
    drop((guard, locks));
    began.elapsed()
}

#[test]
fn the_last_drop_waits_two_seconds_for_a_store_that_does_not_reply() {
    let limit = Duration::from_secs(2);
    let elapsed = duration_of_last_drop(Delay::Sleep(60 * limit));
    assert!((limit..5 * limit).contains(&elapsed), "the drop took {elapsed:?}");
}

#[test]
fn the_last_drop_waits_four_seconds_for_a_driver_that_blocks_its_thread() {
    let limit = Duration::from_secs(4);
    let elapsed = duration_of_last_drop(Delay::Block(60 * limit));
    assert!((limit..5 * limit).contains(&elapsed), "the drop took {elapsed:?}");
}

#[test]
fn a_multilock_of_a_client_with_a_thread_is_renewed_on_that_thread() {
    let locks = connect("memory:multi");
    let names = ["a", "b", "c"];
    let all = MultiLock::new(names.map(|name| locks.of(Kind::Mutex, name))).unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let ttl = Duration::from_secs(2);
    runtime.block_on(async {
        let held = all.lock(&LockOptions::new().ttl(ttl)).await.unwrap();
        thread::sleep(2 * ttl);
        assert!(!held.is_lost(), "the lock was not renewed while the caller's runtime was blocked");
        held.release().await.unwrap();
    });
    // The future is dropped after this number of polls. The client's thread runs at the same time.
    for polls in 1..6 {
        runtime.block_on(async {
            let options = LockOptions::new();
            let mut acquiring = all.lock(&options);
            for _ in 0..polls {
                if acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(acquiring);
            all.lock(&options).await.unwrap().release().await.unwrap();
        });
    }
    drop((runtime, all, locks));
    assert!(block_on(connect("memory:multi").list("")).unwrap().is_empty(), "a claim is left in the store");
}

#[test]
fn a_dropped_acquisition_with_at_least_leaves_the_lock_free() {
    let locks = connect("memory:at-least");
    let mut context = Context::from_waker(Waker::noop());
    let mut abandoned = 0;
    for round in 0.. {
        let mutex = locks.mutex(format!("job/{round}"));
        let mut acquiring = Box::pin(mutex.lock().at_least(Duration::from_secs(3600)));
        // The client's thread may reply within the first poll. Then there is nothing to abandon.
        if acquiring.as_mut().poll(&mut context).is_ready() {
            continue;
        }
        // The client's thread gets the grant, and the caller abandons the call before it receives
        // it.
        let begun = Instant::now();
        while block_on(locks.inspect(mutex.name())).unwrap().is_none_or(|state| state.holders.is_empty()) {
            assert!(begun.elapsed() < Duration::from_secs(30), "the lock is free, but it is never granted");
        }
        // After a round trip through the client's thread, the task of the acquisition has ended.
        block_on(locks.list("")).unwrap();
        drop(acquiring);
        let free = block_on(mutex.lock().wait(Duration::from_secs(30)));
        assert!(free.is_ok(), "round {round}: an abandoned acquisition keeps the lock");
        abandoned += 1;
        if abandoned == 20 {
            break;
        }
    }
    let kept = block_on(locks.mutex("kept").lock().at_least(Duration::from_secs(3600))).unwrap();
    block_on(kept.release()).unwrap();
    let taken = block_on(locks.mutex("kept").try_lock()).unwrap();
    assert!(taken.is_none(), "a lock whose guard was delivered did not stay taken");
}
