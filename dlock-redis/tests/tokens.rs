//! Tests that only the token of an unused name stays in the store, and for how long.

mod common;

use std::time::Duration;

use common::{Bench, claim, granted, unique};
use dlock_core::{Kind, LockOptions, Locks, RedLock, Wait, driver::Renewal};
use futures_util::{StreamExt, future::join_all, stream};
use tokio::time::{sleep, timeout};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_token_of_dlock_expires_a_week_after_it_was_last_drawn_or_an_eighth_later,
        a_draw_sets_the_expiry_only_if_it_is_too_early,
        the_longest_token_ttl_of_several_clients_counts,
        a_counter_that_redisson_made_never_ends,
        a_token_above_the_clock_does_not_expire_before_the_clock_has_passed_it,
        a_short_token_ttl_keeps_a_token_for_at_least_twice_the_ttl_of_its_lock,
        the_first_token_after_the_expiry_of_its_key_is_the_clock,
        a_write_hold_keeps_its_token_for_a_downgrade_however_long_it_lasts,
        ten_thousand_names_leave_nothing_in_the_store,
        a_redlock_leaves_no_token_in_its_members,
    }])
}

const TOKEN: &str = "redisson_lock_token:{foo}";
const WEEK: i64 = 7 * 24 * 3_600_000;

impl Bench {
    /// Prepares the token's key with the command `before`, and draws a token with a client that has
    /// these parameters. Returns the token, and the remaining time of its key in ms.
    async fn draw(&self, params: &str, before: &str) -> (u64, i64) {
        let store = self.store(params).await;
        self.send(before).await;
        let (mut claim, _) = claim(&store, "foo", Kind::Mutex, 30_000, Wait::Never);
        let token = granted(claim.attempt().await);
        claim.release().await.expect("the server replies");
        assert_eq!(self.query::<u64>(&format!("GET {TOKEN}")).await, token);
        (token, self.query(&format!("PTTL {TOKEN}")).await)
    }

    /// Returns the server's clock in µs.
    async fn micros(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.query("TIME").await;
        seconds * 1_000_000 + micros
    }
}

/// Returns the time for which a draw that sets the expiry of the key keeps it, in ms.
fn with_an_eighth(token_ttl: i64) -> i64 {
    token_ttl + token_ttl / 8
}

/// Returns whether a remaining time in ms is the expected one, less the time that a busy machine
/// may take for the query.
fn is_about(left: i64, expected: i64) -> bool {
    (expected - 60_000..=expected + 1000).contains(&left)
}

async fn a_token_of_dlock_expires_a_week_after_it_was_last_drawn_or_an_eighth_later() {
    let Some(bench) = Bench::new().await else { return };
    for before in [format!("DEL {TOKEN}"), format!("PEXPIRE {TOKEN} 1000000")] {
        let (_, left) = bench.draw("", &before).await;
        assert!(
            is_about(left, with_an_eighth(WEEK)),
            "after `{before}` the token's key expires in {left} ms, not in a week and an eighth"
        );
    }
    let (_, left) = bench.draw("token_ttl=1d", &format!("DEL {TOKEN}")).await;
    assert!(
        is_about(left, with_an_eighth(WEEK / 7)),
        "the token's key expires in {left} ms, not in a day and an eighth"
    );
}

async fn a_draw_sets_the_expiry_only_if_it_is_too_early() {
    let Some(bench) = Bench::new().await else { return };
    let (first, _) = bench.draw("", &format!("DEL {TOKEN}")).await;
    // Late enough for a week after the draw, with the time that a busy machine may take.
    let (second, left) = bench.draw("", &format!("PEXPIRE {TOKEN} {}", WEEK + 120_000)).await;
    assert!(second > first, "{second} after {first}");
    assert!(is_about(left, WEEK + 120_000), "the draw has set the expiry to {left} ms");
    let (third, left) = bench.draw("", &format!("PEXPIRE {TOKEN} {}", WEEK - 1)).await;
    assert!(third > second, "{third} after {second}");
    assert!(
        is_about(left, with_an_eighth(WEEK)),
        "the key expires in {left} ms, and not a week after the draw"
    );
}

