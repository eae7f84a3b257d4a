//! What the client crate's errors mean.

use std::error::Error as _;

use dlock_core::{
    Error,
    driver::{StoreErrors, Verdict, client_error},
};
use etcd_client::Error as EtcdError;
use tonic::{Code, Status};

/// The store's name in messages, and the scheme of its URLs.
pub(crate) const STORE: StoreErrors = StoreErrors::new("etcd");

/// The client crate's own error as one of ours.
pub(crate) fn explain(error: EtcdError) -> Error {
    STORE.explain(verdict(&error), error)
}

/// What is wrong with a connection after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing: the server has answered.
    None,
    /// The member cannot serve now. Another may.
    Member,
    /// The server does not accept the connection's login any more, and has executed nothing. A new connection reads the
    /// password again and logs in.
    Login,
    /// The connection is broken.
    Broken,
}

pub(crate) fn fault(error: &EtcdError) -> Fault {
    match error {
        EtcdError::TransportError(_) | EtcdError::IoError(_) | EtcdError::WatchError(_) => Fault::Broken,
        EtcdError::GRpcStatus(status) if is_of_transport(status) => Fault::Broken,
        EtcdError::GRpcStatus(status) if is_of_login(status) => Fault::Login,
        EtcdError::GRpcStatus(status) => match status.code() {
            // The server reports internal failures as `Unknown`, such as "raft proposal dropped" while it has no leader, and
            // "not a primary lessor" after it was the leader.
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Unknown => Fault::Member,
            _ => Fault::None,
        },
        _ => Fault::None,
    }
}

/// Whether the transport itself reports this. That has a source; what the server said has none. The exception is a connection
/// whose task is gone, as after the end of the runtime that it was made on.
fn is_of_transport(status: &Status) -> bool {
    status.source().is_some()
        || status.code() == Code::Unknown && status.message().starts_with("Service was not ready")
}

/// Whether the server wants a new login: the token has expired or belongs to another member, the users have changed since
/// it was issued, or the client crate has renewed the token with a password that is no longer right.
fn is_of_login(status: &Status) -> bool {
    let message = status.message();
    status.code() == Code::Unauthenticated
        || ["invalid auth token", "revision of auth store is old", "invalid user ID or password"]
            .iter()
            .any(|words| message.contains(words))
}

/// Whether the user lacks the rights for a request. The server has answered it nevertheless.
pub(crate) fn is_denied(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.code() == Code::PermissionDenied)
}

/// Whether the server says that it does not know the lease.
pub(crate) fn is_lease_gone(error: &EtcdError) -> bool {
    match error {
        EtcdError::LeaseKeepAliveError(told) => told.contains("lease not found"),
        EtcdError::GRpcStatus(status) => {
            status.code() == Code::NotFound && status.message().contains("lease not found")
        }
        _ => false,
    }
}

/// Whether the server says that there is a lease with this id already.
pub(crate) fn is_lease_there(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.message().contains("lease already exists"))
}

/// Whether a request failed because its lease is gone.
pub(crate) fn is_without_lease(error: &Error) -> bool {
    client_error(error).is_some_and(is_lease_gone)
}

/// What the server meant that refused a watch, with this text.
pub(crate) fn watch_refused(reason: &str) -> Error {
    let is_denied = reason.contains("permission denied");
    let code = if is_denied { Code::PermissionDenied } else { Code::Unavailable };
    explain(Status::new(code, reason).into())
}

/// The role that a user needs, for whoever lacks it.
const ROLE: &str = "the user lacks rights; give it a role that may read and write the locks' keys: \
                    etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX";

fn verdict(error: &EtcdError) -> Verdict {
    use Verdict::{Permanent, Transient};
    match error {
        EtcdError::GRpcStatus(status) => of_status(status),
        EtcdError::TransportError(_) | EtcdError::IoError(_) | EtcdError::WatchError(_) => {
            Transient("the connection failed".into())
        }
        EtcdError::LeaseKeepAliveError(_) => Transient("the client's lease is gone".into()),
        EtcdError::InvalidUri(_) | EtcdError::InvalidArgs(_) => Permanent("the URL cannot be used".into()),
        _ => Permanent("the request failed".into()),
    }
}

