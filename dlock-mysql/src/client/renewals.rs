//! Renewals of many claims in few calls.

use std::{collections::HashMap, sync::Arc, time::Duration};

use dlock_core::{
    ClaimId, Result,
    driver::{Batch, Moment},
};
use sqlx::Row as _;

use super::{here::Here, standing::Standing};
use crate::{
    config::MysqlConfig,
    connection::{Call, Connection},
    error::{self, STORE},
    keys::{self, claim},
    sql::{NOTHING, RENEW, TAKE_BELLS},
};

/// The most claims in one call, which locks their rows for some milliseconds. Ten thousand claims take 20 calls of three statements.
const MOST: usize = 500;

/// With a shorter ttl a call may end before the server tells of a locked row.
const LEAST_SHARED: Duration = Duration::from_secs(4);

/// A claim to be renewed.
pub(crate) struct Record {
    pub(crate) id: ClaimId,
    pub(crate) ttl: Duration,
    /// Whether its doorbell is looked at, and taken if no session has it.
    pub(crate) looks_at_bell: bool,
}

/// One client's renewals. The answer to each is whether the claim is still there.
pub(crate) struct Renewals {
    connection: Arc<Connection>,
    standing: Arc<Standing>,
    here: Arc<Here>,
    queue: String,
}

impl Renewals {
    pub(super) fn new(
        connection: Arc<Connection>,
        standing: Arc<Standing>,
        here: Arc<Here>,
        config: &MysqlConfig,
    ) -> Self {
        Self { connection, standing, here, queue: config.tables().queue }
    }

    /// The claims that are there, each with whether it was renewed. One that was not has its row locked by somebody else.
    async fn ask(
        &self,
        ids: &[ClaimId],
        ttl: Duration,
        looks_at_bells: bool,
    ) -> Result<HashMap<ClaimId, bool>> {
        let claims: Vec<_> = ids.iter().map(|id| claim(*id)).collect();
        let bells = match looks_at_bells {
            true => TAKE_BELLS.with(&[("bell", &keys::bell_of_row())]),
            false => NOTHING.to_owned(),
        };
        let values = [
            ("queue", self.queue.as_str()),
            ("claims", &claims.join(",")),
            ("ttl", &micros(ttl)),
            ("bells", &bells),
        ];
        let ended = self.connection.sessions_ended();
        let call = Call::new(RENEW.with(&values), self.connection.limit(ttl));
        let answer = self.connection.call(call).await?;
        let (mut found, mut left) = (HashMap::with_capacity(ids.len()), Vec::new());
        for row in &answer.rows {
            let bytes = row.try_get_unchecked::<&[u8], _>(0).map_err(error::explain)?;
            let id = ClaimId::from_bytes(bytes.try_into().map_err(|_| STORE.garbled("a renewal"))?);
            let number = |at: usize| row.try_get_unchecked::<u64, _>(at).map_err(error::explain);
            let (is_renewed, owner) = (number(1)? == 1, number(2)?);
            found.insert(id, is_renewed);
            if looks_at_bells {
                self.here.note_look(id);
            }
            if owner == answer.line.id() {
                if !self.here.set_home(id, &answer.line, ended) {
                    left.push(format!("RELEASE_LOCK({})", keys::bell(id)));
                }
            } else if let Some(home) = self.here.home(id).filter(|home| home.id() == owner) {
                self.here.set_home(id, &home, ended);
            }
        }
        if !left.is_empty() {
            // Those claims have left meanwhile, and nobody else would ring.
            let mut call = Call::new(format!("DO {}", left.join(",")), self.connection.limit(ttl));
            call.home = Some(&answer.line);
            if self.connection.call(call).await.is_err() {
                answer.line.end();
            }
        }
        Ok(found)
    }

    /// Renews claims, and others with them that will be due next. What there is of these claims.
    async fn ask_with_others(&self, ids: &[ClaimId], first: &Record) -> Result<HashMap<ClaimId, bool>> {
        let sent = Moment::now();
        let carrier = self.standing.due_with(ids, first.ttl, MOST.saturating_sub(ids.len()));
        let others = &carrier.ids;
        let all = [ids, others].concat();
        let found = self.ask(&all, first.ttl, first.looks_at_bell).await;
        match &found {
            Ok(found) => {
                self.standing.note_others(others.iter().filter(|id| found.get(id) == Some(&true)), sent);
            }
            // From now on the locked one is in no call of others, until it was renewed alone.
            Err(error) if error::met_others(error) => all.iter().for_each(|id| self.standing.forget(*id)),
            // It may have been one that is locked: others come with calls again when they were renewed by their own.
            Err(_) => {
                self.standing.unanswered(ids);
                others.iter().for_each(|id| self.standing.forget(*id));
            }
        }
        found
    }

    /// An older server refuses a whole call for a row that somebody else keeps locked. Then this claim is renewed alone.
    async fn ask_alone(&self, record: &Record) -> Result<bool> {
        told(record, &self.ask(&[record.id], record.ttl, record.looks_at_bell).await?)
            .ok_or_else(|| STORE.unavailable("another transaction keeps the claim's row locked"))
    }
}

/// What a call tells of a claim: nothing if somebody else keeps its row locked.
fn told(record: &Record, found: &HashMap<ClaimId, bool>) -> Option<bool> {
    match found.get(&record.id) {
        Some(false) => None,
        found => Some(found.is_some()),
    }
}

impl Batch for Renewals {
    type Request = Record;
    type Answer = bool;
    type Group = (Duration, bool);

    fn group(&self, record: &Record) -> Self::Group {
        (record.ttl, record.looks_at_bell)
    }

    fn most(&self) -> usize {
        MOST
    }

    async fn ask_one(&self, record: &Record) -> Result<bool> {
        if record.ttl < LEAST_SHARED {
            return self.ask_alone(record).await;
        }
        match self.ask_with_others(&[record.id], record).await {
            Ok(found) => told(record, &found)
                .ok_or_else(|| STORE.unavailable("another transaction keeps the claim's row locked")),
            Err(error) if error::met_others(&error) => self.ask_alone(record).await,
            Err(error) => Err(error),
        }
    }

    async fn ask_all(&self, records: &[Arc<Record>]) -> Result<Vec<Option<bool>>> {
        let Some(first) = records.first() else { return Ok(Vec::new()) };
        let ids: Vec<_> = records.iter().map(|record| record.id).collect();
        match self.ask_with_others(&ids, first).await {
            Ok(found) => Ok(records.iter().map(|record| told(record, &found)).collect()),
            // So each claim is renewed alone.
            Err(error) if error::met_others(&error) => Ok(vec![None; records.len()]),
            Err(error) => Err(error),
        }
    }
}

/// As the statements take it.
pub(crate) fn micros(span: Duration) -> String {
    span.as_micros().to_string()
}
