//! Runs the suite that every backend passes on a RedLock of memory stores.

use std::process::ExitCode;

use async_trait::async_trait;
use dlock_conformance::{Clock, Fixture, wrap::Habit};
use dlock_core::{RedLock, Result, driver::Store, memory::MemoryBackend};

struct Majority(Vec<MemoryBackend>);

#[async_trait]
impl Fixture for Majority {
    fn name(&self) -> &str {
        "redlock"
    }

    async fn connect(&self) -> Result<Store> {
        let members = self.0.iter().map(|member| member.clone().into_store());
        Ok(RedLock::new(members)?.into_store())
    }

    async fn connect_with_member(&self, habit: Habit) -> Option<Result<Store>> {
        let mut members: Vec<_> = self.0.iter().map(|member| member.clone().into_store()).collect();
        let last = members.pop().expect("at least one member");
        members.push(habit.wrap(last));
        Some(RedLock::new(members).map(RedLock::into_store))
    }

    fn clock(&self) -> Clock {
        Clock::Paused
    }
}

/// Runs the suite on a RedLock of this many members.
pub(crate) fn run(members: usize) -> ExitCode {
    dlock_conformance::run(Ok(Majority((0..members).map(|_| MemoryBackend::new()).collect())))
}
