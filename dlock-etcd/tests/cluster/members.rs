//! Tests of clusters with members that are killed, are paused, or lose their leadership.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use crate::common::{Bench, DeadClaim, SOON, TTL, connect, kill_leader, leader, soon, spawn, unique};
use dlock_conformance::{Data, Proxy};
use dlock_core::{Error, Kind, LockOptions, Locks, LostReason, Wait};
use dlock_testbed::servers::etcd::Flavour;
use futures_util::{FutureExt, future::join_all};
use tokio::time::{Instant, sleep};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_leader_that_dies_costs_no_lock_and_no_wake_up,
        a_leader_that_is_moved_costs_no_lock_and_no_wake_up,
        another_leader_gives_the_lease_of_a_dead_client_its_full_ttl_again,
        with_one_of_two_members_dead_or_frozen_no_acquisition_fails_or_waits_long,
        a_client_connects_as_soon_as_an_election_has_ended,
        an_address_without_a_server_in_the_list_costs_no_acquisition,
        a_cluster_without_a_majority_is_an_error_in_bounded_time_and_the_loss_is_reported,
        with_leaders_that_die_no_two_hold_and_tokens_grow on 2 threads,
    }
}

/// Longest time in which a cluster elects another leader, on a busy machine.
const ELECTION: Duration = Duration::from_secs(10);

/// Returns the URL of some of the members.
fn url(bench: &Bench, members: &[usize]) -> String {
    let servers = bench.running.servers();
    let addresses: Vec<_> = members.iter().map(|member| servers[*member].address().to_string()).collect();
    format!("etcd://{}", addresses.join(","))
}

async fn a_leader_that_dies_costs_no_lock_and_no_wake_up() {
    let Some(bench) = Bench::new(Flavour::Cluster).await else { return };
    let (a, b, name) = (bench.locks("").await, bench.locks("").await, unique());
    let held = a.mutex(&name).lock().renew_every(Duration::from_secs(1)).await.expect("the lock is free");
    let waiter = spawn(b.mutex(&name).lock());
    bench.wait_for_claims(&name, 2).await;
    let leader = leader(&bench.running).await;
    bench.running.servers()[leader].kill().await.expect("the server is running");
    sleep(TTL + SOON).await;
    assert_eq!(held.lost().now_or_never(), None, "the lock was lost although a majority was running");
    held.release().await.expect("the lock is held");
    let next =
        soon("the waiter was not woken", waiter).await.expect("no panic").expect("the waiter gets the lock");
    next.release().await.expect("the lock is held");
    bench.running.servers()[leader].start(Data::Kept).await.expect("the server starts again");
}

/// Makes the leader hand over its role to another member.
async fn move_leader(bench: &Bench) {
    let leader = leader(&bench.running).await;
    let client_of = async |member: usize| {
        let address = bench.running.servers()[member].address().to_string();
        etcd_client::Client::connect([address], None).await.expect("the client connects lazily")
    };
    let next = client_of((leader + 1) % 3).await.status().await.expect("a reply");
    let next = next.header().expect("a header").member_id();
    client_of(leader).await.move_leader(next).await.expect("the member leads");
}

async fn a_leader_that_is_moved_costs_no_lock_and_no_wake_up() {
    let Some(bench) = Bench::new(Flavour::Cluster).await else { return };
    let (a, b, name) = (bench.locks("").await, bench.locks("").await, unique());
    for _ in 0..3 {
        let held = a.mutex(&name).lock().await.expect("the lock is free");
        let waiter = spawn(b.mutex(&name).lock());
        bench.wait_for_claims(&name, 2).await;
        move_leader(&bench).await;
        held.release().await.expect("the lock is held");
        let next = tokio::time::timeout(ELECTION, waiter).await.expect("the waiter was not woken");
        next.expect("no panic").expect("the waiter gets the lock").release().await.expect("the lock is held");
    }
}

