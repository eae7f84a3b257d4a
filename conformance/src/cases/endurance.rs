//! Many tasks of one client lock, hold and wait while its connection is paused, cut and late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Error, Guard, Kind, LockOptions, Locks, LostReason, driver::pretend_clock};
use fastrand::Rng;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    Arena, Clock,
    arena::Faults,
    case::{Case, Need, cases},
    history::{AcquisitionId, Counts, History},
    load,
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "endurance" (Kind::Mutex) [Need::Driver, Need::Time] {
            faults_that_are_shorter_than_the_ttl_cost_tasks_of_one_client_no_lock,
        }
    }
}

/// Longest fault.
const LONGEST_FAULT: Duration = Duration::from_secs(4);

/// Number of tasks for each name that several tasks contend for.
const TASKS_PER_NAME: usize = 10;

/// Number of tasks of another client, whose connection has no faults. It would be granted the locks
/// that the first client has lost.
const RIVALS: usize = 5;

/// Longest hold of a name that several tasks contend for.
const SHORT_HOLD: Duration = Duration::from_millis(20);

/// Interval at which the claims of a guard are recorded.
const RECORD_INTERVAL: Duration = Duration::from_millis(250);

/// Pause of a task after a transient error, as a user of the library would make.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

/// State that all tasks share.
struct Run {
    history: History,
    /// Names that several tasks contend for.
    names: Vec<String>,
    kind: Kind,
    ttl: Duration,
    end: Instant,
    /// Number of acquisitions that ended with a transient error or a timeout, or were dropped.
    abandoned: AtomicUsize,
    /// Shortest time that a hold had left before its deadline.
    least_remaining: Mutex<Duration>,
    /// Losses, each with the time since the grant.
    losses: Mutex<Vec<(Duration, LostReason)>>,
}

pub(super) async fn faults_that_are_shorter_than_the_ttl_cost_tasks_of_one_client_no_lock(arena: Arc<Arena>) {
    let tasks = load::tasks().unwrap_or_else(|| arena.tasks());
    let span = load::duration();
    if arena.clock() == Clock::Paused {
        // Many tasks need more real time than virtual time, and deadlines also pass on the boot clock.
        pretend_clock();
    }
    let (client, faults) = arena.client_with_faults().await;
    let rival = arena.client().await;
    let end_of_ttl = |client: &Locks| *client.info().ttl.end();
    let longest_ttl = end_of_ttl(&client).min(end_of_ttl(&rival));
    let fault = LONGEST_FAULT.min(longest_ttl / 6).min(span / 7);
    let ttl = arena.ttl().max(fault * 6).min(longest_ttl);
    let names = 0..tasks.div_ceil(TASKS_PER_NAME);
    let run = Arc::new(Run {
        history: History::new(),
        names: names.map(|number| arena.name_with(&format!("-{number}"))).collect(),
        kind: arena.kind(),
        ttl,
        end: Instant::now() + span,
        abandoned: AtomicUsize::new(0),
        least_remaining: Mutex::new(ttl),
        losses: Mutex::default(),
    });
    let start = |number: usize, client: &Locks| {
        let (run, client) = (Arc::clone(&run), client.clone());
        // Every fourth task of the client has a name of its own, and holds its lock through faults.
        let own = (number.is_multiple_of(4)).then(|| arena.name_with(&format!("-own-{number}")));
        arena.go(async move { run.contend(number, &client, own).await })
    };
    let contenders = (0..tasks).map(|number| start(number, &client));
    let rivals = (0..RIVALS).map(|number| start(4 * (tasks + number) + 1, &rival));
    let contenders: Vec<_> = contenders.chain(rivals).collect();

    let count = inject(&faults, fault, run.end).await;
    let ended = arena.within(span + ttl, "a task does not end without faults", join_all(contenders)).await;
    ended.into_iter().for_each(|ended| ended.expect("the task does not panic"));

    let least = Counts { grants: tasks / 2, ..Counts::default() };
    let violations = run.history.check(&least);
    assert!(violations.is_empty(), "{} violations, the first: {}", violations.len(), violations[0]);
    let Counts { grants, .. } = run.history.counts();
    let losses = run.losses.lock();
    assert!(
        losses.is_empty(),
        "of {grants} holds with a ttl of {ttl:?}, {} were lost, although each fault was shorter: {losses:?}",
        losses.len()
    );
    drop(losses);
    print_figure(&format!(
        "{tasks} tasks for {span:?}: {grants} grants, {} abandoned acquisitions, {count} faults, no loss; \
        at least {:?} of {ttl:?} were left",
        run.abandoned.load(Relaxed),
        run.least_remaining.lock(),
    ));
}

