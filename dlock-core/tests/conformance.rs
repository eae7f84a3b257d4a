//! The memory store passes the suite that it is the model of.

use std::{alloc::System, process::ExitCode};

use async_trait::async_trait;
use cap::Cap;
use dlock_conformance::{Clock, Fixture};
use dlock_core::{Result, driver::Store, memory::MemoryBackend};

/// Counts bytes for the case that looks for leaks.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

struct Memory(MemoryBackend);

#[async_trait]
impl Fixture for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    async fn connect(&self) -> Result<Store> {
        Ok(self.0.clone().into_store())
    }

    fn clock(&self) -> Clock {
        Clock::Paused
    }

    fn allocated(&self) -> Option<usize> {
        Some(HEAP.allocated())
    }
}

fn main() -> ExitCode {
    dlock_conformance::run(Ok(Memory(MemoryBackend::new())))
}
