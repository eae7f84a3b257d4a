//! Look-ups of the claims that waiters wait for, many in one statement.

use std::{collections::HashMap, sync::Arc, time::Duration};

use dlock_core::{ClaimId, Result, driver::Batch};

use super::inspect::{Place, duration};
use crate::{
    connection::{Call, Connection, Priority},
    keys,
    sql::{PRESENT, bad_row, claim_id, column, text},
};

/// Maximum number of claims in one statement.
const MAX_CLAIMS: usize = 500;

/// The look-ups of one client. The answer to each is the place of the claim with the time until its
/// expiry, or `None` if the claim is not in the queue.
pub(super) struct Presence {
    connection: Arc<Connection>,
}

impl Presence {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    async fn look_up(
        &self,
        ids: impl Iterator<Item = ClaimId>,
    ) -> Result<HashMap<ClaimId, (Place, Duration)>> {
        let claims: Vec<_> = ids.map(keys::claim_literal).collect();
        let queue = self.connection.tables.queue.as_str();
        let batch = PRESENT.with(&[("queue", queue), ("claims", &claims.join(","))]);
        let mut call = Call::new(batch, self.connection.timeout());
        call.priority = Priority::Attempt;
        let reply = self.connection.call(call).await?;
        let mut found = HashMap::with_capacity(reply.rows.len());
        for row in &reply.rows {
            let kind = keys::parse_kind(&text(row, "kind")?).ok_or_else(|| bad_row("kind"))?;
            let place = Place { id: claim_id(row)?, kind, number: column(row, "seq")? };
            found.insert(place.id, (place, duration(row, "time_left")?));
        }
        Ok(found)
    }
}

impl Batch for Presence {
    type Request = ClaimId;
    type Reply = Option<(Place, Duration)>;
    type Group = ();

    fn group(&self, _: &ClaimId) {}

    fn max_size(&self) -> usize {
        MAX_CLAIMS
    }

    async fn send_one(&self, id: &ClaimId) -> Result<Self::Reply> {
        Ok(self.look_up(std::iter::once(*id)).await?.remove(id))
    }

    async fn send_many(&self, ids: &[Arc<ClaimId>]) -> Result<Vec<Option<Self::Reply>>> {
        let found = self.look_up(ids.iter().map(|id| **id)).await?;
        Ok(ids.iter().map(|id| Some(found.get(id).copied())).collect())
    }
}
