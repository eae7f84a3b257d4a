//! The cases about the network pass on a driver without a bug, and catch drivers with bugs that show only on a network.

use std::{net::SocketAddr, sync::Arc, thread};

use async_trait::async_trait;
use dlock_conformance::{Fixture, Network, judge, table};
use dlock_core::{Result, driver::Store};
use dlock_planted::{LineBug, WrongServer};

/// A network store. Its server is in this process, and its driver may have a planted bug.
struct Wired(WrongServer);

#[async_trait]
impl Fixture for Wired {
    fn name(&self) -> &str {
        "wired"
    }

    async fn connect(&self) -> Result<Store> {
        self.0.connect(self.0.address()).await
    }

    fn network(&self) -> Option<&dyn Network> {
        Some(self)
    }
}

#[async_trait]
impl Network for Wired {
    fn server(&self) -> SocketAddr {
        self.0.address()
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Store> {
        self.0.connect(address).await
    }
}

/// The cases about the network that fail, each with its message. `only` is a part of the names of the cases to run.
fn failed(bug: LineBug, only: &str) -> Vec<String> {
    let wired: Arc<Wired> = Arc::new(Wired(WrongServer::start(bug)));
    let table = table(&*wired).into_iter().filter(|(_, case)| case.to_string().starts_with("line::"));
    let chosen: Vec<_> = table.filter(|(_, case)| case.to_string().contains(only)).collect();
    assert!(!chosen.is_empty(), "no case has `{only}` in its name");
    // Each case has a thread, and mostly waits.
    thread::scope(|scope| {
        let judging = chosen.into_iter().map(|(row, case)| {
            let fixture = Arc::clone(&wired) as Arc<dyn Fixture>;
            scope.spawn(move || judge(fixture, row, case).err().map(|said| format!("{case}: {said}")))
        });
        let judging: Vec<_> = judging.collect();
        judging.into_iter().filter_map(|case| case.join().expect("`judge` catches panics")).collect()
    })
}

#[track_caller]
fn is_caught(bug: LineBug, case: &str, word: &str) {
    let failed = failed(bug, case);
    assert!(failed.iter().any(|said| said.contains(word)), "no case says `{word}` about {bug:?}: {failed:?}");
}

#[test]
fn a_driver_without_a_bug_passes() {
    assert_eq!(failed(LineBug::None, ""), Vec::<String>::new());
}

#[test]
fn a_call_without_a_bound_is_caught() {
    is_caught(
        LineBug::CallsWithoutBound,
        "every_call_to_a_silent_server",
        "outlives its bound on a silent server",
    );
}

#[test]
fn connecting_without_a_bound_is_caught() {
    is_caught(LineBug::ConnectsWithoutBound, "connecting_to_a_silent_server", "does not end");
}

#[test]
fn a_driver_that_takes_a_late_answer_for_that_of_a_later_call_is_caught() {
    is_caught(LineBug::LateAnswerTaken, "an_answer_that_comes_late", "what was meant for another call");
}

#[test]
fn a_driver_that_never_reconnects_is_caught() {
    is_caught(LineBug::NeverDialsAgain, "a_holder_whose_connection_breaks", "Expired");
}

#[test]
fn a_driver_that_takes_a_broken_connection_for_a_loss_is_caught() {
    is_caught(LineBug::BreakIsLoss, "a_holder_whose_connection_breaks", "Taken");
    is_caught(LineBug::BreakIsLoss, "a_line_that_was_silent_for_a_while", "the server was only silent");
}

#[test]
fn a_driver_that_reconnects_for_every_call_is_caught() {
    is_caught(LineBug::DialsWithoutPause, "many_callers_do_not_storm", "each call dials by itself");
}
