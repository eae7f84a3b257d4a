//! Renewals of many claims in few calls.

use std::{collections::HashSet, sync::Arc, time::Duration};

use dlock_core::{
    ClaimId, Result,
    driver::{Batch, LateExecution},
};
use uuid::Uuid;

use crate::{
    connection::{Call, Connection, Priority},
    keys,
    sql::{Function, column},
};

/// Maximum number of claims in one call, which locks their rows for some milliseconds.
const MAX_CLAIMS: usize = 500;

/// A request to renew one claim.
pub(crate) struct RenewalRequest {
    pub(crate) id: ClaimId,
    pub(crate) ttl: Duration,
}

/// The renewals of one client. The reply to each is whether the claim is still in the queue.
pub(crate) struct Renewals {
    connection: Arc<Connection>,
}

/// Treatment of claims whose rows are locked by another transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LockedRows {
    Skip,
    AwaitLock,
}

impl Renewals {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    /// Renews claims in one call. Returns those that were renewed.
    async fn renew(
        &self,
        ids: impl Iterator<Item = ClaimId>,
        ttl: Duration,
        locked_rows: LockedRows,
    ) -> Result<HashSet<Uuid>> {
        let claims: Vec<_> = ids.map(keys::uuid).collect();
        let reply = self
            .connection
            .call(Call {
                function: Function::Renew,
                params: vec![
                    Box::new(claims),
                    Box::new(keys::micros(ttl)),
                    Box::new(locked_rows == LockedRows::Skip),
                ],
                timeout: self.connection.timeout().min(ttl / 3),
                late_execution: LateExecution::Allowed,
                priority: Priority::Renewal,
            })
            .await?;
        reply.rows.iter().map(|row| column(row, "renew_2")).collect()
    }
}

impl Batch for Renewals {
    type Request = RenewalRequest;
    type Reply = bool;
    type Group = Duration;

    fn group(&self, request: &RenewalRequest) -> Duration {
        request.ttl
    }

    fn max_size(&self) -> usize {
        MAX_CLAIMS
    }

    async fn send_one(&self, request: &RenewalRequest) -> Result<bool> {
        let renewed = self.renew(std::iter::once(request.id), request.ttl, LockedRows::AwaitLock).await?;
        Ok(!renewed.is_empty())
    }

    /// Returns `None` for a claim that was not renewed. Its row may only be locked, so its caller
    /// renews it alone.
    async fn send_many(&self, requests: &[Arc<RenewalRequest>]) -> Result<Vec<Option<bool>>> {
        let Some(first) = requests.first() else { return Ok(Vec::new()) };
        let ids = requests.iter().map(|request| request.id);
        let renewed = self.renew(ids, first.ttl, LockedRows::Skip).await?;
        let reply = |request: &Arc<RenewalRequest>| renewed.contains(&keys::uuid(request.id)).then_some(true);
        Ok(requests.iter().map(reply).collect())
    }
}