/// So the locks of a dead client may stay taken for two sessions.
async fn another_leader_gives_the_lease_of_a_dead_client_its_full_ttl_again() {
    let Some(bench) = Bench::new(Flavour::Cluster).await else { return };
    let name = unique();
    let dead = DeadClaim::new(&bench, &name).await;
    move_leader(&bench).await;
    dead.wait_for_full_ttl(&bench).await;
    let tried = bench.locks("").await.mutex(&name).try_lock().await.expect("a reply");
    assert!(tried.is_none(), "the claim of the dead client is missing");
}

async fn with_one_of_two_members_dead_or_frozen_no_acquisition_fails_or_waits_long() {
    /// Timeout of the clients. A client waits for one member for at most a third of it.
    const TIMEOUT: Duration = Duration::from_secs(9);
    let Some(bench) = Bench::new(Flavour::Cluster).await else { return };
    let victim = (leader(&bench.running).await + 1) % 3;
    let url = url(&bench, &[victim, (victim + 1) % 3]);
    let url = format!("{url}?session=60s&timeout={}s", TIMEOUT.as_secs());
    let (victim, options) = (&bench.running.servers()[victim], LockOptions::new().ttl(TIMEOUT * 4));
    for is_frozen in [false, true] {
        // Some of the clients are connected to the member that is killed or paused.
        let connect = async || Locks::new(connect(&url).await.expect("a member replies"));
        let mut clients = join_all((0..6).map(|_| connect())).await;
        if is_frozen {
            victim.pause().await.expect("the server is running");
        } else {
            victim.kill().await.expect("the server is running");
        }
        clients.extend(join_all((0..4).map(|_| connect())).await);
        for _ in 0..3 {
            let acquire = async |client: &Locks| {
                let (began, lock) = (Instant::now(), client.of(Kind::Mutex, unique()));
                let held =
                    lock.try_lock(&options).await.expect("a member replies").expect("the lock is free");
                held.release().await.expect("the lock is held");
                began.elapsed()
            };
            let longest = join_all(clients.iter().map(acquire)).await.into_iter().max();
            assert!(longest < Some(TIMEOUT / 3 + SOON), "an acquisition took {longest:?}");
        }
        if is_frozen {
            victim.resume().await.expect("the server is running");
        } else {
            victim.start(Data::Kept).await.expect("the server starts again");
        }
        bench.running.ready().await.expect("the servers are ready again");
    }
}

async fn a_client_connects_as_soon_as_an_election_has_ended() {
    const TIMEOUT: Duration = Duration::from_secs(8);
    let Some(bench) = Bench::new(Flavour::Cluster).await else { return };
    let members = bench.running.servers();
    let leader = leader(&bench.running).await;
    let victims = [leader, (leader + 1) % 3];
    for victim in victims {
        members[victim].pause().await.expect("the server is running");
    }
    let url = format!("{}?session=30s&timeout={}s", bench.running.url(), TIMEOUT.as_secs());
    let connecting = spawn(async move { connect(&url).await });
    // Longer than the timeout of a call.
    sleep(TIMEOUT + Duration::from_millis(500)).await;
    for victim in victims {
        members[victim].resume().await.expect("the server is running");
    }
    let client = connecting.await.expect("no panic").expect("the cluster has elected a leader");
    let held = Locks::new(client).mutex(unique()).lock().await.expect("the lock is free");
    held.release().await.expect("the lock is held");
}

