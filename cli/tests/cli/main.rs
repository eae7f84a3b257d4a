//! The command `dlock` as its users have it: processes, exit statuses, signals, terminals.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "these tests are made of processes, not of tasks")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bad_input;
mod choosing;
mod flock;
mod json;
mod looking;
mod loss;
mod nesting;
mod place;
mod queueing;
mod quiet;
mod readme;
mod running;
mod schedule;
mod sharing;
mod signals;
mod terminal;
mod tickets;
mod who;