/// Injects one fault after another, each for `length` and with a pause of the same length behind it.
/// Returns their number.
async fn inject(faults: &Faults, length: Duration, end: Instant) -> usize {
    let mut count = 0;
    while Instant::now() + length < end {
        match count % 3 {
            0 => faults.stall(),
            1 => faults.hang_up(),
            _ => faults.delay_answers(length),
        }
        sleep(length).await;
        faults.pass();
        sleep(length).await;
        count += 1;
    }
    count
}

impl Run {
    /// Requests locks until the end of the run.
    async fn contend(&self, number: usize, client: &Locks, own: Option<String>) {
        let mut rng = Rng::with_seed(number as u64);
        while Instant::now() < self.end {
            let name = own.as_ref().unwrap_or_else(|| &self.names[rng.usize(..self.names.len())]);
            let acquisition = self.history.invokes(name, self.kind, self.ttl);
            let wait = Duration::from_millis(rng.u64(500..5000));
            let options = LockOptions::new().ttl(self.ttl).wait(wait);
            let lock = client.of(self.kind, name);
            // Some of the tasks drop their future.
            let limit = if rng.u8(..4) == 0 { wait / 2 } else { wait * 100 };
            let guard = match timeout(limit, lock.lock(&options)).await {
                Ok(Ok(guard)) => guard,
                Ok(Err(error)) => {
                    let is_expected = error.is_transient() || matches!(error, Error::Timeout { .. });
                    assert!(is_expected, "an acquisition failed with {error:?}");
                    self.abandoned.fetch_add(1, Relaxed);
                    sleep(ERROR_PAUSE).await;
                    continue;
                }
                Err(_) => {
                    self.abandoned.fetch_add(1, Relaxed);
                    continue;
                }
            };
            self.history.granted(acquisition, guard.token(), deadline(&guard));
            let granted_at = Instant::now();
            // The hold of an own name is renewed several times, also during faults.
            let longest = if own.is_some() { self.ttl * 2 } else { SHORT_HOLD };
            let until = Instant::now() + longest.mul_f64(rng.f64());
            self.hold(acquisition, &guard, until.min(self.end)).await;
            if guard.is_lost() {
                self.lost(acquisition, granted_at, guard.lost().await);
                continue;
            }
            self.history.releases(acquisition);
            match guard.release().await {
                Ok(()) => self.history.released(acquisition),
                Err(Error::Lost { reason, .. }) => self.lost(acquisition, granted_at, reason),
                // The keeper continues with the release.
                Err(error) => assert!(error.is_transient(), "a release failed with {error:?}"),
            }
        }
    }

    fn lost(&self, acquisition: AcquisitionId, granted_at: Instant, reason: LostReason) {
        self.history.lost(acquisition, reason);
        self.losses.lock().push((granted_at.elapsed(), reason));
    }

    fn record_remaining(&self, remaining: Duration) {
        let mut least = self.least_remaining.lock();
        *least = remaining.min(*least);
    }

    /// Records the claims of a guard until this time, or until it is lost.
    async fn hold(&self, acquisition: AcquisitionId, guard: &Guard, until: Instant) {
        while Instant::now() < until && !guard.is_lost() {
            self.history.holds(acquisition, deadline(guard));
            self.record_remaining(guard.remaining());
            sleep_until(until.min(Instant::now() + RECORD_INTERVAL)).await;
        }
    }
}

fn deadline(guard: &Guard) -> Instant {
    Instant::now() + guard.remaining()
}

#[expect(clippy::print_stderr, reason = "the case reports a measurement")]
fn print_figure(figure: &str) {
    eprintln!("{figure}");
}
