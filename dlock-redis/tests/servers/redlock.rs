//! Tests of RedLock on five servers that are killed, frozen, and restarted with or without their
//! data.

use std::{io, time::Duration};

use dlock_core::{Error, Guard, LockOptions, Locks, LostReason, Registry};
use dlock_testbed::servers::{Data, Server, redis::Flavour};
use tokio::time::{Instant, sleep, timeout};

use crate::common::{connect, nodes::Nodes, query, servers};

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
        a_server_that_was_unreachable_at_first_is_used_without_a_check,
        without_a_majority_there_is_no_connection,
        a_server_that_restarts_empty_at_once_admits_a_second_holder,
        a_server_that_restarts_empty_after_a_ttl_admits_no_second_holder,
        a_server_that_restarts_empty_gets_the_hold_again_with_a_renewal,
        a_redlock_is_held_under_the_label_of_its_url,
        a_detached_hold_outlasts_its_ttl_and_is_resumed,
    }
}

/// Time limit of one member's call.
const MEMBER_TIMEOUT: Duration = Duration::from_millis(500);
const PARAMS: &str = "member_timeout=500ms&timeout=1s";
/// Tolerance for a round trip on a busy machine.
const TOLERANCE: Duration = Duration::from_secs(3);
/// A ttl that passes several times in a test.
const SHORT: Duration = Duration::from_secs(2);
/// A ttl that never ends during a test.
const LONG: Duration = Duration::from_secs(600);

async fn five() -> Option<Nodes> {
    dlock_conformance::or_ignore(Nodes::new(5, PARAMS).await)
}

/// Asserts that locks work, and take hardly longer, while two of five servers do not reply.
async fn assert_works_without_two_of_five(nodes: &Nodes, client: &Locks) {
    let started_at = Instant::now();
    let guard = client.mutex("x").lock().await.expect("three of five are a majority");
    assert!(started_at.elapsed() < MEMBER_TIMEOUT + TOLERANCE, "granted after {:?}", started_at.elapsed());
    sleep(SHORT * 4).await;
    assert!(!guard.is_lost(), "the hold was not renewed by three of five servers");
    let other = nodes.locks(SHORT).await;
    assert!(
        other.mutex("x").try_lock().await.expect("a majority replies").is_none(),
        "two clients hold the lock"
    );
    guard.release().await.expect("a majority has released the lock");
    assert_eq!(nodes.key_count(2..5, "x").await, 0, "the release has left keys");
    drop(other.mutex("x").try_lock().await.expect("a majority replies").expect("the lock is free again"));
}

async fn two_killed_servers_of_five_delay_no_client_and_lose_no_hold() {
    let Some(nodes) = five().await else { return };
    let client = nodes.locks(SHORT).await;
    nodes.apply(0..2, Server::kill).await;
    assert_works_without_two_of_five(&nodes, &client).await;
}

async fn two_frozen_servers_of_five_delay_no_client_and_lose_no_hold() {
    let Some(nodes) = five().await else { return };
    let client = nodes.locks(SHORT).await;
    nodes.apply(0..2, Server::pause).await;
    assert_works_without_two_of_five(&nodes, &client).await;
}

async fn servers_that_answer_late_are_released_too() {
    let Some(nodes) = five().await else { return };
    let client = nodes.locks(LONG).await;
    nodes.apply(0..2, Server::pause).await;
    client.mutex("x").lock().await.expect("a majority").release().await.expect("a majority");
    nodes.apply(0..2, Server::resume).await;
    nodes.wait_for_key_count(0..5, "x", 0).await;
    // A request that was sent before must not create the lock again.
    client.close().await;
    assert_eq!(nodes.key_count(0..5, "x").await, 0, "the lock was created again after its release");
}

async fn with_three_of_five_servers_killed_no_lock_is_granted_and_no_key_is_left() {
    let Some(nodes) = five().await else { return };
    let client = nodes.locks(LONG).await;
    nodes.apply(0..3, Server::kill).await;
    let started_at = Instant::now();
    for refused in [client.mutex("x").try_lock().await.map(drop), client.mutex("x").lock().await.map(drop)] {
        let error = refused.expect_err("two of five are not a majority");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let source = std::error::Error::source(&error).expect("the error has a source").to_string();
        assert!(source.starts_with("3 of 5 members did not answer"), "{source}");
    }
    // Each of the two calls makes an attempt and a release, and each of these takes at most the
    // timeout of a member.
    assert!(
        started_at.elapsed() < MEMBER_TIMEOUT * 4 + TOLERANCE,
        "refused after {:?}",
        started_at.elapsed()
    );
    nodes.wait_for_key_count(3..5, "x", 0).await;
}

