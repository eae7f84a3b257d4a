//! Inspects the server's advisory locks, and breaks them.
//!
//! The server lists the sessions that own an advisory lock or wait for it. All else comes from its list
//! of sessions, as far as the user may see them: the address of the client, and the comments of dlock's
//! clients.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use dlock_core::{Contender, Kind, LockName, LockState, Result, driver::Inspect};
use tokio::time::{Instant, sleep};
use tokio_postgres::SimpleQueryRow;

use super::{backend::AdvisoryBackend, client::AdvisoryClient, comment::ClaimComment, key::Key};
use crate::{
    config::KeyRule,
    connection::text_column,
    error::{self, STORE},
    keys,
    sql::{self, advisory},
};

/// Interval between two queries whether the server has released the locks of a terminated session.
const FREED_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A session that owns an advisory lock or waits for it.
struct ListedSession {
    key: Key,
    is_holder: bool,
    comment: Option<ClaimComment>,
    contender: Contender,
}

impl ListedSession {
    /// Reads a row of `look.sql`.
    fn read(row: &SimpleQueryRow) -> Result<Self> {
        let number = |column: &str| {
            text_column(row, column)
                .parse::<u32>()
                .map_err(|_| STORE.unexpected_reply("a query for advisory locks"))
        };
        let key = Key::of_columns(number("classid")?, number("objid")?, number("objsubid")?);
        let span = |column: &str| text_column(row, column).parse().ok().map(keys::duration);
        let kind = if text_column(row, "mode") == "ShareLock" { Kind::Read } else { Kind::Mutex };
        let comment = ClaimComment::find(text_column(row, "query"));
        let is_holder = text_column(row, "is_granted") == "true";
        let contender = match &comment {
            Some(ClaimComment { id, kind, ttl, who, .. }) => Contender::new(id, *kind)
                .who(who)
                .ttl_left(is_holder.then(|| ttl.saturating_sub(span("idle").unwrap_or_default()))),
            None => {
                let texts = [text_column(row, "application_name"), text_column(row, "client")];
                let texts = texts.map(str::trim).into_iter().filter(|text| !text.is_empty());
                let contender = Contender::new(format!("pid {}", text_column(row, "pid")), kind);
                match texts.collect::<Vec<_>>().join(" ") {
                    who if who.is_empty() => contender,
                    who => contender.who(who),
                }
            }
        };
        Ok(Self { key, is_holder, comment, contender: contender.since(span("waited")) })
    }
}

#[async_trait]
impl Inspect for AdvisoryBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        let sessions = self.client.look(&Key::of(name, self.client.key_rule)?.condition()).await?;
        Ok((!sessions.is_empty()).then(|| state(name.clone(), &sessions)))
    }

    /// Lists the locks that are named in the comments of dlock's clients, and with `names=number` all
    /// locks. A name that is too long for such a comment is listed only by the client of its claim.
    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let mut locks = BTreeMap::<Key, Vec<ListedSession>>::new();
        for session in self.client.look(&keys::is_no_bucket("l")).await? {
            locks.entry(session.key.clone()).or_default().push(session);
        }
        let mut states = Vec::new();
        for (key, sessions) in locks {
            let name = self.client.name(&key, &sessions);
            if let Some(name) = name.filter(|name| name.as_str().starts_with(prefix)) {
                states.push(state(name, &sessions));
            }
        }
        states.sort_unstable_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        Ok(states)
    }

    /// Ends the sessions that own the lock, and waits until they have released it. Such a session loses
    /// all its locks. A session of a dlock client owns no other user's lock.
    async fn force_release(&self, name: &LockName) -> Result<bool> {
        let client = &*self.client;
        let condition = Key::of(name, client.key_rule)?.condition();
        let held: Vec<_> = client.holders(&condition).await?;
        if held.is_empty() {
            return Ok(false);
        }
        let pids: Vec<_> = held.iter().map(String::as_str).filter(|pid| !pid.is_empty()).collect();
        if pids.is_empty() {
            return Err(STORE.refused("a prepared transaction owns the lock; end it with ROLLBACK PREPARED"));
        }
        let query = sql::fill(advisory::BREAK, &[("condition", &condition), ("pids", &pids.join(", "))]);
        client.connection.rows(&query, client.timeout()).await.map_err(error::explain_break)?;
        let began = Instant::now();
        while client.holders(&condition).await?.iter().any(|pid| held.contains(pid)) {
            if began.elapsed() >= client.timeout() {
                return Err(STORE.timed_out(client.timeout()));
            }
            sleep(FREED_POLL_INTERVAL).await;
        }
        Ok(true)
    }
}

impl AdvisoryClient {
    /// Returns the sessions of the locks that the SQL condition selects: first the holders, then the
    /// waiters in order.
    async fn look(&self, condition: &str) -> Result<Vec<ListedSession>> {
        let rows = self.look_rows(condition).await?;
        rows.iter().map(ListedSession::read).collect()
    }

    /// Returns the name of a lock, if it is known.
    fn name(&self, key: &Key, sessions: &[ListedSession]) -> Option<LockName> {
        let name_of = |comment: &ClaimComment| match &comment.name {
            Some(name) => LockName::new(name).ok(),
            None => self.long_names.get(&comment.id).map(|name| (*name).clone()),
        };
        if self.key_rule == KeyRule::Number {
            return key.name().and_then(|name| LockName::new(name).ok());
        }
        // Another client may use another rule for its keys.
        let is_of_key = |name: &LockName| match Key::of(name, self.key_rule) {
            Ok(Key::Hashtext(_)) => true,
            result => result.is_ok_and(|of_name| of_name == *key),
        };
        let comments = sessions.iter().filter_map(|session| session.comment.as_ref());
        comments.filter_map(name_of).find(is_of_key)
    }

    async fn look_rows(&self, condition: &str) -> Result<Vec<SimpleQueryRow>> {
        let query = sql::fill(advisory::LOOK, &[("condition", condition)]);
        self.connection.rows(&query, self.timeout()).await
    }

    /// Returns the process ids of the sessions that own a lock.
    async fn holders(&self, condition: &str) -> Result<Vec<String>> {
        let rows = self.look_rows(condition).await?;
        let holders = rows.iter().filter(|row| text_column(row, "is_granted") == "true");
        Ok(holders.map(|row| text_column(row, "pid").to_owned()).collect())
    }
}

fn state(name: LockName, sessions: &[ListedSession]) -> LockState {
    let mut state = LockState::new(name);
    for session in sessions {
        let contenders = if session.is_holder { &mut state.holders } else { &mut state.queue };
        contenders.push(session.contender.clone());
    }
    state
}
