//! Tasks.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

/// A task.
#[derive(Debug)]
pub struct JoinHandle<T>(shuttle::future::JoinHandle<T>);

/// The error of a task that was aborted.
#[derive(Debug)]
pub struct JoinError(shuttle::future::JoinError);

/// Starts a task.
pub fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    JoinHandle(shuttle::future::spawn(task))
}

/// Lets other tasks continue.
pub async fn yield_now() {
    shuttle::future::yield_now().await;
}

impl<T> JoinHandle<T> {
    /// Ends the task at its next await point.
    pub fn abort(&self) {
        self.0.abort();
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(JoinError)
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for JoinError {}
