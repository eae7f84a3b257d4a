//! The meaning of errors of PostgreSQL and the client crate. One table lists all error codes that
//! dlock tells apart.

use std::error::Error as _;

use dlock_core::{
    Error,
    driver::{StoreErrors, Verdict, client_error},
};

/// Makes errors that name the store `postgres`, as the URL's scheme does.
pub(crate) const STORE: StoreErrors = StoreErrors::new("postgres");

/// The meaning of a server's error to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The transaction conflicted with another one, and may be repeated at once.
    Conflict,
    TooManyConnections,
    /// The server is starting, stopping or overloaded, or has ended the statement.
    Unavailable,
    /// The session cannot execute the statement any more, but a new session can.
    StaleSession,
    /// The server has no room on its disk or in its memory.
    Full,
    /// The server's queue of notifications is full. The transaction may be repeated at once,
    /// because the functions of the schema then send no notification.
    FullNotifications,
    ReadOnly,
    MissingRights,
    WrongLogin,
    UnknownDatabase,
    /// A table or function of dlock does not exist.
    MissingSchema,
    WrongIsolation,
}

/// Error codes, or the class of two characters that several codes have in common, with their
/// meaning. The first match counts.
const MEANINGS: &[(&str, Meaning)] = &[
    ("40", Meaning::Conflict),    // serialization_failure, deadlock_detected
    ("55P03", Meaning::Conflict), // lock_not_available, after `lock_timeout`
    ("23505", Meaning::Conflict), // unique_violation, in the catalog while two clients create a schema
    ("53300", Meaning::TooManyConnections),
    ("57014", Meaning::Unavailable), // query_canceled, also by `statement_timeout`
    ("57P", Meaning::Unavailable),   // admin_shutdown, crash_shutdown, cannot_connect_now
    ("08", Meaning::Unavailable),    // connection_exception
    ("25P", Meaning::Unavailable),   // time limits of transactions
    ("26000", Meaning::StaleSession), // invalid_sql_statement_name
    ("42P05", Meaning::StaleSession), // duplicate_prepared_statement
    ("0A000", Meaning::StaleSession), // cached plan must not change result type
    ("53", Meaning::Full),           // disk_full, out_of_memory
    ("54000", Meaning::FullNotifications), // program_limit_exceeded, at a commit with notifications
    ("25006", Meaning::ReadOnly),
    ("25001", Meaning::WrongIsolation), // Raised by `lock_bucket_2`.
    ("42501", Meaning::MissingRights),
    ("28", Meaning::WrongLogin),
    ("3D000", Meaning::UnknownDatabase),
    ("3F000", Meaning::MissingSchema), // invalid_schema_name
    ("42P01", Meaning::MissingSchema), // undefined_table
    ("42883", Meaning::MissingSchema), // undefined_function
];

const QUERY_CANCELED: &str = "57014";

impl Meaning {
    fn of(error: &tokio_postgres::Error) -> Option<Self> {
        Self::of_code(error.code()?.code())
    }

    fn of_code(code: &str) -> Option<Self> {
        MEANINGS.iter().find(|(prefix, _)| code.starts_with(prefix)).map(|(_, meaning)| *meaning)
    }

    /// Returns what the error means to the user, with the reason and how to fix the problem.
    fn verdict(self) -> Verdict {
        match self {
            Self::Conflict => {
                Verdict::Transient("the transaction conflicted with other transactions at each try".into())
            }
            Self::TooManyConnections => Verdict::Transient(
                "the server has reached its limit of connections, or that of the user or database: raise \
                `max_connections`, or lower `connections` in the URL"
                    .into(),
            ),
            Self::Unavailable => Verdict::Transient("the server cannot answer now".into()),
            Self::StaleSession => Verdict::Transient(
                "the session does not know the statement, or knows another one of its name: if a connection \
                pooler does not support prepared statements, add `prepare=off` to the URL"
                    .into(),
            ),
            Self::Full => Verdict::Unwritable("the server's disk or memory is full".into()),
            Self::FullNotifications => Verdict::Unwritable(
                "the server's queue of notifications is full, because a session that listens has a long transaction: \
                end that transaction"
                    .into(),
            ),
            Self::ReadOnly => Verdict::Unwritable(READ_ONLY.into()),
            Self::MissingRights => Verdict::Permanent(RIGHTS.into()),
            Self::WrongLogin => Verdict::Permanent(
                "the server does not accept this user and password, or not without `tls=on`".into(),
            ),
            Self::UnknownDatabase => Verdict::Permanent(
                "there is no such database: create it, or name another one behind the host".into(),
            ),
            Self::MissingSchema => Verdict::Permanent(
                "the tables or functions in the schema of dlock are missing, or were not created by dlock"
                    .into(),
            ),
            Self::WrongIsolation => Verdict::Permanent(
                "the isolation level of the session was changed: dlock needs READ COMMITTED".into(),
            ),
        }
    }
}

