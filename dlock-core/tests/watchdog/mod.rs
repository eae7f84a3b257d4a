//! Ends a test binary whose tests hang. So a test that waits for ever, or spins, is a failure.

use std::{process, sync::Once, thread, time::Duration};

/// How long all tests of a binary may take. They end within a second or two, because their clock is paused. A busy machine may
/// need longer.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts the watch at its first call. Later calls do nothing. Most tests of a binary begin with a helper that calls this.
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
