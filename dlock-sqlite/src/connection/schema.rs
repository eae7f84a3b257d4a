//! Opens the file. An empty file becomes a store, and a file of another application is refused.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use dlock_core::{ClaimId, Error, Result};
use sqlx::{
    ConnectOptions, Connection, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteSynchronous},
};
use tokio::time::{Instant, sleep};

use crate::{
    bell::{self, BellDir, Liveness},
    connection::LOCK_TIMEOUT,
    error, files,
    gate::{Gate, GateLock},
    host,
    host::clock,
};

/// "dlck": SQLite's `application_id` of a file of dlock.
const APPLICATION_ID: i64 = 0x646c_636b;

/// SQLite's `user_version` of a file with the tables of `schema.sql`.
const SCHEMA_VERSION: i64 = 1;

/// Time for which SQLite itself waits for another process's transaction before it returns `BUSY`.
/// It is short, because the pauses of SQLite's wait grow to a tenth of a second, in which many
/// other clients overtake this one. Each new attempt begins with the shortest pause again.
const SQLITE_BUSY_TIMEOUT: Duration = Duration::from_millis(3);

/// Pause before the file is opened again after it was busy. SQLite does not wait by itself when it
/// switches to WAL.
const OPEN_RETRY_PAUSE: Duration = Duration::from_millis(2);

/// A store's file with its gate and doorbells.
pub(crate) struct StoreFile {
    pub(crate) path: PathBuf,
    pub(crate) gate: Gate,
    pub(crate) bells: Option<Arc<BellDir>>,
    /// The client that opens the file.
    pub(crate) me: ClaimId,
}

/// Whether an opening may change the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Changes {
    Forbidden,
    Allowed,
}

/// Opens the file, creates the tables if it is empty, and deletes the claims of an earlier boot,
/// except detached ones. Also returns the gate's lock, if it had to be acquired.
///
/// # Errors
/// [`is_busy`](error::is_busy) if other clients have kept the file locked until `deadline`.
pub(crate) async fn open(
    store: &StoreFile,
    deadline: Instant,
) -> Result<(SqliteConnection, Option<GateLock>)> {
    match try_open(store, Changes::Forbidden).await {
        Ok(Some(conn)) => return Ok((conn, None)),
        Ok(None) | Err(Error::Unavailable { .. }) => {}
        Err(error) => return Err(error),
    }
    let gate_lock = store.gate.pass(deadline).await;
    let deadline = deadline.min(Instant::now() + LOCK_TIMEOUT);
    loop {
        match try_open(store, Changes::Allowed).await {
            // Clients that read or close the file lock it too, without the gate's lock.
            Err(Error::Unavailable { .. }) if Instant::now() < deadline => sleep(OPEN_RETRY_PAUSE).await,
            Err(Error::Unavailable { .. }) => return Err(error::busy(&store.path)),
            Ok(Some(conn)) => return Ok((conn, gate_lock)),
            Ok(None) => return Err(error::busy(&store.path)),
            Err(error) => return Err(error),
        }
    }
}

/// Refuses another application's database. Called before dlock creates its folder beside the file.
pub(crate) async fn check(path: &Path, deadline: Instant) -> Result<()> {
    loop {
        let attempt = async {
            let mut conn = connect(path).await?;
            identify(&mut conn, path).await?;
            conn.close().await.map_err(|source| error::explain(path, source))
        };
        match attempt.await {
            Err(Error::Unavailable { .. }) if Instant::now() < deadline => sleep(OPEN_RETRY_PAUSE).await,
            result => return result,
        }
    }
}

async fn connect(path: &Path) -> Result<SqliteConnection> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .busy_timeout(SQLITE_BUSY_TIMEOUT)
        // After a power failure the last commits may be missing. This is harmless, because the
        // processes that made them have ended too.
        .synchronous(SqliteSynchronous::Normal)
        .disable_statement_logging();
    options.connect().await.map_err(|source| error::explain(path, source))
}

/// Opens the file. Returns `None` if the file must be changed first and changes are forbidden.
async fn try_open(store: &StoreFile, changes: Changes) -> Result<Option<SqliteConnection>> {
    let path = store.path.as_path();
    let explain = |source| error::explain(path, source);
    let boot = host::boot()?;
    if changes == Changes::Forbidden && path.symlink_metadata().is_ok_and(|found| found.len() == 0) {
        return Ok(None);
    }
    let mut conn = connect(path).await?;
    let content = identify(&mut conn, path).await?;
    // Executed after `identify`, because a file of another application must not be changed.
    let mode: String =
        sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut conn).await.map_err(explain)?;
    if mode == "wal" && content == Content::Store && boot_of(&mut conn).await.map_err(explain)? == boot {
        return Ok(Some(conn));
    }
    if changes == Changes::Forbidden {
        return Ok(None);
    }
    if mode != "wal" {
        sqlx::query("PRAGMA journal_mode = WAL").execute(&mut conn).await.map_err(explain)?;
    }
    sqlx::query("BEGIN IMMEDIATE").execute(&mut conn).await.map_err(explain)?;
    let content = identify(&mut conn, path).await?;
    let is_new = content == Content::Empty;
    let migrations = match content {
        Content::Empty => vec![include_str!("../sql/schema.sql")],
        Content::Older(migrations) => migrations,
        Content::Store => Vec::new(),
    };
    for migration in migrations {
        sqlx::raw_sql(migration).execute(&mut conn).await.map_err(explain)?;
    }
    if boot_of(&mut conn).await.map_err(explain)? != boot {
        if !is_new {
            check_dead(store, &mut conn).await?;
        }
        let wall_now = clock::wall_now();
        let delete = sqlx::query(include_str!("../sql/delete_earlier_boot.sql")).bind(wall_now);
        delete.execute(&mut conn).await.map_err(explain)?;
        let rebase = sqlx::query(include_str!("../sql/rebase_times.sql")).bind(clock::now()).bind(wall_now);
        rebase.execute(&mut conn).await.map_err(explain)?;
        let set_boot = sqlx::query(include_str!("../sql/set_boot.sql")).bind(boot);
        set_boot.execute(&mut conn).await.map_err(explain)?;
    }
    sqlx::query("COMMIT").execute(&mut conn).await.map_err(explain)?;
    Ok(Some(conn))
}

