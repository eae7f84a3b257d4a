//! Runs a case in many interleavings.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use shuttle::{
    Config, FailurePersistence, MaxSteps, Runner,
    future::block_on,
    scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId},
};
use tokio::time;

use crate::{bugs, driver::pretend_clock};

/// Number of seeds of a case. `DLOCK_INTERLEAVINGS` is another number.
const SEEDS: u64 = 300;

/// Steps after which an execution has failed. None needs as many.
const MAX_STEPS: usize = 1_000_000;

/// Number of changes of priority in an execution of the scheduler that assigns priorities.
const PRIORITY_CHANGES: usize = 5;

/// When virtual time passes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Time {
    /// Only while all threads wait. A thread that waits for a timer although another thread should
    /// have notified it is noticed, because time has passed.
    WhenIdle,
    /// At any step, so that each deadline may pass at any point of the code.
    Anytime,
}

/// Runs a case once for each seed and scheduler.
///
/// # Panics
/// If the case panics, if all its threads wait forever, or if it does not end. The message states
/// the seed.
pub fn explore<F: Future<Output = ()> + 'static>(time: Time, case: impl Fn() -> F + Send + Sync + 'static) {
    if let Some(failure) = first_failure(seeds(), time, case) {
        panic!("{failure}");
    }
}

/// Returns whether some interleaving of a case fails with this bug in the code.
pub fn finds<F: Future<Output = ()> + 'static>(
    bug: &'static str,
    time: Time,
    case: impl Fn() -> F + Send + Sync + 'static,
) -> bool {
    bugs::plant(Some(bug));
    // The search ends with the first failure, so it may take longer than that of a correct case.
    let failure = first_failure(seeds() * 10, time, case);
    bugs::plant(None);
    #[expect(clippy::print_stdout, reason = "shown if the test fails, or with --nocapture")]
    if let Some(failure) = &failure {
        println!("{bug}: {failure}");
    }
    failure.is_some()
}

fn seeds() -> u64 {
    env::var("DLOCK_INTERLEAVINGS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

fn first_failure<F: Future<Output = ()> + 'static>(
    seeds: u64,
    time: Time,
    case: impl Fn() -> F + Send + Sync + 'static,
) -> Option<String> {
    let case = Arc::new(case);
    (0..seeds).find_map(|seed| {
        let random = || run(time, seed, RandomScheduler::new_from_seed(seed, 1), Arc::clone(&case));
        let by_priority =
            || run(time, seed, PctScheduler::new_from_seed(seed, PRIORITY_CHANGES, 1), Arc::clone(&case));
        let failed = |scheduler, result: thread::Result<()>| {
            let panic = result.err()?;
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            Some(format!("seed {seed} of the {scheduler} scheduler, time passes {time:?}: {message}"))
        };
        failed("random", random()).or_else(|| failed("priority", by_priority()))
    })
}

fn run<F: Future<Output = ()> + 'static>(
    time: Time,
    seed: u64,
    scheduler: impl Scheduler + 'static,
    case: Arc<impl Fn() -> F + Send + Sync + 'static>,
) -> thread::Result<()> {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(MAX_STEPS);
    config.failure_persistence = FailurePersistence::None;
    config.stack_size = 0x10_0000;
    fastrand::seed(seed);
    let dice = fastrand::Rng::with_seed(seed);
    let runner = Runner::new(Clocked { scheduler, time, dice }, config);
    catch_unwind(AssertUnwindSafe(|| {
        runner.run(move || {
            time::reset_clock();
            pretend_clock();
            let clock = shuttle::thread::spawn(time::run_clock);
            block_on(case());
            time::end_clock();
            clock.join().expect("the clock does not panic");
        });
    }))
}

/// A scheduler that decides when the virtual clock advances, and leaves all else to another one.
struct Clocked<S> {
    scheduler: S,
    time: Time,
    dice: fastrand::Rng,
}

/// One of this many steps is one of the clock, if time passes at any step.
const STEPS_PER_TIMER: u32 = 12;

impl<S: Scheduler> Scheduler for Clocked<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.scheduler.new_execution()
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let clock = time::clock_thread();
        let others: Vec<_> = runnable.iter().copied().filter(|task| Some(task.id()) != clock).collect();
        let is_clock_runnable = others.len() < runnable.len();
        time::set_alone(others.is_empty());
        let is_turn_of_clock =
            others.is_empty() || self.time == Time::Anytime && self.dice.u32(0..STEPS_PER_TIMER) == 0;
        if is_clock_runnable && is_turn_of_clock {
            return clock;
        }
        self.scheduler.next_task(&others, current, is_yielding)
    }

    fn next_u64(&mut self) -> u64 {
        self.scheduler.next_u64()
    }
}
