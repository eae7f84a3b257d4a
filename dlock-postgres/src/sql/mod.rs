//! The SQL statements, with a placeholder for the schema.

use std::fmt::Write as _;

use tokio_postgres::{
    Row,
    types::{FromSql, ToSql, Type},
};

use dlock_core::Result;

use crate::error;

/// Statements that create the tables and functions.
const SCHEMA: &str = include_str!("schema.sql");

/// Statement that describes a session and its server.
pub(crate) const DESCRIBE_SESSION: &str = include_str!("describe_session.sql");

/// Statement that identifies the server of a session.
pub(crate) const SERVER: &str = include_str!("server.sql");

/// Statement that reads the server's clock.
pub(crate) const CLOCK: &str = include_str!("clock.sql");

/// Statements of session mode, which are sent as text. See [`fill`].
pub(crate) mod advisory {
    pub(crate) const OPEN: &str = include_str!("advisory/open.sql");
    pub(crate) const IDENTIFY: &str = include_str!("advisory/identify.sql");
    pub(crate) const CHECK_CLIENT: &str = include_str!("advisory/check_client.sql");
    pub(crate) const TAKE: &str = include_str!("advisory/take.sql");
    pub(crate) const RENEW: &str = include_str!("advisory/renew.sql");
    pub(crate) const RELEASE: &str = include_str!("advisory/release.sql");
    pub(crate) const CLEAR: &str = include_str!("advisory/clear.sql");
    pub(crate) const CANCEL: &str = include_str!("advisory/cancel.sql");
    pub(crate) const TERMINATE: &str = include_str!("advisory/terminate.sql");
    pub(crate) const IS_ALIVE: &str = include_str!("advisory/is_alive.sql");
    pub(crate) const LOOK: &str = include_str!("advisory/look.sql");
    pub(crate) const BREAK: &str = include_str!("advisory/break.sql");
}

/// A statement with parameters. A session prepares it when it is first used, except with
/// `prepare=off`.
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

    /// Returns the statement.
    pub(crate) fn statement(self, schema: &str) -> String {
        let call = |name: &str| {
            let count = self.parameters().len();
            let parameters: Vec<_> = (1..=count).map(|number| format!("${number}")).collect();
            format!("SELECT * FROM {{schema}}.{name}({})", parameters.join(", "))
        };
        let text = match self {
            Self::Attempt => call("attempt_2"),
            Self::AttemptAll => call("attempt_all_2"),
            Self::Renew => call("renew_2"),
            Self::Release => call("release_2"),
            Self::Detach => call("detach_2"),
            Self::Resume => call("resume_2"),
            Self::Break => call("break_2"),
            Self::Look => include_str!("look.sql").to_owned(),
            Self::Blocked => include_str!("blocked.sql").to_owned(),
        };
        in_schema(&text, schema)
    }

    /// Returns the types of the parameters, as in `schema.sql`.
    pub(crate) fn parameters(self) -> Vec<Type> {
        use Type as T;
        match self {
            Self::Attempt => vec![
                T::INT4,
                T::BYTEA,
                T::UUID,
                T::INT2,
                T::INT4,
                T::INT8,
                T::BOOL,
                T::TEXT,
                T::BYTEA,
                T::INT8,
            ],
            Self::AttemptAll => vec![
                T::INT4_ARRAY,
                T::BYTEA_ARRAY,
                T::UUID_ARRAY,
                T::INT2_ARRAY,
                T::INT8_ARRAY,
                T::TEXT,
                T::BYTEA_ARRAY,
                T::INT8,
            ],
            Self::Renew => vec![T::UUID_ARRAY, T::INT8, T::BOOL],
            Self::Release => vec![T::INT4, T::BYTEA, T::UUID_ARRAY, T::TEXT, T::BOOL],
            Self::Detach => vec![T::INT4, T::BYTEA, T::UUID, T::UUID, T::INT8, T::INT8],
            Self::Resume => {
                vec![T::INT4, T::BYTEA, T::UUID, T::UUID, T::INT8, T::TEXT, T::BYTEA, T::INT8]
            }
            Self::Break => vec![T::INT4, T::BYTEA, T::UUID_ARRAY, T::TEXT],
            Self::Look => vec![T::BYTEA, T::BYTEA],
            Self::Blocked => vec![T::UUID_ARRAY],
        }
    }
}

/// Revision of the functions in `schema.sql`. Increase it with each change of a function.
const REVISION: &str = "2";

/// Returns the statements that create the tables and functions, and replace functions of an earlier
/// revision. They fail with [`is_complete`](error::is_complete) if there is nothing to do.
pub(crate) fn create(schema: &str) -> String {
    with_revision(SCHEMA, schema)
}

/// Returns the query whether the schema is complete.
pub(crate) fn exists(schema: &str) -> String {
    with_revision(include_str!("exists.sql"), schema)
}

/// Replaces the placeholders of the schema, its revision, and the condition that it is complete.
fn with_revision(text: &str, schema: &str) -> String {
    let is_complete = include_str!("is_complete.sql");
    in_schema(&text.replace("{is_complete}", is_complete), schema).replace("{revision}", REVISION)
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

/// Replaces placeholders `{name}` by values, which are numbers, identifiers and literals made by this
/// crate. Removes the comments, because the server shows only the beginning of a statement.
///
/// # Panics
/// If a placeholder has no value, which is a bug of this crate. Any test of the statement detects it.
pub(crate) fn fill(text: &str, values: &[(&str, &str)]) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("--")).collect();
    let lines = lines.join("\n");
    let mut parts = lines.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        let value = values.iter().find(|(known, _)| *known == name);
        filled.push_str(value.unwrap_or_else(|| panic!("no value for {{{name}}}")).1);
        filled.push_str(rest);
    }
    filled
}

/// Returns the bytes of a text in hexadecimal digits.
pub(crate) fn hex(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len() * 2), |mut hex, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Returns the text with these bytes. `None` if it is not UTF-8.
pub(crate) fn unhex(hex: &str) -> Option<String> {
    let digits: Vec<_> = hex.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    let bytes = digits.chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(high << 4 | low).ok(),
        _ => None,
    });
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
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
    use crate::keys;

    #[test]
    fn placeholders_are_replaced_once_and_comments_are_removed() {
        let text = "-- a comment\nSELECT {a}, '{b}'\nFROM {a}";
        assert_eq!(fill(text, &[("a", "{b}"), ("b", "1")]), "SELECT {b}, '1'\nFROM {b}");
    }

    #[test]
    fn a_change_of_the_functions_is_a_new_revision() {
        let is_code = |line: &&str| !line.is_empty() && !line.trim_start().starts_with("--");
        let code: Vec<_> = SCHEMA.lines().filter(is_code).collect();
        let checksum = keys::crc32(code.join("\n").as_bytes());
        assert_eq!(
            (REVISION, format!("{checksum:08x}").as_str()),
            ("2", "4d713c48"),
            "`schema.sql` has changed: increase REVISION, and write the new values here"
        );
    }

    #[test]
    fn each_function_is_called_in_its_schema_with_all_parameters() {
        assert_eq!(Function::Renew.statement("jobs"), r#"SELECT * FROM "jobs".renew_2($1, $2, $3)"#);
        assert!(
            !create("jobs").contains("{schema}")
                && Function::Look.statement("jobs").contains("\"jobs\".queue")
        );
    }
}
