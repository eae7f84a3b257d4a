//! Servers for the tests of the command on network stores.

use dlock_conformance::{Unreachable, or_ignore};
use dlock_testbed::servers::Running;

/// Returns a server that belongs to the test. Never a server from `DLOCK_TEST_…_URL`, because the
/// tests list and unlock all locks of their server.
pub(crate) fn own(started: Result<Running, Unreachable>) -> Option<Running> {
    let running = or_ignore(started)?;
    running.own_server()?;
    Some(running)
}
