//! Transactions of `tokio-postgres`.

use dlock_core::{Guard, Result};
use tokio_postgres::{Error, Transaction, types::Type};

use super::{CheckIn, Reply, checks};
use crate::{
    error::{self, STORE},
    sql::column,
};

impl CheckIn<Transaction<'_>> for Guard {
    async fn check_in(&self, transaction: &mut Transaction<'_>) -> Result<()> {
        for check in checks(self)? {
            let (name, id) = (check.name(), check.id());
            // One round trip, without a prepared statement.
            let row = transaction
                .query_typed_one(
                    &check.statement(),
                    &[(&name, Type::BYTEA), (&id, Type::TEXT), (&check.token, Type::INT8)],
                )
                .await
                .map_err(explain)?;
            let reply = Reply {
                store: column(&row, "store")?,
                is_held: column(&row, "is_held")?,
                has_one_snapshot: column(&row, "has_one_snapshot")?,
                age: column(&row, "age")?,
            };
            check.conclude(&reply)?;
        }
        Ok(())
    }
}

fn explain(source: Error) -> dlock_core::Error {
    match source.code().and_then(|code| error::verdict_of_check_in(code.code())) {
        Some(verdict) => STORE.explain(verdict, source),
        None => error::explain(source),
    }
}
