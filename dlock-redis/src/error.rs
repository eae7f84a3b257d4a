//! What Redis's errors mean to the caller. No other file decides that. Over the usual length: one table with its tests.

use dlock_core::{
    Error, Kind, LockName,
    driver::{Address, StoreErrors, Verdict, client_error},
};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Makes errors that call the store `redis`, as the URL's scheme does.
pub(crate) const STORE: StoreErrors = StoreErrors::new("redis");

/// The rights that a user needs on a server with ACLs. `~*` allows all keys.
const RIGHTS: &str = "~* &redisson_lock__channel:* &redisson_rwlock:* &__keyevent@* +@read +@write +@scripting \
    +@pubsub +@connection -@dangerous +time +wait +info +cluster|slots";

/// The rights that a user needs on a Sentinel.
const SENTINEL_RIGHTS: &str = "+sentinel|get-master-addr-by-name";

/// The reason given when a node of a cluster answers that another node has the name.
const OTHER_NODE: &str =
    "the server is a node of a cluster, and another node has this name; write `redis-cluster://`";

/// The error of a command.
pub(crate) fn explain(source: RedisError) -> Error {
    STORE.explain(verdict(&source), source)
}

/// The error of a request to a Sentinel, which has a login of its own.
pub(crate) fn explain_sentinel(sentinel: &Address, source: RedisError) -> Error {
    let does = if has_code(&source, "NOAUTH") {
        "wants a password; put `sentinel_password=…` into the URL".to_owned()
    } else if source.kind() == ErrorKind::AuthenticationFailed {
        "does not take `sentinel_password`, or knows no such `sentinel_username`".to_owned()
    } else if has_code(&source, "NOPERM") {
        format!("says that `sentinel_username` lacks rights; give it: ACL SETUSER name {SENTINEL_RIGHTS}")
    } else if source.detail().is_some_and(|detail| detail.starts_with("unknown command")) {
        "is no Sentinel but a server; its Sentinel has another port, 26379 as a rule".to_owned()
    } else {
        return STORE.at_host(format_args!("Sentinel `{sentinel}`"), explain(source));
    };
    STORE.explain(Verdict::Permanent(format!("Sentinel `{sentinel}` {does}").into()), source)
}

/// The error for a name that another kind of lock, or something else, uses.
pub(crate) fn wrong_kind(name: &LockName, kind: Kind, found: &str) -> Error {
    let reason = match found {
        "mutex" => "it is held as a mutex; ask for `mutex` or `fair`".to_owned(),
        "permit" => "it is in use as a semaphore; ask for a permit".to_owned(),
        "rwlock" => "it is held as a read/write lock; ask for `read` or `write`".to_owned(),
        _ => "its key holds other data than a lock; use another name or a key prefix".to_owned(),
    };
    Error::WrongKind { name: name.clone(), kind, reason }
}

/// Whether a key was found to be of another type than a lock of this dialect is.
pub(crate) fn is_wrong_type(error: &Error) -> bool {
    came_from(error, "WRONGTYPE")
}

/// Whether the server does not know a script, as after its restart.
pub(crate) fn is_no_script(error: &Error) -> bool {
    came_from(error, "NOSCRIPT")
}

/// Whether the server wants a password, or another one.
pub(crate) fn wants_login(error: &Error) -> bool {
    came_from(error, "NOAUTH") || came_from(error, "WRONGPASS")
}

/// Whether the server does not know an option of a command.
pub(crate) fn is_syntax(error: &Error) -> bool {
    came_from(error, "syntax error")
}

/// Whether the server refused keys of several slots in one call, as a proxy before a cluster does.
pub(crate) fn is_cross_slot(error: &Error) -> bool {
    came_from(error, "CROSSSLOT")
}

/// The error for a `redis://` URL that leads to a node of a cluster which lacks a part of the names.
pub(crate) fn one_node_of_many() -> Error {
    STORE.refused(
        "the server is a node of a cluster, and other nodes have the other names; write `redis-cluster://` instead of `redis://`",
    )
}

/// Whether the server has refused the command. It still does other commands, perhaps the same one for other keys.
pub(crate) fn was_refused(error: &Error) -> bool {
    client_error::<RedisError>(error).is_some_and(|source| source.code().is_some() && !is_broken(source))
}

fn came_from(error: &Error, code: &str) -> bool {
    client_error(error).is_some_and(|source| has_code(source, code))
}

