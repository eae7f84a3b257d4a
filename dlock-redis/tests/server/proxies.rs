//! Tests of proxies that present several servers as one, and of calls with the keys of several
//! locks.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Guard, LockOptions, Locks};
use dlock_testbed::servers::Server;
use futures_util::future::join_all;
use redis::cluster_routing::Slot;
use tokio::time::sleep;

use crate::common::{
    Bench, connect,
    relay::{Relay, Words, error_reply},
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        f29_a_proxy_that_refuses_keys_of_several_servers_has_each_lock_renewed_alone,
        f29_a_proxy_that_asks_the_server_of_the_first_key_loses_no_lock,
    }
}

/// Ttl of the locks. It is long enough that many locks are renewed together.
const TTL: Duration = Duration::from_secs(3);

/// Returns the positions of a script's keys among the words of its call. Empty for other commands.
fn keys(words: &Words) -> Range<usize> {
    if !words[0].starts_with("EVAL") {
        return 0..0;
    }
    3..3 + words[2].parse::<usize>().expect("a number of keys")
}

/// Returns whether two keys are in different slots.
fn are_apart(a: &str, b: &str) -> bool {
    Slot::for_key(a) != Slot::for_key(b)
}

/// Starts a proxy that refuses keys of several slots, and that counts its refusals.
async fn strict(server: &Server) -> (Relay, Arc<AtomicUsize>) {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refused);
    let relay = Relay::rewriting(server.address(), move |words| {
        if words[keys(&words)].windows(2).any(|pair| are_apart(&pair[0], &pair[1])) {
            count.fetch_add(1, Relaxed);
            return error_reply("CROSSSLOT Keys in request don't hash to the same slot");
        }
        words
    });
    (relay.await, refused)
}

/// Starts a proxy that sends each call to the server of its first key, which does not have the
/// other keys.
async fn careless(server: &Server) -> Relay {
    Relay::rewriting(server.address(), |mut words| {
        let keys = keys(&words);
        for key in keys.clone().skip(1) {
            if are_apart(&words[keys.start], &words[key]) {
                words[key] = format!("elsewhere:{}", words[key]);
            }
        }
        words
    })
    .await
}

async fn locks(relay: &Relay) -> Locks {
    let store = connect(&format!("redis://{}", relay.address)).await.expect("the relay is running");
    Locks::new(store).with_defaults(LockOptions::new().ttl(TTL))
}

/// Acquires many holds of all kinds at once, so that they are renewed together.
async fn many(locks: &Locks) -> Vec<Guard> {
    let all = (0..40).map(async |number| {
        let kind = crate::common::KINDS[number % crate::common::KINDS.len()];
        locks.of(kind, format!("foo{number}")).lock(&LockOptions::new().ttl(TTL)).await
    });
    join_all(all).await.into_iter().map(|held| held.expect("no other client holds the lock")).collect()
}

fn assert_held(held: &[Guard]) {
    let lost: Vec<_> = held.iter().filter(|held| held.is_lost()).collect();
    assert!(lost.is_empty(), "the server still has every lock, and these guards are lost: {lost:?}");
}

async fn f29_a_proxy_that_refuses_keys_of_several_servers_has_each_lock_renewed_alone() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let (relay, refused) = strict(server).await;
    let locks = locks(&relay).await;
    let held = many(&locks).await;
    while refused.load(Relaxed) == 0 {
        assert_held(&held);
        sleep(Duration::from_millis(10)).await;
    }
    // All renewals of this round have ended by then, long before the next round begins.
    sleep(TTL / 6).await;
    let before = refused.load(Relaxed);
    sleep(TTL + TTL / 2).await;
    assert_held(&held);
    assert_eq!(
        refused.load(Relaxed),
        before,
        "the client was refused once, and still sends several locks in one command"
    );
    for held in held {
        held.release().await.expect("the lock is still held");
    }
}

async fn f29_a_proxy_that_asks_the_server_of_the_first_key_loses_no_lock() {
    let Some(bench) = Bench::new().await else { return };
    let Some(server) = bench.running.own_server() else { return };
    let locks = locks(&careless(server).await).await;
    let held = many(&locks).await;
    sleep(TTL + TTL / 2).await;
    assert_held(&held);
    for held in held {
        held.release().await.expect("the lock is still held");
    }
}
