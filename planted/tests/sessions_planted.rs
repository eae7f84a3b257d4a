//! Bugs that only a store with sessions can have. For each there is a case whose message names the
//! bug.

#[path = "sessions/client.rs"]
mod client;
#[path = "sessions/fixture.rs"]
mod fixture;
#[path = "sessions/server.rs"]
mod server;

use std::sync::Arc;

use async_trait::async_trait;
use dlock_conformance::{Fixture, judge, table};
use dlock_core::{Result, driver::Store};

use client::Bug;
use fixture::Sessions;

/// A store with sessions whose clients cannot be killed.
struct Immortal;

#[async_trait]
impl Fixture for Immortal {
    fn name(&self) -> &str {
        "immortal"
    }

    async fn connect(&self) -> Result<Store> {
        Ok(Sessions(Bug::None).client().into_store())
    }
}

/// Runs a case on clients with this bug. An error is the case's message.
fn run_case(bug: Bug, case: &str) -> std::result::Result<(), String> {
    let mut table = table(&Sessions(bug)).into_iter();
    let (row, case) = table.find(|(_, found)| found.to_string() == case).expect("the case is in the table");
    judge(Arc::new(Sessions(bug)), row, case)
}

#[track_caller]
fn is_caught(bug: Bug, case: &str, text: &str) {
    assert_eq!(run_case(Bug::None, case), Ok(()), "the case fails on a client without a bug");
    let message = run_case(bug, case).expect_err("the case passed on a client with the bug");
    assert!(message.contains(text), "the message does not name {bug:?}: {message}");
}

#[test]
fn a_client_that_keeps_a_claim_whose_keeper_is_silent_is_caught() {
    let case = "loss::no_client_is_granted_before_the_holder_that_is_cut_off_is_lost";
    is_caught(Bug::NoReaper, case, "a dead claim is never forgotten");
}

#[test]
fn a_client_that_promises_a_hold_beyond_its_session_is_caught() {
    let case = "loss::a_client_whose_session_ends_holds_nothing_any_more";
    is_caught(Bug::BeyondTheSession, case, "its session was over, and its guard says that it still holds");
}

#[test]
#[should_panic(expected = "immortal has sessions, so its fixture must be able to kill a client")]
fn a_fixture_with_sessions_that_cannot_kill_a_client_is_refused() {
    table(&Immortal);
}
