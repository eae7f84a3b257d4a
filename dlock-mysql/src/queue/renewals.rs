//! Renewals of many claims in few calls.

use std::{collections::HashMap, sync::Arc, time::Duration};

use dlock_core::{
    ClaimId, Error, Result,
    driver::{Batch, Moment},
};

use super::local_claims::LocalClaims;
use crate::{
    connection::{Call, Connection, Priority, Reply},
    error::{self, STORE},
    keys,
    sql::{NO_LOCK, RENEW, TAKE_BELLS, claim_id, column, flag, micros},
};

/// Maximum number of claims in one call, which locks their rows for some milliseconds. Ten
/// thousand claims take 20 calls of three statements.
const MAX_CLAIMS: usize = 500;

/// Minimum ttl of a claim that shares calls. With a shorter ttl a call may end before the server
/// reports a locked row.
const MIN_SHARED_TTL: Duration = Duration::from_secs(4);

/// A request to renew one claim.
pub(super) struct RenewalRequest {
    pub(super) id: ClaimId,
    pub(super) ttl: Duration,
    /// Whether the call also looks for the owner of the doorbell, and takes the doorbell if no
    /// session owns it.
    pub(super) checks_bell: bool,
}

/// The state of a claim after a call that renewed claims.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Renewed,
    /// Another transaction keeps the claim's row locked, so the server left the claim out.
    Locked,
}

/// The renewals of one client. The answer to each is whether the claim is still in the queue.
pub(super) struct Renewals {
    connection: Arc<Connection>,
    local_claims: Arc<LocalClaims>,
}

impl Renewals {
    pub(super) fn new(connection: Arc<Connection>, local_claims: Arc<LocalClaims>) -> Self {
        Self { connection, local_claims }
    }

    /// Renews claims in one call. Returns those that are in the queue.
    async fn renew(
        &self,
        ids: &[ClaimId],
        ttl: Duration,
        checks_bells: bool,
    ) -> Result<HashMap<ClaimId, Found>> {
        let claims: Vec<_> = ids.iter().map(|id| keys::claim_literal(*id)).collect();
        let bells = match checks_bells {
            true => TAKE_BELLS.with(&[("bell", &keys::bell_of_row())]),
            false => NO_LOCK.to_owned(),
        };
        let values = [
            ("queue", self.connection.tables.queue.as_str()),
            ("claims", &claims.join(",")),
            ("ttl", &micros(ttl)),
            ("bells", &bells),
        ];
        let session_epoch = self.connection.session_epoch();
        let timeout = self.connection.timeout_for(ttl);
        let mut call = Call::new(RENEW.with(&values), timeout);
        call.priority = Priority::Renewal;
        let reply = self.connection.call(call).await?;
        let (mut found, mut orphaned_bells) = (HashMap::with_capacity(ids.len()), Vec::new());
        for row in &reply.rows {
            let id = claim_id(row)?;
            found.insert(id, if flag(row, "is_renewed")? { Found::Renewed } else { Found::Locked });
            if checks_bells {
                self.local_claims.record_owner_check(id);
            }
            let owner: u64 = column(row, "bell_owner")?;
            if owner == reply.session.id() {
                if !self.local_claims.set_bell_owner(id, &reply.session, session_epoch) {
                    orphaned_bells.push(id);
                }
            } else if let Some(known) = self.local_claims.bell_owner(id).filter(|known| known.id() == owner) {
                self.local_claims.set_bell_owner(id, &known, session_epoch);
            }
        }
        self.ring(&orphaned_bells, &reply, timeout).await;
        Ok(found)
    }

    /// Rings the doorbells of claims that left the queue while the call took their doorbells. The
    /// releases of these claims could not ring them.
    async fn ring(&self, ids: &[ClaimId], reply: &Reply, timeout: Duration) {
        if ids.is_empty() {
            return;
        }
        let rings: Vec<_> =
            ids.iter().map(|id| format!("RELEASE_LOCK({})", keys::bell_literal(*id))).collect();
        let mut call = Call::new(format!("DO {}", rings.join(",")), timeout);
        call.session = Some(&reply.session);
        if self.connection.call(call).await.is_err() {
            reply.session.end();
        }
    }

    /// Renews claims, and carries other claims that are due next. Returns those that are in the
    /// queue.
    async fn renew_with_others(
        &self,
        ids: &[ClaimId],
        first: &RenewalRequest,
    ) -> Result<HashMap<ClaimId, Found>> {
        let sent = Moment::now();
        let carrier = self.local_claims.due_with(ids, first.ttl, MAX_CLAIMS.saturating_sub(ids.len()));
        let carried = &carrier.ids;
        let all = [ids, carried].concat();
        let result = self.renew(&all, first.ttl, first.checks_bell).await;
        match &result {
            Ok(found) => {
                let renewed = carried.iter().filter(|id| found.get(id) == Some(&Found::Renewed));
                self.local_claims.record_carried(renewed, sent);
            }
            // A row was locked, and the server did not say which one. No call carries these claims
            // until their keepers have renewed them.
            Err(error) if error::was_conflict(error) => {
                all.iter().for_each(|id| self.local_claims.forget_renewal(*id));
            }
            // A locked row may have caused this, too. The carried claims are carried again only
            // after their keepers have renewed them.
            Err(_) => {
                self.local_claims.record_failure(ids);
                carried.iter().for_each(|id| self.local_claims.forget_renewal(*id));
            }
        }
        result
    }

    /// Renews one claim alone. Older servers refuse a whole call if one row stays locked.
    async fn renew_alone(&self, request: &RenewalRequest) -> Result<bool> {
        let found = self.renew(&[request.id], request.ttl, request.checks_bell).await?;
        answer(request, &found).ok_or_else(row_is_locked)
    }
}

/// Returns whether the claim is in the queue. Returns `None` if its row is locked and the claim was
/// not renewed.
fn answer(request: &RenewalRequest, found: &HashMap<ClaimId, Found>) -> Option<bool> {
    match found.get(&request.id) {
        Some(Found::Renewed) => Some(true),
        Some(Found::Locked) => None,
        None => Some(false),
    }
}

fn row_is_locked() -> Error {
    STORE.unavailable("another transaction keeps the claim's row locked")
}

impl Batch for Renewals {
    type Request = RenewalRequest;
    type Reply = bool;
    type Group = (Duration, bool);

    fn group(&self, request: &RenewalRequest) -> Self::Group {
        (request.ttl, request.checks_bell)
    }

    fn max_size(&self) -> usize {
        MAX_CLAIMS
    }

    async fn send_one(&self, request: &RenewalRequest) -> Result<bool> {
        if request.ttl < MIN_SHARED_TTL {
            return self.renew_alone(request).await;
        }
        match self.renew_with_others(&[request.id], request).await {
            Ok(found) => answer(request, &found).ok_or_else(row_is_locked),
            Err(error) if error::was_conflict(&error) => self.renew_alone(request).await,
            Err(error) => Err(error),
        }
    }

    async fn send_many(&self, requests: &[Arc<RenewalRequest>]) -> Result<Vec<Option<bool>>> {
        let Some(first) = requests.first() else { return Ok(Vec::new()) };
        let ids: Vec<_> = requests.iter().map(|request| request.id).collect();
        match self.renew_with_others(&ids, first).await {
            Ok(found) => Ok(requests.iter().map(|request| answer(request, &found)).collect()),
            // `None` makes each caller renew its claim alone.
            Err(error) if error::was_conflict(&error) => Ok(vec![None; requests.len()]),
            Err(error) => Err(error),
        }
    }
}
