//! Tests beside the suite that need a store: they are ignored, with the reason, where there is none.

use std::{cell::RefCell, process::ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::Builder;

use crate::Unreachable;

thread_local! {
    /// Why the test that runs on this thread cannot go on.
    static MISSING: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What a test needs. `None` if it is missing: then the test returns, and is reported as ignored with the reason. Call this
/// on the test's own thread, not in a task that the test spawns.
///
/// # Panics
/// If it is missing, and `DLOCK_REQUIRE` names it: then the test fails.
pub fn or_ignore<T>(found: Result<T, Unreachable>) -> Option<T> {
    let unreachable = match found {
        Ok(found) => return Some(found),
        Err(unreachable) => unreachable,
    };
    assert!(!unreachable.is_required(), "{} is required, but {}", unreachable.name, unreachable.reason);
    ignore(&unreachable.reason);
    None
}

/// The running test cannot go on for this reason. It returns next, and is reported as ignored. Call this on the test's own
/// thread.
pub fn ignore(reason: &str) {
    MISSING.set(Some(reason.to_owned()));
}

/// Runs these tests, with the command line of a test binary: filters, `--list`, `--test-threads`. [`tests!`](crate::tests)
/// makes such lists.
pub fn run_tests(tests: impl IntoIterator<Item = Vec<Trial>>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), tests.into_iter().flatten().collect()).exit_code()
}

/// Makes tests of the functions that it names, for [`run_tests`]. Each is called as its module and function are. `async`
/// functions run on a runtime of one thread; those that are marked `on 2 threads` on one of so many, and those marked `on
/// no runtime` are not `async`. A function that is in no list is reported by the compiler as never used.
///
/// ```
/// async fn a_free_lock_is_granted() {}
/// fn a_name_is_text() {}
///
/// fn main() -> std::process::ExitCode {
///     dlock_conformance::run_tests([dlock_conformance::tests! {
///         a_free_lock_is_granted,
///         a_name_is_text on no runtime,
///     }])
/// }
/// ```
#[macro_export]
macro_rules! tests {
    ($($test:ident $(on $count:tt $of:ident)?),+ $(,)?) => {
        vec![$($crate::hidden::test(
            concat!(module_path!(), "::", stringify!($test)),
            || $crate::tests!(@run $test $(on $count $of)?),
        )),+]
    };
    (@run $test:ident) => { $crate::hidden::block_on(None, $test()) };
    (@run $test:ident on no runtime) => { $test() };
    (@run $test:ident on $count:literal threads) => { $crate::hidden::block_on(Some($count), $test()) };
}

/// What [`tests!`](crate::tests) calls in the crate that uses it.
#[doc(hidden)]
pub mod hidden {
    use super::*;

    pub fn test(path: &str, body: fn()) -> Trial {
        // Without the name of the test binary, as Rust's own tests are called.
        let name = path.split_once("::").map_or(path, |(_, name)| name).to_owned();
        Trial::ignorable_test(name, move || {
            // The thread may have run other tests before.
            MISSING.take();
            body();
            Ok::<_, Failed>(MISSING.take().map_or(Completion::Completed, Completion::ignored_with))
        })
    }

    pub fn block_on(threads: Option<usize>, test: impl Future<Output = ()>) {
        let mut builder = threads.map_or_else(Builder::new_current_thread, |threads| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(threads);
            builder
        });
        builder.enable_all().build().expect("a runtime can be built").block_on(test);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn passes() {}

    async fn lacks_a_store() {
        let reason = "there is none".to_owned();
        or_ignore::<()>(Err(Unreachable { name: "no store of dlock's".to_owned(), reason }));
    }

    async fn lacks_a_store_and_fails() {
        ignore("there is none");
        panic!("and it fails");
    }

    #[test]
    fn a_test_without_its_store_is_ignored_and_those_beside_it_count_as_they_end() {
        // On one thread: what one test lacks must not stick to the next one. Silent, since it is no run of tests.
        let silent = Some("/dev/null".to_owned());
        let arguments = Arguments { test_threads: Some(1), logfile: silent, ..Arguments::default() };
        let ended =
            libtest_mimic::run(&arguments, crate::tests! { lacks_a_store, passes, lacks_a_store_and_fails });
        assert_eq!((ended.num_ignored, ended.num_passed, ended.num_failed), (1, 1, 1), "{ended:?}");
    }
}
