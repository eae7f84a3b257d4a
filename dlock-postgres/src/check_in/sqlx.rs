//! Transactions of `sqlx`.

use dlock_core::{Guard, Result, driver::Verdict};
use sqlx::{AssertSqlSafe, Error, Postgres, Row as _, Transaction, postgres::PgRow};

use super::{CheckIn, Reply, checks};
use crate::error::{STORE, verdict_of_check_in};

impl CheckIn<Transaction<'_, Postgres>> for Guard {
    async fn check_in(&self, transaction: &mut Transaction<'_, Postgres>) -> Result<()> {
        for check in checks(self)? {
            // The name of a schema has no character that ends the quotes.
            let query = sqlx::query(AssertSqlSafe(check.statement()))
                .bind(check.name())
                .bind(check.id())
                .bind(check.token);
            let row = query.fetch_one(&mut **transaction).await.map_err(explain)?;
            check.conclude(&reply(&row).map_err(explain)?)?;
        }
        Ok(())
    }
}

fn reply(row: &PgRow) -> Result<Reply, Error> {
    Ok(Reply {
        store: row.try_get("store")?,
        is_held: row.try_get("is_held")?,
        has_one_snapshot: row.try_get("has_one_snapshot")?,
        age: row.try_get("age")?,
    })
}

fn explain(source: Error) -> dlock_core::Error {
    STORE.explain(verdict(&source), source)
}

fn verdict(source: &Error) -> Verdict {
    match source {
        Error::Database(error) => {
            error.code().and_then(|code| verdict_of_check_in(&code)).unwrap_or_else(|| {
                Verdict::Permanent(format!("the server refused the check-in: {error}").into())
            })
        }
        Error::Io(_) | Error::Tls(_) | Error::Protocol(_) | Error::WorkerCrashed => {
            Verdict::Transient("the connection of the transaction has failed".into())
        }
        _ => Verdict::Permanent("the reply to a check-in was not expected".into()),
    }
}
