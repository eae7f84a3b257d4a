//! Verifies a hold inside a transaction of the user.

#[cfg(feature = "sqlx")]
mod sqlx;
mod tokio_postgres;

use std::sync::Arc;

use dlock_core::{
    Error, Guard, Result,
    driver::{HeldClaim, held_claims},
};

use crate::{connection::QueueLocation, error::STORE, keys, sql};

/// Verifies a hold inside a transaction of the user, on the database that has the lock.
///
/// Implemented by [`Guard`] for `tokio_postgres::Transaction`, and with the feature `sqlx` for
/// `sqlx::Transaction<'_, sqlx::Postgres>`.
///
/// ```no_run
/// # async fn example(guard: dlock_core::Guard, mut client: tokio_postgres::Client)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use dlock_postgres::CheckIn as _;
///
/// let mut transaction = client.transaction().await?;
/// guard.check_in(&mut transaction).await?;
/// transaction.execute("UPDATE stock SET count = count - 1 WHERE item = 7", &[]).await?;
/// transaction.commit().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub trait CheckIn<T> {
    /// Verifies that the guard's claim holds its lock, and excludes the next holder until the
    /// transaction ends. For a [`MultiLock`](dlock_core::MultiLock) this applies to each member.
    ///
    /// After the call, no client is granted a lock that excludes this hold before the transaction
    /// has been committed or rolled back. This holds whatever pauses occur, and even if the hold
    /// expires, is released or is broken during the transaction. So if all holders check in before
    /// they read or write their data in this database, two of them never work on it at once.
    ///
    /// Call it first in the transaction. In READ COMMITTED, statements before it may have read data
    /// that a previous holder was about to change. In REPEATABLE READ and SERIALIZABLE the
    /// transaction must begin after the grant, which this call verifies.
    ///
    /// The transaction locks the row of the claim (`FOR KEY SHARE`). Renewals continue. A release,
    /// a forced release or an expiry takes effect for the guard at once, but the lock stays taken
    /// until the transaction ends. Detaching the guard waits for the end of the transaction. A
    /// rollback to a savepoint that is older than this call unlocks the row; then call it again. A
    /// [downgrade](Guard::downgrade) during the transaction admits readers at once.
    ///
    /// # Errors
    /// - [`Error::Lost`] if the guard is lost, before any I/O, or if the claim does not hold its
    ///   lock any more: it was deleted, or has expired by the server's clock.
    /// - [`Error::Unsupported`] if the guard belongs to another store or database than the
    ///   transaction. Also if the transaction has one snapshot and is older than the grant.
    /// - [`Error::Refused`] if the database has no schema of dlock, if the user of the transaction
    ///   lacks rights, or if the transaction is read-only.
    /// - [`Error::Unavailable`] if the connection has failed, or if the server reports a conflict
    ///   with another transaction. The whole transaction may be repeated.
    ///
    /// `Lost` and `Unsupported` leave the transaction as it was; roll it back. After an error of the
    /// server, PostgreSQL executes no further statement of the transaction.
    ///
    /// # Cancel safety
    /// That of the client crate's query. The server may still lock the row after the future was
    /// dropped; it stays locked until the transaction ends. Treat the check-in as failed.
    ///
    /// # Limits
    /// - It has no time limit of its own. Those of the session apply: `lock_timeout`,
    ///   `statement_timeout`.
    /// - A transaction that stays open keeps the lock taken. The server ends the transaction of a
    ///   client that does nothing for `idle_in_transaction_session_timeout`, and that of a client
    ///   whose connection is broken.
    /// - Tables in other databases are not protected. They need the [token](Guard::token).
    /// - A crash of the server, or a failover, ends the transaction together with the hold.
    fn check_in(&self, transaction: &mut T) -> impl Future<Output = Result<()>> + Send;
}

/// The verification of one claim.
struct Check<'g> {
    claim: HeldClaim<'g>,
    location: &'g QueueLocation,
    token: i64,
}

/// The reply to a verification.
struct Reply {
    /// Identity of the store in the database of the transaction.
    store: Option<String>,
    is_held: bool,
    /// Whether the transaction reads one snapshot.
    has_one_snapshot: bool,
    /// Microseconds from the beginning of the transaction to the verification.
    age: i64,
}

/// Returns a check for each claim of the guard.
fn checks(guard: &Guard) -> Result<Vec<Check<'_>>> {
    held_claims(guard)?.into_iter().map(Check::new).collect()
}

impl<'g> Check<'g> {
    fn new(claim: HeldClaim<'g>) -> Result<Self> {
        let Some(location) = claim.driver_data::<Arc<QueueLocation>>() else {
            let what = format!(
                "check in lock `{}` inside a transaction of PostgreSQL, where it has no row",
                claim.name()
            );
            return Err(Error::Unsupported { store: claim.store(), what });
        };
        let token = claim.token().and_then(|token| i64::try_from(token).ok());
        let token = token.ok_or_else(|| STORE.unexpected_reply("an attempt"))?;
        Ok(Self { claim, location, token })
    }

    fn statement(&self) -> String {
        sql::check_in(self.location.schema())
    }

    fn name(&self) -> &'g [u8] {
        self.claim.name().as_str().as_bytes()
    }

    /// Returns the id of the claim as text, because not every client encodes a `uuid`.
    fn id(&self) -> String {
        keys::uuid(self.claim.id()).to_string()
    }

    /// Returns what the reply means.
    fn conclude(&self, reply: &Reply) -> Result<()> {
        if reply.is_held {
            return Ok(());
        }
        let name = self.claim.name();
        let unsupported = |what| Err(Error::Unsupported { store: STORE.store(), what });
        if !reply.store.as_deref().is_some_and(|id| self.location.has_id(id)) {
            return unsupported(format!(
                "check in lock `{name}`, because the transaction is on another database; begin it on that of the \
                lock's URL"
            ));
        }
        // If the transaction is younger than the hold, its snapshot is from after the grant, so the
        // claim was deleted. `age` was measured before `held_for`.
        if reply.has_one_snapshot && keys::duration(reply.age) >= self.claim.held_for() {
            return unsupported(format!(
                "check in lock `{name}`, because the snapshot of the transaction is older than the grant; begin the \
                transaction after the lock was granted"
            ));
        }
        Err(self.claim.lost_error())
    }
}
