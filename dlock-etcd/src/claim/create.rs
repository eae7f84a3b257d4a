//! The transaction that creates the keys of claims.

use dlock_core::{ClaimId, Error, Result};
use etcd_client::{Compare, Txn, TxnResponse};

use super::lease_has_ended;
use crate::{client::Client, error, session::Lease};

/// Result of a request that creates the keys of claims.
pub(super) struct Created {
    /// The response.
    ///
    /// If it is the error that the lease has ended or that the cluster refuses, no key was created.
    /// Other errors leave that unknown.
    pub(super) response: Result<TxnResponse>,
    /// Whether the cluster has refused, and no earlier request can have created a key.
    pub(super) is_refused: bool,
}

/// Sends a transaction that creates the keys of claims under `lease`. `txn` returns it with these
/// further conditions, which fail once one of the claims was given up.
pub(super) async fn send_create(
    client: &Client,
    ids: &[ClaimId],
    lease: Lease,
    txn: impl Fn(Vec<Compare>) -> Txn + Send + Sync,
) -> Created {
    let session = &client.session;
    let (mut without_earlier_request, mut conditions) = (Vec::new(), Vec::new());
    for id in ids {
        let creation = session.expect_creation(*id);
        without_earlier_request.extend(creation.is_only_request.then_some(*id));
        conditions.extend(creation.condition);
    }
    let is_conditional = !conditions.is_empty();
    let mut result = client.connection.txn(txn(conditions)).await;
    if is_conditional && result.as_ref().is_err_and(error::is_refused_for_rights) {
        // The user may have rights on the keys of claims only.
        ids.iter().for_each(|id| {
            session.expect_move(*id);
        });
        result = client.connection.txn(txn(Vec::new())).await;
        if result.is_ok() {
            session.note_tombstones_denied();
        }
    }
    let is_without_lease = result.as_ref().is_err_and(error::is_without_lease);
    let is_refused = matches!(result, Err(Error::Refused { .. }));
    // If the request was sent twice, the first send may be executed late.
    let is_outcome_certain =
        result.as_ref().map_or(is_without_lease || is_refused, |response| !response.maybe_repeated);
    let is_only_request = without_earlier_request.len() == ids.len();
    if is_outcome_certain {
        without_earlier_request.into_iter().for_each(|id| session.rule_out_late_requests(id));
    }
    if is_without_lease {
        session.note_lease_end(lease.id);
        result = Err(lease_has_ended());
    }
    Created { response: result.map(|response| response.body), is_refused: is_refused && is_only_request }
}
