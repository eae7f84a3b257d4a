//! A thousand seeds of the simulation, on the memory store.

use std::thread;

use dlock_conformance::simulation::{Report, simulate};
use dlock_core::memory::MemoryBackend;

const SEEDS: u64 = 1000;
const THREADS: u64 = 2;

fn on_memory(seed: u64) -> Report {
    let report = simulate(MemoryBackend::new().into_store(), seed);
    assert!(report.violations.is_empty(), "{report}replay it with DLOCK_SEED={seed}");
    report
}

/// `DLOCK_SEED=n` runs that seed only.
#[test]
fn a_thousand_seeds_keep_every_rule() {
    if let Ok(seed) = std::env::var("DLOCK_SEED") {
        println!("{:?}", on_memory(seed.parse().expect("DLOCK_SEED is a number")));
        return;
    }
    let reports: Vec<_> = thread::scope(|scope| {
        let share =
            |thread| scope.spawn(move || (thread..SEEDS).step_by(2).map(on_memory).collect::<Vec<_>>());
        let threads: Vec<_> = (0..THREADS).map(share).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("told above")).collect()
    });
    let sum = |count: fn(&Report) -> usize| reports.iter().map(count).sum::<usize>();
    for (least, what, happened) in [
        (10_000, "grants", sum(|report| report.counts.grants)),
        (1000, "losses", sum(|report| report.counts.losses)),
        (500, "shared reads", sum(|report| report.counts.shared_reads)),
        (5000, "accepted writes", sum(|report| report.counts.accepted_writes)),
        (500, "refused stale writes", sum(|report| report.counts.refused_writes)),
        (1000, "cancelled acquisitions", sum(|report| report.cancelled)),
        (1000, "re-entries", sum(|report| report.reentered)),
        (500, "downgrades", sum(|report| report.downgraded)),
        (5000, "lost answers", sum(|report| report.lost_answers)),
        (100, "broken locks", sum(|report| report.broken)),
    ] {
        println!("{happened} {what}");
        assert!(happened >= least, "too little happened to mean anything: {happened} {what} of {least}");
    }
}
