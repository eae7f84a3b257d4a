//! The suite as a test binary: on one store, or on several flavours of one.

use std::{
    env, fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::Arc,
};

use futures_util::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Conclusion, Failed, Trial};

use crate::{
    Clock, Fixture, Row, Unreachable, cases,
    runner::{block_on, trials, words},
};

/// Runs the suite against a store, with the command line of a test binary: filters, `--list`, `--test-threads`.
///
/// `DLOCK_REQUIRE` names the stores that must be there, separated by commas, or is `all`. The cases of such a store fail if
/// it is missing; otherwise they are ignored.
pub fn run<F: Fixture>(fixture: Result<F, Unreachable>) -> ExitCode {
    let fixture = fixture.map(|fixture| Arc::new(fixture) as Arc<dyn Fixture>);
    run_on("", &Row::all().collect::<Vec<_>>(), fixture, &Arguments::from_args()).exit_code()
}

/// Runs several suites in one test binary, one after the other, with the same command line as [`run`]. A store is started
/// when its suite begins, and only if a trial of it is chosen. It is dropped before the next suite begins.
///
/// `DLOCK_SUITES` names the suites to run, separated by commas. Without it all run. Unlike a filter it has no effect on
/// other test binaries. `cluster:all` is the suite `cluster` in all rows, also in those that it otherwise [leaves
/// out](Suite::in_rows).
pub fn run_suites(suites: impl IntoIterator<Item = Suite>) -> ExitCode {
    let arguments = Arguments::from_args();
    let listed = env::var("DLOCK_SUITES").ok();
    let is_listed = |name: &str| listed.iter().flat_map(|list| list.split(',')).any(|one| one.trim() == name);
    let suites = suites.into_iter().filter_map(|suite| {
        let suite = if is_listed(&format!("{}:all", suite.name)) {
            suite.in_rows(Row::all())
        } else {
            (listed.is_none() || is_listed(suite.name)).then_some(suite)?
        };
        suite.is_chosen(&arguments).then_some(suite)
    });
    let mut suites = suites.peekable();
    if suites.peek().is_none() {
        // Prints that nothing is run, as any test binary does.
        return libtest_mimic::run(&arguments, Vec::new()).exit_code();
    }
    let failed = suites.filter_map(|suite| suite.run(&arguments).has_failed().then_some(())).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

type Found = Result<Arc<dyn Fixture>, Unreachable>;

/// The suite on one flavour of a store: what the names of its trials begin with, in which rows they run, and how to start
/// the store.
pub struct Suite {
    name: &'static str,
    rows: Vec<Row>,
    start: LocalBoxFuture<'static, Found>,
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Suite").field(&self.name).finish()
    }
}

impl Suite {
    /// A suite whose trials are called `NAME::plain::mutex::…`. Nothing is started before `start` is polled.
    pub fn new<F: Fixture>(
        name: &'static str,
        start: impl Future<Output = Result<F, Unreachable>> + 'static,
    ) -> Self {
        let start = Box::pin(async { start.await.map(|fixture| Arc::new(fixture) as _) });
        Self { name, rows: Row::all().collect(), start }
    }

    /// The suite in these rows only. For a flavour whose claims are those of another flavour that runs in all rows, and
    /// whose connections differ: no wrapper comes between a driver and its connection.
    #[must_use]
    pub fn in_rows(self, rows: impl IntoIterator<Item = Row>) -> Self {
        Self { rows: rows.into_iter().collect(), ..self }
    }

    /// Whether the command line chooses any trial that the suite may have.
    fn is_chosen(&self, arguments: &Arguments) -> bool {
        let names = self.rows.iter().flat_map(|row| {
            cases::all().into_iter().map(move |case| format!("{}::{row}::{case}", self.name))
        });
        // Which trials are ignored is known only once the store runs.
        let trials = names.map(|name| Trial::test(name, || Ok(())).with_ignored_flag(arguments.ignored));
        trials.into_iter().any(|trial| !arguments.is_filtered_out(&trial))
    }

    fn run(self, arguments: &Arguments) -> Conclusion {
        let fixture = block_on(Clock::Real, self.start);
        run_on(self.name, &self.rows, fixture, arguments)
    }
}

/// Runs one suite. Without a suite name, a trial's name is its row and case.
fn run_on(name: &str, rows: &[Row], fixture: Found, arguments: &Arguments) -> Conclusion {
    let mut arguments = arguments.clone();
    let prefix = if name.is_empty() { String::new() } else { format!("{name}::") };
    let found = fixture.map(|fixture| {
        arguments.test_threads.get_or_insert(fixture.at_once());
        // If the client cannot connect, this panics. That must fail this suite only, and not those that follow.
        catch_unwind(AssertUnwindSafe(|| trials(&prefix, &fixture, rows)))
            .map_err(|panic| (fixture.name().to_owned(), words(&*panic)))
    });
    let trials = match found {
        Ok(Ok(trials)) => return libtest_mimic::run(&arguments, trials),
        Ok(Err((store, told))) => vec![Trial::test(format!("{prefix}{store}"), || Err(Failed::from(told)))],
        Err(unreachable) => {
            let cases = if name.is_empty() { unreachable.name.clone() } else { name.to_owned() };
            vec![unreachable.trial(&cases)]
        }
    };
    // The filter may not match the one trial that replaces them all, so drop it.
    (arguments.filter, arguments.exact, arguments.ignored) = (None, false, false);
    arguments.skip.clear();
    libtest_mimic::run(&arguments, trials)
}
