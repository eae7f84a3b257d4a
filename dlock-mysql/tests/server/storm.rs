//! Many contenders while sessions are killed, and many locks of one client. `DLOCK_STORM` is how often each contender asks,
//! `DLOCK_MANY` how many locks are held: small here, large for those who have the time.

use std::{
    env,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicI64, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use dlock_conformance::stores::Running;
use dlock_core::{Guard, Kind, LockOptions};
use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::time::{Instant, sleep, timeout};

use crate::{ask, connect, end_sessions, named_locks, status, stranger};

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Who is inside, and in which order they came.
#[derive(Default)]
struct Room {
    /// How many readers, or -1 for one that is alone.
    inside: AtomicI64,
    /// The token of each grant, and whether its holder is alone.
    grants: Mutex<Vec<(u64, bool)>>,
}

impl Room {
    async fn visit(&self, guard: &Guard, kind: Kind, stay: Duration) {
        let alone = kind != Kind::Read;
        let before = self.inside.fetch_add(if alone { -1 } else { 1 }, SeqCst);
        assert!(if alone { before == 0 } else { before >= 0 }, "{kind} came in, and inside were {before}");
        let token = guard.token().expect("each grant has one").get();
        self.grants.lock().expect("no panic").push((token, alone));
        sleep(stay).await;
        assert!(!guard.is_lost(), "its row is there, whatever sessions there are");
        self.inside.fetch_add(if alone { 1 } else { -1 }, SeqCst);
    }

    /// Whether all came in the order in which they had asked: readers may pass readers, and nobody else may pass anybody.
    fn check_order(&self) -> usize {
        let grants = self.grants.lock().expect("no panic");
        let (mut last, mut last_alone) = (0, 0);
        for &(token, alone) in grants.iter() {
            assert!(token > if alone { last } else { last_alone }, "{token} came behind {last}");
            last = last.max(token);
            if alone {
                last_alone = token;
            }
        }
        grants.len()
    }
}

/// Kills a session of the contenders now and then, until it is told to stop. How many it killed.
async fn kill_sessions(server: &Running, stop: &AtomicBool) -> u64 {
    let (mut other, mut killed) = (stranger(server).await, 0);
    while !stop.load(Relaxed) {
        let one = "SELECT id FROM information_schema.processlist
            WHERE user = 'dlock' AND id <> CONNECTION_ID() ORDER BY RAND() LIMIT 1";
        if let Ok(Some(one)) = sqlx::raw_sql(one).fetch_optional(&mut other).await {
            let id: i64 = one.try_get_unchecked(0).expect("a number");
            let kill = AssertSqlSafe(format!("KILL {id}"));
            killed += u64::from(sqlx::raw_sql(kill).execute(&mut other).await.is_ok());
        }
        sleep(Duration::from_millis(100)).await;
    }
    killed
}

#[expect(clippy::print_stdout, reason = "figures for those who look")]
pub(crate) async fn no_two_hold_in_a_storm_of_kills(server: &Running) {
    let (rounds, room, began) = (number("DLOCK_STORM", 12), Arc::new(Room::default()), Instant::now());
    let (stop, given_up, failed) =
        (AtomicBool::new(false), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut contenders = Vec::new();
    for seed in 0..16 {
        let locks = connect(server, "").await.expect("it runs");
        let (room, given_up, failed) = (Arc::clone(&room), Arc::clone(&given_up), Arc::clone(&failed));
        contenders.push(tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(seed);
            let options = LockOptions::default().ttl(Duration::from_secs(30));
            for _ in 0..rounds {
                let kind = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Read, Kind::Write][rng.usize(..5)];
                let lock = locks.of(kind, "storm");
                let (patience, stay) =
                    (Duration::from_millis(rng.u64(..80)), Duration::from_millis(rng.u64(..3)));
                let asked = if rng.u8(..3) == 0 {
                    timeout(patience, lock.lock(&options)).await.ok()
                } else {
                    Some(lock.lock(&options).await)
                };
                match asked {
                    None => drop(given_up.fetch_add(1, Relaxed)),
                    Some(Ok(guard)) => {
                        room.visit(&guard, kind, stay).await;
                        if rng.bool() {
                            guard.release().await.expect("held until now");
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
            contender.expect("a contender found something wrong");
        }
        stop.store(true, Relaxed);
    };
    let ((), killed) = tokio::join!(all, kill_sessions(server, &stop));
    let granted = room.check_order();
    let mut other = stranger(server).await;
    assert_eq!(ask(&mut other, "SELECT COUNT(*) FROM dlock_queue").await, 0, "a claim is left");
    let freed = async {
        while named_locks(&mut other).await > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    if timeout(crate::SOON, freed).await.is_err() {
        let sessions = "SELECT GROUP_CONCAT(CONCAT_WS(' ', id, command, time, state, info) SEPARATOR '; ')
            FROM information_schema.processlist";
        let sessions = sqlx::raw_sql(sessions).fetch_one(&mut other).await.expect("an answer");
        panic!("a session is left that holds a doorbell: {:?}", sessions.try_get_unchecked::<String, _>(0));
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
    let (locks, mut other) = (connect(server, "").await.expect("it runs"), stranger(server).await);
    let names = (0..count).map(|number| locks.mutex(format!("many/{number}")));
    let held = join_all(names.map(|lock| async move { lock.lock().ttl(ttl).await })).await;
    let held: Vec<_> = held.into_iter().map(|held| held.expect("nobody holds it")).collect();
    let renewals = ["Com_update", "Com_update_multi"];
    let before = status(&mut other, &renewals).await;
    end_sessions(&mut other).await;
    let has_bells = async {
        while named_locks(&mut other).await < count {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(ttl * 2, has_bells).await.expect("each takes its doorbell again");
    let renewals = status(&mut other, &renewals).await - before;
    assert!(renewals <= 50, "{renewals} statements renew {count} holds");
    assert!(held.iter().all(|guard| !guard.is_lost()), "their rows are there");
    join_all(held.into_iter().map(Guard::release)).await;
    assert_eq!(named_locks(&mut other).await, 0, "a doorbell is left");
}

#[expect(clippy::print_stdout, reason = "figures for those who look")]
pub(crate) async fn many_locks_are_renewed_by_few_statements(server: &Running) {
    let (count, ttl) = (number("DLOCK_MANY", 500), Duration::from_secs(20));
    let (locks, mut other) = (connect(server, "").await.expect("it runs"), stranger(server).await);
    let (mut held, began) = (Vec::new(), Instant::now());
    for first in (0..count).step_by(100) {
        let names = (first..count.min(first + 100)).map(|number| locks.mutex(format!("many/{number}")));
        let taken = join_all(names.map(|lock| async move { lock.lock().ttl(ttl).await })).await;
        held.extend(taken.into_iter().map(|taken| taken.expect("nobody holds it")));
    }
    let took = began.elapsed();
    // Each is renewed after a third of its ttl and up to a tenth of that. Later all have been renewed once, and go on.
    sleep(ttl / 2).await;
    // As the server counts them, those of a batch one by one. A third of the ttl may see the end of a pass and most of the next.
    let before = status(&mut other, &["Questions"]).await;
    sleep(ttl).await;
    // The second question is counted too.
    let statements = (status(&mut other, &["Questions"]).await - before - 1) / 3;
    println!("{count} locks, taken in {took:?}: {statements} statements in each third of their ttl");
    assert!(statements > 0, "none is renewed");
    assert!(statements <= 100, "{statements} statements renew {count} locks");
    assert!(held.iter().all(|guard| !guard.is_lost()), "one was not renewed in time");
    join_all(held.into_iter().map(Guard::release)).await;
    assert_eq!(ask(&mut other, "SELECT COUNT(*) FROM dlock_queue").await, 0, "a claim is left");
}