async fn the_longest_token_ttl_of_several_clients_counts() {
    let Some(bench) = Bench::new().await else { return };
    let (_, left) = bench.draw("token_ttl=30d", &format!("DEL {TOKEN}")).await;
    let month = with_an_eighth(WEEK * 30 / 7);
    assert!(is_about(left, month), "the token's key expires in {left} ms, not in 30 days and an eighth");
    let (_, left) = bench.draw("token_ttl=1s", "PING").await;
    assert!(
        is_about(left, month),
        "a client that keeps tokens for a second has shortened the expiry to {left} ms"
    );
    let (_, left) = bench.draw("token_ttl=never", "PING").await;
    assert_eq!(left, -1, "the key expires although a client keeps tokens for ever");
    let (_, left) = bench.draw("", "PING").await;
    assert_eq!(left, -1, "a client without `token_ttl` lets a key expire that was kept for ever");
}

async fn a_counter_that_redisson_made_never_ends() {
    let Some(bench) = Bench::new().await else { return };
    for params in ["", "token_ttl=1s", "token_ttl=never"] {
        bench.send(&format!("DEL {TOKEN}")).await;
        let (token, left) = bench.draw(params, &format!("INCR {TOKEN}")).await;
        assert_eq!(left, -1, "Redisson's counter expires, with `{params}`");
        let (next, left) = bench.draw(params, &format!("INCR {TOKEN}")).await;
        assert!(next > token + 1, "{next} after {token} and a token of Redisson");
        assert_eq!(left, -1, "Redisson's counter expires after the second draw, with `{params}`");
    }
}

async fn a_token_above_the_clock_does_not_expire_before_the_clock_has_passed_it() {
    let Some(bench) = Bench::new().await else { return };
    let (token, _) = bench.draw("", &format!("DEL {TOKEN}")).await;
    // A token that was drawn while the clock was a hundred days ahead.
    let ahead = 100 * WEEK / 7;
    let before = token + u64::try_from(ahead).expect("positive") * 1000;
    for (params, kept) in [("", WEEK), ("token_ttl=1h", 3_600_000)] {
        let (next, left) = bench.draw(params, &format!("SET {TOKEN} {before} PX 1000")).await;
        assert_eq!(next, before + 1, "the token does not count on from the one before");
        assert!(is_about(left, ahead + kept), "the token's key expires in {left} ms, with `{params}`");
    }
    let (next, left) = bench.draw("token_ttl=never", "PING").await;
    assert_eq!((next, left), (before + 2, -1), "the key expires although a client keeps tokens for ever");
}

async fn a_short_token_ttl_keeps_a_token_for_at_least_twice_the_ttl_of_its_lock() {
    const TTL: u64 = 600_000;
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("token_ttl=1s").await;
    let kinds = common::KINDS.iter().chain(&[Kind::Permit]);
    for kind in kinds {
        for before in [format!("DEL {TOKEN}"), format!("PEXPIRE {TOKEN} 1000")] {
            bench.send(&before).await;
            let (mut held, _) = claim(&store, "foo", *kind, TTL, Wait::Never);
            granted(held.attempt().await);
            let left: i64 = bench.query(&format!("PTTL {TOKEN}")).await;
            assert!(
                is_about(left, with_an_eighth(2 * TTL as i64)),
                "{kind}: after `{before}` the token's key expires in {left} ms"
            );
            held.release().await.expect("the server replies");
        }
    }
}

async fn the_first_token_after_the_expiry_of_its_key_is_the_clock() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("token_ttl=4s").await;
    let draw = async || {
        let (mut claim, _) = claim(&store, "foo", Kind::Mutex, 1500, Wait::Never);
        let token = granted(claim.attempt().await);
        claim.release().await.expect("the server replies");
        token
    };
    let first = draw().await;
    let expired = async {
        while bench.query::<bool>(&format!("EXISTS {TOKEN}")).await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(30), expired).await.expect("the token's key does not expire");
    let before = bench.micros().await;
    assert!(before - first >= 4_000_000, "the key has expired {} µs after the draw", before - first);
    let next = draw().await;
    let after = bench.micros().await;
    assert!((before..=after).contains(&next), "the token {next} is not the clock, {before} to {after}");
}

