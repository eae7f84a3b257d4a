//! A fixture for a store in the process of its test.

use std::fmt;

use async_trait::async_trait;
use dlock_core::{Result, driver::Store};

use crate::{Clock, Fixture};

/// A store in the process of its test that waits for nothing but tokio's timers, so that its cases
/// run on the paused clock.
pub struct InProcess<C> {
    name: &'static str,
    connect: C,
    allocated: Option<fn() -> usize>,
}

impl<C: Fn() -> Store + Send + Sync + 'static> InProcess<C> {
    /// Creates a fixture with this [name](Fixture::name). `connect` connects a client, as from
    /// another process.
    pub fn new(name: &'static str, connect: C) -> Self {
        Self { name, connect, allocated: None }
    }

    /// Adds a function that counts the [bytes](Fixture::allocated) that the process has allocated.
    pub fn counting(self, allocated: fn() -> usize) -> Self {
        Self { allocated: Some(allocated), ..self }
    }
}

impl<C> fmt::Debug for InProcess<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InProcess").field(&self.name).finish()
    }
}

#[async_trait]
impl<C: Fn() -> Store + Send + Sync + 'static> Fixture for InProcess<C> {
    fn name(&self) -> &str {
        self.name
    }

    async fn connect(&self) -> Result<Store> {
        Ok((self.connect)())
    }

    fn clock(&self) -> Clock {
        Clock::Paused
    }

    fn allocated(&self) -> Option<usize> {
        self.allocated.map(|count| count())
    }
}