const RIGHTS: &str = "the user lacks rights; to create the schema it needs CREATE on the database, and to update the \
    functions it must own them and have CREATE on the schema, or an administrator runs `dlock init`; to use an existing one: GRANT USAGE ON SCHEMA dlock; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dlock";

pub(crate) const READ_ONLY: &str = "the server is read-only: it is a standby, or `default_transaction_read_only` is set; name the primary in the URL";

/// Reason for a refused server whose locks exclude no other client.
pub(crate) const NOT_POSTGRES: &str =
    "the server is not PostgreSQL, and dlock needs advisory locks that exclude other sessions";

/// Reason for a refused connection whose default isolation level cannot be set.
pub(crate) const ISOLATION: &str = "the default isolation level is not READ COMMITTED, and a connection pooler does not \
    let the client choose it: ALTER ROLE … SET default_transaction_isolation = 'read committed'";

/// Reason for a refused server without functions that dlock needs.
pub(crate) const TOO_OLD: &str = "the server is older than PostgreSQL 14: upgrade it";

/// Reason for waiters that poll although notifications are turned on.
pub(crate) const NO_NOTIFICATIONS: &str =
    "notifications do not arrive, probably because of a connection pooler";

/// Reason for a refused connection whose session other clients use too.
pub(crate) const SHARED_SESSIONS: &str = "the connection has no session of its own, as behind a connection pooler that \
    shares sessions between transactions, where an advisory lock excludes no other client: connect to the server \
    directly or to a pooler in session mode, or use `mode=queue`";

/// Returns what an error code means to a transaction of the user that checks a hold in.
pub(crate) fn verdict_of_check_in(code: &str) -> Option<Verdict> {
    Some(match Meaning::of_code(code)? {
        Meaning::Conflict => Verdict::Transient(
            "the transaction conflicts with another one, which may have ended the hold: roll back, and check in \
            again in a new transaction"
                .into(),
        ),
        Meaning::MissingSchema => Verdict::Permanent(
            "the database of the transaction has no functions of this dlock in the schema of the lock: begin the \
            transaction on the database of the lock's URL"
                .into(),
        ),
        Meaning::ReadOnly => Verdict::Permanent(
            "the transaction is read-only, and a check-in locks a row: begin one that may write".into(),
        ),
        meaning => meaning.verdict(),
    })
}

/// Converts an error of the client crate. The original error stays the source.
pub(crate) fn explain(source: tokio_postgres::Error) -> Error {
    STORE.explain(verdict(&source), source)
}

fn verdict(error: &tokio_postgres::Error) -> Verdict {
    if let Some(meaning) = Meaning::of(error) {
        return meaning.verdict();
    }
    if let Some(error) = error.as_db_error() {
        return Verdict::Permanent(format!("the server refused the call: {}", error.message()).into());
    }
    let is_certificate = |source: &(dyn std::error::Error + 'static)| {
        source.downcast_ref::<std::io::Error>().is_some_and(|error| {
            error.kind() == std::io::ErrorKind::InvalidData
                || error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
        })
    };
    match error.source() {
        // The client crate has no type for this error.
        Some(source) if source.to_string() == "password missing" => Verdict::Permanent(NO_PASSWORD.into()),
        Some(source) if is_certificate(source) => Verdict::Permanent(CERTIFICATE.into()),
        Some(source) if source.is::<std::io::Error>() => Verdict::Transient(BROKEN.into()),
        _ if error.is_closed() => Verdict::Transient(BROKEN.into()),
        _ => Verdict::Permanent(format!("the call failed: {error}").into()),
    }
}

