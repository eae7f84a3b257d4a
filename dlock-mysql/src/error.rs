//! The meaning of errors of MySQL, MariaDB and the client crate. One table lists all error codes
//! of the servers that dlock tells apart.

use std::io;

use dlock_core::{
    Error,
    driver::{StoreErrors, Verdict, client_error},
};
use sqlx::mysql::MySqlDatabaseError;

/// Makes errors that name the store `mysql`, as the URL's scheme does.
pub(crate) const STORE: StoreErrors = StoreErrors::new("mysql");

/// An error code of a server, with its meaning.
struct ServerError {
    code: u16,
    meaning: Meaning,
    /// Whether the session has to be replaced.
    session: SessionAfter,
}

/// The state of a session after an error of the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionAfter {
    /// The session can execute the next batch.
    Usable,
    /// The server has ended the session, or a new session may lead to a server that executes the
    /// batch.
    Ended,
}

/// The meaning of a server's error to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The transaction conflicted with another one, and may be repeated at once.
    Conflict,
    /// The server, or the user's account, has reached its limit of connections.
    TooManyConnections,
    /// The server is starting, stopping or overloaded, or has ended the statement.
    Unavailable,
    /// The server has no room on its disk or in its memory.
    Full,
    ReadOnly,
    MissingRights,
    MissingRightToKill,
    WrongLogin,
    UnknownDatabase,
    NoDatabase,
    MissingTables,
    SmallPacket,
    StatementBinlog,
    /// An error that a caller inside this crate handles.
    Refused,
}

/// Defines a constant for each error code, and the table of all of them. The constants have the
/// names of the servers' documentation, without the prefix `ER_` or `CR_`.
macro_rules! server_errors {
    ($($code:literal $name:ident $meaning:ident $session:ident;)+) => {
        $(pub(crate) const $name: u16 = $code;)+

        const SERVER_ERRORS: &[ServerError] = &[$(ServerError {
            code: $name,
            meaning: Meaning::$meaning,
            session: SessionAfter::$session,
        }),+];
    };
}

server_errors! {
    1020 CHECKREAD Conflict Usable;
    1180 ERROR_DURING_COMMIT Conflict Usable;
    1205 LOCK_WAIT_TIMEOUT Conflict Usable;
    1213 LOCK_DEADLOCK Conflict Usable;
    3101 TRANSACTION_ROLLBACK_DURING_COMMIT Conflict Usable;

    1040 CON_COUNT_ERROR TooManyConnections Usable;
    1203 TOO_MANY_USER_CONNECTIONS TooManyConnections Usable;
    1226 USER_LIMIT_REACHED TooManyConnections Usable;

    1047 UNKNOWN_COM_ERROR Unavailable Ended; // A Galera node that is not ready.
    1053 SERVER_SHUTDOWN Unavailable Ended;
    1077 NORMAL_SHUTDOWN Unavailable Usable;
    1078 GOT_SIGNAL Unavailable Usable;
    1079 SHUTDOWN_COMPLETE Unavailable Usable;
    1317 QUERY_INTERRUPTED Unavailable Ended;
    1637 TOO_MANY_CONCURRENT_TRXS Unavailable Usable;
    1927 CONNECTION_KILLED Unavailable Ended;
    1969 STATEMENT_TIMEOUT Unavailable Usable;
    2006 SERVER_GONE_ERROR Unavailable Usable;
    2013 SERVER_LOST Unavailable Usable;
    3024 QUERY_TIMEOUT Unavailable Usable;
    3032 SERVER_OFFLINE_MODE Unavailable Ended;
    3100 RUN_HOOK_ERROR Unavailable Ended; // A node that has left its replication group.
    4031 CLIENT_INTERACTION_TIMEOUT Unavailable Ended;

    1021 DISK_FULL Full Usable;
    1030 GET_ERRNO Full Usable;
    1041 OUT_OF_RESOURCES Full Usable;
    1114 RECORD_FILE_FULL Full Usable;
    3675 DISK_FULL_NOWAIT Full Usable;

    1290 OPTION_PREVENTS_STATEMENT ReadOnly Ended;
    1690 DATA_OUT_OF_RANGE ReadOnly Ended; // Raised by `refusal.sql`.
    1792 CANT_EXECUTE_IN_READ_ONLY_TRANSACTION ReadOnly Ended;
    1836 READ_ONLY_MODE ReadOnly Ended;

    1044 DBACCESS_DENIED_ERROR MissingRights Usable;
    1142 TABLEACCESS_DENIED_ERROR MissingRights Usable;
    1143 COLUMNACCESS_DENIED_ERROR MissingRights Usable;
    1227 SPECIFIC_ACCESS_DENIED_ERROR MissingRights Usable;
    1095 KILL_DENIED_ERROR MissingRightToKill Usable;
    1045 ACCESS_DENIED_ERROR WrongLogin Usable;
    1251 NOT_SUPPORTED_AUTH_MODE WrongLogin Usable;
    1698 ACCESS_DENIED_NO_PASSWORD_ERROR WrongLogin Usable;
    1049 BAD_DB_ERROR UnknownDatabase Usable;
    1046 NO_DB_ERROR NoDatabase Usable;
    1054 BAD_FIELD_ERROR MissingTables Usable;
    1146 NO_SUCH_TABLE MissingTables Usable;
    1153 NET_PACKET_TOO_LARGE SmallPacket Usable;
    1665 BINLOG_STMT_MODE_AND_ROW_ENGINE StatementBinlog Usable;

    1094 NO_SUCH_THREAD Refused Usable;
    1109 UNKNOWN_TABLE Refused Usable;
}

