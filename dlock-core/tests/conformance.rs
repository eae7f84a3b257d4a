//! Runs the suite on the memory store, which is the model of the expected behaviour.

use std::{alloc::System, process::ExitCode};

use cap::Cap;
use dlock_conformance::{InProcess, run};
use dlock_core::memory::MemoryBackend;

/// Counts allocated bytes for the case that detects leaks.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

fn main() -> ExitCode {
    let memory = MemoryBackend::new();
    let fixture = InProcess::new("memory", move || memory.clone().into_store());
    run(Ok(fixture.counting(|| HEAP.allocated())))
}
