//! Verifies a hold inside a transaction of the user.

use std::path::{Path, PathBuf};

use dlock_core::{
    Error, Guard, Result,
    driver::{HeldClaim, held_claims},
};
use sqlx::{AssertSqlSafe, Row as _, Sqlite, Transaction};

use crate::{
    error::{self, STORE},
    host::clock,
};

/// Verifies a hold inside a transaction of the user that can write to the file of the lock.
///
/// Implemented by [`Guard`] for `sqlx::Transaction<'_, sqlx::Sqlite>`. The user's tables can be in
/// another file, if the connection has attached the file of the locks:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use dlock_core::Registry;
/// use dlock_sqlite::CheckIn as _;
/// use sqlx::{Connection as _, SqliteConnection};
///
/// let dir = tempfile::tempdir()?;
/// let file = dir.path().join("locks.db");
/// let locks = Registry::new().with(dlock_sqlite::DRIVER).connect(&format!("sqlite:{}", file.display())).await?;
/// let stock = dir.path().join("stock.db");
/// let mut stock = SqliteConnection::connect(&format!("sqlite:{}?mode=rwc", stock.display())).await?;
/// sqlx::query("ATTACH ? AS locks").bind(file.to_str()).execute(&mut stock).await?;
/// sqlx::query("CREATE TABLE stock (item, count)").execute(&mut stock).await?;
///
/// let guard = locks.mutex("stock/7").lock().await?;
/// let mut transaction = stock.begin().await?;
/// guard.check_in(&mut transaction).await?;
/// sqlx::query("UPDATE stock SET count = count - 1 WHERE item = 7").execute(&mut *transaction).await?;
/// transaction.commit().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub trait CheckIn<T> {
    /// Verifies that the guard's claim holds its lock, and excludes the next holder until the
    /// transaction ends. For a [`MultiLock`](dlock_core::MultiLock) this applies to each member.
    ///
    /// The call writes to the file of the lock, so the transaction keeps that file locked for
    /// writing. Until it has been committed or rolled back, no client is granted any lock of the
    /// file, whatever pauses occur. So if all holders check in before they read or write their data,
    /// two of them never work on it at once.
    ///
    /// Call it first in the transaction. If the transaction has read from the file of the lock
    /// before, and a client has written since, SQLite refuses the call as busy.
    ///
    /// # Errors
    /// - [`Error::Lost`] if the guard is lost, before any I/O, or if the claim does not hold its
    ///   lock any more: it was deleted, or has expired by the host's clock.
    /// - [`Error::Unsupported`] if the connection has not opened or attached the file of the lock.
    /// - [`Error::Unavailable`] if the file is busy for longer than the `busy_timeout` of the
    ///   connection. [`Error::Unwritable`] and [`Error::Refused`] for other errors of SQLite.
    ///
    /// After an error, roll the transaction back.
    ///
    /// # Cancel safety
    /// The file may stay locked until the transaction ends. Treat the check-in as failed.
    ///
    /// # Limits
    /// - **No lock of the file can be acquired, renewed or released during the transaction.** Keep
    ///   it shorter than a third of the shortest ttl in the file. Releases and acquisitions wait for
    ///   five seconds, and continue after the transaction.
    /// - A process that is suspended during the transaction keeps the file locked until it
    ///   continues or ends.
    /// - A rollback to a savepoint that is older than this call keeps the file locked.
    /// - If the file is replaced while it is open, the connection may have the old one.
    fn check_in(&self, transaction: &mut T) -> impl Future<Output = Result<()>> + Send;
}

/// The file of a store. A guard carries it, so that its claim can be found in a transaction of the
/// user.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Returns the name under which the connection has opened or attached the file.
    async fn schema(&self, transaction: &mut Transaction<'_, Sqlite>) -> Result<Option<String>> {
        let explain = |source| error::explain(&self.0, source);
        // A `SELECT` from `pragma_database_list` would begin a read in the main file. The check-in
        // would then fail at once beside another writer, instead of waiting for it.
        let files =
            sqlx::query("PRAGMA database_list").fetch_all(&mut **transaction).await.map_err(explain)?;
        for row in files {
            let file: Option<String> = row.try_get("file").map_err(explain)?;
            if file.is_some_and(|file| self.is_at(Path::new(&file))) {
                return row.try_get("name").map(Some).map_err(explain);
            }
        }
        Ok(None)
    }

    fn is_at(&self, path: &Path) -> bool {
        path.canonicalize().is_ok_and(|path| self.0.canonicalize().is_ok_and(|own| own == path))
    }
}

impl CheckIn<Transaction<'_, Sqlite>> for Guard {
    async fn check_in(&self, transaction: &mut Transaction<'_, Sqlite>) -> Result<()> {
        for claim in held_claims(self)? {
            check_in(&claim, transaction).await?;
        }
        Ok(())
    }
}

async fn check_in(claim: &HeldClaim<'_>, transaction: &mut Transaction<'_, Sqlite>) -> Result<()> {
    let Some(place) = claim.driver_data::<Place>() else {
        let what =
            format!("check in lock `{}` inside a transaction of SQLite, where it has no row", claim.name());
        return Err(Error::Unsupported { store: claim.store(), what });
    };
    let Some(schema) = place.schema(transaction).await? else {
        let what = format!(
            "check in lock `{}`, because the connection has not opened `{}`; attach it",
            claim.name(),
            place.0.display()
        );
        return Err(Error::Unsupported { store: STORE.store(), what });
    };
    let number = claim.token().and_then(|token| i64::try_from(token).ok());
    // The update changes nothing. It locks the file for writing, which a read would not do.
    let statement = format!(
        "UPDATE \"{}\".dlock_queue SET expires = expires \
        WHERE claim = ?1 AND name = ?2 AND seq = ?3 AND expires > ?4",
        schema.replace('"', "\"\"")
    );
    let updated = sqlx::query(AssertSqlSafe(statement))
        .bind(&claim.id().as_bytes()[..])
        .bind(claim.name().as_str())
        .bind(number)
        .bind(clock::now())
        .execute(&mut **transaction)
        .await
        .map_err(|source| error::explain(&place.0, source))?;
    if updated.rows_affected() == 0 { Err(claim.lost_error()) } else { Ok(()) }
}
