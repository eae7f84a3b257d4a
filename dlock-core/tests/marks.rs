//! Many marks in memory, and the requests of a run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Guard, Kind, LockName, LockOptions, LockState, Locks, Once, OnceError, Result, Wait,
    driver::{Attempt, Backend, Claim, Info, Inspect, MARK_PREFIX, Release, Renewal, Request, Store},
    memory::MemoryBackend,
};
use tokio::time::sleep;

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// Adds a mark as `Occurrence::run` would.
async fn add_mark(store: &Store, key: usize) {
    let name = LockName::new(format!("dlock-once:report:{key}:6")).expect("legal");
    let request = Request::new(name, Kind::Mutex, Duration::from_secs(30)).wait(Wait::Never);
    let mut claim = store.backend.claim(request);
    claim.attempt().await.expect("memory replies");
    let detached = claim.detach(WEEK, ClaimId::random()).await.expect("memory replies");
    assert!(matches!(detached, Renewal::Renewed { .. }));
}

#[tokio::test]
async fn a_hundred_thousand_marks_delay_no_other_lock() {
    const MARKS: usize = 100_000;
    let store = MemoryBackend::new().into_store();
    for key in 0..MARKS {
        add_mark(&store, key).await;
    }
    let locks = Locks::new(store);
    let pairs = async {
        for _ in 0..1000 {
            let guard = locks.mutex("other").lock().await.expect("free");
            guard.release().await.expect("held until now");
        }
    };
    tokio::time::timeout(Duration::from_secs(30), pairs).await.expect("marks delay an unrelated lock");
    assert!(locks.mutex("report").once("99999").is_done().await.expect("memory replies"));
    assert!(!locks.mutex("report").once("100000").is_done().await.expect("memory replies"));
    assert_eq!(locks.list("").await.expect("memory replies"), []);
    assert_eq!(locks.marks("rep").await.expect("memory replies").len(), MARKS);
}

#[tokio::test]
async fn a_run_that_finds_its_work_done_after_the_wait_keeps_no_lock() {
    let locks = Locks::memory();
    let report = locks.mutex("report");
    let (first, second) = (report.once("today"), report.once("today"));
    let second = second.options(LockOptions::new().at_least(WEEK));
    let work = async |_: &Guard| {
        // Until the second run waits for the lock.
        while locks
            .inspect("report")
            .await
            .expect("memory replies")
            .is_none_or(|state| state.queue.is_empty())
        {
            tokio::task::yield_now().await;
        }
        Ok::<_, Error>(())
    };
    let both = async { tokio::join!(first.run(work), second.run(async |_| Ok::<_, Error>(()))) };
    let both = tokio::time::timeout(Duration::from_secs(60), both).await;
    let (first, second) = both.expect("the second run waits, and then gets the lock");
    assert!(matches!(first, Ok(Once::Ran(()))), "{first:?}");
    assert!(matches!(second, Ok(Once::Done)), "{second:?}");
    assert!(
        report.try_lock().await.expect("memory replies").is_some(),
        "the lock stays taken without any work"
    );
}

/// Counts the inspections of a store. The first `failing` ones fail.
#[derive(Debug)]
struct CountedReads {
    inner: Arc<dyn Inspect>,
    reads: AtomicUsize,
    failing: AtomicUsize,
}

#[async_trait]
impl Inspect for CountedReads {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        self.reads.fetch_add(1, Relaxed);
        if self.failing.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err(Error::Unavailable { store: "counted", source: "the reply was lost".into() });
        }
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        self.inner.list(prefix).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        self.inner.force_release(name).await
    }
}

fn counted() -> (Locks, Arc<CountedReads>) {
    let store = MemoryBackend::new().into_store();
    let inner = store.inspect.clone().expect("memory can be inspected");
    let counted =
        Arc::new(CountedReads { inner, reads: AtomicUsize::default(), failing: AtomicUsize::default() });
    let backend: Arc<dyn Backend> = store.backend;
    (Locks::new(Store::new(backend).with_inspect(Arc::<CountedReads>::clone(&counted))), counted)
}

#[tokio::test(start_paused = true)]
async fn a_run_sends_three_reads_and_a_run_that_is_done_one() {
    let (locks, counted) = counted();
    let occurrence = locks.mutex("report").once("2026-11-23");
    for (reads, result) in [(3, Once::Ran(())), (1, Once::Done)] {
        let run = occurrence.run(async |_guard| Ok::<_, Error>(())).await;
        assert_eq!(run.expect("memory replies"), result);
        assert_eq!(counted.reads.swap(0, Relaxed), reads);
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_is_repeated_and_after_the_work_until_the_lock_is_lost() {
    let (locks, counted) = counted();
    let occurrence = locks.mutex("report").once("2026-11-23");
    counted.failing.store(4, Relaxed);
    let run = occurrence.run(async |_guard| {
        counted.failing.store(20, Relaxed);
        Ok::<_, Error>(())
    });
    assert_eq!(run.await.expect("the failures end before the lock is lost"), Once::Ran(()));
    counted.failing.store(5, Relaxed);
    let failed = occurrence.run(async |_guard| Ok::<_, Error>(())).await;
    assert!(matches!(failed, Err(OnceError::Lock(Error::Unavailable { .. }))), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_inspected_refuses_before_any_io() {
    let locks = Locks::new(Store::new(MemoryBackend::new().into_store().backend));
    let result = locks.mutex("report").once("k").run(async |_guard| Ok::<_, Error>(())).await;
    assert!(matches!(result, Err(OnceError::Lock(Error::Unsupported { .. }))), "{result:?}");
}

/// A store that grants marks 20 seconds late.
#[derive(Debug)]
struct SlowMarks(MemoryBackend);

#[async_trait]
impl Backend for SlowMarks {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        let is_mark = request.name.as_str().starts_with(MARK_PREFIX);
        let claim = self.0.claim(request);
        if is_mark { Box::new(SlowClaim(claim)) } else { claim }
    }
}

struct SlowClaim(Box<dyn Claim>);

#[async_trait]
impl Claim for SlowClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        sleep(Duration::from_secs(20)).await;
        self.0.attempt().await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.renew().await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.0.detach(lasting, ticket).await
    }

    async fn release(&mut self) -> Result<Release> {
        self.0.release().await
    }

    async fn changed(&mut self) {
        self.0.changed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_lock_is_lost_while_the_mark_is_created_leaves_no_mark() {
    let memory = MemoryBackend::new();
    let inspect = memory.clone().into_store().inspect.expect("memory can be inspected");
    let locks = Locks::new(Store::new(Arc::new(SlowMarks(memory))).with_inspect(inspect));
    let occurrence = locks.mutex("report").once("2026-11-23");
    let occurrence = occurrence.options(LockOptions::new().lease(Duration::from_secs(10)));
    let ran = occurrence.run(async |_guard| Ok::<_, Error>(())).await;
    assert!(matches!(ran, Err(OnceError::Lock(Error::Lost { .. }))), "{ran:?}");
    // The keeper of the mark's claim releases it.
    sleep(Duration::from_secs(1)).await;
    let again = occurrence.is_done().await;
    assert!(!again.expect("memory replies"), "the work of a lost lock counts as done");
}
