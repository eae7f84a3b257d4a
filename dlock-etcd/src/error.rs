//! Classification of the errors of `etcd-client`. No other file decides which errors are transient.

use std::error::Error as _;

use dlock_core::{
    Error,
    driver::{StoreErrors, Verdict, client_error},
};
use etcd_client::Error as EtcdError;
use tonic::{Code, Status};

/// Creates errors of the store `etcd`, which is also the scheme of its URLs.
pub(crate) const STORE: StoreErrors = StoreErrors::new("etcd");

/// Words of a server that requires a login.
const NO_USER: &str = "user name is empty";

/// Returns the error of a failed request.
pub(crate) fn explain(error: EtcdError) -> Error {
    STORE.explain(verdict(&error), error)
}

/// The part that an error shows to be faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Neither the connection nor its member. The server has replied.
    None,
    /// The member, which cannot serve requests now. Another member may be able to.
    Member,
    /// The connection's login, which the server no longer accepts. The server has executed nothing.
    /// A new connection reads the password again and logs in.
    Login,
    /// The connection, which is broken.
    Connection,
}

/// Returns the part that an error shows to be faulty.
pub(crate) fn fault(error: &EtcdError) -> Fault {
    match error {
        EtcdError::TransportError(_) | EtcdError::IoError(_) | EtcdError::WatchError(_) => Fault::Connection,
        EtcdError::GRpcStatus(status) if is_transport_status(status) => Fault::Connection,
        EtcdError::GRpcStatus(status) if is_login_status(status) => Fault::Login,
        EtcdError::GRpcStatus(status) => match status.code() {
            // The server reports internal failures as `Unknown`, such as "raft proposal dropped"
            // while it has no leader, and "not a primary lessor" after it was the leader.
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Unknown => Fault::Member,
            _ if is_learner_status(status) => Fault::Member,
            _ => Fault::None,
        },
        _ => Fault::None,
    }
}

/// Returns whether the transport has created this status. A status of the transport has a source,
/// and a status of the server has none. One status of the transport has no source and is recognized
/// by its text. It reports that the task of the connection has ended, for example with its runtime.
fn is_transport_status(status: &Status) -> bool {
    status.source().is_some()
        || status.code() == Code::Unknown && status.message().starts_with("Service was not ready")
}

/// Returns whether the member is a learner, which serves no linearizable reads and no writes. Since
/// etcd 3.6 the code of this status is `FailedPrecondition`.
fn is_learner_status(status: &Status) -> bool {
    status.message().contains("not supported for learner")
}

/// Returns whether the server requires a new login. This is the case if the token has expired or
/// belongs to another member, if the users have changed since it was issued, or if the client crate
/// has renewed the token with an outdated password.
fn is_login_status(status: &Status) -> bool {
    let message = status.message();
    status.code() == Code::Unauthenticated
        || ["invalid auth token", "revision of auth store is old", "invalid user ID or password"]
            .iter()
            .any(|words| message.contains(words))
}

/// Returns whether the user lacks the rights for a request. This is a reply of the server.
pub(crate) fn is_denied(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.code() == Code::PermissionDenied)
}

/// Returns whether the member refuses requests, because its cluster has no leader.
pub(crate) fn lacks_leader(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.message().contains("no leader"))
}

/// Returns whether the same request would fail again.
pub(crate) fn is_permanent(error: &EtcdError) -> bool {
    matches!(verdict(error), Verdict::Permanent(_))
}

/// Returns whether the server requires a login, and the request had none. This is a reply of the
/// server.
pub(crate) fn lacks_login(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.message().contains(NO_USER))
}

/// Returns whether the server reports that the lease does not exist.
pub(crate) fn is_lease_missing(error: &EtcdError) -> bool {
    match error {
        EtcdError::LeaseKeepAliveError(reason) => reason.contains("lease not found"),
        EtcdError::GRpcStatus(status) => {
            status.code() == Code::NotFound && status.message().contains("lease not found")
        }
        _ => false,
    }
}

/// Returns whether the server reports that a lease with this id already exists.
pub(crate) fn is_lease_duplicate(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.message().contains("lease already exists"))
}

/// Returns whether a request failed because its lease does not exist.
pub(crate) fn is_without_lease(error: &Error) -> bool {
    client_error(error).is_some_and(is_lease_missing)
}

/// Returns the error for a watch that the server has refused for this reason.
pub(crate) fn watch_refused(reason: &str) -> Error {
    let is_denied = reason.contains("permission denied");
    let code = if is_denied { Code::PermissionDenied } else { Code::Unavailable };
    explain(Status::new(code, reason).into())
}

/// Text of the error for missing rights. Names the role that the user needs.
const ROLE: &str = "the user lacks rights; give it a role that may read and write the locks' keys: \
                    etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX";

fn verdict(error: &EtcdError) -> Verdict {
    use Verdict::{Permanent, Transient};
    match error {
        EtcdError::GRpcStatus(status) => status_verdict(status),
        EtcdError::TransportError(_) | EtcdError::IoError(_) | EtcdError::WatchError(_) => {
            Transient("the connection failed".into())
        }
        EtcdError::LeaseKeepAliveError(_) => Transient("the client's lease has ended".into()),
        EtcdError::InvalidUri(_) | EtcdError::InvalidArgs(_) => Permanent("the URL cannot be used".into()),
        _ => Permanent("the request failed".into()),
    }
}

