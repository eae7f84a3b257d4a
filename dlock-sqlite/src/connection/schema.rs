//! Opens the file: makes an empty file a store, and refuses a file of another application.

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
    bell::{self, Dir, Reader},
    connection::PATIENCE,
    error, files,
    gate::{Gate, Pass, Turn},
    host,
    host::clock,
};

/// "dlck": SQLite's `application_id` of a file of dlock's.
const APPLICATION: i64 = 0x646c_636b;
const VERSION: i64 = 1;

/// How long SQLite itself waits for another process's transaction before it answers `BUSY`. Short, because the pauses of
/// SQLite's wait grow to a tenth of a second, in which many others go first. Each new try begins with the shortest pause
/// again.
const SNOOZE: Duration = Duration::from_millis(3);

/// The pause before an opening that found the file busy is tried again. SQLite does not wait by itself when it switches
/// to WAL.
const PAUSE: Duration = Duration::from_millis(2);

/// The path of a store's file, and what lies beside it.
pub(crate) struct Site {
    pub(crate) path: PathBuf,
    pub(crate) gate: Gate,
    pub(crate) bells: Option<Arc<Dir>>,
    /// The client that opens the file.
    pub(crate) me: ClaimId,
}

/// Whether the file may be changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum May {
    Look,
    Change,
}

/// Opens the file, makes it a store if it is empty, and removes the claims of an earlier boot that were not
/// detached. Also returns the turn to
/// write, if it had to take one.
///
/// # Errors
/// [`is_busy`](error::is_busy) if other clients have kept the file locked until `limit`.
pub(crate) async fn open(site: &Site, limit: Instant) -> Result<(SqliteConnection, Option<Turn>)> {
    match try_open(site, May::Look).await {
        Ok(Some(conn)) => return Ok((conn, None)),
        Ok(None) | Err(Error::Unavailable { .. }) => {}
        Err(error) => return Err(error),
    }
    let turn = match site.gate.pass(limit).await? {
        Pass::Turn(turn) => Some(turn),
        Pass::Ungated => None,
    };
    let limit = limit.min(Instant::now() + PATIENCE);
    loop {
        match try_open(site, May::Change).await {
            // Clients that read the file or close it lock it too, and take no turn for that.
            Err(Error::Unavailable { .. }) if Instant::now() < limit => sleep(PAUSE).await,
            Err(Error::Unavailable { .. }) => return Err(error::busy(&site.path)),
            Ok(Some(conn)) => return Ok((conn, turn)),
            Ok(None) => return Err(error::busy(&site.path)),
            Err(error) => return Err(error),
        }
    }
}

/// Refuses another application's database. Called before dlock makes its folder beside the file.
pub(crate) async fn check(path: &Path, limit: Instant) -> Result<()> {
    loop {
        let outcome = async {
            let mut conn = connect(path).await?;
            identify(&mut conn, path).await?;
            conn.close().await.map_err(|source| error::explain(path, source))
        };
        match outcome.await {
            Err(Error::Unavailable { .. }) if Instant::now() < limit => sleep(PAUSE).await,
            outcome => return outcome,
        }
    }
}

async fn connect(path: &Path) -> Result<SqliteConnection> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .busy_timeout(SNOOZE)
        // After a power failure the last commits may be missing. That does no harm: the processes that made them are gone
        // too.
        .synchronous(SqliteSynchronous::Normal)
        .disable_statement_logging();
    options.connect().await.map_err(|source| error::explain(path, source))
}

/// Opens the file. `None` if it would have to be changed and may not.
async fn try_open(site: &Site, may: May) -> Result<Option<SqliteConnection>> {
    let path = site.path.as_path();
    let explain = |source| error::explain(path, source);
    let boot = host::boot()?;
    if may == May::Look && path.symlink_metadata().is_ok_and(|found| found.len() == 0) {
        return Ok(None);
    }
    let mut conn = connect(path).await?;
    let found = identify(&mut conn, path).await?;
    // After `identify`: a file of another application must not be changed.
    let mode: String =
        sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut conn).await.map_err(explain)?;
    if mode == "wal" && found == Found::Store && boot_of(&mut conn).await.map_err(explain)? == boot {
        return Ok(Some(conn));
    }
    if may == May::Look {
        return Ok(None);
    }
    if mode != "wal" {
        sqlx::query("PRAGMA journal_mode = WAL").execute(&mut conn).await.map_err(explain)?;
    }
    sqlx::query("BEGIN IMMEDIATE").execute(&mut conn).await.map_err(explain)?;
    let found = identify(&mut conn, path).await?;
    let made = found == Found::Empty;
    let changes = match found {
        Found::Empty => vec![include_str!("../sql/schema.sql")],
        Found::Older(lacks) => lacks,
        Found::Store => Vec::new(),
    };
    for change in changes {
        sqlx::raw_sql(change).execute(&mut conn).await.map_err(explain)?;
    }
    if boot_of(&mut conn).await.map_err(explain)? != boot {
        if !made {
            check_dead(site, &mut conn).await?;
        }
        let wall = clock::wall();
        let clear = sqlx::query(include_str!("../sql/clear.sql")).bind(wall);
        clear.execute(&mut conn).await.map_err(explain)?;
        let carry = sqlx::query(include_str!("../sql/carry.sql")).bind(clock::now()).bind(wall);
        carry.execute(&mut conn).await.map_err(explain)?;
        let new_boot = sqlx::query(include_str!("../sql/new_boot.sql")).bind(boot);
        new_boot.execute(&mut conn).await.map_err(explain)?;
    }
    sqlx::query("COMMIT").execute(&mut conn).await.map_err(explain)?;
    Ok(Some(conn))
}

