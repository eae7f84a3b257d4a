//! The acquisition of several locks of one client in one transaction, which grants all or none.

use std::sync::Arc;

use dlock_core::{
    Error, Result,
    driver::{AttemptAll, Claim, Request},
};
use etcd_client::{Txn, TxnResponse};

use super::{EtcdClaim, OwnKey, being_deleted, created_revision, is_free, lease_has_ended};
use crate::{
    client::Client,
    error::{self, STORE},
    keys::Keys,
    queue,
    session::Lease,
};

/// Maximum number of locks in one transaction. A server allows 128 comparisons, 128 operations if
/// they succeed, and 128 if they fail. Each lock needs one of each. A server also allows 1.5 MiB,
/// and a lock with the longest possible name needs 16 KiB.
pub(crate) const MAX_LOCKS_PER_STEP: usize = 64;

/// Acquires these locks if they have no claims. Otherwise acquires no lock.
///
/// # Errors
/// The outcome is unknown. A claim with the same id finds the key of its request, or deletes it.
pub(crate) async fn attempt_all(client: &Arc<Client>, requests: Vec<Request>) -> Result<AttemptAll> {
    let claims = requests.into_iter().map(|request| EtcdClaim::new(Arc::clone(client), request));
    let claims = claims.map(|claim| Ok((claim.keys()?, claim))).collect::<Result<Vec<_>>>()?;
    let limit = claims.iter().map(|(_, claim)| claim.time_limit()).min().unwrap_or_default();
    STORE.with_timeout(limit, acquire(client, claims)).await
}

async fn acquire(client: &Client, claims: Vec<(Keys, EtcdClaim)>) -> Result<AttemptAll> {
    client.ensure_pump_runs();
    let lease = client.session.lease().await?;
    if !claims.iter().all(|(keys, claim)| claim.touch(keys)) {
        return Err(being_deleted());
    }
    let txn = Txn::new()
        .when(claims.iter().map(|(keys, _)| is_free(keys)).collect::<Vec<_>>())
        .and_then(claims.iter().map(|(keys, claim)| claim.put(keys, lease.id)).collect::<Vec<_>>())
        .or_else(claims.iter().map(|(keys, _)| queue::read_first(keys)).collect::<Vec<_>>());
    let response = send_create(client, &claims, txn, lease).await?;
    if response.succeeded() {
        let revision = created_revision(&response)?;
        return Ok(granted(claims, lease, |_| revision));
    }
    let first_keys: Vec<_> = queue::ranges(&response).into_iter().map(|mut range| range.pop()).collect();
    if first_keys.len() != claims.len() {
        return Err(STORE.unexpected_reply("an attempt at several locks"));
    }
    // If the request was sent twice and the first send was executed, the keys exist. Each key is
    // then the first of its lock, because the lock had no other key.
    let own_keys = first_keys
        .iter()
        .zip(&claims)
        .map(|(first, (keys, _))| first.as_ref().filter(|first| first.key() == keys.own.as_bytes()));
    let own_keys: Vec<_> = own_keys.flatten().collect();
    match first_keys.iter().position(Option::is_some) {
        Some(busy) if own_keys.is_empty() => {
            claims.iter().for_each(|(_, claim)| client.session.leave(claim.request.id));
            Ok(AttemptAll::Busy(busy))
        }
        _ if own_keys.len() == claims.len() && own_keys.iter().all(|own| own.lease() == lease.id) => {
            Ok(granted(claims, lease, |at| own_keys[at].create_revision()))
        }
        _ => Err(STORE.unavailable("another request has changed some of the claims at the same time")),
    }
}

/// Sends a transaction that creates the keys of these claims.
async fn send_create(
    client: &Client,
    claims: &[(Keys, EtcdClaim)],
    txn: Txn,
    lease: Lease,
) -> Result<TxnResponse> {
    let session = &client.session;
    let ids = claims.iter().filter_map(|(_, claim)| {
        let id = claim.request.id;
        session.expect_late_request(id, claim.value()).then_some(id)
    });
    let without_earlier_request: Vec<_> = ids.collect();
    let result = client.connection.txn(txn).await;
    let is_without_lease = result.as_ref().is_err_and(error::is_without_lease);
    let is_outcome_certain = match &result {
        Ok(response) => !response.maybe_repeated,
        // No key was created. Each claim makes an attempt by itself next, and so finds out whether
        // it is the refused one.
        Err(Error::Refused { .. }) => true,
        Err(_) => is_without_lease,
    };
    if is_outcome_certain {
        without_earlier_request.into_iter().for_each(|id| session.rule_out_late_requests(id));
    }
    if is_without_lease {
        session.note_lease_end(lease.id);
        return Err(lease_has_ended());
    }
    Ok(result?.body)
}

/// Records that the claims hold their locks. `revision` returns the create revision of the key with
/// this index.
fn granted(claims: Vec<(Keys, EtcdClaim)>, lease: Lease, revision: impl Fn(usize) -> i64) -> AttemptAll {
    let holds = claims.into_iter().enumerate().map(|(at, (keys, mut claim))| {
        claim.own_key = Some(OwnKey { lease: Some(lease.id), create_revision: revision(at) });
        let grant = claim.grant(&keys, lease);
        (Box::new(claim) as Box<dyn Claim>, grant)
    });
    AttemptAll::Granted(holds.collect())
}
