//! The verdicts on Redis's errors. No other file classifies them.

use dlock_core::{
    Error, Kind, LockName,
    driver::{Address, StoreErrors, Verdict, client_error},
};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Creates errors with the store's name `redis`, which is the scheme of its URLs.
pub(crate) const STORE: StoreErrors = StoreErrors::new("redis");

/// Rights that a user needs on a server with ACLs. `~*` allows all keys.
const RIGHTS: &str = "~* &redisson_lock__channel:* &redisson_rwlock:* &__keyevent@* +@read +@write +@scripting \
    +@pubsub +@connection -@dangerous +time +wait +info +cluster|slots";

/// Rights that a user needs on a Sentinel.
const SENTINEL_RIGHTS: &str = "+sentinel|get-master-addr-by-name";

/// Text of the error when a node of a cluster replies that another node has the name.
const OTHER_NODE: &str =
    "the server is a node of a cluster, and another node has this name; write `redis-cluster://`";

/// Converts the client crate's error of a command.
pub(crate) fn explain(source: RedisError) -> Error {
    STORE.explain(verdict(&source), source)
}

/// Converts the error of a request to a Sentinel, which has its own login.
pub(crate) fn explain_sentinel(sentinel: &Address, source: RedisError) -> Error {
    let reason = if has_code(&source, "NOAUTH") {
        "wants a password; put `sentinel_password=…` into the URL".to_owned()
    } else if source.kind() == ErrorKind::AuthenticationFailed {
        "does not take `sentinel_password`, or knows no such `sentinel_username`".to_owned()
    } else if has_code(&source, "NOPERM") {
        format!("says that `sentinel_username` lacks rights; give it: ACL SETUSER name {SENTINEL_RIGHTS}")
    } else if source.detail().is_some_and(|detail| detail.starts_with("unknown command")) {
        "is no Sentinel but a server; its Sentinel has another port, usually 26379".to_owned()
    } else {
        return STORE.at_host(format_args!("Sentinel `{sentinel}`"), explain(source));
    };
    STORE.explain(Verdict::Permanent(format!("Sentinel `{sentinel}` {reason}").into()), source)
}

/// Returns the error for a name that is in use for another kind of lock or for other data.
pub(crate) fn wrong_kind(name: &LockName, kind: Kind, found: &str) -> Error {
    let reason = match found {
        "mutex" => "it is held as a mutex; request `mutex` or `fair`".to_owned(),
        "permit" => "it is in use as a semaphore; request a permit".to_owned(),
        "rwlock" => "it is held as a read/write lock; request `read` or `write`".to_owned(),
        _ => "its key contains other data than a lock; use another name or a key prefix".to_owned(),
    };
    Error::WrongKind { name: name.clone(), kind, reason }
}

/// Returns whether the server has found a key of another type than the locks of this dialect.
pub(crate) fn is_wrong_type(error: &Error) -> bool {
    came_from(error, "WRONGTYPE")
}

/// Returns whether the server does not know a script, for example after a restart.
pub(crate) fn is_no_script(error: &Error) -> bool {
    came_from(error, "NOSCRIPT")
}

/// Returns whether the server requires a password or has refused the given one.
pub(crate) fn wants_login(error: &Error) -> bool {
    came_from(error, "NOAUTH") || came_from(error, "WRONGPASS")
}

/// Returns whether the server does not know an option of a command.
pub(crate) fn is_syntax(error: &Error) -> bool {
    came_from(error, "syntax error")
}

/// Returns whether the server has refused keys of several slots in one call, as a proxy of a
/// cluster does.
pub(crate) fn is_cross_slot(error: &Error) -> bool {
    came_from(error, "CROSSSLOT")
}

/// Returns the error for a `redis://` URL that leads to a node of a cluster with only a part of the
/// names.
pub(crate) fn one_node_of_many() -> Error {
    STORE.refused(
        "the server is a node of a cluster, and other nodes have the other names; \
         write `redis-cluster://` instead of `redis://`",
    )
}

/// Returns whether the server has refused the command. It may still accept other commands, or the
/// same command for other keys.
pub(crate) fn was_refused(error: &Error) -> bool {
    client_error::<RedisError>(error).is_some_and(|source| source.code().is_some() && !is_broken(source))
}

fn came_from(error: &Error, code: &str) -> bool {
    client_error(error).is_some_and(|source| has_code(source, code))
}

/// Returns whether the connection must be replaced, because a new one may lead to a server that
/// executes the command.
pub(crate) fn is_broken(error: &RedisError) -> bool {
    // A master that was demoted to a replica replies READONLY or MASTERDOWN forever, so the new
    // master must be found. A server with too many clients closes the connection.
    let codes = ["READONLY", "MASTERDOWN", "LOADING", "max number of clients"];
    error.is_io_error() || error.is_connection_dropped() || codes.iter().any(|code| has_code(error, code))
}

/// Returns whether a node of a cluster could not be reached.
pub(crate) fn is_unreachable(error: &RedisError) -> bool {
    error.kind() == ErrorKind::ClusterConnectionNotFound || is_broken(error)
}

