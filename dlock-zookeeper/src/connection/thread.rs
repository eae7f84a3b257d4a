//! The thread on which all sessions of the process talk to their servers. So a session goes on when the runtime that opened it
//! ends, or is blocked. It waits for the sockets itself: a reply wakes no other thread before the one that waits for it.

use std::{future::pending, io, sync::LazyLock, thread};

use async_executor::Executor;
use asyncs::task::{Spawn, Task, enter};
use dlock_core::Result;

use crate::error::STORE;

static EXECUTOR: Executor<'static> = Executor::new();

/// Where the crate `zookeeper-client` starts the task of a session.
struct Here;

impl Spawn for Here {
    #[expect(clippy::disallowed_methods, reason = "the one task of a session; it ends with the session")]
    fn spawn(&self, task: Task) {
        EXECUTOR.spawn(Box::into_pin(task.future)).detach();
    }
}

static THREAD: LazyLock<io::Result<()>> = LazyLock::new(|| {
    let run = || {
        let _scope = enter(&Here);
        async_io::block_on(EXECUTOR.run(pending::<()>()));
    };
    thread::Builder::new().name("dlock-zookeeper".to_owned()).spawn(run).map(drop)
});

/// Runs this on the thread. If nobody waits for its result any more, it is dropped there.
///
/// # Errors
/// [`Unavailable`](dlock_core::Error::Unavailable) if the thread could not be started.
#[expect(clippy::disallowed_methods, reason = "waited for, and dropped with the wait")]
pub(super) async fn run<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Result<T> {
    THREAD.as_ref().map_err(|error| STORE.unavailable(error.to_string()))?;
    Ok(EXECUTOR.spawn(future).await)
}
