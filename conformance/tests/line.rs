//! The cases about the line pass on a driver that is right, and catch drivers with bugs that only a line shows.

use std::{net::SocketAddr, sync::Arc, thread};

use async_trait::async_trait;
use dlock_conformance::{
    Fixture, Network, judge, table,
    wrong::{LineBug, WrongServer},
};
use dlock_core::{Result, driver::Store};

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

/// The cases about the line that fail, with what they say.
fn failed(bug: LineBug, only: &str) -> Vec<String> {
    let wired: Arc<Wired> = Arc::new(Wired(WrongServer::start(bug)));
    let table = table(&*wired).into_iter().filter(|(_, case)| case.to_string().starts_with("line::"));
    let chosen: Vec<_> = table.filter(|(_, case)| case.to_string().contains(only)).collect();
    assert!(!chosen.is_empty(), "no case is about {only}");
    // They mostly wait.
    thread::scope(|scope| {
        let judging = chosen.into_iter().map(|(row, case)| {
            let fixture = Arc::clone(&wired) as Arc<dyn Fixture>;
            scope.spawn(move || judge(fixture, row, case).err().map(|said| format!("{case}: {said}")))
        });
        let judging: Vec<_> = judging.collect();
        judging.into_iter().filter_map(|case| case.join().expect("it reports panics")).collect()
    })
}

#[track_caller]
fn is_caught(bug: LineBug, case: &str, word: &str) {
    let failed = failed(bug, case);
    assert!(failed.iter().any(|said| said.contains(word)), "nobody says `{word}` of {bug:?}: {failed:?}");
}

#[test]
fn a_driver_that_is_right_passes() {
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
fn an_answer_to_the_wrong_call_is_caught() {
    is_caught(LineBug::LateAnswerTaken, "an_answer_that_comes_late", "what was meant for another call");
}

#[test]
fn a_connection_that_is_never_made_again_is_caught() {
    is_caught(LineBug::NeverDialsAgain, "a_holder_whose_connection_breaks", "Expired");
}

#[test]
fn a_break_that_is_taken_for_a_loss_is_caught() {
    is_caught(LineBug::BreakIsLoss, "a_holder_whose_connection_breaks", "Taken");
    is_caught(LineBug::BreakIsLoss, "a_line_that_was_silent_for_a_while", "the server was only silent");
}

#[test]
fn a_driver_that_dials_for_every_call_is_caught() {
    is_caught(LineBug::DialsWithoutPause, "many_callers_do_not_storm", "each call dials by itself");
}
