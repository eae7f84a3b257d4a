//! The suite, on a primary and its replica, found by a Sentinel.

mod common;

use std::process::ExitCode;

use dlock_conformance::stores::redis::{Brand, Flavour};

fn main() -> ExitCode {
    common::suite(Brand::Redis, Flavour::Sentinel, "")
}
