//! Tests outside the suite that need a store. Without the store they are ignored, with the reason.

use std::{cell::RefCell, process::ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::Builder;

use crate::Unreachable;

thread_local! {
    /// Reason why the test on this thread cannot continue.
    static MISSING: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Unwraps a prerequisite of a test. Returns `None` if it is missing. The test must then return,
/// and is reported as ignored with the reason. Call this function on the test's own thread, not in
/// a task that the test spawns.
///
/// # Panics
/// Fails the test if the prerequisite is missing and `DLOCK_REQUIRE` lists it.
pub fn or_ignore<T>(found: Result<T, Unreachable>) -> Option<T> {
    let unreachable = match found {
        Ok(found) => return Some(found),
        Err(unreachable) => unreachable,
    };
    assert!(!unreachable.is_required(), "{} is required, but {}", unreachable.name, unreachable.reason);
    ignore(&unreachable.reason);
    None
}

/// Reports the running test as ignored, for this reason. The test must then return. Call this
/// function on the test's own thread.
pub fn ignore(reason: &str) {
    MISSING.set(Some(reason.to_owned()));
}

/// Runs tests with the command line of a test binary: filters, `--list`, `--test-threads`.
/// [`tests!`](crate::tests) creates the lists of tests.
pub fn run_tests(tests: impl IntoIterator<Item = Vec<Trial>>) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), tests.into_iter().flatten().collect()).exit_code()
}

/// Creates a list of tests for [`run_tests`] from the names of functions. The name of a test is the
/// path of its module and function. An `async` function runs on a runtime with one thread. With
/// `on 2 threads` it runs on a runtime with that number of threads, and with `on no runtime` the
/// function is not `async`. The compiler reports a function that is in no list as never used.
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

/// Functions that [`tests!`](crate::tests) calls in the crate that uses it.
#[doc(hidden)]
pub mod hidden {
    use super::*;

    pub fn test(path: &str, body: impl FnOnce() + Send + 'static) -> Trial {
        // Without the name of the test binary, like the names of Rust's own tests.
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
        // One thread, because the missing prerequisite of one test must not affect the next test.
        // No output, because this is not a run of the binary's own tests.
        let silent = Some("/dev/null".to_owned());
        let arguments = Arguments { test_threads: Some(1), logfile: silent, ..Arguments::default() };
        let ended =
            libtest_mimic::run(&arguments, crate::tests! { lacks_a_store, passes, lacks_a_store_and_fails });
        assert_eq!((ended.num_ignored, ended.num_passed, ended.num_failed), (1, 1, 1), "{ended:?}");
    }
}