/// Whether the connection must be replaced, because another may lead to a server that does the command.
pub(crate) fn is_broken(error: &RedisError) -> bool {
    // A master that has become a replica answers READONLY or MASTERDOWN for ever, so the new master must be found. A server
    // that has too many clients closes the connection.
    let elsewhere = ["READONLY", "MASTERDOWN", "LOADING", "max number of clients"];
    error.is_io_error() || error.is_connection_dropped() || elsewhere.iter().any(|code| has_code(error, code))
}

/// Whether a node of a cluster could not be reached.
pub(crate) fn is_unreachable(error: &RedisError) -> bool {
    error.kind() == ErrorKind::ClusterConnectionNotFound || is_broken(error)
}

/// Whether an error has this code. Before version 7, a server puts the code of an error in a script into the text of another
/// error, so that text is searched too.
fn has_code(error: &RedisError, code: &str) -> bool {
    error.code() == Some(code) || error.detail().is_some_and(|detail| detail.contains(code))
}

fn verdict(error: &RedisError) -> Verdict {
    use Verdict::{Permanent, Transient, Unwritable};
    // Codes for which the client crate has no kind of error, and codes within the text of another error: the client crate puts
    // some there, and old servers those of scripts.
    for (code, verdict) in [
        (
            "NOPERM",
            Permanent(
                format!(
                    "the user lacks rights; give it, before Redis 6.2 without what begins with `&`: \
                 ACL SETUSER name {RIGHTS}"
                )
                .into(),
            ),
        ),
        ("NOAUTH", Permanent("the server wants a password; put it into the URL".into())),
        ("WRONGPASS", Permanent("the server knows no such user and password".into())),
        (
            "unknown command",
            Permanent("the server lacks a command that locks need; Redis 5 or later has all".into()),
        ),
        // A client of a cluster says this only within the text of another error.
        ("RESP3NotSupported", Permanent("a cluster needs Redis 6 or later".into())),
        ("OOM", Unwritable("the server is out of memory; raise its maxmemory".into())),
        ("MISCONF", Unwritable("the server cannot persist and refuses writes; look into its log".into())),
        (
            "NOREPLICAS",
            Unwritable("the server has fewer replicas than it is configured to write with".into()),
        ),
        ("READONLY", Transient("the server is a replica; its master is looked for".into())),
        ("LOADING", Transient("the server is loading its data".into())),
        ("MASTERDOWN", Transient("the server has lost its master".into())),
        ("CLUSTERDOWN", Transient("the cluster is down".into())),
        ("MOVED", Transient(OTHER_NODE.into())),
        ("TRYAGAIN", Transient("the cluster is moving the keys".into())),
        ("BUSY", Transient("the server is busy with a script".into())),
        ("UNBLOCKED", Transient("the server has changed its role".into())),
        ("NOGOODSLAVE", Transient("no replica is fit to be the master".into())),
        (
            "max number of clients",
            Transient("the server has as many clients as it takes; raise its maxclients".into()),
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
            | ServerErrorKind::Ask => Transient("the server cannot answer now".into()),
            ServerErrorKind::CrossSlot => Permanent("the lock's keys are in several slots; a cluster's name has no brace, or `{` before `}` and text between".into()),
            _ => Permanent("the command failed".into()),
        },
        _ => Permanent("the command failed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Error {
        let (code, detail) = text.split_once(' ').expect("code and detail");
        explain(redis::make_extension_error(code.to_owned(), Some(detail.to_owned())))
    }

    #[test]
    fn what_time_may_heal_is_transient() {
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
            assert!(said(text).is_transient(), "{text}");
        }
    }

    #[test]
    fn a_server_that_cannot_write_for_now_is_told_from_one_that_does_not_answer() {
        for text in
            ["OOM command not allowed", "MISCONF Redis is configured", "NOREPLICAS Not enough good replicas"]
        {
            assert!(matches!(said(text), Error::Unwritable { .. }), "{text}");
        }
    }

    #[test]
    fn what_a_person_must_change_is_not() {
        for text in [
            "NOPERM User app has no permissions to run the 'evalsha' command",
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "ERR unknown command 'EVALSHA'",
            "ERR value is not an integer or out of range",
            "CROSSSLOT Keys in request don't hash to the same slot",
        ] {
            assert!(!said(text).is_transient(), "{text}");
        }
    }

    #[test]
    fn whoever_lacks_rights_is_told_the_acl_line() {
        let error = said("NOPERM User app has no permissions to run the 'evalsha' command");
        let told = std::error::Error::source(&error).expect("the server's").to_string();
        assert!(told.contains("ACL SETUSER") && told.contains(RIGHTS), "{told}");
    }
}
