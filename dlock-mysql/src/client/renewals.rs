//! Renewals of many claims in few calls.

use std::{collections::HashSet, sync::Arc, time::Duration};

use dlock_core::{
    ClaimId, Result,
    driver::{Batch, Moment},
};
use sqlx::Row as _;

use super::standing::Standing;
use crate::{
    config::MysqlConfig,
    connection::{Call, Connection},
    error,
    keys::claim,
    sql::RENEW,
};

/// The most claims in one call, which locks their rows for some milliseconds. Ten thousand claims take 25 calls.
const MOST: usize = 400;

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

    async fn ask(&self, ids: &[ClaimId], ttl: Duration) -> Result<HashSet<ClaimId>> {
        let claims: Vec<_> = ids.iter().map(|id| claim(*id)).collect();
        let values = [("queue", self.queue.as_str()), ("claims", &claims.join(",")), ("ttl", &micros(ttl))];
        let answer = self.connection.call(Call::new(RENEW.with(&values), self.connection.limit(ttl))).await?;
        let ids = answer.rows.iter().map(|row| {
            let bytes = row.try_get_unchecked::<&[u8], _>(0).map_err(error::explain)?;
            Ok(ClaimId::from_bytes(bytes.try_into().map_err(|_| error::STORE.garbled("a renewal"))?))
        });
        ids.collect()
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
        Ok(!self.ask(&[record.id], record.ttl).await?.is_empty())
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
                self.standing.note_others(others.iter().filter(|id| found.contains(id)), sent);
                Ok(records.iter().map(|record| Some(found.contains(&record.id))).collect())
            }
            // A row that somebody else keeps locked makes the server refuse the whole call. So each claim is renewed alone.
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
