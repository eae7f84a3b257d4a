//! The memory store passes the suite that it is the model of.

use std::process::ExitCode;

use async_trait::async_trait;
use dlock_conformance::{Clock, Fixture};
use dlock_core::{Result, Store, memory::MemoryBackend};

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
}

fn main() -> ExitCode {
    dlock_conformance::run(Ok(Memory(MemoryBackend::new())))
}