fn status_verdict(status: &Status) -> Verdict {
    use Verdict::{Permanent, Transient, Unwritable};
    let contains = |words: &str| status.message().contains(words);
    match status.code() {
        _ if is_transport_status(status) => Transient("the connection failed".into()),
        Code::PermissionDenied => Permanent(ROLE.into()),
        _ if contains(NO_USER) => {
            Permanent("the server wants a user and a password; put them into the URL".into())
        }
        _ if contains("invalid user ID or password") => {
            Permanent("the server knows no such user and password".into())
        }
        _ if contains("authentication is not enabled") => {
            Permanent("the server knows no users; leave the user out of the URL".into())
        }
        _ if contains("database space exceeded") => Unwritable(
            "the server's database is full; compact and defragment it, then disarm the alarm".into(),
        ),
        _ if contains("lease not found") => Transient("the client's lease has ended".into()),
        _ if contains("no leader") => Transient("the cluster has no leader now".into()),
        _ if contains("leader changed") => Transient("the cluster has just changed its leader".into()),
        _ if contains("request timed out") => {
            Transient("the cluster has not confirmed the request in time".into())
        }
        _ if is_learner_status(status) => Transient("the member is a learner, which serves no locks".into()),
        _ if contains("too many requests") => {
            Transient("the member is overloaded or lags behind its cluster".into())
        }
        _ if is_login_status(status) => Transient("the server no longer accepts the client's login".into()),
        Code::Unavailable
        | Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Unknown
        | Code::ResourceExhausted => Transient("the server cannot reply now".into()),
        _ => Permanent("the request failed".into()),
    }
}

/// Text of the error for a claim whose key another request has changed first.
pub(crate) const CONFLICT: &str = "another request has changed the claim at the same time";

/// Returns whether another request has changed the claim's key first.
pub(crate) fn is_conflict(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.to_string() == CONFLICT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_error(code: Code, text: &str) -> Error {
        explain(Status::new(code, text).into())
    }

    #[test]
    fn an_error_that_a_retry_may_avoid_is_transient() {
        for (code, text) in [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::ResourceExhausted, "etcdserver: too many requests"),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            (Code::NotFound, "etcdserver: requested lease not found"),
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
            (Code::Unknown, "raft proposal dropped"),
            (Code::Unknown, "lease: not a primary lessor"),
            (Code::Cancelled, "Timeout expired"),
            (Code::FailedPrecondition, "etcdserver: rpc not supported for learner"),
        ] {
            assert!(status_error(code, text).is_transient(), "{text}");
        }
        let full = status_error(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full, Error::Unwritable { .. }));
    }

    #[test]
    fn an_error_that_an_operator_must_fix_is_permanent_and_says_what_to_do() {
        for (code, text, words) in [
            (Code::PermissionDenied, "etcdserver: permission denied", "grant-permission"),
            (Code::InvalidArgument, "etcdserver: user name is empty", "put them into the URL"),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                "no such user",
            ),
            (Code::FailedPrecondition, "etcdserver: authentication is not enabled", "leave the user out"),
            (Code::InvalidArgument, "etcdserver: request is too large", "failed"),
        ] {
            let error = status_error(code, text);
            let source = error.source().expect("the server's error").to_string();
            assert!(!error.is_transient() && source.contains(words), "{text}: {source}");
        }
        assert!(
            !watch_refused("rpc error: code = PermissionDenied desc = etcdserver: permission denied")
                .is_transient()
        );
        assert!(watch_refused("etcdserver: mvcc: watcher closed").is_transient());
    }

    #[test]
    fn a_missing_lease_is_distinguished_from_other_failures() {
        assert!(is_lease_missing(&EtcdError::LeaseKeepAliveError("lease not found".to_owned())));
        assert!(is_lease_missing(
            &Status::new(Code::NotFound, "etcdserver: requested lease not found").into()
        ));
        assert!(!is_lease_missing(&Status::new(Code::Unavailable, "etcdserver: no leader").into()));
    }

    #[test]
    fn a_reply_of_the_server_is_distinguished_from_a_broken_connection() {
        let fault_of = |code, text| fault(&Status::new(code, text).into());
        assert_eq!(fault_of(Code::Unavailable, "etcdserver: no leader"), Fault::Member);
        assert_eq!(fault_of(Code::PermissionDenied, "etcdserver: permission denied"), Fault::None);
        assert_eq!(fault_of(Code::Unknown, "Service was not ready: transport error"), Fault::Connection);
        assert_eq!(fault_of(Code::Unknown, "raft proposal dropped"), Fault::Member);
        let learner = "etcdserver: rpc not supported for learner";
        assert_eq!(fault_of(Code::FailedPrecondition, learner), Fault::Member);
        // Another connection and another login would add to the load of a cluster that is overloaded.
        assert_eq!(fault_of(Code::ResourceExhausted, "etcdserver: too many requests"), Fault::None);
        assert_eq!(
            fault_of(Code::InvalidArgument, "etcdserver: revision of auth store is old"),
            Fault::Login
        );
        assert_eq!(fault_of(Code::Unauthenticated, "etcdserver: invalid auth token"), Fault::Login);
        let broken = Status::from_error(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
        assert_eq!(fault(&broken.into()), Fault::Connection);
    }
}
