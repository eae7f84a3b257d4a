//! A member that clients reach, and that cannot reach the other members.

use std::time::Duration;

use dlock_conformance::{Proxy, or_ignore};
use dlock_core::{Kind, LockOptions, LostReason, Wait};
use dlock_testbed::servers::{
    Running,
    etcd::{Lines, ask, start_with_lines},
};
use etcd_client::Client;
use futures_util::{FutureExt, future::join_all};
use tokio::time::{Instant, sleep, timeout};

use crate::common::{Bench, SOON, leader, spawn, unique};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_leader_that_is_cut_off_from_the_others_costs_no_lock_and_no_acquisition,
        a_follower_that_is_cut_off_from_the_others_costs_no_lock_and_no_acquisition,
    }
}

/// Of clients. A third of it is the longest that a client waits for one member.
const TIMEOUT: Duration = Duration::from_secs(9);

/// What a cluster needs for another leader, and to forget a client that it does not hear of, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

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

async fn cut_off(running: Running, lines: &Lines, alone: usize) {
    let bench = Bench::of(running).await;
    let address = |member: usize| bench.running.servers()[member % 3].address();
    let others = [address(alone + 1), address(alone + 2)];
    // A client of the member and of another one, which begins with the first: the way to the other is open only then.
    let way = Proxy::to(others[0]).await.expect("a port is free");
    way.hang_up();
    let params = format!("session=60s&timeout={}s", TIMEOUT.as_secs());
    let near = bench.locks_with(&format!("etcd://{},{}", address(alone), way.address()), &params).await;
    way.pass();
    let stuck = bench.locks_with(&format!("etcd://{}", address(alone)), "session=20s").await;
    let far = bench.locks_with(&format!("etcd://{},{}", others[0], others[1]), &params).await;

    let [kept, broken, given, lost] = [(); 4].map(|()| unique());
    let held = near.mutex(&kept).lock().await.expect("the lock is free");
    let taken = near.mutex(&broken).lock().await.expect("the lock is free");
    let gone = stuck.mutex(&lost).lock().await.expect("the lock is free");
    let passed = far.mutex(&given).lock().await.expect("the lock is free");
    let [next, heir, near_waiter] =
        [(&far, &kept), (&far, &lost), (&near, &given)].map(|(locks, name)| spawn(locks.mutex(name).lock()));
    for name in [&kept, &given, &lost] {
        bench.wait_for_claims(name, 2).await;
    }
    let mut status =
        Client::connect([address(alone).to_string()], None).await.expect("the client connects lazily");
    let number = status.status().await.expect("a reply").header().expect("a header").member_id();
    lines.cut_off(alone, number);
    until_led(&bench, [(alone + 1) % 3, (alone + 2) % 3]).await;

    // Acquisitions go on through the other member.
    let options = LockOptions::new().ttl(TIMEOUT * 4);
    let acquire = async |_: usize| {
        let (began, lock) = (Instant::now(), near.of(Kind::Mutex, unique()));
        let held = lock.try_lock(&options).await.expect("a member answers").expect("the lock is free");
        held.release().await.expect("the lock is held");
        began.elapsed()
    };
    let longest = join_all((0..3).map(acquire)).await.into_iter().max();
    assert!(longest < Some(TIMEOUT / 3 + SOON), "one took {longest:?}");
    let told = stuck.mutex(unique()).lock().wait(Wait::Never).await;
    assert!(matches!(&told, Err(error) if error.is_transient()), "without a majority: {told:?}");

    // What others do behind the member is heard of.
    passed.release().await.expect("the lock is held");
    let woken = timeout(PATIENCE, near_waiter).await.expect("the waiter was never woken").expect("no panic");
    woken.expect("the waiter gets the lock").release().await.expect("the lock is held");
    assert!(far.force_release(&broken).await.expect("a member answers"), "it was held");
    let told = timeout(PATIENCE, taken.lost()).await.expect("the loss was never reported");
    assert_eq!(told, LostReason::Taken);

    // Who reaches only that member has lost its lock before the next one has it.
    let heir = timeout(PATIENCE, heir)
        .await
        .expect("it stays taken")
        .expect("no panic")
        .expect("the waiter gets the lock");
    assert!(gone.is_lost(), "two clients hold the lock");
    heir.release().await.expect("the lock is held");

    // Who reaches another one has lost nothing.
    assert_eq!(held.lost().now_or_never(), None, "lost, though a majority was there");
    held.release().await.expect("the lock is held");
    let next = timeout(PATIENCE, next).await.expect("the waiter was never woken").expect("no panic");
    next.expect("the waiter gets the lock").release().await.expect("the lock is held");
    lines.mend();
    bench.running.ready().await.expect("the servers are ready again");
}

/// Waits until one of these members leads.
async fn until_led(bench: &Bench, members: [usize; 2]) {
    let led = async {
        loop {
            for member in members {
                let told = ask(&bench.running.servers()[member], "/metrics").await;
                if told.is_ok_and(|told| told.contains("\netcd_server_is_leader 1\n")) {
                    return;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, led).await.expect("no other member leads");
}