fn of_status(status: &Status) -> Verdict {
    use Verdict::{Permanent, Transient, Unwritable};
    let said = |words: &str| status.message().contains(words);
    match status.code() {
        _ if is_of_transport(status) => Transient("the connection failed".into()),
        Code::PermissionDenied => Permanent(ROLE.into()),
        _ if said("user name is empty") => {
            Permanent("the server wants a user and a password; put them into the URL".into())
        }
        _ if said("invalid user ID or password") => {
            Permanent("the server knows no such user and password".into())
        }
        _ if said("authentication is not enabled") => {
            Permanent("the server knows no users; leave the user out of the URL".into())
        }
        _ if said("database space exceeded") => Unwritable(
            "the server's database is full; compact and defragment it, then disarm the alarm".into(),
        ),
        _ if said("lease not found") => Transient("the client's lease is gone".into()),
        _ if said("no leader") => Transient("the cluster has no leader now".into()),
        _ if said("leader changed") => Transient("the cluster has just changed its leader".into()),
        _ if said("request timed out") => Transient("the cluster has not agreed in time".into()),
        _ if is_of_login(status) => Transient("the server has forgotten the client's login".into()),
        Code::Unavailable
        | Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Unknown
        | Code::ResourceExhausted => Transient("the server cannot answer now".into()),
        _ => Permanent("the request failed".into()),
    }
}

/// The text of a change that another one has forestalled.
pub(crate) const CHANGED: &str = "the claim was changed at this moment";

/// Whether another change of the claim's key came first.
pub(crate) fn is_changed(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.to_string() == CHANGED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: Code, text: &str) -> Error {
        explain(Status::new(code, text).into())
    }

    #[test]
    fn what_time_may_heal_is_transient() {
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
        ] {
            assert!(said(code, text).is_transient(), "{text}");
        }
        let full = said(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full, Error::Unwritable { .. }));
    }

    #[test]
    fn what_a_person_must_change_is_not_and_says_what() {
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
            let error = said(code, text);
            let told = error.source().expect("the server's").to_string();
            assert!(!error.is_transient() && told.contains(words), "{text}: {told}");
        }
        assert!(
            !watch_refused("rpc error: code = PermissionDenied desc = etcdserver: permission denied")
                .is_transient()
        );
        assert!(watch_refused("etcdserver: mvcc: watcher closed").is_transient());
    }

    #[test]
    fn a_lease_that_is_gone_is_told_from_other_failures() {
        assert!(is_lease_gone(&EtcdError::LeaseKeepAliveError("lease not found".to_owned())));
        assert!(is_lease_gone(&Status::new(Code::NotFound, "etcdserver: requested lease not found").into()));
        assert!(!is_lease_gone(&Status::new(Code::Unavailable, "etcdserver: no leader").into()));
    }

    #[test]
    fn an_answer_of_the_server_is_told_from_a_broken_connection() {
        let of = |code, text| fault(&Status::new(code, text).into());
        assert_eq!(of(Code::Unavailable, "etcdserver: no leader"), Fault::Member);
        assert_eq!(of(Code::PermissionDenied, "etcdserver: permission denied"), Fault::None);
        assert_eq!(of(Code::Unknown, "Service was not ready: transport error"), Fault::Broken);
        assert_eq!(of(Code::Unknown, "raft proposal dropped"), Fault::Member);
        assert_eq!(of(Code::InvalidArgument, "etcdserver: revision of auth store is old"), Fault::Login);
        assert_eq!(of(Code::Unauthenticated, "etcdserver: invalid auth token"), Fault::Login);
        let broken = Status::from_error(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
        assert_eq!(fault(&broken.into()), Fault::Broken);
    }
}
