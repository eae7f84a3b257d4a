//! The soak tool: clients in processes of their own use one store while faults are injected, and what
//! they recorded is checked afterwards.
//!
//! The program `dlock-soak` of dlock's repository runs it on the stores of dlock. For a store of your
//! own, write a program with this `main`, and enable the feature `soak` of this crate:
//!
//! ```no_run
//! use dlock_core::{Registry, memory};
//!
//! fn main() -> std::process::ExitCode {
//!     let registry = Registry::new().with(memory::DRIVER); // your driver goes here
//!     dlock_conformance::soak::main(&registry)
//! }
//! ```
//!
//! The program is the coordinator. It starts itself again for each client, with a hidden argument. So
//! it must not write to stdout before it calls [`main`].
//!
//! - A client runs tasks that lock, hold, query their guards, and release. It writes each event as a
//!   line of JSON. All processes read the same clock, which continues while a process is stopped, so
//!   the times of two processes can be compared.
//! - The coordinator injects faults, records the events, and checks the record: as a
//!   [history](crate::history), for the order of grants, for waits, and for leftovers in the store.
//! - Faults and choices follow from a seed. The schedule of the processes by the kernel does not, so a
//!   seed repeats the load of a run and not each of its events.

mod args;
mod check;
mod client;
mod clock;
mod event;
mod excerpt;
mod faults;
mod fleet;
mod leftovers;
mod plan;
mod record;
mod relay;
mod report;
mod run;

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use dlock_core::Registry;

use args::Args;

/// Hidden argument of a client process.
const CLIENT: &str = "soak-client";

/// Exit status of a run that is not possible.
const IMPOSSIBLE: u8 = 2;

/// Runs the soak tool with the arguments of the process, on the stores of this registry. `--help`
/// lists the arguments and the exit statuses.
pub fn main(registry: &Registry) -> ExitCode {
    match env::args_os().nth(1) {
        Some(argument) if argument == CLIENT => return client::run(registry),
        Some(argument) if argument == faults::wall_clock::PRINT_CLOCK => {
            faults::wall_clock::print();
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            error.print().ok();
            return if error.use_stderr() { ExitCode::from(IMPOSSIBLE) } else { ExitCode::SUCCESS };
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&error.to_string());
            return ExitCode::from(IMPOSSIBLE);
        }
    };
    match runtime.block_on(run::run(registry, args)) {
        Ok(report) => {
            // The exit status says the same if stdout is closed.
            write!(io::stdout(), "{report}").ok();
            ExitCode::from(u8::from(report.has_violations()))
        }
        Err(error) => {
            say(&error);
            ExitCode::from(IMPOSSIBLE)
        }
    }
}

/// Writes a line to stderr.
fn say(line: &str) {
    writeln!(io::stderr(), "soak: {line}").ok();
}
