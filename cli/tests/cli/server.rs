//! Servers for the tests of the command on stores that need them.

use dlock_conformance::{Unreachable, or_ignore, stores::Running};

/// A server of the test's own. Never one whose address somebody gave: these tests would list and unlock the locks of others there.
pub(crate) fn own(started: Result<Running, Unreachable>) -> Option<Running> {
    let running = or_ignore(started)?;
    running.own_server()?;
    Some(running)
}