async fn an_address_without_a_server_in_the_list_costs_no_acquisition() {
    let Some(bench) = Bench::standalone().await else { return };
    let server = bench.running.servers()[0].address();
    let silent = Proxy::to(server).await.expect("a port is free");
    silent.stall();
    // A port without a listener, a host name without an address, and a server that sends no reply.
    for wrong in ["127.0.0.1:1".to_owned(), "nowhere.invalid:2379".to_owned(), silent.address().to_string()] {
        for list in [format!("{wrong},{server}"), format!("{server},{wrong}")] {
            let locks = bench.locks_at(&format!("etcd://{list}"), "timeout=9s").await;
            let held =
                locks.mutex(unique()).try_lock().await.expect("a member replies").expect("the lock is free");
            held.release().await.expect("the lock is held");
            locks.close().await;
        }
    }
    let error = connect("etcd://nowhere.invalid").await.expect_err("the host name has no address");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

async fn a_cluster_without_a_majority_is_an_error_in_bounded_time_and_the_loss_is_reported() {
    let Some(bench) = Bench::new(Flavour::Cluster).await else { return };
    let (locks, name) = (bench.locks("").await, unique());
    let held = locks.mutex(&name).lock().ttl(Duration::from_secs(4)).await.expect("the lock is free");
    // The remaining member cannot reach the others, and clients can reach only the remaining one.
    for server in &bench.running.servers()[..2] {
        server.pause().await.expect("the server is running");
    }
    let began = Instant::now();
    let result = locks.mutex(unique()).lock().wait(Wait::Never).await;
    assert!(matches!(&result, Err(error) if error.is_transient()), "{result:?}");
    assert!(began.elapsed() < Duration::from_secs(8), "the call took {:?}", began.elapsed());
    let url = url(&bench, &[2]);
    let began = Instant::now();
    let result = connect(&url).await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(began.elapsed() < Duration::from_secs(8), "the call took {:?}", began.elapsed());
    let reason = tokio::time::timeout(Duration::from_secs(25), held.lost())
        .await
        .expect("the loss was never reported");
    assert_eq!(reason, LostReason::Expired);
    for server in &bench.running.servers()[..2] {
        server.resume().await.expect("the server is running");
    }
    bench.running.ready().await.expect("the servers are ready again");
    let again = tokio::time::timeout(TTL * 2, locks.mutex(&name).lock().into_future()).await;
    again
        .expect("the claim of the lost hold stays")
        .expect("the lock is free again")
        .release()
        .await
        .expect("the lock is held");
}

async fn with_leaders_that_die_no_two_hold_and_tokens_grow() {
    const ROUNDS: usize = 40;
    let Some(bench) = Bench::new(Flavour::Cluster).await else { return };
    let (name, mut clients) = (unique(), Vec::new());
    for _ in 0..3 {
        clients.push(bench.locks("").await);
    }
    let (is_held, last_token, acquisitions, is_over) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let contend = async |number: usize| {
        for _ in 0..ROUNDS {
            let lock = clients[number % clients.len()].mutex(&name);
            let held = loop {
                match lock.lock().await {
                    Ok(held) => break held,
                    Err(error) => assert!(error.is_transient(), "{error:?}"),
                }
            };
            assert!(!is_held.swap(true, Relaxed), "two clients hold the lock");
            let token = held.token().expect("etcd has tokens").get();
            assert!(last_token.swap(token, Relaxed) < token, "a token is not greater than the last one");
            sleep(Duration::from_millis(20)).await;
            is_held.store(false, Relaxed);
            acquisitions.fetch_add(1, Relaxed);
            // If the reply is lost, the result of the release is unknown, and the keeper tries
            // again.
            match held.release().await {
                Ok(()) => {}
                Err(error) => {
                    assert!(
                        error.is_transient(),
                        "the lock was lost although a majority was always running: {error:?}"
                    )
                }
            }
        }
    };
    let kill_leaders = async {
        while !is_over.load(Relaxed) {
            sleep(Duration::from_secs(2)).await;
            kill_leader(&bench.running).await;
        }
    };
    let contenders = async {
        join_all((0..6).map(&contend)).await;
        is_over.store(true, Relaxed);
    };
    let _ = tokio::join!(contenders, kill_leaders);
    assert_eq!(acquisitions.into_inner(), 6 * ROUNDS);
}
