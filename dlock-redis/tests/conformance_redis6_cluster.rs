//! The suite, on a cluster of the oldest Redis that it promises for one.

mod common;

use std::process::ExitCode;

use dlock_conformance::stores::redis::{Brand, Flavour};

fn main() -> ExitCode {
    common::suite(Brand::Redis6, Flavour::Cluster, "")
}
