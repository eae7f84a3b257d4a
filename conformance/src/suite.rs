//! The suite as a test binary, for one store or for several flavours of a store.

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
    runner::{block_on, panic_message, trials},
};

/// Runs the suite against a store. Accepts the command line of a test binary: filters, `--list`,
/// `--test-threads`.
///
/// `DLOCK_REQUIRE` lists the required stores, separated by commas, or is `all`. If a required store
/// is missing, its cases fail. If any other store is missing, its cases are ignored.
pub fn run<F: Fixture>(fixture: Result<F, Unreachable>) -> ExitCode {
    let fixture = fixture.map(|fixture| Arc::new(fixture) as Arc<dyn Fixture>);
    run_on("", &Row::all().collect::<Vec<_>>(), fixture, &Arguments::from_args()).exit_code()
}

/// Runs several suites in one test binary, one after the other. Accepts the same command line as
/// [`run`]. A store is started when its suite begins, and only if at least one of its trials is
/// selected. It is dropped before the next suite begins.
///
/// `DLOCK_SUITES` lists the suites to run, separated by commas. Without it, all suites run. Unlike
/// a filter, it has no effect on other test binaries. `cluster:all` selects the suite `cluster` in
/// all rows, including those that it otherwise [omits](Suite::in_rows).
pub fn run_suites(suites: impl IntoIterator<Item = Suite>) -> ExitCode {
    let arguments = Arguments::from_args();
    let listed = env::var("DLOCK_SUITES").ok();
    let is_listed =
        |name: &str| listed.iter().flat_map(|list| list.split(',')).any(|suite| suite.trim() == name);
    let suites = suites.into_iter().filter_map(|suite| {
        let suite = if is_listed(&format!("{}:all", suite.name)) {
            suite.in_rows(Row::all())
        } else {
            (listed.is_none() || is_listed(suite.name)).then_some(suite)?
        };
        suite.is_selected(&arguments).then_some(suite)
    });
    let mut suites = suites.peekable();
    if suites.peek().is_none() {
        // Prints `running 0 tests`, as any test binary does.
        return libtest_mimic::run(&arguments, Vec::new()).exit_code();
    }
    let failed = suites.filter_map(|suite| suite.run(&arguments).has_failed().then_some(())).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

type StartResult = Result<Arc<dyn Fixture>, Unreachable>;

/// The suite for one flavour of a store. It contains the first part of its trials' names, the rows
/// in which they run, and a future that starts the store.
pub struct Suite {
    name: &'static str,
    rows: Vec<Row>,
    start: LocalBoxFuture<'static, StartResult>,
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Suite").field(&self.name).finish()
    }
}

impl Suite {
    /// Creates a suite whose trials are named `NAME::plain::mutex::…`. The store is not started
    /// before `start` is polled.
    pub fn new<F: Fixture>(
        name: &'static str,
        start: impl Future<Output = Result<F, Unreachable>> + 'static,
    ) -> Self {
        let start = Box::pin(async { start.await.map(|fixture| Arc::new(fixture) as _) });
        Self { name, rows: Row::all().collect(), start }
    }

    /// Limits the suite to these rows. For a flavour that differs from another flavour only in its
    /// connections, when that other flavour runs in all rows. A wrapper does not change the part of
    /// a driver below the claims.
    #[must_use]
    pub fn in_rows(self, rows: impl IntoIterator<Item = Row>) -> Self {
        Self { rows: rows.into_iter().collect(), ..self }
    }

    /// Returns whether the command line selects any trial that the suite may have.
    fn is_selected(&self, arguments: &Arguments) -> bool {
        let names = self.rows.iter().flat_map(|row| {
            cases::all().into_iter().map(move |case| format!("{}::{row}::{case}", self.name))
        });
        // The ignored trials are known only when the store runs.
        let trials = names.map(|name| Trial::test(name, || Ok(())).with_ignored_flag(arguments.ignored));
        trials.into_iter().any(|trial| !arguments.is_filtered_out(&trial))
    }

    fn run(self, arguments: &Arguments) -> Conclusion {
        let fixture = block_on(Clock::Real, self.start);
        run_on(self.name, &self.rows, fixture, arguments)
    }
}

/// Runs one suite. Without a name of the suite, the name of a trial is its row and case.
fn run_on(name: &str, rows: &[Row], fixture: StartResult, arguments: &Arguments) -> Conclusion {
    let mut arguments = arguments.clone();
    let prefix = if name.is_empty() { String::new() } else { format!("{name}::") };
    let trials = fixture.map(|fixture| {
        arguments.test_threads.get_or_insert(fixture.at_once());
        // Panics if no client can connect. The panic must fail this suite only, and not
        // the suites that follow.
        catch_unwind(AssertUnwindSafe(|| trials(&prefix, &fixture, rows)))
            .map_err(|panic| (fixture.name().to_owned(), panic_message(&*panic)))
    });
    let trials = match trials {
        Ok(Ok(trials)) => return libtest_mimic::run(&arguments, trials),
        Ok(Err((store, message))) => {
            vec![Trial::test(format!("{prefix}{store}"), || Err(Failed::from(message)))]
        }
        Err(unreachable) => {
            let cases = if name.is_empty() { unreachable.name.clone() } else { name.to_owned() };
            vec![unreachable.trial(&cases)]
        }
    };
    // The filter may not match the one trial that replaces all others, so the filter is dropped.
    (arguments.filter, arguments.exact, arguments.ignored) = (None, false, false);
    arguments.skip.clear();
    libtest_mimic::run(&arguments, trials)
}
