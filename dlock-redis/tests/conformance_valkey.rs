//! The suite, on one Valkey.

mod common;

use std::process::ExitCode;

use dlock_conformance::stores::redis::{Brand, Flavour};

fn main() -> ExitCode {
    common::suite(Brand::Valkey, Flavour::Standalone, "")
}
