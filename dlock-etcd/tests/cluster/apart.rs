//! Tests of a member that clients can reach, but that cannot reach the other members.

use std::time::Duration;

use dlock_conformance::{Proxy, or_ignore};
use dlock_core::{Kind, LockOptions, LostReason, Wait};
use dlock_testbed::servers::{
    Running,
    etcd::{Lines, start_with_lines},
};
use etcd_client::Client;
use futures_util::{FutureExt, future::join_all};
use tokio::time::{Instant, sleep, timeout};

use crate::common::{Bench, SOON, is_leader, leader, spawn, unique};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_leader_that_is_cut_off_from_the_others_costs_no_lock_and_no_acquisition,
        a_follower_that_is_cut_off_from_the_others_costs_no_lock_and_no_acquisition,
    }
}

/// Timeout of the clients. A client waits for one member for at most a third of it.
const TIMEOUT: Duration = Duration::from_secs(9);

/// Longest time in which a cluster elects another leader and ends the session of an unreachable
/// client, on a busy machine.
const RECOVERY_LIMIT: Duration = Duration::from_secs(90);

async fn a_leader_that_is_cut_off_from_the_others_costs_no_lock_and_no_acquisition() {
    let Some((running, lines)) = or_ignore(start_with_lines().await) else { return };
    let alone = leader(&running).await;
    cut_off(running, &lines, alone).await;
}

async fn a_follower_that_is_cut_off_from_the_others_costs_no_lock_and_no_acquisition() {
    let Some((running, lines)) = or_ignore(start_with_lines().await) else { return };
    let alone = (leader(&running).await + 1) % 3;
    cut_off(running, &lines, alone).await;
}

/// Cuts a member off from the others, and checks the clients that reach only it, it and another
/// member, or only other members.
async fn cut_off(running: Running, lines: &Lines, alone: usize) {
    let bench = Bench::of(running).await;
    let address = |member: usize| bench.running.servers()[member % 3].address();
    let others = [address(alone + 1), address(alone + 2)];
    // This client knows the isolated member and another one. It connects to the isolated member,
    // because the proxy before the other one passes nothing until the client is connected.
    let proxy = Proxy::to(others[0]).await.expect("a port is free");
    proxy.hang_up();
    let params = format!("session=60s&timeout={}s", TIMEOUT.as_secs());
    let near = bench.locks_with(&format!("etcd://{},{}", address(alone), proxy.address()), &params).await;
    proxy.pass();
    let isolated = bench.locks_with(&format!("etcd://{}", address(alone)), "session=20s").await;
    let far = bench.locks_with(&format!("etcd://{},{}", others[0], others[1]), &params).await;

    let [kept, broken, released, lost] = [(); 4].map(|()| unique());
    let held = near.mutex(&kept).lock().await.expect("the lock is free");
    let broken_guard = near.mutex(&broken).lock().await.expect("the lock is free");
    let lost_guard = isolated.mutex(&lost).lock().await.expect("the lock is free");
    let released_guard = far.mutex(&released).lock().await.expect("the lock is free");
    let [kept_waiter, lost_waiter, near_waiter] = [(&far, &kept), (&far, &lost), (&near, &released)]
        .map(|(locks, name)| spawn(locks.mutex(name).lock()));
    for name in [&kept, &released, &lost] {
        bench.wait_for_claims(name, 2).await;
    }
    let mut status =
        Client::connect([address(alone).to_string()], None).await.expect("the client connects lazily");
    let id = status.status().await.expect("a reply").header().expect("a header").member_id();
    lines.cut_off(alone, id);
    wait_for_leader(&bench, [(alone + 1) % 3, (alone + 2) % 3]).await;

    // The client with two members acquires locks through the other one.
    let options = LockOptions::new().ttl(TIMEOUT * 4);
    let acquire = async |_: usize| {
        let (began, lock) = (Instant::now(), near.of(Kind::Mutex, unique()));
        let held = lock.try_lock(&options).await.expect("a member replies").expect("the lock is free");
        held.release().await.expect("the lock is held");
        began.elapsed()
    };
    let longest = join_all((0..3).map(acquire)).await.into_iter().max();
    assert!(longest < Some(TIMEOUT / 3 + SOON), "an acquisition took {longest:?}");
    let result = isolated.mutex(unique()).lock().wait(Wait::Never).await;
    assert!(matches!(&result, Err(error) if error.is_transient()), "acquired without a majority: {result:?}");

    // The client with two members is notified of changes that other clients make through the
    // other members.
    released_guard.release().await.expect("the lock is held");
    let woken =
        timeout(RECOVERY_LIMIT, near_waiter).await.expect("the waiter was never woken").expect("no panic");
    woken.expect("the waiter gets the lock").release().await.expect("the lock is held");
    assert!(far.force_release(&broken).await.expect("a member replies"), "no client held the lock");
    let reason = timeout(RECOVERY_LIMIT, broken_guard.lost()).await.expect("the loss was never reported");
    assert_eq!(reason, LostReason::Deleted);

    // The client that reaches only the isolated member loses its lock before the waiter gets it.
    let next = timeout(RECOVERY_LIMIT, lost_waiter)
        .await
        .expect("the waiter was never woken")
        .expect("no panic")
        .expect("the waiter gets the lock");
    assert!(lost_guard.is_lost(), "two clients hold the lock");
    next.release().await.expect("the lock is held");

    // The client that also reaches another member has lost no lock.
    assert_eq!(held.lost().now_or_never(), None, "the lock was lost although a majority was running");
    held.release().await.expect("the lock is held");
    let next =
        timeout(RECOVERY_LIMIT, kept_waiter).await.expect("the waiter was never woken").expect("no panic");
    next.expect("the waiter gets the lock").release().await.expect("the lock is held");
    lines.mend();
    bench.running.ready().await.expect("the servers are ready again");
}

/// Waits until one of these members leads.
async fn wait_for_leader(bench: &Bench, members: [usize; 2]) {
    let led = async {
        loop {
            for member in members {
                if is_leader(&bench.running.servers()[member]).await {
                    return;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(RECOVERY_LIMIT, led).await.expect("no other member became the leader");
}
