//! Turns the table of cases into trials. Each trial ends by itself, even if its case hangs.

use std::{
    any::Any,
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use libtest_mimic::{Failed, Trial};
use parking_lot::RwLock;
use tokio::time::timeout;

use crate::{
    Arena, Clock, Fixture, Row,
    case::{Capabilities, Case},
    cases,
    steps::Steps,
};

/// Limit of virtual time for a case on the paused clock. No case needs nearly as much.
const PAUSED_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Extra time in which a case on the real clock may report its own timeout, before the runner
/// concludes that the thread of the case is stuck.
const GRACE: Duration = Duration::from_secs(5);

/// Number of stuck cases after which no further case is started. The thread of a stuck case may
/// keep a core busy, which would slow down correct cases until each of them reaches its limit.
const MAX_STUCK: usize = 3;

/// Number of cases of this process whose threads are stuck.
static STUCK: AtomicUsize = AtomicUsize::new(0);

/// Returns a trial for every case in each of the rows. Cases that the store cannot run are ignored,
/// with the reason in their names.
///
/// # Panics
/// If no client can connect.
pub(crate) fn trials(prefix: &str, fixture: &Arc<dyn Fixture>, rows: &[Row]) -> Vec<Trial> {
    let capabilities = capabilities(fixture.as_ref());
    cases_in(rows.iter().copied(), &capabilities)
        .map(|(row, case)| trial(prefix, Arc::clone(fixture), &capabilities, row, case))
        .collect()
}

/// Returns the cases that [`run`](crate::run) would run against a store, in order, each with its
/// row. [`judge`] runs one of them.
///
/// # Panics
/// If no client can connect, or if called inside another runtime.
pub fn table(fixture: &dyn Fixture) -> Vec<(Row, Case)> {
    let capabilities = capabilities(fixture);
    cases_in(Row::all(), &capabilities).filter(|(_, case)| case.missing(&capabilities).is_none()).collect()
}

fn cases_in(
    rows: impl Iterator<Item = Row>,
    capabilities: &Capabilities,
) -> impl Iterator<Item = (Row, Case)> {
    let of_row = move |row| {
        cases::all()
            .into_iter()
            .filter(move |case| case.is_in(row, capabilities))
            .map(move |case| (row, case))
    };
    rows.filter(|row| capabilities.has_row(*row)).flat_map(of_row)
}

fn capabilities(fixture: &dyn Fixture) -> Capabilities {
    block_on(Clock::Real, async {
        let connecting = timeout(fixture.limit(), Capabilities::of(fixture));
        connecting.await.unwrap_or_else(|_| panic!("connecting to {} does not end", fixture.name()))
    })
}

fn trial(
    prefix: &str,
    fixture: Arc<dyn Fixture>,
    capabilities: &Capabilities,
    row: Row,
    case: Case,
) -> Trial {
    let name = format!("{prefix}{row}::{case}");
    match case.missing(capabilities) {
        Some(reason) => Trial::test(format!("{name}: ignored, {reason}"), || Ok(())).with_ignored_flag(true),
        None => Trial::test(name, move || {
            let stuck = STUCK.load(Relaxed);
            if stuck >= MAX_STUCK {
                return Err(Failed::from(format!("not run, because {stuck} earlier cases did not end")));
            }
            judge(fixture, row, case).map_err(Failed::from)
        }),
    }
}

/// Runs one case of the table as [`run`](crate::run) does. The case has a thread of its own with
/// the case's name. The thread is left behind if the case blocks it forever.
///
/// # Errors
/// The message with which the case failed. A case that takes longer than the
/// [limit](Fixture::limit) of its fixture fails too, and its message names the step in which it
/// hangs.
pub fn judge(fixture: Arc<dyn Fixture>, row: Row, case: Case) -> Result<(), String> {
    /// Each running case holds a read guard. A case that must run alone holds the write guard.
    static RUNNING: RwLock<()> = RwLock::new(());
    let read_guard = || RUNNING.read();
    let _alone = case.runs_alone().then(|| RUNNING.write());
    let _beside = (!case.runs_alone()).then(read_guard);
    let (steps, limit) = (Steps::default(), fixture.limit() + case.additional_time());
    let timeout_with_grace = limit + if fixture.clock() == Clock::Paused { Duration::ZERO } else { GRACE };
    let (report, reported) = mpsc::channel();
    let steps_of_case = steps.clone();
    let work = move || {
        let ran = catch_unwind(AssertUnwindSafe(|| run_case(fixture, row, case, &steps_of_case)));
        report.send(ran.map_err(|panic| panic_message(&*panic))).ok();
    };
    let thread = thread::Builder::new().name(format!("{row}::{case}")).spawn(work);
    thread.map_err(|error| format!("cannot start a thread for the case: {error}"))?;
    wait_awake(&reported, timeout_with_grace).unwrap_or_else(|| {
        STUCK.fetch_add(1, Relaxed);
        Err(format!("did not end within {limit:?}, and blocks its thread or spins on it: {steps}"))
    })
}

/// Waits at most `limit` for a report. A virtual machine may pause for seconds, so a pause counts
/// as one step at most.
fn wait_awake<T>(reports: &mpsc::Receiver<T>, limit: Duration) -> Option<T> {
    const STEP: Duration = Duration::from_millis(100);
    let steps = limit.div_duration_f64(STEP).ceil() as u64;
    (0..steps).find_map(|_| reports.recv_timeout(STEP).ok())
}

fn run_case(fixture: Arc<dyn Fixture>, row: Row, case: Case, steps: &Steps) {
    let clock = fixture.clock();
    let limit = if clock == Clock::Paused { PAUSED_LIMIT } else { fixture.limit() + case.additional_time() };
    block_on(clock, async {
        let arena = Arc::new(Arena::new(fixture, row, case.kind(), steps.clone()));
        let whole = async {
            case.run(Arc::clone(&arena)).await;
            let arena = Arc::into_inner(arena).expect("a case keeps no reference to its arena");
            arena.check_nothing_is_left().await;
        };
        let whole = std::pin::pin!(whole);
        if timeout(limit, whole).await.is_err() {
            panic!("did not end within {limit:?}: {steps}");
        }
    });
}

pub(crate) fn block_on<T>(clock: Clock, future: impl Future<Output = T>) -> T {
    let mut builder = match clock {
        Clock::Real => tokio::runtime::Builder::new_multi_thread(),
        Clock::Paused => tokio::runtime::Builder::new_current_thread(),
    };
    let builder = builder.enable_all().worker_threads(2).start_paused(clock == Clock::Paused);
    builder.build().expect("a runtime can be built").block_on(future)
}

/// Returns the message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panicked without a message".into())
}

/// Formats an error and its sources in one line.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", error_chain(source)),
        None => error.to_string(),
    }
}
