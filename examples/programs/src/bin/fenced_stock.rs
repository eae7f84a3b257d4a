//! An SQL write that a stale holder cannot make: `cargo run --bin fenced_stock`.
//!
//! A process can be stopped between its last check of the guard and its write. The write therefore
//! carries the fencing token, and the row refuses a token smaller than the greatest one so far.

use std::{env, error::Error};

use dlock::Token;
use sqlx::{Connection as _, SqliteConnection};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = env::var("DLOCK_STORE").unwrap_or("memory:programs".to_owned());
    let locks = dlock::connect(&store).await?;
    let mut database = SqliteConnection::connect("sqlite::memory:").await?;
    sqlx::raw_sql(
        "CREATE TABLE stock (item TEXT PRIMARY KEY, pieces INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0);
         INSERT INTO stock (item, pieces) VALUES ('chair', 10)",
    )
    .execute(&mut database)
    .await?;

    let guard = locks.mutex("stock/chair").lock().await?;
    let stale = guard.token().ok_or("this store has no tokens")?;
    guard.release().await?;

    let guard = locks.mutex("stock/chair").lock().await?;
    let token = guard.token().ok_or("this store has no tokens")?;
    println!("the holder takes a chair: {}", take(&mut database, "chair", token).await?);
    println!("the earlier holder takes one too late: {}", take(&mut database, "chair", stale).await?);
    guard.release().await?;
    locks.close().await;

    let (pieces, fence): (i64, i64) =
        sqlx::query_as("SELECT pieces, fence FROM stock").fetch_one(&mut database).await?;
    assert_eq!((pieces, fence), (9, i64::try_from(token)?));
    println!("{pieces} chairs are left");
    Ok(())
}

/// Takes one piece. Returns `false` if a holder with a greater token has written already, or if no
/// piece is left.
async fn take(database: &mut SqliteConnection, item: &str, token: Token) -> Result<bool, Box<dyn Error>> {
    let fence = i64::try_from(token)?;
    let taken = sqlx::query(
        "UPDATE stock SET pieces = pieces - 1, fence = ?1 WHERE item = ?2 AND fence <= ?1 AND pieces > 0",
    )
    .bind(fence)
    .bind(item)
    .execute(database)
    .await?;
    Ok(taken.rows_affected() == 1)
}