/// Asserts that the loss is reported when the guard's validity ends after a fault of three of five
/// servers.
async fn assert_loss_is_reported_in_time(fault: impl AsyncFn(&Server) -> io::Result<()>) {
    let Some(nodes) = five().await else { return };
    // The first renewal is due after some seconds, so that most often none is in flight when the
    // servers fail. Otherwise the replies to it may still arrive.
    let client = nodes.locks(Duration::from_secs(10)).await;
    let guard = client.mutex("x").lock().await.expect("the lock is free");
    nodes.apply(0..3, fault).await;
    let valid = async {
        while !guard.remaining().is_zero() {
            sleep(guard.remaining()).await;
        }
    };
    timeout(Duration::from_secs(60), valid).await.expect("the hold was renewed without a majority");
    assert!(guard.is_lost(), "the guard is not lost after its validity");
    let reason = timeout(TOLERANCE, guard.lost()).await.expect("the loss was not reported to the holder");
    assert_eq!(reason, LostReason::Expired);
}

async fn a_holder_whose_majority_is_killed_is_told_when_its_validity_ends() {
    assert_loss_is_reported_in_time(Server::kill).await;
}

async fn a_holder_whose_majority_is_frozen_is_told_when_its_validity_ends() {
    assert_loss_is_reported_in_time(Server::pause).await;
}

async fn servers_that_were_down_at_first_are_used_once_they_are_back() {
    let Some(nodes) = five().await else { return };
    nodes.apply(0..2, Server::kill).await;
    let client = nodes.locks(SHORT).await;
    let guard = client.mutex("x").lock().await.expect("three of five are a majority");
    nodes.apply(0..2, async |server| server.start(Data::Kept).await).await;
    nodes.wait_for_key_count(0..5, "x", 5).await;
    // The hold needs two renewals with all five servers before it can rely on the two restarted
    // ones. There are three renewals in a ttl.
    sleep(SHORT).await;
    nodes.apply(3..5, Server::kill).await;
    sleep(SHORT * 3).await;
    assert!(!guard.is_lost(), "the guard is lost although three of five servers have the lock");
    guard.release().await.expect("a majority has released the lock");
}

/// The third server is a node of a cluster, which is refused if it replies.
async fn a_server_that_was_unreachable_at_first_is_used_without_a_check() {
    let Some(nodes) = dlock_conformance::or_ignore(Nodes::new(2, "").await) else { return };
    let Some(cluster) = servers(Flavour::Cluster).await else { return };
    let unfit = &cluster.servers()[2];
    let [first, second] = &nodes.servers()[..] else { panic!("two servers") };
    let hosts = [first, second, unfit].map(|server| server.address().to_string());
    let url = format!("redis+redlock://{}?{PARAMS}", hosts.join(","));
    unfit.pause().await.unwrap();
    let store = connect(&url).await.expect("two of three are a majority");
    unfit.resume().await.unwrap();
    let locks = Locks::new(store).with_defaults(LockOptions::new().ttl(SHORT * 3));
    // The node has the slot of this name.
    let guard = locks.mutex("{foo}").lock().await.expect("two of three are a majority");
    let used = async {
        while query::<u64>(unfit, "EXISTS {foo}").await == 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), used).await.expect("the third server is not used");
    guard.release().await.expect("a majority has released the lock");
}

