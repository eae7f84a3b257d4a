//! dlock-core, compiled on shuttle: a scheduler that chooses, at each use of a mutex, an atomic or a
//! channel, which thread continues.
#![allow(
    missing_docs,
    unexpected_cfgs,
    unfulfilled_lint_expectations,
    unused_imports,
    reason = "the source is that of dlock-core, with other features and dependencies, and without its documentation"
)]

mod bugs;
pub mod runner;

include!(concat!(env!("OUT_DIR"), "/dlock-core/lib.rs"));
