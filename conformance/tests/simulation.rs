//! The simulation, with 1,000 seeds on the memory store and 2,000 on RedLocks of three and five
//! members.
//!
//! `DLOCK_SEED=n` runs only that seed. `DLOCK_SEEDS=n` sets the number of seeds for each RedLock.

use std::thread;

use dlock_conformance::simulation::{Report, simulate, simulate_majority};
use dlock_core::memory::MemoryBackend;

const SEEDS: u64 = 1000;
const MAJORITY_SEEDS: u64 = 2000;
const THREADS: u64 = 2;

fn on_memory(seed: u64) -> Report {
    let report = simulate(MemoryBackend::new().into_store(), seed);
    assert!(report.violations.is_empty(), "{report}replay it with DLOCK_SEED={seed}");
    report
}

/// Returns the reports of this number of seeds, or of the seed in `DLOCK_SEED`.
fn all(seeds: u64, simulate: impl Fn(u64) -> Report + Copy + Send) -> Vec<Report> {
    if let Ok(seed) = std::env::var("DLOCK_SEED") {
        return vec![simulate(seed.parse().expect("DLOCK_SEED is a number"))];
    }
    thread::scope(|scope| {
        let share =
            |thread| scope.spawn(move || (thread..seeds).step_by(2).map(simulate).collect::<Vec<_>>());
        let threads: Vec<_> = (0..THREADS).map(share).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("the thread has printed why it panicked"))
            .collect()
    })
}

#[test]
fn a_thousand_seeds_keep_every_rule() {
    let reports = all(SEEDS, on_memory);
    if let [report] = &reports[..] {
        return println!("{report:?}");
    }
    let sum = |count: fn(&Report) -> usize| reports.iter().map(count).sum::<usize>();
    for (least, event, count) in [
        (10_000, "grants", sum(|report| report.counts.grants)),
        (1000, "losses", sum(|report| report.counts.losses)),
        (500, "shared reads", sum(|report| report.counts.shared_reads)),
        (200, "shared permits", sum(|report| report.counts.shared_permits)),
        (5000, "accepted writes", sum(|report| report.counts.accepted_writes)),
        (500, "refused stale writes", sum(|report| report.counts.refused_writes)),
        (1000, "cancelled acquisitions", sum(|report| report.cancelled)),
        (1000, "re-entries", sum(|report| report.reentered)),
        (500, "downgrades", sum(|report| report.downgraded)),
        (500, "detached holds", sum(|report| report.detached)),
        (5000, "lost answers", sum(|report| report.lost_answers)),
        (100, "broken locks", sum(|report| report.broken)),
    ] {
        println!("{count} {event}");
        assert!(count >= least, "too few {event} to prove anything: {count}, and {least} are needed");
    }
}

#[expect(clippy::print_stdout, reason = "libtest shows it with --nocapture")]
fn majority(members: usize) {
    let seeds =
        std::env::var("DLOCK_SEEDS").ok().map_or(MAJORITY_SEEDS, |seeds| seeds.parse().expect("a number"));
    let reports = all(seeds, |seed| simulate_majority(members, seed));
    let failed: Vec<_> = reports.iter().filter(|report| !report.violations.is_empty()).collect();
    let sum = |count: fn(&Report) -> usize| reports.iter().map(count).sum::<usize>();
    println!(
        "of {members}: {} seeds, {} grants, {} losses, {} shared reads, {} detached, {} lost answers, {} broken",
        reports.len(),
        sum(|report| report.counts.grants),
        sum(|report| report.counts.losses),
        sum(|report| report.counts.shared_reads),
        sum(|report| report.detached),
        sum(|report| report.lost_answers),
        sum(|report| report.broken),
    );
    let examples: String = failed.iter().take(5).map(ToString::to_string).collect();
    assert!(
        failed.is_empty(),
        "{} of {} seeds break a rule; replay one with DLOCK_SEED:\n{examples}",
        failed.len(),
        reports.len()
    );
    let grants = sum(|report| report.counts.grants);
    assert!(grants > 5 * reports.len(), "too few grants to prove anything: {grants}");
}

#[test]
fn a_majority_of_three_keeps_every_rule_whatever_its_members_do() {
    majority(3);
}

#[test]
fn a_majority_of_five_keeps_every_rule_whatever_its_members_do() {
    majority(5);
}
