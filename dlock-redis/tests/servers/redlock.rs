//! RedLock on five servers that are killed, frozen, and started again with or without their data.

use std::{io, time::Duration};

use dlock_core::{Error, Guard, Locks, LostReason, Registry};
use dlock_testbed::servers::{Data, Server};
use tokio::time::{Instant, sleep, timeout};

use crate::common::{connect, nodes::Nodes};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        two_killed_servers_of_five_delay_no_client_and_lose_no_hold,
        two_frozen_servers_of_five_delay_no_client_and_lose_no_hold,
        servers_that_answer_late_are_released_too,
        with_three_of_five_servers_killed_no_lock_is_granted_and_no_key_is_left,
        a_holder_whose_majority_is_killed_is_told_when_its_validity_ends,
        a_holder_whose_majority_is_frozen_is_told_when_its_validity_ends,
        servers_that_were_down_at_first_are_used_once_they_are_back,
        without_a_majority_there_is_no_connection,
        a_server_that_restarts_empty_at_once_admits_a_second_holder,
        a_server_that_restarts_empty_after_a_ttl_admits_no_second_holder,
        a_server_that_restarts_empty_gets_the_hold_again_with_a_renewal,
        a_redlock_is_held_under_the_label_of_its_url,
        a_detached_hold_outlasts_its_ttl_and_is_resumed,
    }
}

/// How long one member may take, of the five here.
const MEMBER: Duration = Duration::from_millis(500);
const PARAMS: &str = "member_timeout=500ms&timeout=1s";
/// For a round trip, and a machine that does much else.
const GENEROUS: Duration = Duration::from_secs(3);
/// Short enough that several pass in a test.
const SHORT: Duration = Duration::from_secs(2);
/// Long enough that nothing ends in a test but by what it does.
const LONG: Duration = Duration::from_secs(600);

async fn five() -> Option<Nodes> {
    dlock_conformance::or_ignore(Nodes::new(5, PARAMS).await)
}

/// Two of five servers do not answer: locks work, and cost hardly more time.
async fn two_of_five_cost_nothing(nodes: &Nodes, client: &Locks) {
    let asked = Instant::now();
    let guard = client.mutex("x").lock().await.expect("three of five are a majority");
    assert!(asked.elapsed() < MEMBER + GENEROUS, "granted after {:?}", asked.elapsed());
    sleep(SHORT * 4).await;
    assert!(!guard.is_lost(), "three of five go on renewing");
    let other = nodes.locks(SHORT).await;
    assert!(
        other.mutex("x").try_lock().await.expect("a majority answers").is_none(),
        "two clients hold the lock"
    );
    guard.release().await.expect("a majority has let go");
    assert_eq!(nodes.key_count(2..5, "x").await, 0, "the lock is left behind after its release");
    drop(other.mutex("x").try_lock().await.expect("a majority answers").expect("it is free again"));
}

async fn two_killed_servers_of_five_delay_no_client_and_lose_no_hold() {
    let Some(nodes) = five().await else { return };
    let client = nodes.locks(SHORT).await;
    nodes.apply(0..2, Server::kill).await;
    two_of_five_cost_nothing(&nodes, &client).await;
}

async fn two_frozen_servers_of_five_delay_no_client_and_lose_no_hold() {
    let Some(nodes) = five().await else { return };
    let client = nodes.locks(SHORT).await;
    nodes.apply(0..2, Server::pause).await;
    two_of_five_cost_nothing(&nodes, &client).await;
}

async fn servers_that_answer_late_are_released_too() {
    let Some(nodes) = five().await else { return };
    let client = nodes.locks(LONG).await;
    nodes.apply(0..2, Server::pause).await;
    client.mutex("x").lock().await.expect("a majority").release().await.expect("a majority");
    nodes.apply(0..2, Server::resume).await;
    nodes.wait_for_key_count(0..5, "x", 0).await;
    // Nor may the lock come back by a request that was sent before.
    client.close().await;
    assert_eq!(nodes.key_count(0..5, "x").await, 0, "the lock came back after its release");
}

