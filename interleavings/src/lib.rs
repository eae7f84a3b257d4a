//! dlock-core, compiled on shuttle: a scheduler that chooses, at each use of a mutex, an atomic or a
//! channel, which thread continues.
#![allow(
    unexpected_cfgs,
    unfulfilled_lint_expectations,
    unused_imports,
    reason = "the source is that of dlock-core, with other features and dependencies"
)]

mod races;
pub mod runner;

include!(concat!(env!("OUT_DIR"), "/dlock-core/lib.rs"));