/// Refuses the file if its claims, which are of another boot id, may belong to processes that still
/// run. Two containers of one kernel may see different boot ids.
async fn check_dead(store: &StoreFile, conn: &mut SqliteConnection) -> Result<()> {
    let bells = store.bells.as_deref();
    if bells.is_some_and(|dir| bell::has_live_client(dir, store.me)) {
        return Err(files::refusal(
            &store.path,
            "is in use by processes that see another boot of this host, or another clock, than this one, as containers \
             may: let all see the same `/proc/sys/kernel/random/boot_id` and time namespace, or give each its own \
             store; if it is a restored copy, stop all of them once",
        ));
    }
    let claims: Vec<(Vec<u8>, i64, i64)> = sqlx::query_as(include_str!("../sql/attached.sql"))
        .fetch_all(conn)
        .await
        .map_err(|source| error::explain(&store.path, source))?;
    let now = clock::now();
    for (client, since, expires) in claims {
        let client: Option<[u8; 16]> = client.try_into().ok();
        let liveness =
            client.zip(bells).map(|(client, dir)| bell::liveness(dir, ClaimId::from_bytes(client)));
        // The clock restarts with each boot. A claim that arrived later than the current time is
        // therefore from another boot.
        if liveness != Some(Liveness::Dead) && since <= now && now < expires {
            return Err(files::refusal(
                &store.path,
                "has claims of another boot of this host, and dlock cannot detect whether their processes still run: if \
                 no process uses it, delete it with the files beside it",
            ));
        }
    }
    Ok(())
}

/// The content of a file.
#[derive(PartialEq, Eq)]
enum Content {
    Empty,
    /// The tables of an older dlock. These statements add the missing columns. The older dlock can
    /// still use the file afterwards.
    Older(Vec<&'static str>),
    Store,
}

/// Columns that older files lack, each with the statement that adds it.
const ADDED_COLUMNS: [(&str, &str); 3] = [
    ("slots", include_str!("../sql/add_slots.sql")),
    ("until", include_str!("../sql/add_until.sql")),
    ("who", include_str!("../sql/add_who.sql")),
];

/// Returns the content of a file.
///
/// # Errors
/// [`Error::InvalidConfig`] for a file of another application or of another schema version.
async fn identify(conn: &mut SqliteConnection, path: &Path) -> Result<Content> {
    let sql = "SELECT (SELECT application_id FROM pragma_application_id), \
               (SELECT user_version FROM pragma_user_version), (SELECT COUNT(*) FROM sqlite_master), \
               (SELECT group_concat(name) FROM pragma_table_info('dlock_queue'))";
    let explain = |source| error::explain(path, source);
    let (application, version, tables, columns): (i64, i64, i64, Option<String>) =
        sqlx::query_as(sql).fetch_one(conn).await.map_err(explain)?;
    let problem = match (application, version, tables) {
        (0, 0, 0) => return Ok(Content::Empty),
        (APPLICATION_ID, SCHEMA_VERSION, _) => {
            let columns = columns.unwrap_or_default();
            let is_missing = |column: &str| !columns.split(',').any(|present| present == column);
            let migrations: Vec<_> = ADDED_COLUMNS
                .iter()
                .filter(|(column, _)| is_missing(column))
                .map(|(_, migration)| *migration)
                .collect();
            return Ok(if migrations.is_empty() { Content::Store } else { Content::Older(migrations) });
        }
        (APPLICATION_ID, version, ..) => format!(
            "has version {version} of dlock's schema and this dlock knows {SCHEMA_VERSION}: use one dlock for all, or another path"
        ),
        _ => "is the database of another application: choose another path".to_owned(),
    };
    Err(Error::InvalidConfig { reason: format!("`{}` {problem}", path.display()) })
}

async fn boot_of(conn: &mut SqliteConnection) -> sqlx::Result<String> {
    sqlx::query_scalar(include_str!("../sql/read_boot.sql")).fetch_one(conn).await
}
