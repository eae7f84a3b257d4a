//! Opening the file: making it a store if it is empty, refusing it if it is somebody else's.

use std::{path::Path, time::Duration};

use dlock_core::{Error, Result};
use sqlx::{
    ConnectOptions, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteSynchronous},
};
use tokio::time::sleep;

use crate::{error, host};

/// "dlck": says that the file is dlock's.
const APPLICATION: i64 = 0x646c_636b;
const VERSION: i64 = 1;

/// How long SQLite itself waits for another process's transaction before it says busy. Its pauses grow to a tenth of a
/// second, in which many others go first; a new try begins with the shortest again.
const SNOOZE: Duration = Duration::from_millis(3);

/// The pause before the switch to WAL, which does not wait by itself, is tried again.
const PAUSE: Duration = Duration::from_millis(2);

/// Opens the file, makes it a store if it is empty, and forgets the claims of an earlier boot.
pub(crate) async fn open(path: &Path) -> Result<SqliteConnection> {
    loop {
        match try_open(path).await {
            // Many processes that open a new file at once get in each other's way where SQLite does not wait.
            Err(Error::Unavailable { .. }) => sleep(PAUSE).await,
            outcome => return outcome,
        }
    }
}

async fn try_open(path: &Path) -> Result<SqliteConnection> {
    let explain = |source| error::explain(path, source);
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .busy_timeout(SNOOZE)
        // After a power failure the last commits may be missing. So are those who made them.
        .synchronous(SqliteSynchronous::Normal)
        .disable_statement_logging();
    let mut conn = options.connect().await.map_err(explain)?;
    let found = identify(&mut conn, path).await?;
    // Only now: a file that is somebody else's must not be touched.
    let mode: String =
        sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut conn).await.map_err(explain)?;
    if mode != "wal" {
        sqlx::query("PRAGMA journal_mode = WAL").execute(&mut conn).await.map_err(explain)?;
    }
    let boot = host::boot();
    if found == Found::Store && boot_of(&mut conn).await.map_err(explain)? == boot {
        return Ok(conn);
    }
    sqlx::query("BEGIN IMMEDIATE").execute(&mut conn).await.map_err(explain)?;
    if identify(&mut conn, path).await? == Found::Empty {
        sqlx::raw_sql(include_str!("sql/schema.sql")).execute(&mut conn).await.map_err(explain)?;
    }
    if boot_of(&mut conn).await.map_err(explain)? != boot {
        sqlx::query(include_str!("sql/clear.sql")).execute(&mut conn).await.map_err(explain)?;
        let new_boot = sqlx::query(include_str!("sql/new_boot.sql")).bind(boot);
        new_boot.execute(&mut conn).await.map_err(explain)?;
    }
    sqlx::query("COMMIT").execute(&mut conn).await.map_err(explain)?;
    Ok(conn)
}

/// What the file is.
#[derive(PartialEq, Eq)]
enum Found {
    Empty,
    Store,
}

async fn identify(conn: &mut SqliteConnection, path: &Path) -> Result<Found> {
    let sql = "SELECT (SELECT application_id FROM pragma_application_id), \
               (SELECT user_version FROM pragma_user_version), (SELECT COUNT(*) FROM sqlite_master)";
    let explain = |source| error::explain(path, source);
    let (application, version, tables): (i64, i64, i64) =
        sqlx::query_as(sql).fetch_one(conn).await.map_err(explain)?;
    let what = match (application, version, tables) {
        (0, 0, 0) => return Ok(Found::Empty),
        (APPLICATION, VERSION, _) => return Ok(Found::Store),
        (APPLICATION, version, _) => format!(
            "has version {version} of dlock's schema and this dlock knows {VERSION}: use one dlock for all, or another path"
        ),
        _ => "is the database of another application: choose another path".to_owned(),
    };
    Err(Error::InvalidConfig { reason: format!("`{}` {what}", path.display()) })
}

async fn boot_of(conn: &mut SqliteConnection) -> sqlx::Result<String> {
    sqlx::query_scalar(include_str!("sql/boot.sql")).fetch_one(conn).await
}
