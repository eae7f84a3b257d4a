//! The two runtimes of this crate: threads that all clients of the process share, each started at
//! its first use.
//!
//! A session must outlive the tokio runtime in which it was opened, and must keep its heartbeats
//! while that runtime is blocked. So nothing that keeps a session alive runs on the caller's
//! runtime.
//!
//! - The I/O thread, `dlock-zk`, runs the tasks that `zookeeper-client` starts, one for each
//!   session with the session's socket. `zookeeper-client` starts tasks through the crate `asyncs`,
//!   which here leads to an `async_executor::Executor`. The thread itself waits for the sockets
//!   (`async_io::block_on`), so a reply wakes no other thread before the one of its caller.
//! - The maintenance runtime, `dlock-zk-pump`, is a tokio runtime with one worker. It sends the
//!   heartbeats and runs the reapers of all sessions, one task for each. These tasks use tokio's
//!   timers, which the I/O thread does not have.

use std::{future::pending, io, sync::LazyLock, thread};

use async_executor::Executor;
use asyncs::task::{Spawn, Task, enter};
use dlock_core::Result;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::STORE;

static IO_EXECUTOR: Executor<'static> = Executor::new();

/// Starts the tasks of `zookeeper-client` on the I/O thread.
struct IoThread;

impl Spawn for IoThread {
    #[expect(clippy::disallowed_methods, reason = "the one task of a session; it ends with the session")]
    fn spawn(&self, task: Task) {
        IO_EXECUTOR.spawn(Box::into_pin(task.future)).detach();
    }
}

static IO_THREAD: LazyLock<io::Result<()>> = LazyLock::new(|| {
    let run = || {
        let _scope = enter(&IoThread);
        async_io::block_on(IO_EXECUTOR.run(pending::<()>()));
    };
    thread::Builder::new().name("dlock-zk".to_owned()).spawn(run).map(drop)
});

static MAINTENANCE: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(1).thread_name("dlock-zk-pump").enable_time().build()
});

/// Runs a future on the I/O thread, and returns its output. Dropping the returned future drops
/// `future` on that thread.
///
/// # Errors
/// [`Unavailable`](dlock_core::Error::Unavailable) if the thread could not be started.
#[expect(clippy::disallowed_methods, reason = "waited for, and dropped with the wait")]
pub(super) async fn run_io<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Result<T> {
    IO_THREAD.as_ref().map_err(|error| STORE.unavailable(error.to_string()))?;
    Ok(IO_EXECUTOR.spawn(future).await)
}

/// Returns the maintenance runtime.
///
/// # Errors
/// [`Unavailable`](dlock_core::Error::Unavailable) if the runtime could not be started.
pub(super) fn maintenance() -> Result<Handle> {
    let runtime = MAINTENANCE.as_ref().map_err(|error| STORE.unavailable(error.to_string()))?;
    Ok(runtime.handle().clone())
}
