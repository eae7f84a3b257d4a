//! What ZooKeeper's errors mean to the caller. No other file decides that.

use dlock_core::{
    Error, Kind, LockName,
    driver::{Failures, Verdict},
};
use zookeeper_client::Error as ZkError;

/// Makes errors that call the store `zk`, as the URL's scheme does.
pub(crate) const STORE: Failures = Failures::of("zk");

/// The rights that a client needs on the base path and on the directories of the locks.
const RIGHTS: &str = "the server refuses a request for lack of rights: the base path and the directories in it must grant \
    CREATE, DELETE and READ to all clients, and each node must grant READ; `acl=open` or `acl=creator` in the URL says what \
    dlock grants on nodes that it makes, and a login in the URL is sent as `digest`";

/// The error of a request.
pub(crate) fn explain(source: ZkError) -> Error {
    STORE.explain(verdict(&source), source)
}

/// The error of a call that needs a session which is over.
pub(crate) fn session_is_over() -> Error {
    STORE.unavailable(
        "the session is over: the servers have not heard of this client for too long, or somebody closed it",
    )
}

/// The error of a call that needs a session whose heartbeats are answered.
pub(crate) fn session_is_silent() -> Error {
    STORE.unavailable("no server has answered a heartbeat of the session for too long")
}

/// The error for a directory that another recipe uses, with nodes that do not heed ours.
pub(crate) fn wrong_kind(name: &LockName, kind: Kind, found: &str) -> Error {
    let reason = format!(
        "its directory has the node `{found}` of another program and another kind of lock, which would not heed a {kind} lock"
    );
    Error::WrongKind { name: name.clone(), kind, reason }
}

/// The error for a directory whose counter is used up.
pub(crate) fn is_used_up(directory: &str) -> Error {
    STORE.refused(format!(
        "the sequence number of the directory `{directory}` is near its end at 2147483647, where ZooKeeper numbers no more \
         nodes and several claims could hold together; let its holders and waiters leave (the next claim then makes a new \
         directory, which begins at zero), delete the directory by hand if the client lacks the right to do so, or use another name"
    ))
}

/// Whether the server has refused the request, so that it has changed nothing. After other errors nobody knows.
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

/// Whether a majority of the servers has confirmed this error, as the outcome of a write.
pub(crate) fn is_confirmed(error: &ZkError) -> bool {
    matches!(error, ZkError::NoNode | ZkError::BadVersion | ZkError::NotEmpty | ZkError::NoAuth)
}

/// Whether a node that was to be made is there already, or lacks the one above it.
pub(crate) fn is_about_existence(error: &ZkError) -> bool {
    matches!(error, ZkError::NoNode | ZkError::NodeExists)
}

fn verdict(error: &ZkError) -> Verdict {
    match error {
        ZkError::ConnectionLoss => Verdict::Later("the connection broke before the answer came".into()),
        ZkError::Timeout | ZkError::NoHosts => Verdict::Later("no server has opened a session".into()),
        ZkError::SessionExpired | ZkError::ClientClosed => {
            Verdict::Later("the session ended before the answer came".into())
        }
        ZkError::SessionMoved => Verdict::Later("the session has moved to another server".into()),
        ZkError::Throttled => Verdict::Later("the server is busy and has turned the request away".into()),
        // A broken connection, or one without a sign of life, arrives as one of these two.
        ZkError::Custom(_) | ZkError::UnexpectedError(_) => {
            Verdict::Later("the connection failed before the answer came".into())
        }
        // A node was deleted between two requests, as a directory is by the server's own cleaning.
        ZkError::NoNode => Verdict::Later("a node was deleted while it was in use".into()),
        ZkError::NotReadOnly => Verdict::Unwritable("the server has lost the others and only reads".into()),
        ZkError::QuotaExceeded => Verdict::Unwritable("a quota on the base path is used up".into()),
        ZkError::NoAuth => Verdict::Never(RIGHTS.into()),
        ZkError::AuthFailed => Verdict::Never("the servers do not take the login of the URL".into()),
        ZkError::InvalidAcl => Verdict::Never(
            "the server does not take the rights of `acl`; `acl=creator` needs a login in the URL".into(),
        ),
        ZkError::NoChildrenForEphemerals => Verdict::Never(
            "a node on the way to the lock is ephemeral and cannot have children; choose another base path"
                .into(),
        ),
        ZkError::Unimplemented => Verdict::Never(
            "the server lacks a request that dlock needs, as ZooKeeper before 3.5 does; use a newer one"
                .into(),
        ),
        ZkError::UnexpectedErrorCode(code) => Verdict::Never(
            format!("the server refused a request with the error code {code}, which `zookeeper-client` does not know").into(),
        ),
        _ => Verdict::Never("the server refused a request".into()),
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
    fn whoever_lacks_rights_is_told_which() {
        let error = explain(ZkError::NoAuth);
        let told = std::error::Error::source(&error).expect("the server's").to_string();
        assert!(told.contains("CREATE, DELETE and READ") && told.contains("acl=creator"), "{told}");
    }
}
