//! Observers of an election, on a clock that is paused: their inspections of the store, and a store
//! that becomes unreachable.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use dlock_conformance::wrap::{Habit, Switch};
use dlock_core::{LockName, LockState, Locks, Observed, Result, driver::Inspect, memory::MemoryBackend};
use tokio::time::{Instant, sleep, timeout};

const S: Duration = Duration::from_secs(1);

/// The inspection of a memory store, which counts its calls.
#[derive(Debug)]
struct CountedInspect {
    memory: MemoryBackend,
    calls: Arc<AtomicUsize>,
    /// Whether it reports how long the store keeps a claim. A store with sessions does not.
    reports_ttl: bool,
}

#[async_trait]
impl Inspect for CountedInspect {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        self.calls.fetch_add(1, Relaxed);
        let mut state = self.memory.inspect(name).await?;
        for holder in state.iter_mut().flat_map(|state| &mut state.holders) {
            holder.ttl_left = holder.ttl_left.filter(|_| self.reports_ttl);
        }
        Ok(state)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        self.memory.list(prefix).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        self.memory.force_release(name).await
    }
}

/// Returns a client of this store with this habit, and the number of its inspections.
fn observers(memory: &MemoryBackend, habit: Habit, reports_ttl: bool) -> (Locks, Arc<AtomicUsize>) {
    let calls = Arc::<AtomicUsize>::default();
    let inspect = CountedInspect { memory: memory.clone(), calls: Arc::clone(&calls), reports_ttl };
    let store = memory.clone().into_store().with_inspect(Arc::new(inspect));
    (Locks::new(habit.wrap(store)), calls)
}

#[tokio::test(start_paused = true)]
async fn hints_that_find_no_change_cause_about_three_inspections_a_second() {
    let memory = MemoryBackend::new();
    // The store sends a hint every 20 ms.
    let (locks, inspections) = observers(&memory, Habit::Chatty, true);
    let leaders = Locks::new(memory.into_store());
    let term = leaders.election("x").candidate().elect().await.expect("there is no rival");
    let mut observer = locks.election("x").observe().await.expect("memory replies");
    assert!(matches!(observer.next().await, Observed::Leader(_)));
    // The pauses become longer with each hint.
    sleep(S).await;
    let before = inspections.load(Relaxed);
    sleep(60 * S).await;
    let inspections = inspections.load(Relaxed) - before;
    assert!((2 * 60..=200).contains(&inspections), "{inspections} inspections in a minute");
    drop(term);
}

/// The store reports neither the rest of the leader's ttl nor a change.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_leaders_session_is_reported_with_the_next_inspection() {
    for (ttl, interval) in [(30 * S, 10 * S), (S, S)] {
        let memory = MemoryBackend::new();
        let (locks, _) = observers(&memory, Habit::Deaf, false);
        let leaders = Locks::new(memory.into_store());
        let term = leaders.election("x").candidate().elect().await.expect("there is no rival");
        let mut observer = locks.election("x").ttl(ttl).observe().await.expect("memory replies");
        assert!(matches!(observer.next().await, Observed::Leader(_)));
        // Shortly after an inspection.
        sleep(S / 10).await;
        assert!(leaders.force_release("x").await.expect("memory can"), "the leader held it");
        let began = Instant::now();
        let state = timeout(60 * S, observer.next()).await.expect("the end is never reported");
        assert!(matches!(state, Observed::Vacant { .. }), "{state:?}");
        assert!(began.elapsed() <= interval, "reported after {:?}", began.elapsed());
        drop(term);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_with_a_short_claim_is_unknown_soon_after_the_store_is_unreachable() {
    let (memory, switch) = (MemoryBackend::new(), Switch::default());
    let leaders = Locks::new(memory.clone().into_store());
    let observers = Locks::new(switch.wrap(memory.into_store()));
    // The reply without a leader is trusted for a ttl of 30 s.
    let mut observer = observers.election("x").ttl(30 * S).observe().await.expect("memory replies");
    assert!(matches!(observer.next().await, Observed::Vacant { .. }));
    sleep(5 * S).await;
    let term = leaders.election("x").ttl(S).candidate().elect().await.expect("there is no rival");
    assert!(matches!(observer.next().await, Observed::Leader(_)));
    switch.cut();
    let began = Instant::now();
    let state = timeout(60 * S, observer.next()).await.expect("the state changes");
    assert!(matches!(state, Observed::Unknown { .. }), "{state:?}");
    // The claim ends after a second, and the next inspection is due ten seconds later.
    assert!(began.elapsed() < 15 * S, "an old reply was trusted for {:?}", began.elapsed());
    drop(term);
}
