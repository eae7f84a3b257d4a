//! Holds that are verified inside a transaction of the user.

use std::time::Duration;

use dlock_core::{Error, Guard, Locks};
use dlock_sqlite::CheckIn as _;
use sqlx::{Connection as _, Sqlite, SqliteConnection, Transaction};
use tokio::{
    sync::Barrier,
    time::{Instant, sleep_until, timeout},
};

use super::{Place, SOON, run};

/// Length of a lease that ends during a test, instead of a holder that is paused.
const LEASE: Duration = Duration::from_millis(300);

/// The points at which a holder can be paused, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    BeforeBegin,
    BeforeCheckIn,
    AfterCheckIn,
    AfterRead,
    BeforeCommit,
}

const POINTS: [Point; 5] =
    [Point::BeforeBegin, Point::BeforeCheckIn, Point::AfterCheckIn, Point::AfterRead, Point::BeforeCommit];

/// Opens a file of the user, with the file of the locks attached to it.
async fn user(place: &Place) -> SqliteConnection {
    let url = format!("sqlite:{}?mode=rwc", place.0.path().join("user.db").display());
    let mut conn = SqliteConnection::connect(&url).await.unwrap();
    sqlx::query("ATTACH ? AS locks").bind(place.path().to_str()).execute(&mut conn).await.unwrap();
    run(&mut conn, "CREATE TABLE IF NOT EXISTS counter (value INTEGER NOT NULL)").await;
    conn
}

async fn value(conn: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("SELECT COALESCE(MAX(value), 0) FROM counter").fetch_one(conn).await.unwrap()
}

/// Adds one to the counter. Calls `pause` at each point.
async fn add_one<P: Future<Output = ()>>(
    conn: &mut SqliteConnection,
    guard: &Guard,
    pause: impl Fn(Point) -> P,
) -> dlock_core::Result<()> {
    pause(Point::BeforeBegin).await;
    let mut transaction: Transaction<'_, Sqlite> = conn.begin().await.unwrap();
    pause(Point::BeforeCheckIn).await;
    guard.check_in(&mut transaction).await?;
    pause(Point::AfterCheckIn).await;
    let value = value(&mut transaction).await;
    pause(Point::AfterRead).await;
    sqlx::query("INSERT INTO counter VALUES (?)").bind(value + 1).execute(&mut *transaction).await.unwrap();
    pause(Point::BeforeCommit).await;
    transaction.commit().await.unwrap();
    Ok(())
}

#[tokio::test]
async fn a_holder_that_is_paused_anywhere_is_lost_or_excludes_the_next_one() {
    let place = Place::new();
    let [locks, other] = [place.client().await, place.client().await];
    let [mut holder, mut successor] = [user(&place).await, user(&place).await];
    let mut commits = 0;
    for at in POINTS {
        let guard = locks.mutex("counter").lock().lease(LEASE).await.unwrap();
        let meeting = &Barrier::new(2);
        let pause = move |point| async move {
            if point == at {
                // The holder is at the point.
                meeting.wait().await;
                // The successor has tried.
                meeting.wait().await;
            }
        };
        let holding = add_one(&mut holder, &guard, pause);
        let succeeding = async {
            meeting.wait().await;
            sleep_until(Instant::now() + LEASE).await;
            assert!(guard.is_lost());
            // After the check-in, the file is busy for each client.
            let next = other.mutex("counter").try_lock().await;
            let is_excluded = next.is_err();
            if at < Point::AfterCheckIn {
                let next = next.expect("not busy").expect("free");
                add_one(&mut successor, &next, |_| async {}).await.expect("held");
                next.release().await.unwrap();
            }
            meeting.wait().await;
            is_excluded
        };
        let both = async { tokio::join!(holding, succeeding) };
        let (result, is_excluded) = timeout(SOON * 3, both).await.expect("in time");
        assert_eq!(is_excluded, at >= Point::AfterCheckIn, "the successor at {at:?}");
        match result {
            Ok(()) => assert!(is_excluded, "two holders at {at:?}"),
            Err(Error::Lost { .. }) => assert!(!is_excluded, "no client has worked at {at:?}"),
            Err(error) => panic!("{at:?}: {error:?}"),
        }
        commits += 1;
        assert_eq!(value(&mut successor).await, commits, "an update was lost at {at:?}");
        drop(guard);
    }
    let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM counter").fetch_one(&mut holder).await.unwrap();
    assert_eq!(rows, commits, "two holders wrote the same value");
}

#[tokio::test]
async fn a_waiter_gets_the_lock_once_the_transaction_that_checked_in_has_ended() {
    let place = Place::new();
    let [locks, other] = [place.client().await, place.client().await];
    // The tables of the user may also be in the file of the locks.
    let mut conn = place.raw().await;
    let guard = locks.mutex("x").lock().lease(LEASE).await.unwrap();
    let mut transaction = conn.begin().await.unwrap();
    guard.check_in(&mut transaction).await.unwrap();
    let waiting = async { other.mutex("x").lock().await.unwrap() };
    let ending = async {
        sleep_until(Instant::now() + LEASE).await;
        transaction.rollback().await.unwrap();
    };
    let (next, ()) = timeout(SOON, async { tokio::join!(waiting, ending) }).await.expect("in time");
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_check_in_in_the_file_of_the_locks_waits_for_another_writer() {
    let place = Place::new();
    let locks = place.client().await;
    let guard = locks.mutex("x").lock().await.unwrap();
    let [mut conn, mut other] = [place.raw().await, place.raw().await];
    run(&mut other, "BEGIN IMMEDIATE").await;
    run(&mut other, "UPDATE dlock_queue SET expires = expires").await;
    let mut transaction = conn.begin().await.unwrap();
    let writing = async {
        sleep_until(Instant::now() + LEASE).await;
        run(&mut other, "COMMIT").await;
    };
    let (checked_in, ()) = tokio::join!(guard.check_in(&mut transaction), writing);
    checked_in.expect("the file is busy for less than the busy_timeout");
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn a_check_in_after_the_loss_fails() {
    let place = Place::new();
    let locks = place.client().await;
    for end in [
        "DELETE FROM dlock_queue",
        "UPDATE dlock_queue SET expires = 1",
        "UPDATE dlock_queue SET seq = seq + 1",
    ] {
        let guard = locks.mutex("x").lock().await.unwrap();
        run(&mut place.raw().await, end).await;
        let mut conn = user(&place).await;
        let mut transaction = conn.begin().await.unwrap();
        let error = guard.check_in(&mut transaction).await.expect_err(end);
        assert!(matches!(error, Error::Lost { .. }), "{end}: {error:?}");
        transaction.rollback().await.unwrap();
        run(&mut place.raw().await, "DELETE FROM dlock_queue").await;
    }
}

#[tokio::test]
async fn a_guard_of_a_file_that_is_not_attached_is_refused() {
    let [place, another] = [Place::new(), Place::new()];
    let guards = [
        place.client().await.mutex("x").lock().await.unwrap(),
        Locks::memory().mutex("x").lock().await.unwrap(),
    ];
    another.client().await;
    let mut conn = user(&another).await;
    let mut transaction = conn.begin().await.unwrap();
    for (guard, words) in guards.iter().zip(["has not opened", "memory cannot check in"]) {
        let error = guard.check_in(&mut transaction).await.expect_err("refused");
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
}
