//! Tests with many contenders while sessions are killed, and with many locks of one client.
//! `DLOCK_STORM` is the number of acquisitions of each contender, and `DLOCK_MANY` the number of
//! locks. Both are small by default.

use std::{
    env,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicI64, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use dlock_core::{Guard, Kind, LockOptions};
use dlock_testbed::servers::Running;
use futures_util::future::join_all;
use parking_lot::Mutex;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::time::{Instant, sleep, timeout};

use crate::{connect, end_sessions, named_locks, plain_session, query, status};

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The holders inside the lock, and the order of their grants.
#[derive(Default)]
struct Room {
    /// Number of readers inside. -1 for an exclusive holder.
    inside: AtomicI64,
    /// The token of each grant, and whether the grant is exclusive.
    grants: Mutex<Vec<(u64, bool)>>,
}

impl Room {
    async fn visit(&self, guard: &Guard, kind: Kind, stay: Duration) {
        let alone = kind != Kind::Read;
        let before = self.inside.fetch_add(if alone { -1 } else { 1 }, SeqCst);
        assert!(
            if alone { before == 0 } else { before >= 0 },
            "{kind} was granted beside {before} other holders"
        );
        let token = guard.token().expect("each grant has a token").get();
        self.grants.lock().push((token, alone));
        sleep(stay).await;
        assert!(!guard.is_lost(), "the hold does not depend on sessions");
        self.inside.fetch_add(if alone { 1 } else { -1 }, SeqCst);
    }

    /// Asserts that grants came in the order of arrival. Readers may pass readers. Returns the
    /// number of grants.
    fn check_order(&self) -> usize {
        let grants = self.grants.lock();
        let (mut last, mut last_alone) = (0, 0);
        for &(token, alone) in grants.iter() {
            assert!(token > if alone { last } else { last_alone }, "token {token} was granted after {last}");
            last = last.max(token);
            if alone {
                last_alone = token;
            }
        }
        grants.len()
    }
}

/// Kills a random session of the contenders every 100 ms until `stop` is set. Returns the number of
/// killed sessions.
async fn kill_sessions(server: &Running, stop: &AtomicBool) -> u64 {
    let (mut other, mut killed) = (plain_session(server).await, 0);
    while !stop.load(Relaxed) {
        let random = "SELECT id FROM information_schema.processlist
            WHERE user = 'dlock' AND id <> CONNECTION_ID() ORDER BY RAND() LIMIT 1";
        if let Ok(Some(row)) = sqlx::raw_sql(random).fetch_optional(&mut other).await {
            let id: i64 = row.try_get_unchecked(0).expect("a number");
            let kill = AssertSqlSafe(format!("KILL {id}"));
            killed += u64::from(sqlx::raw_sql(kill).execute(&mut other).await.is_ok());
        }
        sleep(Duration::from_millis(100)).await;
    }
    killed
}

#[expect(clippy::print_stdout, reason = "prints the measurements")]
pub(crate) async fn no_two_hold_in_a_storm_of_kills(server: &Running) {
    let (rounds, room, began) = (number("DLOCK_STORM", 12), Arc::new(Room::default()), Instant::now());
    let (stop, given_up, failed) =
        (AtomicBool::new(false), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut contenders = Vec::new();
    for seed in 0..16 {
        let locks = connect(server, "").await.expect("the server runs");
        let (room, given_up, failed) = (Arc::clone(&room), Arc::clone(&given_up), Arc::clone(&failed));
        contenders.push(tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(seed);
            let options = LockOptions::default().ttl(Duration::from_secs(30));
            for _ in 0..rounds {
                let kind = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Read, Kind::Write][rng.usize(..5)];
                let lock = locks.of(kind, "storm");
                let (max_wait, stay) =
                    (Duration::from_millis(rng.u64(..80)), Duration::from_millis(rng.u64(..3)));
                let result = if rng.u8(..3) == 0 {
                    timeout(max_wait, lock.lock(&options)).await.ok()
                } else {
                    Some(lock.lock(&options).await)
                };
                match result {
                    None => drop(given_up.fetch_add(1, Relaxed)),
                    Some(Ok(guard)) => {
                        room.visit(&guard, kind, stay).await;
                        if rng.bool() {
                            guard.release().await.expect("the lock is still held");
                        }
                    }
                    Some(Err(error)) => {
                        assert!(error.is_transient(), "{error:?}");
                        failed.fetch_add(1, Relaxed);
                    }
                }
            }
            locks.close().await;
        }));
    }
    let all = async {
        for contender in join_all(contenders).await {
            contender.expect("no contender panics");
        }
        stop.store(true, Relaxed);
    };
    let ((), killed) = tokio::join!(all, kill_sessions(server, &stop));
    let granted = room.check_order();
    let mut other = plain_session(server).await;
    assert_eq!(
        query(&mut other, "SELECT COUNT(*) FROM dlock_queue").await,
        0,
        "a claim is left in the queue"
    );
    let freed = async {
        while named_locks(&mut other).await > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    if timeout(crate::SOON, freed).await.is_err() {
        let sessions = "SELECT GROUP_CONCAT(CONCAT_WS(' ', id, command, time, state, info) SEPARATOR '; ')
            FROM information_schema.processlist";
        let sessions = sqlx::raw_sql(sessions).fetch_one(&mut other).await.expect("a row");
        panic!("a session still owns a doorbell: {:?}", sessions.try_get_unchecked::<String, _>(0));
    }
    println!(
        "16 contenders x {rounds}: {granted} granted, {} cancelled, {} failed, {killed} sessions killed, {:?}",
        given_up.load(Relaxed),
        failed.load(Relaxed),
        began.elapsed()
    );
}