impl ServerError {
    fn of(code: u16) -> Option<&'static Self> {
        SERVER_ERRORS.iter().find(|error| error.code == code)
    }
}

impl Meaning {
    /// Returns what the error means to the user, with the reason and how to fix the problem.
    fn verdict(self) -> Verdict {
        match self {
            Self::Conflict => {
                Verdict::Transient("the transaction conflicted with other transactions at each try".into())
            }
            Self::TooManyConnections => Verdict::Transient(
                "the server has reached its limit of connections, or that of the user: raise \
                `max_connections`, or `max_user_connections` of the server and of the user"
                    .into(),
            ),
            Self::Unavailable => Verdict::Transient("the server cannot answer now".into()),
            Self::Full => Verdict::Unwritable("the server's disk or memory is full".into()),
            Self::ReadOnly => Verdict::Unwritable(READ_ONLY.into()),
            Self::MissingRights => Verdict::Permanent(RIGHTS.into()),
            Self::MissingRightToKill => Verdict::Permanent(
                "the user may end only its own sessions; ending those of other users needs the right \
                CONNECTION ADMIN"
                    .into(),
            ),
            Self::WrongLogin => {
                Verdict::Permanent("the server does not accept this user and password".into())
            }
            Self::UnknownDatabase => Verdict::Permanent(
                "there is no such database: create it, or name another one behind the host".into(),
            ),
            Self::NoDatabase => {
                Verdict::Permanent("the URL names no database: write `mysql://host/database`".into())
            }
            Self::MissingTables => {
                Verdict::Permanent("the tables are missing, or were not created by dlock".into())
            }
            Self::SmallPacket => Verdict::Permanent(SMALL_PACKET.into()),
            Self::StatementBinlog => {
                Verdict::Permanent("`binlog_format` is STATEMENT; set it to ROW or MIXED".into())
            }
            Self::Refused => Verdict::Permanent(REFUSED.into()),
        }
    }
}

const RIGHTS: &str = "the user lacks rights; to create the tables it needs CREATE on the database, or an administrator \
    runs `dlock init`; to use existing ones: GRANT SELECT, INSERT, UPDATE, DELETE on the tables `dlock_%`";

const REFUSED: &str = "the server refused the call";

pub(crate) const READ_ONLY: &str =
    "the server is read-only: it is a replica, or its `read_only` or `innodb_read_only` is set";

/// Reason for a refused named lock behind a proxy that spreads one connection over several
/// sessions.
pub(crate) const SWAPPED_SESSIONS: &str = "a proxy spreads the calls of one connection over several sessions, where a \
    named lock would exclude no other client; connect to the server itself, or use the queue, without `mode=session`";

/// Reason for a refused server that accepts only short calls.
pub(crate) const SMALL_PACKET: &str =
    "`max_allowed_packet` of the server is too small for a call: set it to 64 KiB or more";

