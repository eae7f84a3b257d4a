//! Renewals of many locks in few calls.

use std::{
    borrow::Cow,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Kind, Result, driver::Batch};
use redis::{Value, cluster_routing::Slot};

use crate::{
    config::Replicas,
    connection::Connection,
    error::{self, STORE},
    keys::Keys,
    scripts::{Call, Script, millis},
};

/// The most records in one call. Such a call takes some 0.3 ms of the server's time.
const MOST: usize = 200;

/// A claim as it is on the server.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) keys: Keys,
    pub(crate) owner: String,
    pub(crate) kind: Kind,
    pub(crate) ttl: Duration,
    /// Of a permit.
    pub(crate) limit: NonZeroU32,
}

impl Record {
    /// The two keys of `renew.lua`: the lock, and the key that must live as long as this hold. That is the timeout of a read hold,
    /// the token of a write hold, the heartbeats of a permit, else the lock again.
    fn keys(&self) -> [Cow<'_, str>; 2] {
        let lock = Cow::Borrowed(self.keys.lock());
        let beside = match self.kind {
            Kind::Read => self.keys.read_timeout(&self.owner).to_string().into(),
            Kind::Write => self.keys.token().to_string().into(),
            Kind::Permit => self.keys.permit_beats().to_string().into(),
            _ => lock.clone(),
        };
        [lock, beside]
    }

    /// The claim as the scripts name it: an owner, of a permit with its limit.
    pub(crate) fn field(&self) -> Cow<'_, str> {
        match self.kind {
            Kind::Write => format!("{}:write", self.owner).into(),
            Kind::Permit => format!("{}/{}", self.owner, self.limit).into(),
            _ => Cow::Borrowed(&self.owner),
        }
    }
}

/// One client's renewals. The answer to each is whether the claim still holds its lock.
pub(crate) struct Renewals {
    connection: Arc<Connection>,
    script: &'static Script,
    /// Whether the server is a proxy that refuses keys of several slots. Each hold is then renewed by a call of its own.
    takes_one_key: AtomicBool,
}

impl Renewals {
    pub(crate) fn new(connection: Arc<Connection>, script: &'static Script) -> Self {
        Self { connection, script, takes_one_key: AtomicBool::new(false) }
    }

    /// Renews a hold, and waits until a replica has that. The answer is whether the claim still holds its lock.
    pub(crate) async fn confirm(&self, record: &Record, wanted: Replicas) -> Result<bool> {
        let answer = self.connection.confirm(&self.call(&[record]), record.keys.lock(), wanted).await?;
        Ok(answers(&answer, 1)?[0])
    }

    fn call(&self, records: &[&Record]) -> Call {
        let keys: Vec<_> = records.iter().flat_map(|record| record.keys()).collect();
        let fields: Vec<_> = records.iter().map(|record| record.field()).collect();
        let ttls: Vec<_> = records.iter().map(|record| millis(record.ttl)).collect();
        self.script.call(keys, (fields, ttls))
    }
}

impl Batch for Renewals {
    type Request = Record;
    type Reply = bool;
    type Group = Option<Slot>;

    fn group(&self, record: &Record) -> Option<Slot> {
        self.connection.is_cluster().then(|| Slot::for_key(record.keys.lock()))
    }

    fn max_size(&self) -> usize {
        if self.takes_one_key.load(Relaxed) { 1 } else { MOST }
    }

    async fn send_one(&self, record: &Record) -> Result<bool> {
        Ok(answers(&self.connection.run(&self.call(&[record])).await?, 1)?[0])
    }

    async fn send_many(&self, records: &[Arc<Record>]) -> Result<Vec<Option<bool>>> {
        let all: Vec<_> = records.iter().map(|record| &**record).collect();
        match self.connection.run(&self.call(&all)).await {
            // Some proxies send the whole call to the server of the first key, which does not know the other keys. So a hold that
            // was not found among many is asked about alone.
            Ok(answer) => {
                Ok(answers(&answer, all.len())?.into_iter().map(|held| held.then_some(true)).collect())
            }
            // The server refuses the whole call for one key that this user may not touch or that is being moved. So each hold is
            // asked about alone.
            Err(error) if error::was_refused(&error) => {
                self.takes_one_key.fetch_or(error::is_cross_slot(&error), Relaxed);
                Ok(vec![None; all.len()])
            }
            Err(error) => Err(error),
        }
    }
}

fn answers(answer: &Value, count: usize) -> Result<Vec<bool>> {
    match answer {
        Value::Array(all) if all.len() == count => Ok(all.iter().map(|one| *one == Value::Int(1)).collect()),
        _ => Err(STORE.unexpected_reply("a renewal")),
    }
}