pub(crate) async fn holds_whose_sessions_have_ended_are_renewed_together(server: &Running) {
    let (count, ttl) = (200, Duration::from_secs(9));
    let (locks, mut other) =
        (connect(server, "").await.expect("the server runs"), plain_session(server).await);
    let names = (0..count).map(|number| locks.mutex(format!("many/{number}")));
    let held = join_all(names.map(|lock| async move { lock.lock().ttl(ttl).await })).await;
    let held: Vec<_> = held.into_iter().map(|held| held.expect("the lock is free")).collect();
    let renewals = ["Com_update", "Com_update_multi"];
    let before = status(&mut other, &renewals).await;
    end_sessions(&mut other).await;
    let has_bells = async {
        while named_locks(&mut other).await < count {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(ttl * 2, has_bells).await.expect("each hold gets its doorbell back");
    let renewals = status(&mut other, &renewals).await - before;
    assert!(renewals <= 50, "{renewals} statements renew {count} holds");
    assert!(held.iter().all(|guard| !guard.is_lost()), "a hold is lost although its row exists");
    join_all(held.into_iter().map(Guard::release)).await;
    assert_eq!(named_locks(&mut other).await, 0, "a session still owns a doorbell");
}

#[expect(clippy::print_stdout, reason = "prints the measurements")]
pub(crate) async fn many_locks_are_renewed_by_few_statements(server: &Running) {
    let (count, ttl) = (number("DLOCK_MANY", 500), Duration::from_secs(20));
    let (locks, mut other) =
        (connect(server, "").await.expect("the server runs"), plain_session(server).await);
    let (mut held, began) = (Vec::new(), Instant::now());
    for first in (0..count).step_by(100) {
        let names = (first..count.min(first + 100)).map(|number| locks.mutex(format!("many/{number}")));
        let taken = join_all(names.map(|lock| async move { lock.lock().ttl(ttl).await })).await;
        held.extend(taken.into_iter().map(|taken| taken.expect("the lock is free")));
    }
    let took = began.elapsed();
    // Each hold is renewed after a third of its ttl plus at most a tenth of that. Afterwards all
    // holds have been renewed once.
    sleep(ttl / 2).await;
    // The server counts each statement of a batch. A third of the ttl may include the end of one
    // round of renewals and most of the next.
    let before = status(&mut other, &["Questions"]).await;
    sleep(ttl).await;
    // The second query of the counter is counted, too.
    let statements = (status(&mut other, &["Questions"]).await - before - 1) / 3;
    println!("{count} locks, taken in {took:?}: {statements} statements in each third of their ttl");
    assert!(statements > 0, "no hold was renewed");
    assert!(statements <= 100, "{statements} statements renew {count} locks");
    assert!(held.iter().all(|guard| !guard.is_lost()), "a hold was not renewed in time");
    join_all(held.into_iter().map(Guard::release)).await;
    assert_eq!(
        query(&mut other, "SELECT COUNT(*) FROM dlock_queue").await,
        0,
        "a claim is left in the queue"
    );
}