/// Reason for a refused lock whose row of the fence is missing. A row that was created again
/// would draw numbers that were drawn before.
pub(crate) const INCOMPLETE_FENCE: &str = "the table `dlock_fence` lacks rows, so no token can be drawn; once no client holds a lock, \
    drop the tables `dlock_%`: the next client creates them again";

const CERTIFICATE: &str = "the TLS connection to the server failed: check its certificate, and name its authority with `ca`; \
     a server whose certificate has X.509 version 1 can be used with `tls=off` only";

/// Converts an error of the client crate. The original error stays the source.
pub(crate) fn explain(source: sqlx::Error) -> Error {
    STORE.explain(verdict(&source), source)
}

/// Returns the server's error code, or `None` if the error did not come from the server.
pub(crate) fn code(error: &sqlx::Error) -> Option<u16> {
    let sqlx::Error::Database(error) = error else { return None };
    error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// As [`code`], for an error that [`explain`] converted.
pub(crate) fn code_of(error: &Error) -> Option<u16> {
    client_error::<sqlx::Error>(error).and_then(code)
}

fn server_error(error: &sqlx::Error) -> Option<&'static ServerError> {
    code(error).and_then(ServerError::of)
}

/// Returns whether the transaction conflicted with another one and may be repeated at once. Such
/// conflicts are a deadlock, a row lock that was not released in time, and a conflict with another
/// node of a cluster.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    server_error(error).is_some_and(|error| error.meaning == Meaning::Conflict)
}

/// As [`is_conflict`], for an error that [`explain`] converted.
pub(crate) fn was_conflict(error: &Error) -> bool {
    client_error(error).is_some_and(is_conflict)
}

/// Returns whether the transaction waited for a locked row for as long as the server allows.
pub(crate) fn is_lock_wait_timeout(error: &sqlx::Error) -> bool {
    code(error) == Some(LOCK_WAIT_TIMEOUT)
}

/// Returns whether the session has to be replaced. Its connection is broken, or a new session may
/// lead to a server that executes the batch.
pub(crate) fn ends_session(error: &sqlx::Error) -> bool {
    match code(error) {
        Some(code) => ServerError::of(code).is_some_and(|error| error.session == SessionAfter::Ended),
        None => true,
    }
}

/// As [`ends_session`], for an error that [`explain`] converted.
pub(crate) fn ended_session(error: &Error) -> bool {
    client_error(error).is_some_and(ends_session)
}

/// Returns whether a `KILL` ended the statement. It may have ended the whole session, which then
/// gives no further replies.
pub(crate) fn was_interrupted(error: &Error) -> bool {
    code_of(error) == Some(QUERY_INTERRUPTED)
}

/// Returns whether a table does not exist. Either no client has created the tables yet, or the
/// server has lost its data.
pub(crate) fn lacks_tables(error: &Error) -> bool {
    code_of(error) == Some(NO_SUCH_TABLE)
}

/// Returns whether the server accepts no writes. Another host of the URL may accept them.
pub(crate) fn is_read_only(error: &Error) -> bool {
    matches!(error, Error::Unwritable { .. })
}

fn verdict(error: &sqlx::Error) -> Verdict {
    match error {
        error if code(error).is_some() => {
            server_error(error).map_or(Verdict::Permanent(REFUSED.into()), |error| error.meaning.verdict())
        }
        sqlx::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            Verdict::Permanent(CERTIFICATE.into())
        }
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => Verdict::Transient("the connection failed".into()),
        sqlx::Error::Tls(_) => Verdict::Permanent(CERTIFICATE.into()),
        sqlx::Error::Configuration(_) => Verdict::Permanent("the URL cannot be used".into()),
        _ => Verdict::Permanent("the call failed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_connection_may_heal_and_what_the_url_says_may_not() {
        let broken = || sqlx::Error::Io(io::ErrorKind::ConnectionReset.into());
        assert!(explain(broken()).is_transient());
        assert!(ends_session(&broken()) && !is_conflict(&broken()));
        assert!(!explain(sqlx::Error::Configuration("bad".into())).is_transient());
    }

    #[test]
    fn each_code_is_listed_once() {
        let mut codes: Vec<_> = SERVER_ERRORS.iter().map(|error| error.code).collect();
        codes.sort_unstable();
        let count = codes.len();
        codes.dedup();
        assert_eq!(codes.len(), count, "a code has two meanings");
    }
}