/// Returns whether an error has this code. A server before version 7 reports an error of a script
/// with another code and puts the original code into the text, so the text is searched too.
fn has_code(error: &RedisError, code: &str) -> bool {
    error.code() == Some(code) || error.detail().is_some_and(|detail| detail.contains(code))
}

fn verdict(error: &RedisError) -> Verdict {
    use Verdict::{Permanent, Transient, Unwritable};
    // Codes for which the client crate has no kind of error, and codes that may be inside the text
    // of another error. Both the client crate and old servers put codes into texts.
    for (code, verdict) in [
        (
            "NOPERM",
            Permanent(
                format!(
                    "the user lacks rights; give it these, before Redis 6.2 without those that begin with `&`: \
                     ACL SETUSER name {RIGHTS}"
                )
                .into(),
            ),
        ),
        ("NOAUTH", Permanent("the server requires a password; put it into the URL".into())),
        ("WRONGPASS", Permanent("the server knows no such user and password".into())),
        (
            "unknown command",
            Permanent("the server lacks a command that locks need; Redis 5 or later has all".into()),
        ),
        // The client crate reports this for a cluster, only inside the text of another error.
        ("RESP3NotSupported", Permanent("a cluster needs Redis 6 or later".into())),
        ("OOM", Unwritable("the server is out of memory; raise its maxmemory".into())),
        ("MISCONF", Unwritable("the server cannot persist and refuses writes; see its log".into())),
        (
            "NOREPLICAS",
            Unwritable("the server has fewer replicas than its configuration requires for writes".into()),
        ),
        ("READONLY", Transient("the server is a replica; dlock looks for its master".into())),
        ("LOADING", Transient("the server is loading its data".into())),
        ("MASTERDOWN", Transient("the server has lost its master".into())),
        ("CLUSTERDOWN", Transient("the cluster is down".into())),
        ("MOVED", Transient(OTHER_NODE.into())),
        ("TRYAGAIN", Transient("the cluster is moving the keys".into())),
        ("BUSY", Transient("the server is busy with a script".into())),
        ("UNBLOCKED", Transient("the server has changed its role".into())),
        ("NOGOODSLAVE", Transient("no replica is suitable as the master".into())),
        (
            "max number of clients",
            Transient("the server has reached its limit of clients; raise its maxclients".into()),
        ),
    ] {
        if has_code(error, code) {
            return verdict;
        }
    }
    match error.kind() {
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => Transient("the connection failed".into()),
        ErrorKind::AuthenticationFailed => Permanent("the server knows no such user and password".into()),
        ErrorKind::MasterNameNotFoundBySentinel => Permanent("Sentinel knows no such master".into()),
        ErrorKind::NoValidReplicasFoundBySentinel | ErrorKind::EmptySentinelList => {
            Permanent("Sentinel knows no such server".into())
        }
        ErrorKind::InvalidClientConfig => Permanent("the URL cannot be used".into()),
        ErrorKind::Server(kind) => match kind {
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask => Transient("the server cannot reply now".into()),
            ServerErrorKind::CrossSlot => Permanent(
                "the lock's keys are in different slots; use a name without braces, or with a hash tag such as `{tag}`"
                    .into(),
            ),
            _ => Permanent("the command failed".into()),
        },
        _ => Permanent("the command failed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> Error {
        let (code, detail) = text.split_once(' ').expect("code and detail");
        explain(redis::make_extension_error(code.to_owned(), Some(detail.to_owned())))
    }

    #[test]
    fn an_error_that_may_pass_is_transient() {
        for text in [
            "LOADING Redis is loading the dataset in memory",
            "READONLY You can't write against a read only replica.",
            "CLUSTERDOWN The cluster is down",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "MASTERDOWN Link with MASTER is down",
            "NOREPLICAS Not enough good replicas to write.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "MISCONF Redis is configured to save RDB snapshots",
            "BUSY Redis is busy running a script.",
            "ERR max number of clients reached",
            "ERR Error running script (call to f_0): @user_script:3: READONLY You can't write",
        ] {
            assert!(error_of(text).is_transient(), "{text}");
        }
    }

    #[test]
    fn a_server_that_cannot_write_now_is_not_reported_as_unavailable() {
        for text in
            ["OOM command not allowed", "MISCONF Redis is configured", "NOREPLICAS Not enough good replicas"]
        {
            assert!(matches!(error_of(text), Error::Unwritable { .. }), "{text}");
        }
    }

    #[test]
    fn an_error_that_an_operator_must_fix_is_not_transient() {
        for text in [
            "NOPERM User app has no permissions to run the 'evalsha' command",
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "ERR unknown command 'EVALSHA'",
            "ERR value is not an integer or out of range",
            "CROSSSLOT Keys in request don't hash to the same slot",
        ] {
            assert!(!error_of(text).is_transient(), "{text}");
        }
    }

    #[test]
    fn a_user_without_rights_gets_the_acl_line() {
        let error = error_of("NOPERM User app has no permissions to run the 'evalsha' command");
        let reason = std::error::Error::source(&error).expect("the server's error").to_string();
        assert!(reason.contains("ACL SETUSER") && reason.contains(RIGHTS), "{reason}");
    }
}
