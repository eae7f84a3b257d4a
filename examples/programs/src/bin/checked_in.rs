//! A holder that is paused in the middle of its transaction: `cargo run --bin checked_in`.
//!
//! The data is in the same database as the lock, so the holder checks its guard in at the beginning
//! of the transaction. Its ttl ends while it is paused, and the next holder still waits until the
//! transaction has ended. `DLOCK_STORE` selects the database, such as `sqlite:locks.db` or
//! `postgres://postgres:secret@localhost/postgres`.

use std::{env, error::Error, time::Duration};

use dlock::{Guard, Locks};
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use tokio::time::sleep;

/// Length of the holds, which are not renewed, and of the pause, which is longer.
const LEASE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(1500);

const CREATE: &str = "CREATE TABLE IF NOT EXISTS programs_stock (pieces INTEGER NOT NULL)";
const FILL: &str = "INSERT INTO programs_stock SELECT 10 WHERE NOT EXISTS (SELECT 1 FROM programs_stock)";
const READ: &str = "SELECT pieces FROM programs_stock";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::temp_dir().join(format!("dlock-programs-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let store = env::var("DLOCK_STORE").unwrap_or(format!("sqlite:{}/locks.db", folder.display()));
    let locks = dlock::connect(&store).await?;
    let before = pieces(&store).await?;

    let (slow, next) = tokio::join!(work(&locks, &store, "the slow holder", PAUSE), async {
        // The slow holder is in its transaction.
        sleep(LEASE / 2).await;
        work(&locks, &store, "the next holder", Duration::ZERO).await
    });
    (slow?, next?);

    let taken = before - pieces(&store).await?;
    assert_eq!(taken, 2, "one holder has overwritten the work of the other");
    println!("{taken} pieces were taken");
    locks.close().await;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Takes one piece under the lock.
async fn work(locks: &Locks, store: &str, who: &str, pause: Duration) -> Result<(), Box<dyn Error>> {
    let guard = locks.mutex("programs/stock").lock().lease(LEASE).await?;
    println!("{who} has the lock");
    if store.starts_with("postgres") {
        take_on_postgres(&guard, store, pause).await?
    } else {
        take_on_sqlite(&guard, store, pause).await?
    }
    println!("{who} has committed, after the end of its hold: {}", guard.is_lost());
    // A hold that has ended cannot be released.
    guard.release().await.ok();
    Ok(())
}

async fn take_on_postgres(guard: &Guard, store: &str, pause: Duration) -> Result<(), Box<dyn Error>> {
    use dlock::postgres::CheckIn as _;
    let mut database = PgConnection::connect(store).await?;
    let mut transaction = database.begin().await?;
    guard.check_in(&mut transaction).await?;
    let pieces: i32 = sqlx::query_scalar(READ).fetch_one(&mut *transaction).await?;
    sleep(pause).await;
    sqlx::query("UPDATE programs_stock SET pieces = $1").bind(pieces - 1).execute(&mut *transaction).await?;
    Ok(transaction.commit().await?)
}

async fn take_on_sqlite(guard: &Guard, store: &str, pause: Duration) -> Result<(), Box<dyn Error>> {
    use dlock::sqlite::CheckIn as _;
    let mut database = SqliteConnection::connect(store).await?;
    let mut transaction = database.begin().await?;
    guard.check_in(&mut transaction).await?;
    let pieces: i32 = sqlx::query_scalar(READ).fetch_one(&mut *transaction).await?;
    sleep(pause).await;
    sqlx::query("UPDATE programs_stock SET pieces = $1").bind(pieces - 1).execute(&mut *transaction).await?;
    Ok(transaction.commit().await?)
}

/// Returns the number of pieces, of which there are ten at first.
async fn pieces(store: &str) -> Result<i32, Box<dyn Error>> {
    Ok(if store.starts_with("postgres") {
        let mut database = PgConnection::connect(store).await?;
        sqlx::query(CREATE).execute(&mut database).await?;
        sqlx::query(FILL).execute(&mut database).await?;
        sqlx::query_scalar(READ).fetch_one(&mut database).await?
    } else {
        let mut database = SqliteConnection::connect(store).await?;
        sqlx::query(CREATE).execute(&mut database).await?;
        sqlx::query(FILL).execute(&mut database).await?;
        sqlx::query_scalar(READ).fetch_one(&mut database).await?
    })
}
