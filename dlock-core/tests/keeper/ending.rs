//! Drivers that panic, clients that are closed, and runtimes that end.

use std::{
    future::pending,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use async_trait::async_trait;
use dlock_core::{
    Error, Guard, Locks, LostReason, Owner, Result,
    driver::{Attempt, Backend, Claim, Grant, Info, Release, Renewal, Request, Store},
    memory::MemoryBackend,
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use super::script::{BUSY, Call, GRANTED, Late, MS, Panic, S, Say, ScriptedStore, TTL};

#[test]
fn an_acquisition_outside_of_a_runtime_fails_with_no_runtime() {
    let locks = Locks::memory();
    for owner in [None, Some(Owner::new())] {
        let lock = owner.iter().fold(locks.mutex("x"), |lock, owner| lock.owned_by(owner));
        let result = futures_util::FutureExt::now_or_never(lock.lock().wait(S)).expect("at once");
        assert!(matches!(result, Err(Error::NoRuntime { .. })), "{result:?}");
    }
}

#[test]
fn a_runtime_without_timers_is_refused_before_a_request() {
    let store = ScriptedStore::new();
    let client = store.client();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be built");
    let locked =
        catch_unwind(AssertUnwindSafe(|| runtime.block_on(async { client.mutex("x").lock().await })));
    let panic = locked.expect_err("no lock without timers");
    let message = panic.downcast_ref::<String>().expect("a text");
    assert!(message.contains("enable_time"), "{message}");
    assert_eq!(store.count(Call::Attempt), 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_driver_in_a_renewal_is_a_loss() {
    let store = ScriptedStore::new().renew([Panic]);
    let held = store.hold().await;
    assert_eq!(held.lost().await, LostReason::Abandoned);
    assert!(held.is_lost() && held.remaining().is_zero());
    let result = held.release().await;
    assert!(matches!(result, Err(Error::Lost { reason: LostReason::Abandoned, .. })), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_driver_in_an_attempt_is_reported_as_an_error() {
    let store = ScriptedStore::new().attempt([Panic]);
    let result = store.client().mutex("x").lock().await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_driver_in_a_release_is_reported_as_a_loss() {
    let store = ScriptedStore::new().release([Panic]);
    let result = store.hold().await.release().await;
    assert!(matches!(result, Err(Error::Lost { reason: LostReason::Abandoned, .. })), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_waits_for_the_attempt_in_flight() {
    let store = ScriptedStore::new().attempt([Late(S, BUSY)]);
    let client = store.client();
    let lock = client.mutex("x").lock();
    let (result, ()) = tokio::join!(lock, async {
        sleep(S / 2).await;
        client.close().await;
    });
    assert!(matches!(result, Err(Error::Closed { .. })), "{result:?}");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1);
}

/// A store whose close takes a second.
#[derive(Debug, Default)]
struct SlowToClose {
    memory: MemoryBackend,
    closes: Mutex<usize>,
    has_closed: AtomicBool,
}

#[async_trait]
impl Backend for SlowToClose {
    fn info(&self) -> &Info {
        self.memory.info()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.memory.claim(request)
    }

    async fn close(&self) {
        *self.closes.lock() += 1;
        sleep(S).await;
        self.has_closed.store(true, Relaxed);
    }
}

impl SlowToClose {
    /// Returns a client of a store, and the store.
    fn start() -> (Locks, Arc<Self>) {
        let backend = Arc::new(Self::default());
        (Locks::new(Store::new(Arc::clone(&backend) as Arc<dyn Backend>)), backend)
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_after_a_dropped_one_waits_for_the_rest_of_it() {
    let (client, backend) = SlowToClose::start();
    timeout(S / 2, client.close()).await.expect_err("takes longer");
    client.close().await;
    assert!(backend.has_closed.load(Relaxed), "the second close did not wait");
    client.close().await;
    assert_eq!(*backend.closes.lock(), 1);
}

#[tokio::test(start_paused = true)]
async fn all_callers_of_a_close_wait_for_it() {
    let (client, backend) = SlowToClose::start();
    let close = async || {
        client.close().await;
        assert!(backend.has_closed.load(Relaxed), "a caller did not wait");
    };
    tokio::join!(close(), close());
    assert_eq!(*backend.closes.lock(), 1);
}

/// A future that is not polled must not keep others from their end.
#[tokio::test(start_paused = true)]
async fn a_close_beside_one_that_is_not_polled_ends() {
    let (client, backend) = SlowToClose::start();
    let mut first = std::pin::pin!(client.close());
    timeout(S / 2, first.as_mut()).await.expect_err("takes longer");
    timeout(S * 2, client.close()).await.expect("the second close ends");
    assert!(backend.has_closed.load(Relaxed), "the second close did not wait");
    first.await;
    assert_eq!(*backend.closes.lock(), 1);
}

/// A task ends with its runtime.
#[test]
fn a_close_of_a_runtime_that_has_ended_is_made_again() {
    let (client, backend) = SlowToClose::start();
    for _ in 0..2 {
        let runtime = runtime();
        runtime.block_on(async { timeout(S / 2, client.close()).await }).expect_err("takes longer");
    }
    runtime().block_on(client.close());
    assert!(backend.has_closed.load(Relaxed), "the last close did not wait");
}

/// A runtime of one thread runs its tasks only during a `block_on`.
#[test]
fn a_close_of_a_runtime_that_runs_no_tasks_is_made_again() {
    let (client, backend) = SlowToClose::start();
    let first = runtime();
    first.block_on(async { timeout(S / 2, client.close()).await }).expect_err("takes longer");
    let second = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    second.block_on(client.close());
    assert!(backend.has_closed.load(Relaxed), "the second close did not wait");
}

#[tokio::test(start_paused = true)]
async fn after_a_close_no_other_task_of_an_owner_makes_an_attempt() {
    let store = ScriptedStore::new().attempt([Say(BUSY), Say(GRANTED)]);
    let (client, me) = (store.client(), Owner::new());
    let lock = client.mutex("x").owned_by(&me);
    let result = tokio::join!(lock.lock(), lock.lock(), async {
        sleep(S).await;
        client.close().await;
    });
    assert!(matches!(result, (Err(Error::Closed { .. }), Err(Error::Closed { .. }), ())), "{result:?}");
    store.close(&client).await;
    assert_eq!(store.count(Call::Attempt), 1, "a closed client made another attempt");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built")
}

#[test]
fn the_end_of_a_runtime_is_a_loss_of_its_locks() {
    let store = ScriptedStore::new();
    let runtime = runtime();
    let held = runtime.block_on(store.hold());
    assert!(!held.is_lost());
    drop(runtime);
    assert!(held.is_lost(), "the hold is not renewed any more, but the guard is not lost");
    let reason = self::runtime().block_on(held.lost());
    assert_eq!(reason, LostReason::Abandoned);
}

/// A store whose connections end when its claims, its calls in flight and its backend are dropped,
/// as the connections of real stores do.
#[derive(Clone, Debug, Default)]
struct Connected {
    guard: Arc<Mutex<Option<Guard>>>,
    renewing: Arc<Notify>,
    /// The connections that ended while the guard was valid.
    ended_early: Arc<Mutex<Vec<&'static str>>>,
}

/// A connection of a [`Connected`] store.
#[derive(Debug)]
struct Connection(Connected, &'static str);

impl Drop for Connection {
    fn drop(&mut self) {
        if self.0.guard.lock().as_ref().is_some_and(|guard| !guard.is_lost()) {
            self.0.ended_early.lock().push(self.1);
        }
    }
}

#[derive(Debug)]
struct ConnectedBackend(Info, Connection);

impl Backend for ConnectedBackend {
    fn info(&self) -> &Info {
        &self.0
    }

    fn claim(&self, _: Request) -> Box<dyn Claim> {
        Box::new(Connection(self.1.0.clone(), "claim"))
    }
}

#[async_trait]
impl Claim for Connection {
    async fn attempt(&mut self) -> Result<Attempt> {
        Ok(GRANTED)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let _connection = Self(self.0.clone(), "call in flight");
        self.0.renewing.notify_one();
        pending().await
    }

    async fn release(&mut self) -> Result<Release> {
        Ok(Release::Done)
    }

    async fn changed(&mut self) {
        pending().await
    }
}

#[test]
fn a_guard_is_lost_before_any_connection_of_its_runtime_ends() {
    for is_renewing in [false, true] {
        let store = Connected::default();
        let runtime = runtime();
        runtime.block_on(async {
            let info = Info::new("connected", "connected");
            let backend = ConnectedBackend(info, Connection(store.clone(), "backend"));
            let locks = Locks::new(Store::new(Arc::new(backend)));
            let held = locks.mutex("x").lock().renew_every(MS).await.expect("granted");
            *store.guard.lock() = Some(held);
            if is_renewing {
                timeout(TTL, store.renewing.notified()).await.expect("the hold is renewed");
            }
        });
        drop(runtime);
        assert_eq!(*store.ended_early.lock(), [""; 0], "during a renewal: {is_renewing}");
        assert!(store.guard.lock().take().expect("a guard").is_lost());
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test blocks its runtime on purpose")]
fn the_first_check_after_a_blocked_runtime_reports_the_loss() {
    let ttl = 50 * MS;
    let store = ScriptedStore::new().attempt([Say(Attempt::Granted(Grant { token: None, valid_for: ttl }))]);
    runtime().block_on(async {
        let held = store.client().mutex("x").lock().ttl(ttl).await.expect("granted");
        std::thread::sleep(ttl * 2);
        assert!(
            held.is_lost(),
            "the store may have granted the lock to another client, but the guard is not lost"
        );
    });
}

#[test]
fn a_guard_dropped_on_a_thread_without_a_runtime_is_released() {
    let store = ScriptedStore::new();
    let client = store.client();
    runtime().block_on(async {
        let held = client.mutex("x").lock().await.expect("granted");
        std::thread::spawn(move || drop(held)).join().expect("no panic");
        store.close(&client).await;
    });
    assert_eq!(store.count(Call::Release), 1);
}

#[test]
fn a_forgotten_guard_is_renewed_until_its_runtime_ends() {
    let store = ScriptedStore::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime can be built").block_on(async {
        mem::forget(store.hold().await);
        sleep(TTL * 2 + S).await;
    });
    assert_eq!((store.count(Call::Renew), store.count(Call::Release)), (6, 0));
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_driver_that_panicked_is_released() {
    for store in [ScriptedStore::new().attempt([Panic]), ScriptedStore::new().renew([Panic])] {
        let client = store.client();
        if let Ok(held) = client.mutex("x").lock().await {
            held.lost().await;
        }
        store.close(&client).await;
        assert_eq!(store.count(Call::Release), 1);
    }
}
