//! The runtime. All tasks run on shuttle's scheduler, so there is one.

use std::{error::Error, fmt, io};

use crate::task::{self, JoinHandle};

/// The runtime of all tasks.
#[derive(Clone, Debug)]
pub struct Handle(());

/// The identity of a runtime.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Id(());

/// The error outside of a runtime, which does not occur.
#[derive(Debug)]
pub struct TryCurrentError(());

impl Handle {
    /// Returns the runtime.
    ///
    /// # Errors
    /// None.
    pub fn try_current() -> Result<Self, TryCurrentError> {
        Ok(Self(()))
    }

    /// Returns the identity of the runtime.
    pub fn id(&self) -> Id {
        Id(())
    }

    /// Starts a task.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        task::spawn(task)
    }
}

impl fmt::Display for TryCurrentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no runtime")
    }
}

impl Error for TryCurrentError {}

/// Builds no runtime: a client with a thread of its own cannot run on shuttle.
#[derive(Debug)]
pub struct Builder(());

/// A runtime of its own, which does not exist.
#[derive(Debug)]
pub enum Runtime {}

impl Builder {
    /// Returns the builder.
    pub fn new_current_thread() -> Self {
        Self(())
    }

    /// Returns the builder.
    pub fn enable_all(&mut self) -> &mut Self {
        self
    }

    /// Builds no runtime.
    ///
    /// # Errors
    /// Always.
    pub fn build(&mut self) -> io::Result<Runtime> {
        Err(io::Error::other("shuttle has one runtime"))
    }
}

impl Runtime {
    /// Returns the runtime's handle.
    pub fn handle(&self) -> &Handle {
        match *self {}
    }

    /// Runs a future.
    pub fn block_on<T>(&self, _: impl Future<Output = T>) -> T {
        match *self {}
    }

    /// Ends the runtime.
    pub fn shutdown_background(self) {
        match self {}
    }
}
