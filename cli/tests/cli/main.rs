//! The command `dlock` as a user sees it: processes, exit statuses, signals, terminals.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "the tests start processes, not tasks")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod bad_input;
mod choosing;
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod failover;
mod flock;
mod json;
mod leading;
mod looking;
mod loss;
mod nesting;
mod once;
mod place;
mod queueing;
mod quiet;
mod running;
mod schedule;
mod sharing;
mod signals;
mod terminal;
mod tickets;
mod who;
