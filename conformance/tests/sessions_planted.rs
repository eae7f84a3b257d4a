//! Bugs that only a store with sessions can have are caught, by a case that says what is wrong.

#[path = "sessions/client.rs"]
mod client;
#[path = "sessions/server.rs"]
mod server;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use dlock_conformance::{Clock, Fixture, Kill, judge, table};
use dlock_core::{Result, driver::Store};

use client::{Bug, Client};
use server::Server;

struct Planted(Arc<Mutex<Server>>, Bug);

#[async_trait]
impl Fixture for Planted {
    fn name(&self) -> &str {
        "planted sessions"
    }

    async fn connect(&self) -> Result<Store> {
        Ok(Client::connect(&self.0, self.1).into_store())
    }

    async fn connect_killable(&self) -> Option<Result<(Store, Kill)>> {
        let client = Client::connect(&self.0, self.1);
        let victim = Arc::clone(&client);
        Some(Ok((client.into_store(), Box::new(move || victim.kill()))))
    }

    fn clock(&self) -> Clock {
        Clock::Paused
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }
}

/// Sessions whose clients cannot be killed.
struct Immortal;

#[async_trait]
impl Fixture for Immortal {
    fn name(&self) -> &str {
        "immortal"
    }

    async fn connect(&self) -> Result<Store> {
        Ok(Client::connect(&Arc::new(Mutex::new(Server::new())), Bug::None).into_store())
    }
}

/// What a case says of clients with this bug.
fn judged(bug: Bug, case: &str) -> std::result::Result<(), String> {
    let fixture = || Arc::new(Planted(Arc::new(Mutex::new(Server::new())), bug));
    let mut table = table(&*fixture()).into_iter();
    let (row, case) = table.find(|(_, one)| one.to_string() == case).expect("in the table");
    judge(fixture(), row, case)
}

#[track_caller]
fn is_caught(bug: Bug, case: &str, word: &str) {
    assert_eq!(judged(Bug::None, case), Ok(()), "a client that is right is accused");
    let said = judged(bug, case).expect_err("nobody noticed");
    assert!(said.contains(word), "does not name {bug:?}: {said}");
}

#[test]
fn a_session_that_keeps_a_silent_claim_is_caught() {
    let case = "loss::nobody_gets_in_before_the_holder_that_is_cut_off_is_lost";
    is_caught(Bug::NoReaper, case, "a dead claim is never forgotten");
}

#[test]
fn a_hold_that_outlives_its_session_is_caught() {
    let case = "loss::a_client_whose_session_ends_holds_nothing_any_more";
    is_caught(Bug::BeyondTheSession, case, "its session was over, and its guard says that it still holds");
}

#[test]
#[should_panic(expected = "immortal has sessions, so its fixture must be able to kill a client")]
fn a_fixture_that_cannot_crash_a_session_is_refused() {
    table(&Immortal);
}
