//! Classification of the errors of `zookeeper-client`. No other file decides which errors are
//! transient.

use std::time::Duration;

use dlock_core::{
    Error, Kind, LockName,
    driver::{StoreErrors, Verdict, duration},
};
use zookeeper_client::Error as ZkError;

/// Creates errors of the store `zk`, which is also the scheme of its URLs.
pub(crate) const STORE: StoreErrors = StoreErrors::new("zk");

/// Text of the error for missing rights. Names the rights that a client needs.
const RIGHTS: &str = "the server refuses a request because rights are missing: the base path and the directories in it must grant \
    CREATE, DELETE and READ to all clients, and each node must grant READ; `acl=open` or `acl=creator` in the URL says what \
    dlock grants on nodes that it creates, and a login in the URL is sent as `digest`";

/// Returns the error of a failed request.
pub(crate) fn explain(source: ZkError) -> Error {
    STORE.explain(verdict(&source), source)
}

/// Returns the error of a call whose session is over.
pub(crate) fn session_is_over() -> Error {
    STORE.unavailable(
        "the session is over: the servers received no request of this client for too long, or the client was closed",
    )
}

/// Returns the error of a call that got no session within `limit`.
///
/// A server closes a connection that it refuses without a reply, so the reason is unknown.
pub(crate) fn no_session_within(limit: Duration, with_tls: bool) -> Error {
    let mut text = format!(
        "no session within {}: no server replies, or the server refuses further connections from this address (maxClientCnxns)",
        duration::text(limit)
    );
    if with_tls {
        text += "; a certificate that the client or a server rejects has the same effect, so compare the certificates and read \
                 the servers' log";
    }
    STORE.unavailable(text)
}

/// Returns the error of a call that needs a session with confirmed heartbeats.
pub(crate) fn session_is_silent() -> Error {
    STORE.unavailable("no server has confirmed a heartbeat of the session for too long")
}

/// Returns the error for a directory with a node of another recipe, whose clients ignore the nodes
/// of dlock.
pub(crate) fn wrong_kind(name: &LockName, kind: Kind, found: &str) -> Error {
    let reason = format!(
        "its directory has the node `{found}` of another program and another kind of lock, which would ignore a {kind} lock; \
         use another name"
    );
    Error::WrongKind { name: name.clone(), kind, reason }
}

/// Returns the error for a directory whose counter is used up.
pub(crate) fn counter_used_up(directory: &str) -> Error {
    STORE.refused(format!(
        "the sequence number of the directory `{directory}` is near its end at 2147483647, where ZooKeeper numbers no more \
         nodes and several claims could hold the lock at the same time; wait until its holders and waiters have left (the next \
         claim then creates a new directory, which begins at zero), delete the directory by hand if the client lacks the right to do so, or use another name"
    ))
}

/// Returns whether the server has refused the request, so that it has changed nothing. After any
/// other error the outcome is unknown.
pub(crate) fn is_refusal(error: &ZkError) -> bool {
    matches!(
        error,
        ZkError::NoNode
            | ZkError::NoAuth
            | ZkError::NodeExists
            | ZkError::NoChildrenForEphemerals
            | ZkError::InvalidAcl
            | ZkError::NotReadOnly
            | ZkError::QuotaExceeded
            | ZkError::Throttled
            | ZkError::Unimplemented
            | ZkError::BadArguments(_)
    )
}

/// Returns whether a majority of the servers has confirmed this error as the outcome of a write.
pub(crate) fn is_confirmed(error: &ZkError) -> bool {
    matches!(error, ZkError::NoNode | ZkError::BadVersion | ZkError::NotEmpty | ZkError::NoAuth)
}

/// Returns whether a create failed because the node exists or its parent does not.
pub(crate) fn is_about_existence(error: &ZkError) -> bool {
    matches!(error, ZkError::NoNode | ZkError::NodeExists)
}

/// Returns the meaning of an error of `zookeeper-client`.
fn verdict(error: &ZkError) -> Verdict {
    match error {
        ZkError::ConnectionLoss => Verdict::Transient("the connection broke before the reply arrived".into()),
        ZkError::Timeout | ZkError::NoHosts => Verdict::Transient("no server has opened a session".into()),
        ZkError::SessionExpired | ZkError::ClientClosed => {
            Verdict::Transient("the session ended before the reply arrived".into())
        }
        ZkError::SessionMoved => Verdict::Transient("the session has moved to another server".into()),
        ZkError::Throttled => Verdict::Transient("the server is busy and has rejected the request".into()),
        // `zookeeper-client` reports a broken or silent connection as one of these two.
        ZkError::Custom(_) | ZkError::UnexpectedError(_) => {
            Verdict::Transient("the connection failed before the reply arrived".into())
        }
        // A node was deleted between two requests. For example, the server deletes empty
        // directories.
        ZkError::NoNode => Verdict::Transient("a node was deleted while it was in use".into()),
        ZkError::NotReadOnly => Verdict::Unwritable("the server has lost contact to the other servers and is read-only".into()),
        ZkError::QuotaExceeded => Verdict::Unwritable("a quota on the base path is used up".into()),
        ZkError::NoAuth => Verdict::Permanent(RIGHTS.into()),
        ZkError::AuthFailed => Verdict::Permanent("the servers refuse the login of the URL".into()),
        ZkError::InvalidAcl => Verdict::Permanent(
            "the server refuses the rights of `acl`; `acl=creator` needs a login in the URL".into(),
        ),
        ZkError::NoChildrenForEphemerals => Verdict::Permanent(
            "a node on the way to the lock is ephemeral and cannot have children; choose another base path"
                .into(),
        ),
        ZkError::Unimplemented => Verdict::Permanent(
            "the server lacks a request that dlock needs, like ZooKeeper before 3.5; use a newer server"
                .into(),
        ),
        ZkError::UnexpectedErrorCode(code) => Verdict::Permanent(
            format!("the server refused a request with the error code {code}, which `zookeeper-client` does not know").into(),
        ),
        _ => Verdict::Permanent("the server refused a request".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_time_may_heal_is_transient() {
        for error in [
            ZkError::ConnectionLoss,
            ZkError::Timeout,
            ZkError::NoHosts,
            ZkError::SessionExpired,
            ZkError::ClientClosed,
            ZkError::SessionMoved,
            ZkError::Throttled,
            ZkError::UnexpectedError("the link broke".to_owned()),
            ZkError::NoNode,
            ZkError::NotReadOnly,
            ZkError::QuotaExceeded,
        ] {
            assert!(explain(error.clone()).is_transient(), "{error}");
        }
    }

    #[test]
    fn what_a_person_must_change_is_not() {
        for error in [ZkError::NoAuth, ZkError::AuthFailed, ZkError::InvalidAcl, ZkError::Unimplemented] {
            assert!(!explain(error.clone()).is_transient(), "{error}");
        }
    }

    #[test]
    fn an_unknown_error_code_is_shown() {
        let error = explain(ZkError::UnexpectedErrorCode(-4711));
        let source = std::error::Error::source(&error).expect("the server's").to_string();
        assert!(!error.is_transient() && source.contains("-4711"), "{source}");
    }

    #[test]
    fn missing_rights_are_named() {
        let error = explain(ZkError::NoAuth);
        let text = std::error::Error::source(&error).expect("the server's").to_string();
        assert!(text.contains("CREATE, DELETE and READ") && text.contains("acl=creator"), "{text}");
    }
}
