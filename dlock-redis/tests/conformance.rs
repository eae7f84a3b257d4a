//! The suite, on one Redis.

mod common;

use std::process::ExitCode;

use dlock_conformance::stores::redis::{Brand, Flavour};

fn main() -> ExitCode {
    common::suite(Brand::Redis, Flavour::Standalone, "")
}