/// Refuses the file if its claims, which name another boot, may be of processes that still run: two containers of one
/// kernel may be told different boot ids.
async fn check_dead(site: &Site, conn: &mut SqliteConnection) -> Result<()> {
    let bells = site.bells.as_deref();
    if bells.is_some_and(|dir| bell::anybody_lives(dir, site.me)) {
        return Err(files::refusal(
            &site.path,
            "is in use by processes that are told another boot of this host, or another clock, than this one, as \
             containers may be: let all see the same `/proc/sys/kernel/random/boot_id` and time namespace, or give each \
             its own store",
        ));
    }
    let claims: Vec<(Vec<u8>, i64, i64)> = sqlx::query_as(include_str!("../sql/lives.sql"))
        .fetch_all(conn)
        .await
        .map_err(|source| error::explain(&site.path, source))?;
    let now = clock::now();
    for (client, since, expires) in claims {
        let client: Option<[u8; 16]> = client.try_into().ok();
        let reader = client.zip(bells).map(|(client, dir)| bell::reader(dir, ClaimId::from_bytes(client)));
        // The clock begins anew with each boot. So a claim that came later than now came in another boot.
        if reader != Some(Reader::Gone) && since <= now && now < expires {
            return Err(files::refusal(
                &site.path,
                "holds claims of another boot of this host, and it cannot be seen whether who made them still runs: if \
                 nobody uses it, delete it with the files beside it",
            ));
        }
    }
    Ok(())
}

/// What the file is.
#[derive(PartialEq, Eq)]
enum Found {
    Empty,
    /// Made by an older dlock. These statements add what it lacks, and it stays usable for that dlock.
    Older(Vec<&'static str>),
    Store,
}

/// The columns that older files lack, each with the statement that adds it.
const ADDED: [(&str, &str); 3] = [
    ("slots", include_str!("../sql/slots.sql")),
    ("until", include_str!("../sql/until.sql")),
    ("who", include_str!("../sql/who.sql")),
];

async fn identify(conn: &mut SqliteConnection, path: &Path) -> Result<Found> {
    let sql = "SELECT (SELECT application_id FROM pragma_application_id), \
               (SELECT user_version FROM pragma_user_version), (SELECT COUNT(*) FROM sqlite_master), \
               (SELECT group_concat(name) FROM pragma_table_info('dlock_queue'))";
    let explain = |source| error::explain(path, source);
    let (application, version, tables, columns): (i64, i64, i64, Option<String>) =
        sqlx::query_as(sql).fetch_one(conn).await.map_err(explain)?;
    let what = match (application, version, tables) {
        (0, 0, 0) => return Ok(Found::Empty),
        (APPLICATION, VERSION, _) => {
            let columns = columns.unwrap_or_default();
            let lacks = |column: &str| !columns.split(',').any(|there| there == column);
            let lacks: Vec<_> =
                ADDED.iter().filter(|(column, _)| lacks(column)).map(|(_, add)| *add).collect();
            return Ok(if lacks.is_empty() { Found::Store } else { Found::Older(lacks) });
        }
        (APPLICATION, version, ..) => format!(
            "has version {version} of dlock's schema and this dlock knows {VERSION}: use one dlock for all, or another path"
        ),
        _ => "is the database of another application: choose another path".to_owned(),
    };
    Err(Error::InvalidConfig { reason: format!("`{}` {what}", path.display()) })
}

async fn boot_of(conn: &mut SqliteConnection) -> sqlx::Result<String> {
    sqlx::query_scalar(include_str!("../sql/boot.sql")).fetch_one(conn).await
}
