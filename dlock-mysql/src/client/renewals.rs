//! Renewals of many claims in few calls.

use std::{collections::HashMap, sync::Arc, time::Duration};

use dlock_core::{
    ClaimId, Result,
    driver::{Batch, Moment},
};
use sqlx::Row as _;

use super::standing::Standing;
use crate::{
    config::MysqlConfig,
    connection::{Call, Connection},
    error::{self, STORE},
    keys::claim,
    sql::RENEW,
};

/// The most claims in one call, which locks their rows for some milliseconds. Ten thousand claims take 20 calls of three statements.
const MOST: usize = 500;

/// A claim to be renewed.
pub(crate) struct Record {
    pub(crate) id: ClaimId,
    pub(crate) ttl: Duration,
}

/// One client's renewals. The answer to each is whether the claim is still there.
pub(crate) struct Renewals {
    connection: Arc<Connection>,
    standing: Arc<Standing>,
    queue: String,
}

impl Renewals {
    pub(super) fn new(connection: Arc<Connection>, standing: Arc<Standing>, config: &MysqlConfig) -> Self {
        Self { connection, standing, queue: config.tables().queue }
    }

    /// The claims that are there, each with whether it was renewed. One that was not has its row locked by somebody else.
    async fn ask(&self, ids: &[ClaimId], ttl: Duration) -> Result<HashMap<ClaimId, bool>> {
        let claims: Vec<_> = ids.iter().map(|id| claim(*id)).collect();
        let values = [("queue", self.queue.as_str()), ("claims", &claims.join(",")), ("ttl", &micros(ttl))];
        let answer = self.connection.call(Call::new(RENEW.with(&values), self.connection.limit(ttl))).await?;
        let found = answer.rows.iter().map(|row| {
            let bytes = row.try_get_unchecked::<&[u8], _>(0).map_err(error::explain)?;
            let id = ClaimId::from_bytes(bytes.try_into().map_err(|_| STORE.garbled("a renewal"))?);
            Ok((id, row.try_get_unchecked::<i64, _>(1).map_err(error::explain)? == 1))
        });
        found.collect()
    }
}

impl Batch for Renewals {
    type Request = Record;
    type Answer = bool;
    type Group = Duration;

    fn group(&self, record: &Record) -> Duration {
        record.ttl
    }

    fn most(&self) -> usize {
        MOST
    }

    async fn ask_one(&self, record: &Record) -> Result<bool> {
        match self.ask(&[record.id], record.ttl).await?.get(&record.id) {
            Some(false) => Err(STORE.unavailable("another transaction keeps the claim's row locked")),
            found => Ok(found.is_some()),
        }
    }

    async fn ask_all(&self, records: &[Arc<Record>]) -> Result<Vec<Option<bool>>> {
        let mut ids: Vec<_> = records.iter().map(|record| record.id).collect();
        let ttl = records.first().map_or(Duration::ZERO, |record| record.ttl);
        let sent = Moment::now();
        let room = MOST.saturating_sub(ids.len());
        let others = self.standing.due_next(ttl, room, &ids.iter().copied().collect());
        ids.extend(&others);
        match self.ask(&ids, ttl).await {
            Ok(found) => {
                self.standing.note_others(others.iter().filter(|id| found.get(id) == Some(&true)), sent);
                let told = |record: &Arc<Record>| match found.get(&record.id) {
                    Some(false) => None,
                    found => Some(found.is_some()),
                };
                Ok(records.iter().map(told).collect())
            }
            // An older server refuses the whole call for a row that somebody else keeps locked. So each claim is renewed alone.
            Err(error) if error::met_others(&error) => {
                // From now on the locked one is in no call of others, until it was renewed alone.
                ids.iter().for_each(|id| self.standing.forget(*id));
                Ok(vec![None; records.len()])
            }
            Err(error) => Err(error),
        }
    }
}

/// As the statements take it.
pub(crate) fn micros(span: Duration) -> String {
    span.as_micros().to_string()
}
