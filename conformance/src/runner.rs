//! From the table of cases to trials, each of which ends by itself.

use std::{
    any::Any,
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use libtest_mimic::{Failed, Trial};
use tokio::time::timeout;

use crate::{
    Arena, Clock, Fixture, Row,
    case::{Able, Case},
    cases,
    steps::Steps,
};

/// The longest that a case may take on the paused clock. No case needs nearly as much.
const PAUSED_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// How much longer than its limit a case on the wall's clock may take to fail by itself, before its thread is taken to be
/// stuck.
const GRACE: Duration = Duration::from_secs(5);

/// The suite ends at once when this many cases have left their threads behind. Such a thread may keep a core busy, so
/// correct cases would become slow, and each would take its whole limit.
const MOST_STUCK: usize = 3;

/// The cases of this process that have left a thread behind.
static STUCK: AtomicUsize = AtomicUsize::new(0);

/// Every case in each of these rows; ignored, with the reason, if the store cannot do it.
///
/// # Panics
/// If no client can connect.
pub(crate) fn trials(prefix: &str, fixture: &Arc<dyn Fixture>, rows: &[Row]) -> Vec<Trial> {
    let able = able(fixture.as_ref());
    cases_in(rows.iter().copied(), &able)
        .map(|(row, case)| trial(prefix, Arc::clone(fixture), &able, row, case))
        .collect()
}

/// The cases that [`run`](crate::run) would run against a store, each with its row, in order. [`judge`] runs one of them.
///
/// # Panics
/// If no client can connect; inside of another runtime.
pub fn table(fixture: &dyn Fixture) -> Vec<(Row, Case)> {
    let able = able(fixture);
    cases_in(Row::all(), &able).filter(|(_, case)| case.missing(&able).is_none()).collect()
}

fn cases_in(rows: impl Iterator<Item = Row>, able: &Able) -> impl Iterator<Item = (Row, Case)> {
    let of_row = move |row| {
        cases::all().into_iter().filter(move |case| case.is_in(row, able)).map(move |case| (row, case))
    };
    rows.filter(|row| able.has_row(*row)).flat_map(of_row)
}

fn able(fixture: &dyn Fixture) -> Able {
    block_on(Clock::Real, async {
        let connecting = timeout(fixture.limit(), Able::of(fixture));
        connecting.await.unwrap_or_else(|_| panic!("connecting to {} does not end", fixture.name()))
    })
}

fn trial(prefix: &str, fixture: Arc<dyn Fixture>, able: &Able, row: Row, case: Case) -> Trial {
    let name = format!("{prefix}{row}::{case}");
    match case.missing(able) {
        Some(reason) => Trial::test(format!("{name}: ignored, {reason}"), || Ok(())).with_ignored_flag(true),
        None => Trial::test(name, move || {
            let stuck = STUCK.load(Relaxed);
            if stuck >= MOST_STUCK {
                return Err(Failed::from(format!("not run, because {stuck} cases before it did not end")));
            }
            judge(fixture, row, case).map_err(Failed::from)
        }),
    }
}

/// Runs one case of the table, as one of the trials of [`run`](crate::run) does: on a thread of its own, which has the case's name and
/// is left behind if the case blocks it for ever.
///
/// # Errors
/// What the case failed with. A case that takes longer than the [limit](Fixture::limit) of its fixture fails, too: the
/// message then says which step it waits in.
pub fn judge(fixture: Arc<dyn Fixture>, row: Row, case: Case) -> Result<(), String> {
    /// Each running case holds a part of this. A case that must run alone waits until it gets all of it.
    static RUNNING: RwLock<()> = RwLock::new(());
    let running = || RUNNING.read().unwrap_or_else(PoisonError::into_inner);
    let _alone = case.runs_alone().then(|| RUNNING.write().unwrap_or_else(PoisonError::into_inner));
    let _beside = (!case.runs_alone()).then(running);
    let (steps, limit) = (Steps::default(), fixture.limit());
    let patience = limit + if fixture.clock() == Clock::Paused { Duration::ZERO } else { GRACE };
    let (report, reported) = mpsc::channel();
    let theirs = steps.clone();
    let work = move || {
        let ran = catch_unwind(AssertUnwindSafe(|| run_case(fixture, row, case, &theirs)));
        report.send(ran.map_err(|panic| words(&*panic))).ok();
    };
    let thread = thread::Builder::new().name(format!("{row}::{case}")).spawn(work);
    thread.map_err(|error| format!("no thread for the case: {error}"))?;
    wait_awake(&reported, patience).unwrap_or_else(|| {
        STUCK.fetch_add(1, Relaxed);
        Err(format!("did not end within {limit:?}, and blocks its thread or spins on it: {steps}"))
    })
}

/// Waits for a report, for `patience` at most. A virtual machine may stand still for seconds: of such a pause, no more than one
/// step counts.
fn wait_awake<T>(reports: &mpsc::Receiver<T>, patience: Duration) -> Option<T> {
    const STEP: Duration = Duration::from_millis(100);
    let steps = patience.div_duration_f64(STEP).ceil() as u64;
    (0..steps).find_map(|_| reports.recv_timeout(STEP).ok())
}

fn run_case(fixture: Arc<dyn Fixture>, row: Row, case: Case, steps: &Steps) {
    let clock = fixture.clock();
    let limit = if clock == Clock::Paused { PAUSED_LIMIT } else { fixture.limit() };
    block_on(clock, async {
        let arena = Arc::new(Arena::new(fixture, row, case.kind(), steps.clone()));
        let whole = async {
            case.run(Arc::clone(&arena)).await;
            let arena = Arc::into_inner(arena).expect("a case keeps nothing of its arena");
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

/// What a panic said.
pub(crate) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panicked without a word".into())
}

/// An error and its sources, in one line.
pub(crate) fn told(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", told(source)),
        None => error.to_string(),
    }
}