async fn with_three_of_five_servers_killed_no_lock_is_granted_and_no_key_is_left() {
    let Some(nodes) = five().await else { return };
    let client = nodes.locks(LONG).await;
    nodes.apply(0..3, Server::kill).await;
    let asked = Instant::now();
    for refused in [client.mutex("x").try_lock().await.map(drop), client.mutex("x").lock().await.map(drop)] {
        let error = refused.expect_err("two are no majority");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let source = std::error::Error::source(&error).expect("it says which").to_string();
        assert!(source.starts_with("3 of 5 members did not answer"), "{source}");
    }
    // Each of the two calls asks and releases, and each of that takes the time of a member at most.
    assert!(asked.elapsed() < MEMBER * 4 + GENEROUS, "refused after {:?}", asked.elapsed());
    nodes.wait_for_key_count(3..5, "x", 0).await;
}

/// Three of five are gone: when its validity ends, the guard is lost, and the holder is told.
async fn is_told_in_time(fault: impl AsyncFn(&Server) -> io::Result<()>) {
    let Some(nodes) = five().await else { return };
    // Some seconds until the first renewal: most often none is under way when they go. The answers to one may still come.
    let client = nodes.locks(Duration::from_secs(10)).await;
    let guard = client.mutex("x").lock().await.expect("free");
    nodes.apply(0..3, fault).await;
    let valid = async {
        while !guard.remaining().is_zero() {
            sleep(guard.remaining()).await;
        }
    };
    timeout(Duration::from_secs(60), valid).await.expect("it was renewed without a majority");
    assert!(guard.is_lost(), "the guard holds beyond its validity");
    let told = timeout(GENEROUS, guard.lost()).await.expect("the holder is never told");
    assert_eq!(told, LostReason::Expired);
}

async fn a_holder_whose_majority_is_killed_is_told_when_its_validity_ends() {
    is_told_in_time(Server::kill).await;
}

async fn a_holder_whose_majority_is_frozen_is_told_when_its_validity_ends() {
    is_told_in_time(Server::pause).await;
}

async fn servers_that_were_down_at_first_are_used_once_they_are_back() {
    let Some(nodes) = five().await else { return };
    nodes.apply(0..2, Server::kill).await;
    let client = nodes.locks(SHORT).await;
    let guard = client.mutex("x").lock().await.expect("three of five are a majority");
    nodes.apply(0..2, async |server| server.start(Data::Kept).await).await;
    nodes.wait_for_key_count(0..5, "x", 5).await;
    // The hold needs two renewals with all five servers before it can rest on the two that came back. A ttl has three.
    sleep(SHORT).await;
    nodes.apply(3..5, Server::kill).await;
    sleep(SHORT * 3).await;
    assert!(!guard.is_lost(), "the guard is lost, though three of five servers know the lock");
    guard.release().await.expect("a majority has let go");
}

