//! Ends a test binary whose tests hang, so that a bug that makes somebody wait for ever, or spin, is a failure.

use std::{process, sync::Once, thread, time::Duration};

/// All tests of a binary end within a second or two: their clock is paused. This is what a busy machine may need.
const LIMIT: Duration = Duration::from_secs(20);

/// Watches from the first call on. What most tests of the binary begin with calls it.
#[expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "on a thread of its own, because that of a test may spin"
)]
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        thread::spawn(|| {
            thread::sleep(LIMIT);
            eprintln!("some test of this binary has not ended after {LIMIT:?}: it waits for ever, or spins");
            process::exit(101);
        });
    });
}
