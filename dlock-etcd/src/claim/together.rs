//! Several locks of one client in one transaction: all of them, or none.

use std::sync::Arc;

use dlock_core::{
    ClaimId, Error, Result,
    driver::{AttemptAll, Claim, Request},
};
use etcd_client::{Txn, TxnResponse};

use super::{EtcdClaim, Place, being_deleted, nobody, queue, revision, without_lease};
use crate::{
    client::{Client, Lease},
    error::{self, STORE},
    keys::Keys,
};

/// How many locks one transaction takes. A server allows 128 comparisons, 128 operations if they are true and 128 if they are not:
/// each lock needs one of each. A server also allows 1.5 MiB, and a lock whose name is as long as can be needs 16 KiB.
pub(crate) const MOST_TOGETHER: usize = 64;

/// Takes these locks if nobody holds any of them or waits for it.
///
/// # Errors
/// What became of them is unknown. A claim with the same id then finds its key, or deletes it.
pub(crate) async fn attempt_all(client: &Arc<Client>, requests: Vec<Request>) -> Result<AttemptAll> {
    let claims = requests.into_iter().map(|request| EtcdClaim::new(Arc::clone(client), request));
    let claims = claims.map(|claim| Ok((claim.keys()?, claim))).collect::<Result<Vec<_>>>()?;
    let bound = claims.iter().map(|(_, claim)| claim.bound()).min().unwrap_or_default();
    EtcdClaim::bounded(bound, ask(client, claims)).await
}

async fn ask(client: &Client, claims: Vec<(Keys, EtcdClaim)>) -> Result<AttemptAll> {
    client.keep_running();
    let lease = client.session.lease().await?;
    if !claims.iter().all(|(keys, claim)| claim.touch(keys)) {
        return Err(being_deleted());
    }
    let txn = Txn::new()
        .when(claims.iter().map(|(keys, _)| nobody(keys)).collect::<Vec<_>>())
        .and_then(claims.iter().map(|(keys, claim)| claim.put(keys, lease.id)).collect::<Vec<_>>())
        .or_else(claims.iter().map(|(keys, _)| queue::first(keys)).collect::<Vec<_>>());
    let ids: Vec<_> = claims.iter().map(|(_, claim)| claim.request.id).collect();
    let answer = enter(client, &ids, txn, lease).await?;
    if answer.succeeded() {
        let revision = revision(&answer)?;
        return Ok(granted(claims, lease, |_| revision));
    }
    let firsts: Vec<_> = queue::ranges(&answer).into_iter().map(|mut range| range.pop()).collect();
    if firsts.len() != claims.len() {
        return Err(STORE.unexpected_reply("an attempt at several locks"));
    }
    // The keys are there if the request was sent twice, and the first one did it. Each key is then the first of its lock, because
    // there was no other when it was made.
    let first = firsts
        .iter()
        .zip(&claims)
        .map(|(first, (keys, _))| first.as_ref().filter(|first| first.key() == keys.own.as_bytes()));
    let ours: Vec<_> = first.flatten().collect();
    match firsts.iter().position(Option::is_some) {
        Some(busy) if ours.is_empty() => {
            ids.iter().for_each(|id| client.session.leave(*id));
            Ok(AttemptAll::Busy(busy))
        }
        _ if ours.len() == claims.len() && ours.iter().all(|own| own.lease() == lease.id) => {
            Ok(granted(claims, lease, |at| ours[at].create_revision()))
        }
        _ => Err(STORE.unavailable("some of the claims were changed at this moment")),
    }
}

/// Sends a transaction that makes the keys of these claims.
async fn enter(client: &Client, ids: &[ClaimId], txn: Txn, lease: Lease) -> Result<TxnResponse> {
    let session = &client.session;
    let were_sure: Vec<_> = ids.iter().filter(|id| session.note_unsure(**id)).collect();
    let answer = client.connection.txn(txn).await;
    let is_without_lease = answer.as_ref().is_err_and(error::is_without_lease);
    let is_sure = match &answer {
        Ok(answer) => !answer.twice,
        // No key was made. Each claim asks by itself next, and learns whether it is the one that is refused.
        Err(Error::Refused { .. }) => true,
        Err(_) => is_without_lease,
    };
    if is_sure {
        were_sure.into_iter().for_each(|id| session.note_sure(*id));
    }
    if is_without_lease {
        session.note_end(lease.id);
        return Err(without_lease());
    }
    Ok(answer?.told)
}

/// The claims hold. `revision` tells the create revision of the key at this place.
fn granted(claims: Vec<(Keys, EtcdClaim)>, lease: Lease, revision: impl Fn(usize) -> i64) -> AttemptAll {
    let holds = claims.into_iter().enumerate().map(|(at, (keys, mut claim))| {
        claim.place = Some(Place { lease: Some(lease.id), revision: revision(at) });
        let grant = claim.granted(&keys, lease);
        (Box::new(claim) as Box<dyn Claim>, grant)
    });
    AttemptAll::Granted(holds.collect())
}
