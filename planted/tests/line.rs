//! The cases of the groups `network` and `crowd` pass on a correct driver, and detect bugs that show
//! only on a network.

use std::{net::SocketAddr, sync::Arc, thread};

use async_trait::async_trait;
use dlock_conformance::{Fixture, Network, judge, table};
use dlock_core::{Result, driver::Store};
use dlock_planted::{BuggyServer, LineBug};

/// A network store. Its server is in this process, and its driver may have a bug.
struct Wired(BuggyServer);

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

/// Runs the cases of the groups `network` and `crowd` whose names contain `filter`. Returns the message of each
/// failed case.
fn failures(bug: LineBug, filter: &str) -> Vec<String> {
    let wired: Arc<Wired> = Arc::new(Wired(BuggyServer::start(bug)));
    let table = table(&*wired).into_iter().filter(|(_, case)| {
        let name = case.to_string();
        name.starts_with("network::") || name.starts_with("crowd::")
    });
    let chosen: Vec<_> = table.filter(|(_, case)| case.to_string().contains(filter)).collect();
    assert!(!chosen.is_empty(), "no case has `{filter}` in its name");
    // All cases run concurrently, because they mostly wait.
    thread::scope(|scope| {
        let threads = chosen.into_iter().map(|(row, case)| {
            let fixture = Arc::clone(&wired) as Arc<dyn Fixture>;
            scope.spawn(move || judge(fixture, row, case).err().map(|message| format!("{case}: {message}")))
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().filter_map(|case| case.join().expect("`judge` catches panics")).collect()
    })
}

#[track_caller]
fn is_caught(bug: LineBug, filter: &str, text: &str) {
    let failures = failures(bug, filter);
    let is_found = failures.iter().any(|message| message.contains(text));
    assert!(is_found, "no message about {bug:?} contains `{text}`: {failures:?}");
}

#[test]
fn a_driver_without_a_bug_passes() {
    assert_eq!(failures(LineBug::None, ""), Vec::<String>::new());
}

#[test]
fn a_call_without_a_bound_is_caught() {
    is_caught(
        LineBug::CallsWithoutTimeout,
        "every_call_to_a_silent_server",
        "outlives its bound on a silent server",
    );
}

#[test]
fn connecting_without_a_bound_is_caught() {
    is_caught(LineBug::ConnectsWithoutTimeout, "connecting_to_a_silent_server", "does not end");
}

#[test]
fn a_driver_that_takes_a_late_answer_for_that_of_a_later_call_is_caught() {
    is_caught(LineBug::LateReplyIsUsed, "an_answer_that_comes_late", "what was meant for another call");
}

#[test]
fn a_driver_that_never_reconnects_is_caught() {
    is_caught(LineBug::NeverReconnects, "a_holder_whose_connection_breaks", "Expired");
}

#[test]
fn a_driver_that_takes_a_broken_connection_for_a_loss_is_caught() {
    is_caught(LineBug::BreakIsLoss, "a_holder_whose_connection_breaks", "Deleted");
    is_caught(LineBug::BreakIsLoss, "a_connection_that_was_silent", "the server was only silent");
}

#[test]
fn a_driver_that_reconnects_for_every_call_is_caught() {
    is_caught(LineBug::ReconnectsWithoutPause, "many_callers_do_not_storm", "each call dials by itself");
}

#[test]
fn a_waiter_that_polls_is_caught() {
    is_caught(LineBug::WaiterPolls, "crowd::waiters_of_one_name_send_nothing", "while nothing changed");
}

#[test]
fn a_retry_that_amplifies_load_is_caught() {
    is_caught(LineBug::RetriesAddUp, "crowd::waiters_of_one_name_cost_their_client", "retries add up");
}
