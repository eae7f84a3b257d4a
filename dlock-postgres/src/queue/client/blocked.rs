//! Polls of waiting claims, many in one statement.

use std::{collections::HashSet, sync::Arc};

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

/// Maximum number of claims in one statement.
const MAX_CLAIMS: usize = 500;

/// The polls of one client. The reply to each is whether the claim is in the queue and does not
/// hold.
pub(crate) struct Blocked {
    connection: Arc<Connection>,
}

impl Blocked {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    async fn read(&self, ids: impl Iterator<Item = ClaimId>) -> Result<HashSet<Uuid>> {
        let claims: Vec<_> = ids.map(keys::uuid).collect();
        let call = Call {
            function: Function::Blocked,
            params: vec![Box::new(claims)],
            timeout: self.connection.timeout(),
            late_execution: LateExecution::Allowed,
            priority: Priority::Attempt,
        };
        self.connection.call(call).await?.rows.iter().map(|row| column(row, "claim")).collect()
    }
}

impl Batch for Blocked {
    type Request = ClaimId;
    type Reply = bool;
    type Group = ();

    fn group(&self, _: &ClaimId) {}

    fn max_size(&self) -> usize {
        MAX_CLAIMS
    }

    async fn send_one(&self, id: &ClaimId) -> Result<bool> {
        Ok(!self.read(std::iter::once(*id)).await?.is_empty())
    }

    async fn send_many(&self, ids: &[Arc<ClaimId>]) -> Result<Vec<Option<bool>>> {
        let blocked = self.read(ids.iter().map(|id| **id)).await?;
        Ok(ids.iter().map(|id| Some(blocked.contains(&keys::uuid(**id)))).collect())
    }
}
