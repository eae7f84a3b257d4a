//! The suite, on a majority of three servers.

mod common;

use std::process::ExitCode;

fn main() -> ExitCode {
    common::nodes::suite(3)
}
