//! The SQL statements, with a placeholder for the schema.

use tokio_postgres::{
    Row,
    types::{FromSql, ToSql},
};

use dlock_core::Result;

use crate::error;

/// Statement that describes a new session.
pub(crate) const PREPARE: &str = include_str!("prepare.sql");

/// Statement that reads the server's clock.
pub(crate) const CLOCK: &str = include_str!("clock.sql");

/// A statement that a session prepares once, when it is first used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Attempt,
    AttemptAll,
    Renew,
    Release,
    Detach,
    Resume,
    Break,
    Look,
    Blocked,
}

impl Function {
    /// Number of functions.
    pub(crate) const COUNT: usize = 9;

    /// Returns the statement. The types of its parameters are those of the function in
    /// `schema.sql`.
    pub(crate) fn statement(self, schema: &str) -> String {
        let call = |name: &str, count: usize| {
            let parameters: Vec<_> = (1..=count).map(|number| format!("${number}")).collect();
            format!("SELECT * FROM {{schema}}.{name}({})", parameters.join(", "))
        };
        let text = match self {
            Self::Attempt => call("attempt_2", 10),
            Self::AttemptAll => call("attempt_all_2", 8),
            Self::Renew => call("renew_2", 3),
            Self::Release => call("release_2", 5),
            Self::Detach => call("detach_2", 6),
            Self::Resume => call("resume_2", 8),
            Self::Break => call("break_2", 4),
            Self::Look => include_str!("look.sql").to_owned(),
            Self::Blocked => include_str!("blocked.sql").to_owned(),
        };
        in_schema(&text, schema)
    }
}

/// Returns the statements that create the tables and functions.
pub(crate) fn create(schema: &str) -> String {
    in_schema(include_str!("schema.sql"), schema)
}

/// Returns the query whether the schema is complete.
pub(crate) fn exists(schema: &str) -> String {
    in_schema(include_str!("exists.sql"), schema)
}

/// Returns the query for the identity of the store.
pub(crate) fn identity(schema: &str) -> String {
    in_schema("SELECT id::text AS id FROM {schema}.store", schema)
}

/// Returns the statement that verifies a hold inside a transaction of the user. Its parameters are
/// the name of the lock as bytes, the id of the claim as text, and the token. It is one row with
/// the columns of `check_in_2`.
pub(crate) fn check_in(schema: &str) -> String {
    in_schema("SELECT * FROM {schema}.check_in_2($1, $2, $3)", schema)
}

/// Replaces the placeholder. The name of a schema has no character that ends the quotes.
fn in_schema(text: &str, schema: &str) -> String {
    text.replace("{schema}", &format!("\"{schema}\""))
}

/// A parameter of a call.
pub(crate) type Param = Box<dyn ToSql + Send + Sync>;

/// Returns a column.
pub(crate) fn column<'r, T: FromSql<'r>>(row: &'r Row, name: &str) -> Result<T> {
    row.try_get(name).map_err(error::explain)
}

/// Returns a column of bytes as text. Bytes that are not UTF-8 are replaced.
pub(crate) fn text(row: &Row, name: &str) -> Result<String> {
    Ok(String::from_utf8_lossy(column(row, name)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_is_called_in_its_schema_with_all_parameters() {
        assert_eq!(Function::Renew.statement("jobs"), r#"SELECT * FROM "jobs".renew_2($1, $2, $3)"#);
        assert!(
            !create("jobs").contains("{schema}")
                && Function::Look.statement("jobs").contains("\"jobs\".queue")
        );
    }
}
