//! Marks of work that is done. Many of them cost other locks nothing.

use std::time::Duration;

use dlock_core::{Locks, Once};
use tokio::time::{Instant, timeout};

use crate::{Place, SOON};

/// Number of marks in the file.
const MARKS: u32 = 100_000;

/// Number of acquisitions that are measured.
const PAIRS: u32 = 200;

/// Adds marks as `Occurrence::run` would, in one transaction. Every other mark has expired.
async fn add_marks(place: &Place) {
    let mut raw = place.raw().await;
    let now = "(SELECT expires FROM dlock_queue WHERE name = 'now')";
    let statements = format!(
        "BEGIN;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MARKS})
         INSERT INTO dlock_queue (name, seq, claim, kind, shares, client, pid, host, since, expires, slots, until, who)
         SELECT 'dlock-once:report:' || i || ':6', i, randomblob(16), 'mutex', 0, zeroblob(16), 1, 'host', {now},
                {now} + (CASE i % 2 WHEN 0 THEN 1 ELSE -1 END) * 604800 * 1000000000, NULL, NULL, 'cron' FROM n;
         COMMIT"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(statements)).execute(&mut raw).await.unwrap();
}

async fn pairs(locks: &Locks) -> Duration {
    let began = Instant::now();
    for _ in 0..PAIRS {
        locks.mutex("other").lock().await.unwrap().release().await.unwrap();
    }
    began.elapsed() / PAIRS
}

#[tokio::test]
async fn a_hundred_thousand_marks_delay_no_other_lock() {
    let place = Place::new();
    let locks = place.client().await;
    let before = pairs(&locks).await;
    // Its row has the present time of the file's clock.
    let now = locks.mutex("now").lock().await.unwrap();
    add_marks(&place).await;
    let after = timeout(SOON * 3, pairs(&locks)).await.expect("marks delay an unrelated lock");
    let report = locks.mutex("report").once("100001");
    let began = Instant::now();
    let run = report.run(async |_guard| Ok::<_, std::fmt::Error>(()));
    let ran = timeout(SOON, run).await.expect("marks delay an occurrence").unwrap();
    assert_eq!(ran, Once::Ran(()));
    let run = began.elapsed();
    let began = Instant::now();
    assert!(timeout(SOON, locks.mutex("report").once("100000").is_done()).await.unwrap().unwrap());
    assert!(!locks.mutex("report").once("99999").is_done().await.unwrap(), "a mark outlives its time");
    let look = began.elapsed() / 2;
    println!("an acquire and release took {before:?} without marks, and {after:?} beside {MARKS} marks");
    println!("a run took {run:?}, and a look {look:?}");
    let began = Instant::now();
    assert_eq!(locks.list("").await.unwrap().len(), 1, "marks are listed as locks");
    println!("a list of the other locks took {:?}", began.elapsed());
    now.release().await.unwrap();
}