async fn without_a_majority_there_is_no_connection() {
    let Some(nodes) = five().await else { return };
    nodes.apply(0..3, Server::kill).await;
    let error = connect(nodes.url()).await.map(drop).expect_err("two are no majority");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

/// A holder on the last three servers, of which the first is killed then. It does not renew, so a server that has lost the
/// lock does not hear of it again.
async fn first_holder(nodes: &Nodes, lease: Duration) -> Guard {
    nodes.apply(0..2, Server::kill).await;
    let first = nodes.locks(SHORT).await.mutex("x").lock().lease(lease).await;
    nodes.apply(2..3, Server::kill).await;
    first.expect("a majority of the last three")
}

/// The first two servers come back with their data, which never had the lock; the third without its data.
async fn all_are_back(nodes: &Nodes) {
    nodes.apply(2..3, async |server| server.start(Data::Lost).await).await;
    nodes.apply(0..2, async |server| server.start(Data::Kept).await).await;
}

/// A limit of RedLock: a member must keep its data, or stay away for a ttl.
async fn a_server_that_restarts_empty_at_once_admits_a_second_holder() {
    let Some(nodes) = five().await else { return };
    let first = first_holder(&nodes, LONG).await;
    all_are_back(&nodes).await;
    let second = nodes.locks(SHORT).await.mutex("x").try_lock().await.expect("all answer");
    assert!(second.is_some() && !first.is_lost(), "this is what docs/semantics.md warns of");
}

async fn a_server_that_restarts_empty_after_a_ttl_admits_no_second_holder() {
    let Some(nodes) = five().await else { return };
    let first = first_holder(&nodes, SHORT).await;
    assert_eq!(first.lost().await, LostReason::Expired);
    all_are_back(&nodes).await;
    // The last two servers may know the first holder for a moment longer: the ttl began when its request reached them.
    let second = nodes.locks(SHORT).await.mutex("x").try_lock().await.expect("all answer");
    assert!(first.is_lost() && second.is_some(), "there is not one holder at a time");
}

/// Waits for `times` renewals that were due. Each comes a third of the ttl after the last, and moves the end of validity by that.
async fn until_renewed(guard: &Guard, times: usize) {
    for _ in 0..times {
        let end = Instant::now() + guard.remaining();
        let renewed = async {
            while Instant::now() + guard.remaining() < end + SHORT / 2 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(GENEROUS * 2, renewed).await.expect("the hold is not renewed");
    }
}

async fn a_server_that_restarts_empty_gets_the_hold_again_with_a_renewal() {
    let Some(nodes) = five().await else { return };
    let client = nodes.locks(SHORT * 3).await;
    let guard = client.mutex("x").lock().await.expect("all five");
    // Until it is renewed, the hold rests on the three servers that answered first, and ends if one of them loses its data.
    until_renewed(&guard, 2).await;
    nodes.apply(2..3, Server::kill).await;
    nodes.apply(2..3, async |server| server.start(Data::Lost).await).await;
    tokio::select! {
        () = nodes.wait_for_key_count(2..3, "x", 1) => {}
        why = guard.lost() => panic!("four of five never forgot, and it is lost: {why:?}"),
    }
    assert!(!guard.is_lost(), "four of five never forgot");
    let other = nodes.locks(SHORT).await.mutex("x").try_lock().await;
    assert!(other.expect("all answer").is_none(), "two clients hold the lock");
}

async fn a_redlock_is_held_under_the_label_of_its_url() {
    let Some(nodes) = dlock_conformance::or_ignore(Nodes::new(3, "who=the%20nightly%20run").await) else {
        return;
    };
    let locks = Registry::new().with(dlock_redis::DRIVER).connect(nodes.url()).await.expect("all are there");
    let held = locks.mutex("x").lock().await.expect("nobody holds it");
    let state = locks.inspect("x").await.expect("all answer").expect("it is held");
    assert_eq!(state.holders[0].who.as_deref(), Some("the nightly run"));
    held.release().await.expect("held until now");
}

async fn a_detached_hold_outlasts_its_ttl_and_is_resumed() {
    let Some(nodes) = five().await else { return };
    let (here, there) = (nodes.locks(SHORT).await, nodes.locks(LONG).await);
    let held = here.mutex("x").lock().await.expect("nobody holds it");
    let ticket = held.detach(LONG).await.expect("all are there").to_string();
    here.close().await;
    sleep(SHORT * 2).await;
    assert!(there.mutex("x").try_lock().await.expect("a majority answers").is_none(), "it has ended");
    let held = there.resume(&ticket.parse().expect("a ticket")).await.expect("a majority has it");
    held.release().await.expect("held until now");
    drop(there.mutex("x").try_lock().await.expect("a majority answers").expect("it is free again"));
}
