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

/// Maximum number of records in one call, which takes about 0.3 ms of the server's time.
const MAX_RECORDS: usize = 200;

/// A claim as the server knows it.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) keys: Keys,
    pub(crate) owner: String,
    pub(crate) kind: Kind,
    pub(crate) ttl: Duration,
    /// Number of permits. Applies to permits only.
    pub(crate) limit: NonZeroU32,
}

impl Record {
    /// Returns the two keys of `renew.lua`: the lock, and the second key that must exist as long as
    /// this hold. The second key is the timeout of a read hold, the token of a write hold, the
    /// heartbeats of permits, and otherwise the lock again.
    fn keys(&self) -> [Cow<'_, str>; 2] {
        let lock = Cow::Borrowed(self.keys.lock());
        let second = match self.kind {
            Kind::Read => self.keys.read_timeout(&self.owner).to_string().into(),
            Kind::Write => self.keys.token().to_string().into(),
            Kind::Permit => self.keys.permit_heartbeats().to_string().into(),
            _ => lock.clone(),
        };
        [lock, second]
    }

    /// Returns the name of the claim in the scripts: its owner, followed by `:write` for a write
    /// hold and by the limit for a permit.
    pub(crate) fn field(&self) -> Cow<'_, str> {
        match self.kind {
            Kind::Write => format!("{}:write", self.owner).into(),
            Kind::Permit => format!("{}/{}", self.owner, self.limit).into(),
            _ => Cow::Borrowed(&self.owner),
        }
    }
}

/// The renewals of one client. The reply to each says whether the claim still holds its lock.
pub(crate) struct Renewals {
    connection: Arc<Connection>,
    script: &'static Script,
    /// Whether the server is a proxy that refuses keys of several slots. Each hold is then renewed
    /// by its own call.
    refuses_batches: AtomicBool,
}

impl Renewals {
    pub(crate) fn new(connection: Arc<Connection>, script: &'static Script) -> Self {
        Self { connection, script, refuses_batches: AtomicBool::new(false) }
    }

    /// Renews a hold, and waits until a replica has confirmed the renewal. Returns whether the
    /// claim still holds its lock.
    pub(crate) async fn confirm(&self, record: &Record, wanted: Replicas) -> Result<bool> {
        let reply = self.connection.confirm(&self.call(&[record]), record.keys.lock(), wanted).await?;
        Ok(parse(&reply, 1)?[0])
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
        if self.refuses_batches.load(Relaxed) { 1 } else { MAX_RECORDS }
    }

    async fn send_one(&self, record: &Record) -> Result<bool> {
        Ok(parse(&self.connection.run(&self.call(&[record])).await?, 1)?[0])
    }

    async fn send_many(&self, records: &[Arc<Record>]) -> Result<Vec<Option<bool>>> {
        let all: Vec<_> = records.iter().map(|record| &**record).collect();
        match self.connection.run(&self.call(&all)).await {
            // Some proxies send the whole call to the server of the first key, which does not have
            // the other keys. A hold that was not found in a batch is therefore renewed once more
            // alone.
            Ok(reply) => Ok(parse(&reply, all.len())?.into_iter().map(|held| held.then_some(true)).collect()),
            // The server refuses the whole call because of one key that the user may not access or
            // that is being moved. Each hold is therefore renewed alone.
            Err(error) if error::was_refused(&error) => {
                self.refuses_batches.fetch_or(error::is_cross_slot(&error), Relaxed);
                Ok(vec![None; all.len()])
            }
            Err(error) => Err(error),
        }
    }
}

/// Parses the reply to `count` renewals: for each, whether the claim still holds its lock.
///
/// # Errors
/// For a reply that the script cannot send. It says nothing about a hold, so no hold is lost.
fn parse(reply: &Value, count: usize) -> Result<Vec<bool>> {
    let held = |each: &Value| match each {
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        _ => Err(STORE.unexpected_reply("a renewal")),
    };
    match reply {
        Value::Array(all) if all.len() == count => all.iter().map(held).collect(),
        _ => Err(STORE.unexpected_reply("a renewal")),
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_says_nothing_about_a_hold_does_not_end_it() {
        let parsed = parse(&Value::Array(vec![Value::Int(1), Value::Int(0)]), 2);
        assert_eq!(parsed.expect("a reply of the script"), [true, false]);
        for part in [Value::Nil, Value::Int(2), Value::BulkString(b"1".to_vec()), Value::Okay] {
            let parsed = parse(&Value::Array(vec![Value::Int(1), part]), 2);
            parsed.expect_err("taken for the loss of a hold");
        }
    }
}
