//! What the errors of MySQL, MariaDB and the client crate mean to the caller. No other file decides that.

use dlock_core::{
    Error,
    driver::{Failures, Verdict, client_error},
};
use sqlx::mysql::MySqlDatabaseError;

/// Makes errors that call the store `mysql`, as the URL's scheme does.
pub(crate) const STORE: Failures = Failures::of("mysql");

/// A statement of dlock's has found the server read-only (`refusal.sql`).
const REFUSAL: u16 = 1690;

/// What a user needs who does not make the tables.
const RIGHTS: &str = "GRANT SELECT, INSERT, UPDATE, DELETE on the tables `dlock_%`";

/// The reason given for a proxy that swaps sessions.
pub(crate) const SWAPPED: &str = "a proxy gives the calls of one connection to several sessions, where a \
    named lock would exclude nobody; connect to the server itself, or use the queue, without `mode=session`";

/// The reason given for a server that takes only short calls.
pub(crate) const SMALL_PACKET: &str =
    "`max_allowed_packet` of the server is too small for a call: set it to 64 KiB or more";

/// Reason for a fence without the row of a name: its numbers would go back.
pub(crate) const FENCE: &str = "the table `dlock_fence` lacks rows, so no token can be drawn; once no client holds a lock, \
    drop the tables `dlock_%`: the next client makes them again";

const CERTIFICATE: &str =
    "there is no TLS connection to the server: look at its certificate, and name its authority with `ca`";

/// The error of a call.
pub(crate) fn explain(source: sqlx::Error) -> Error {
    STORE.explain(verdict(&source), source)
}

/// The error number of the server, if it is the server that refused.
pub(crate) fn number(error: &sqlx::Error) -> Option<u16> {
    let sqlx::Error::Database(error) = error else { return None };
    error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// The same of an error that was explained.
pub(crate) fn number_of(error: &Error) -> Option<u16> {
    client_error::<sqlx::Error>(error).and_then(number)
}

/// Whether the transaction met others, and may be tried again at once: a deadlock, a lock that was not free in time, or a
/// conflict with another node of a cluster.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1020 | 1180 | 1205 | 1213 | 3101))
}

/// Whether the transaction waited for a locked row as long as the server lets it.
pub(crate) fn is_wait(error: &sqlx::Error) -> bool {
    number(error) == Some(1205)
}

/// Whether a call was given up because it met other transactions each time.
pub(crate) fn met_others(error: &Error) -> bool {
    client_error(error).is_some_and(is_conflict)
}

/// Whether the connection of a call must be replaced.
pub(crate) fn ended_session(error: &Error) -> bool {
    client_error(error).is_some_and(is_broken)
}

/// Whether somebody ended what a session was at. It may have been the session: that answers no more.
pub(crate) fn was_interrupted(error: &Error) -> bool {
    number_of(error) == Some(1317)
}

/// Whether the tables are not there: nobody has made them, or the server has lost its data.
pub(crate) fn lacks_tables(error: &Error) -> bool {
    number_of(error) == Some(1146)
}

/// Whether the connection must be replaced: it is broken, or another may lead to a server that does what this one refuses.
pub(crate) fn is_broken(error: &sqlx::Error) -> bool {
    match number(error) {
        Some(number) => {
            matches!(number, 1047 | 1053 | 1290 | 1317 | REFUSAL | 1792 | 1836 | 1927 | 3032 | 3100 | 4031)
        }
        None => true,
    }
}

/// Whether the server takes no writes: another of the URL's hosts may.
pub(crate) fn is_read_only(error: &Error) -> bool {
    matches!(error, Error::Unwritable { .. })
}

fn verdict(error: &sqlx::Error) -> Verdict {
    use Verdict::{Later, Never, Unwritable};
    let Some(number) = number(error) else {
        let is_certificate =
            matches!(error, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData);
        return match error {
            _ if is_certificate => Never(CERTIFICATE.into()),
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => Later("the connection failed".into()),
            sqlx::Error::Tls(_) => Never(CERTIFICATE.into()),
            sqlx::Error::Configuration(_) => Never("the URL cannot be used".into()),
            _ => Never("the call failed".into()),
        };
    };
    match number {
        1020 | 1180 | 1205 | 1213 | 3101 => Later("other transactions were in the way each time".into()),
        1040 | 1203 | 1226 => Later(
            "the server has as many connections as it, or the user, may have: raise `max_connections`, or \
            `max_user_connections` of the server and of the user"
                .into(),
        ),
        1047 | 1053 | 1077..=1079 | 1317 | 1637 | 1927 | 1969 | 2006 | 2013 | 3024 | 3032 | 3100 | 4031 => {
            Later("the server cannot answer now".into())
        }
        1021 | 1030 | 1041 | 1114 | 3675 => Unwritable("the server's disk or memory is full".into()),
        REFUSAL | 1290 | 1792 | 1836 => {
            Unwritable("the server is read-only: a replica, or one that somebody made so".into())
        }
        1044 | 1142 | 1143 | 1227 => Never(format!("the user lacks rights; give it: {RIGHTS}").into()),
        1095 => Never("the user may end only sessions of its own; others need CONNECTION ADMIN".into()),
        1045 | 1251 | 1698 => Never("the server knows no such user and password".into()),
        1049 => Never("there is no such database: make it, or name another behind the host".into()),
        1046 => Never("the URL names no database: write `mysql://host/database`".into()),
        1146 | 1054 => Never("the tables are not there, or not those of dlock".into()),
        1153 => Never(SMALL_PACKET.into()),
        1665 => Never("`binlog_format` is STATEMENT; dlock needs ROW or MIXED".into()),
        _ => Never("the server refused the call".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_connection_may_heal_and_what_the_url_says_may_not() {
        let broken = || sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        assert!(explain(broken()).is_transient());
        assert!(is_broken(&broken()) && !is_conflict(&broken()));
        assert!(!explain(sqlx::Error::Configuration("bad".into())).is_transient());
    }
}
