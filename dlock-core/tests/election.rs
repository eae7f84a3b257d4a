//! Observers of an election whose store becomes unreachable, on a clock that is paused.

use std::time::Duration;

use dlock_conformance::wrap::Switch;
use dlock_core::{Locks, Observed, memory::MemoryBackend};
use tokio::time::{Instant, sleep, timeout};

const S: Duration = Duration::from_secs(1);

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
