//! The suite, on the oldest Redis that it promises.

mod common;

use std::process::ExitCode;

use dlock_conformance::stores::redis::{Brand, Flavour};

fn main() -> ExitCode {
    common::suite(Brand::Redis5, Flavour::Standalone, "")
}
