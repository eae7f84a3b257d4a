//! Servers and peers for the tests of the command on stores that need them.

use dlock_conformance::{Unreachable, stores::Running};

/// `None` for what is not there, unless it is required.
pub(crate) fn or_skip<T>(found: Result<T, Unreachable>) -> Option<T> {
    found
        .inspect_err(|unreachable| {
            assert!(!unreachable.is_required(), "{}", unreachable.reason);
            skipped(&unreachable.reason);
        })
        .ok()
}

#[expect(clippy::print_stderr, reason = "a skip must be seen")]
pub(crate) fn skipped(reason: &str) {
    eprintln!("ignored: {reason}");
}

/// A server of the test's own. Never one whose address somebody gave: these tests would list and unlock the locks of others there.
pub(crate) fn own(started: Result<Running, Unreachable>) -> Option<Running> {
    or_skip(started).filter(|running| !running.servers().is_empty())
}