async fn without_a_majority_there_is_no_connection() {
    let Some(nodes) = five().await else { return };
    nodes.apply(0..3, Server::kill).await;
    let error = connect(nodes.url()).await.map(drop).expect_err("two of five are not a majority");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

/// Acquires the lock on the last three servers, and kills the first of these. The holder does not
/// renew, so a server that has lost the lock does not receive it again.
async fn first_holder(nodes: &Nodes, lease: Duration) -> Guard {
    nodes.apply(0..2, Server::kill).await;
    let first = nodes.locks(SHORT).await.mutex("x").lock().lease(lease).await;
    nodes.apply(2..3, Server::kill).await;
    first.expect("a majority of the last three")
}

/// Restarts the first two servers with their data, which never had the lock, and the third without
/// its data.
async fn restart_all(nodes: &Nodes) {
    nodes.apply(2..3, async |server| server.start(Data::Lost).await).await;
    nodes.apply(0..2, async |server| server.start(Data::Kept).await).await;
}

/// A limit of RedLock. A member must keep its data, or stay down for a ttl.
async fn a_server_that_restarts_empty_at_once_admits_a_second_holder() {
    let Some(nodes) = five().await else { return };
    let first = first_holder(&nodes, LONG).await;
    restart_all(&nodes).await;
    let second = nodes.locks(SHORT).await.mutex("x").try_lock().await.expect("all servers reply");
    assert!(second.is_some() && !first.is_lost(), "docs/semantics.md warns of two holders in this case");
}

async fn a_server_that_restarts_empty_after_a_ttl_admits_no_second_holder() {
    let Some(nodes) = five().await else { return };
    let first = first_holder(&nodes, SHORT).await;
    assert_eq!(first.lost().await, LostReason::Expired);
    restart_all(&nodes).await;
    // The last two servers may keep the first holder slightly longer, because the ttl began when
    // its request reached them.
    let second = nodes.locks(SHORT).await.mutex("x").try_lock().await.expect("all servers reply");
    assert!(first.is_lost() && second.is_some(), "there is not exactly one holder");
}

/// Waits for `times` renewals. Each is due a third of the ttl after the last one, and extends the
/// validity by this time.
async fn until_renewed(guard: &Guard, times: usize) {
    for _ in 0..times {
        let end = Instant::now() + guard.remaining();
        let renewed = async {
            while Instant::now() + guard.remaining() < end + SHORT / 2 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(TOLERANCE * 2, renewed).await.expect("the hold is not renewed");
    }
}

async fn a_server_that_restarts_empty_gets_the_hold_again_with_a_renewal() {
    let Some(nodes) = five().await else { return };
    let client = nodes.locks(SHORT * 3).await;
    let guard = client.mutex("x").lock().await.expect("all five servers are running");
    // Before its renewals, the hold relies on the three servers that replied first, and ends if one
    // of them loses its data.
    until_renewed(&guard, 2).await;
    nodes.apply(2..3, Server::kill).await;
    nodes.apply(2..3, async |server| server.start(Data::Lost).await).await;
    tokio::select! {
        () = nodes.wait_for_key_count(2..3, "x", 1) => {}
        reason = guard.lost() => panic!("the lock was lost although four servers kept it: {reason:?}"),
    }
    assert!(!guard.is_lost(), "the lock was lost although four servers kept it");
    let other = nodes.locks(SHORT).await.mutex("x").try_lock().await;
    assert!(other.expect("all servers reply").is_none(), "two clients hold the lock");
}

async fn a_redlock_is_held_under_the_label_of_its_url() {
    let Some(nodes) = dlock_conformance::or_ignore(Nodes::new(3, "who=the%20nightly%20run").await) else {
        return;
    };
    let locks = Registry::new()
        .with(dlock_redis::DRIVER)
        .connect(nodes.url())
        .await
        .expect("all servers are running");
    let held = locks.mutex("x").lock().await.expect("no client holds the lock");
    let state = locks.inspect("x").await.expect("all servers reply").expect("the lock is held");
    assert_eq!(state.holders[0].who.as_deref(), Some("the nightly run"));
    held.release().await.expect("the lock is still held");
}

async fn a_detached_hold_outlasts_its_ttl_and_is_resumed() {
    let Some(nodes) = five().await else { return };
    let (first, second) = (nodes.locks(SHORT).await, nodes.locks(LONG).await);
    let held = first.mutex("x").lock().await.expect("no client holds the lock");
    let ticket = held.detach(LONG).await.expect("all servers are running").to_string();
    first.close().await;
    sleep(SHORT * 2).await;
    assert!(
        second.mutex("x").try_lock().await.expect("a majority replies").is_none(),
        "the detached hold has ended"
    );
    let held = second.resume(&ticket.parse().expect("a ticket")).await.expect("a majority has the hold");
    held.release().await.expect("the lock is still held");
    drop(second.mutex("x").try_lock().await.expect("a majority replies").expect("the lock is free again"));
}
