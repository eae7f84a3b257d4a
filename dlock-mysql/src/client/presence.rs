//! Look-ups of the claims that waiters wait for, many in one statement.

use std::{collections::HashMap, sync::Arc};

use dlock_core::{ClaimId, Kind, Result, driver::Batch};
use sqlx::Row as _;

use crate::{
    connection::{Call, Connection, Priority},
    error::{self, STORE},
    keys,
    sql::PRESENT,
};

/// Maximum number of claims in one statement.
const MOST: usize = 500;

/// One client's look-ups. The answer to each is the kind of the claim, or `None` if the claim has left.
pub(crate) struct Presence {
    connection: Arc<Connection>,
}

impl Presence {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    async fn look(&self, ids: impl Iterator<Item = ClaimId>) -> Result<HashMap<ClaimId, Kind>> {
        let claims: Vec<_> = ids.map(keys::claim).collect();
        let queue = self.connection.tables.queue.as_str();
        let batch = PRESENT.with(&[("queue", queue), ("claims", &claims.join(","))]);
        let mut call = Call::new(batch, self.connection.longest());
        call.priority = Priority::Attempt;
        let answer = self.connection.call(call).await?;
        let mut found = HashMap::with_capacity(answer.rows.len());
        for row in &answer.rows {
            let bytes = |at: usize| row.try_get_unchecked::<&[u8], _>(at).map_err(error::explain);
            let id = bytes(0)?.try_into().map_err(|_| STORE.garbled("a look at the queue"))?;
            let kind = std::str::from_utf8(bytes(1)?).ok().and_then(keys::kind);
            found.insert(ClaimId::from_bytes(id), kind.ok_or_else(|| STORE.garbled("a look at the queue"))?);
        }
        Ok(found)
    }
}

impl Batch for Presence {
    type Request = ClaimId;
    type Answer = Option<Kind>;
    type Group = ();

    fn group(&self, _: &ClaimId) {}

    fn most(&self) -> usize {
        MOST
    }

    async fn ask_one(&self, id: &ClaimId) -> Result<Option<Kind>> {
        Ok(self.look(std::iter::once(*id)).await?.remove(id))
    }

    async fn ask_all(&self, ids: &[Arc<ClaimId>]) -> Result<Vec<Option<Option<Kind>>>> {
        let found = self.look(ids.iter().map(|id| **id)).await?;
        Ok(ids.iter().map(|id| Some(found.get(id).copied())).collect())
    }
}
