//! The suite, on a majority of five servers.

mod common;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::nodes::suite(5)
}
