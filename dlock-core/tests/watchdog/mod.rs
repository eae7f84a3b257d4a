//! A watchdog that ends a test binary whose tests hang, so that a test that blocks or spins for
//! ever fails.

use std::{process, sync::Once, thread, time::Duration};

/// Maximum duration of all tests of a binary, from the first call of [`watch`]. They take one or
/// two seconds, because their clock is paused. A busy machine may need more.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts the watchdog at the first call. Later calls do nothing. Most tests begin with a helper
/// that calls this function.
#[expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "the watchdog has its own thread, because the thread of a test may spin"
)]
pub(crate) fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        thread::spawn(|| {
            thread::sleep(LIMIT);
            eprintln!("a test of this binary has not ended after {LIMIT:?}; it waits for ever, or spins");
            process::exit(101);
        });
    });
}
