//! From the table of cases to trials.

use std::{process::ExitCode, sync::Arc, time::Duration};

use libtest_mimic::{Arguments, Trial};

use crate::{
    Arena, Clock, Fixture, Unreachable,
    cases::{self, Able, Case},
    wrap::Habit,
};

/// The longest that a case may take, in real or in paused time.
const LIMIT: Duration = Duration::from_secs(60);
const PAUSED_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Cases of a store on the wall's clock mostly wait, so many run at once.
const THREADS: usize = 16;

/// Runs the suite against a store, with the command line of a test binary: filters, `--list`, `--test-threads`.
///
/// `DLOCK_REQUIRE` names the stores that must be there, with commas, or `all`: their cases are then never ignored.
pub fn run<F: Fixture>(fixture: Result<F, Unreachable>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let trials = match fixture {
        Ok(fixture) => {
            if fixture.clock() == Clock::Real {
                arguments.test_threads.get_or_insert(THREADS);
            }
            trials(&(Arc::new(fixture) as Arc<dyn Fixture>))
        }
        Err(unreachable) => {
            let cases = unreachable.name.clone();
            vec![unreachable.trial(&cases)]
        }
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Every case, on the store as it is and through each wrapper; ignored, with the reason, if the store cannot do it.
fn trials(fixture: &Arc<dyn Fixture>) -> Vec<Trial> {
    let able = block_on(Clock::Real, async {
        let store = fixture.connect().await.expect("the store of the fixture must be reachable");
        Able { info: store.backend.info().clone(), inspects: store.inspect.is_some() }
    });
    let habits = [None].into_iter().chain(Habit::ALL.into_iter().map(Some));
    let with_case = |habit| cases::all().into_iter().map(move |case| (habit, case));
    habits.flat_map(with_case).map(|(habit, case)| trial(Arc::clone(fixture), &able, habit, case)).collect()
}

fn trial(fixture: Arc<dyn Fixture>, able: &Able, habit: Option<Habit>, case: Case) -> Trial {
    let run = habit.map_or("plain".to_owned(), |habit| format!("{habit:?}").to_lowercase());
    let name = format!("{run}::{case}");
    match case.missing(able) {
        Some(reason) => Trial::test(format!("{name}: ignored, {reason}"), || Ok(())).with_ignored_flag(true),
        None => Trial::test(name, move || {
            judge(fixture, habit, case);
            Ok(())
        }),
    }
}

/// Runs one case of the table, as one of the trials of [`run`] does.
///
/// # Panics
/// If the case fails; inside of another runtime.
pub fn judge(fixture: Arc<dyn Fixture>, habit: Option<Habit>, case: Case) {
    let clock = fixture.clock();
    let limit = if clock == Clock::Paused { PAUSED_LIMIT } else { LIMIT };
    block_on(clock, async {
        let arena = Arc::new(Arena::new(fixture, habit, case.kind()));
        let whole = async {
            case.run(Arc::clone(&arena)).await;
            let arena = Arc::into_inner(arena).expect("a case keeps nothing of its arena");
            arena.check_nothing_is_left().await;
        };
        tokio::time::timeout(limit, whole).await.expect("took too long: somebody waits for ever");
    });
}

fn block_on<T>(clock: Clock, future: impl Future<Output = T>) -> T {
    let mut builder = match clock {
        Clock::Real => tokio::runtime::Builder::new_multi_thread(),
        Clock::Paused => tokio::runtime::Builder::new_current_thread(),
    };
    let builder = builder.enable_all().worker_threads(2).start_paused(clock == Clock::Paused);
    builder.build().expect("a runtime can be built").block_on(future)
}
