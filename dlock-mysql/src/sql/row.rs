//! Reads the columns of a reply by name.

use dlock_core::{ClaimId, Result};
use sqlx::{Decode, MySql, Row as _, mysql::MySqlRow};

use crate::error::{self, STORE};

/// Returns a column, whatever number type the server computed it in. A reply of the text protocol
/// has no fixed types.
pub(crate) fn column<'r, T: Decode<'r, MySql>>(row: &'r MySqlRow, name: &str) -> Result<T> {
    row.try_get_unchecked(name).map_err(error::explain)
}

/// Returns a column that is 0 or 1.
pub(crate) fn flag(row: &MySqlRow, name: &str) -> Result<bool> {
    Ok(column::<i64>(row, name)? != 0)
}

/// Returns a column as text. Bytes that are not UTF-8 are replaced.
pub(crate) fn text(row: &MySqlRow, name: &str) -> Result<String> {
    Ok(String::from_utf8_lossy(column(row, name)?).into_owned())
}

/// Returns the column `claim` of a row of the queue.
pub(crate) fn claim_id(row: &MySqlRow) -> Result<ClaimId> {
    let bytes: &[u8] = column(row, "claim")?;
    Ok(ClaimId::from_bytes(bytes.try_into().map_err(|_| bad_row("claim"))?))
}

/// The error for a row of the queue with a column that cannot be read.
pub(crate) fn bad_row(column: &str) -> dlock_core::Error {
    STORE.refused(format!("a row of the queue has a bad {column}"))
}

/// Returns a row that the reply to a batch must have. `batch` names the batch in the error.
pub(crate) fn expect<'r>(row: Option<&'r MySqlRow>, batch: &str) -> Result<&'r MySqlRow> {
    row.ok_or_else(|| STORE.unexpected_reply(batch))
}