async fn a_write_hold_keeps_its_token_for_a_downgrade_however_long_it_lasts() {
    let Some(bench) = Bench::new().await else { return };
    let store = bench.store("token_ttl=1s").await;
    let (mut held, _) = claim(&store, "foo", Kind::Write, 30_000, Wait::Never);
    granted(held.attempt().await);
    for (before, after) in [(40_000, 60_000), (600_000, 600_000)] {
        bench.send(&format!("PEXPIRE {TOKEN} {before}")).await;
        assert!(matches!(held.renew().await, Ok(Renewal::Renewed { .. })));
        let left: i64 = bench.query(&format!("PTTL {TOKEN}")).await;
        // The shorter time does not cover another ttl, so the renewal extends it.
        assert!(
            (after - 15_000..=after).contains(&left),
            "a renewal has changed {before} ms to {left}, not to {after}"
        );
    }
    bench.send(&format!("PERSIST {TOKEN}")).await;
    assert!(matches!(held.renew().await, Ok(Renewal::Renewed { .. })));
    assert_eq!(
        bench.query::<i64>(&format!("PTTL {TOKEN}")).await,
        -1,
        "after the renewal, a token's key expires that did not expire before"
    );
    bench.send(&format!("DEL {TOKEN}")).await;
    assert!(matches!(held.renew().await, Ok(Renewal::Renewed { .. })));
    assert_eq!(bench.query::<u64>(&format!("EXISTS {TOKEN}")).await, 0, "a renewal has created a token");
}

/// Hands a lock over from a client that holds it to a client that waits for it.
async fn hand_over(a: &Locks, b: &Locks, kind: Kind, name: &str) {
    let options = LockOptions::new().ttl(Duration::from_secs(5)).wait(Duration::from_secs(60));
    let held = a.of(kind, name).lock(&options).await.expect("no client holds the lock");
    let wait = b.of(if kind == Kind::Read { Kind::Write } else { kind }, name);
    let (released, next) = tokio::join!(held.release(), wait.lock(&options));
    released.expect("the lock is still held");
    next.expect("the lock is free").release().await.expect("the lock is still held");
}

async fn ten_thousand_names_leave_nothing_in_the_store() {
    let Some(bench) = Bench::new().await else { return };
    let (a, b) = (bench.locks("token_ttl=1s").await, bench.locks("token_ttl=1s").await);
    let prefix = unique();
    let kinds = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];
    stream::iter((0..10_000).zip(kinds.iter().cycle()))
        .for_each_concurrent(50, async |(number, kind)| {
            hand_over(&a, &b, *kind, &format!("{prefix}/{number}")).await;
        })
        .await;
    let created = bench.all_keys().await.len();
    assert!(created > 0, "the names were never in the store, so this test finds nothing");
    // A token stays for twice the ttl of the lock, which is ten seconds.
    let mut left = created;
    for _ in 0..1200 {
        left = bench.all_keys().await.len();
        let channels: Vec<String> = bench.query("PUBSUB CHANNELS *").await;
        if left == 0 && channels.is_empty() {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    let keys = bench.all_keys().await;
    let channels: Vec<String> = bench.query("PUBSUB CHANNELS *").await;
    panic!(
        "10000 names have left {left} keys, such as {:?}, and the channels {channels:?}",
        &keys[..keys.len().min(5)]
    );
}

async fn a_redlock_leaves_no_token_in_its_members() {
    let Some(bench) = Bench::new().await else { return };
    // Three prefixes replace three servers.
    let members = join_all(["a:", "b:", "c:"].map(|prefix| {
        let params = format!("prefix={prefix}");
        let bench = &bench;
        async move { bench.store(&params).await }
    }));
    let lock = RedLock::new(members.await).expect("three stores");
    let locks = Locks::new(lock.into_store());
    for kind in common::KINDS {
        let options = LockOptions::new().ttl(Duration::from_secs(30));
        let held = locks.of(*kind, "foo").lock(&options).await.expect("no client holds the lock");
        assert_eq!(held.token(), None);
        let state = locks.inspect("foo").await.expect("the server replies").expect("the lock is held");
        assert_eq!(state.holders.len(), 1, "{kind}");
        held.release().await.expect("the lock is still held");
    }
    // A release only waits for a majority. The third member may be released later.
    locks.close().await;
    let keys = bench.all_keys().await;
    assert!(keys.is_empty(), "a free lock has left {keys:?}");
}