const BROKEN: &str = "the connection failed";

const NO_PASSWORD: &str = "the server requires a password: write it behind the user in the URL, or name its file with \
    `password_file`, or add a line for this host, port, database and user to `~/.pgpass`";

const CERTIFICATE: &str =
    "the TLS connection to the server failed: check its certificate, and name its authority with `ca`";

/// Explains the error of a query that ends the session of a holder.
pub(crate) fn explain_break(error: Error) -> Error {
    let lacks_rights =
        client_error(&error).is_some_and(|error| Meaning::of(error) == Some(Meaning::MissingRights));
    if lacks_rights { STORE.refused(RIGHTS_TO_BREAK) } else { error }
}

const RIGHTS_TO_BREAK: &str = "the user may not end the session of the holder, which another user has opened: \
    GRANT pg_signal_backend, or end it as a superuser";

/// Returns whether the server or a connection pooler has refused an option of the connection.
pub(crate) fn refused_option(error: &Error) -> bool {
    const PROTOCOL_VIOLATION: &str = "08P01";
    client_error::<tokio_postgres::Error>(error)
        .is_some_and(|error| error.code().is_some_and(|code| code.code() == PROTOCOL_VIOLATION))
}

/// Returns whether the transaction conflicted with another one, or has found the queue of
/// notifications full, and may be repeated at once.
pub(crate) fn is_conflict(error: &tokio_postgres::Error) -> bool {
    matches!(Meaning::of(error), Some(Meaning::Conflict | Meaning::FullNotifications))
}

/// As [`is_conflict`], for an error that [`explain`] converted.
pub(crate) fn was_conflict(error: &Error) -> bool {
    client_error(error).is_some_and(is_conflict)
}

/// Returns whether the session has to be replaced. Its connection is broken, or a new session may
/// lead to a server that executes the call.
pub(crate) fn ends_session(error: &tokio_postgres::Error) -> bool {
    match Meaning::of(error) {
        Some(Meaning::Unavailable) => error.code().is_some_and(|code| code.code() != QUERY_CANCELED),
        Some(meaning) => matches!(meaning, Meaning::ReadOnly | Meaning::StaleSession),
        None => error.as_db_error().is_none(),
    }
}

/// As [`ends_session`], for an error that [`explain`] converted.
pub(crate) fn ended_session(error: &Error) -> bool {
    client_error(error).is_some_and(ends_session)
}

/// Returns whether the server has cancelled the statement.
pub(crate) fn was_cancelled(error: &Error) -> bool {
    client_error::<tokio_postgres::Error>(error)
        .is_some_and(|error| error.code().is_some_and(|code| code.code() == QUERY_CANCELED))
}

/// Returns whether a table or function does not exist. Either no client has created the schema yet,
/// or the server has lost its data.
pub(crate) fn lacks_schema(error: &Error) -> bool {
    client_error(error).is_some_and(|error| Meaning::of(error) == Some(Meaning::MissingSchema))
}

/// Returns whether the schema was complete already when the query that creates it had its turn.
pub(crate) fn is_complete(error: &Error) -> bool {
    const COMPLETE: &str = "DL002";
    client_error::<tokio_postgres::Error>(error)
        .is_some_and(|error| error.code().is_some_and(|code| code.code() == COMPLETE))
}

/// Returns whether the server accepts no writes. Another host of the URL may accept them.
pub(crate) fn is_read_only(error: &Error) -> bool {
    matches!(error, Error::Unwritable { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_listed_before_its_class() {
        for (at, (prefix, _)) in MEANINGS.iter().enumerate() {
            let shadowed = MEANINGS[..at].iter().find(|(earlier, _)| prefix.starts_with(earlier));
            assert_eq!(shadowed, None, "{prefix} is never reached");
        }
    }
}
