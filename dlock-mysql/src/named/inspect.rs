//! Inspects the server's named locks, and breaks them.
//!
//! The server tells which session owns a named lock. All else comes from the server's list of
//! sessions, as far as the user may see them: which sessions wait, and the comments of dlock's
//! clients.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use dlock_core::{Contender, Kind, LockName, LockState, Result, driver::Inspect};
use sqlx::mysql::MySqlRow;

use super::{backend::NamedBackend, client::NamedClient, comment::ClaimComment};
use crate::{
    connection::Call,
    error::{self, STORE},
    keys,
    sql::{
        Batch, NAMED_BREAK, NAMED_LIST_MARIADB, NAMED_LIST_MYSQL, NAMED_LOOK, column, flag, literal, text,
    },
};

/// Error codes of a server without a list of its named locks. The table of the list does not exist,
/// or the user may not read it.
const NO_LIST: [u16; 5] = [
    error::UNKNOWN_TABLE,
    error::NO_SUCH_TABLE,
    error::TABLEACCESS_DENIED_ERROR,
    error::DBACCESS_DENIED_ERROR,
    error::SPECIFIC_ACCESS_DENIED_ERROR,
];

/// A session in the server's list.
struct ListedSession {
    connection_id: u64,
    /// The user and the host of the client.
    user: String,
    /// Age of the statement, in whole seconds.
    age: Duration,
    /// Whether the session waits for a named lock.
    is_waiting: bool,
    statement: String,
}

impl ListedSession {
    fn read(row: &MySqlRow) -> Result<Self> {
        Ok(Self {
            connection_id: column::<i64>(row, "session")?.unsigned_abs(),
            user: text(row, "user")?,
            age: Duration::from_secs(column::<i64>(row, "seconds")?.unsigned_abs()),
            is_waiting: flag(row, "is_waiting")?,
            statement: text(row, "statement")?,
        })
    }

    /// Returns whether the session owns the lock of its comment. It then waits for an anchor, and
    /// for no user's lock.
    fn is_watched(&self) -> bool {
        self.statement.contains(&format!("GET_LOCK('{}", keys::RESERVED))
    }

    /// Returns the claim of a dlock client, or the session of another program.
    fn contender(&self) -> Contender {
        match ClaimComment::find(&self.statement) {
            Some(comment) => Contender::new(comment.id, Kind::Mutex).who(comment.who).ttl_left(comment.ttl),
            None => unknown_session(self.connection_id).who(&self.user),
        }
    }
}

fn unknown_session(connection_id: u64) -> Contender {
    Contender::new(format!("connection {connection_id}"), Kind::Mutex)
}

#[async_trait]
impl Inspect for NamedBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        let (owner, sessions) = self.client.look(Some(name)).await?;
        let state = self.client.state(name.clone(), owner, &sessions)?;
        Ok((!state.is_free()).then_some(state))
    }

    /// Lists the locks in the server's own list, if it keeps one, and those of the sessions'
    /// comments. A lock without a comment is shown under the name of its named lock.
    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let client = &*self.client;
        let mut owners = BTreeMap::new();
        for list in [&NAMED_LIST_MARIADB, &NAMED_LIST_MYSQL] {
            let listed = client.owners(list).await?.into_iter();
            owners.extend(listed.filter(|(lock, _)| !lock.starts_with(keys::RESERVED)));
        }
        let (_, sessions) = client.look(None).await?;
        let mut names = BTreeMap::new();
        for session in &sessions {
            let Some(comment) = ClaimComment::find(&session.statement) else { continue };
            let Ok(name) = LockName::new(&comment.name) else { continue };
            let lock = keys::named_lock(&name, client.names)?;
            if session.is_watched() {
                owners.insert(lock.clone(), session.connection_id);
            }
            names.insert(lock, name);
        }
        for lock in owners.keys().filter(|lock| !names.contains_key(*lock)).cloned().collect::<Vec<_>>() {
            names.extend(LockName::new(&lock).ok().map(|name| (lock, name)));
        }
        let chosen = names.into_iter().filter(|(_, name)| name.as_str().starts_with(prefix));
        let states = chosen.map(|(lock, name)| client.state(name, owners.get(&lock).copied(), &sessions));
        let mut states: Vec<_> = states.collect::<Result<_>>()?;
        states.retain(|state| !state.is_free());
        states.sort_unstable_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        Ok(states)
    }

    /// Ends the session that owns the lock, and waits until the lock is released. The session loses
    /// all its locks. A session of a dlock client owns no other user's lock.
    async fn force_release(&self, name: &LockName) -> Result<bool> {
        let client = &*self.client;
        let (owner, _) = client.look(Some(name)).await?;
        let Some(owner) = owner else { return Ok(false) };
        let lock = keys::named_literal(&keys::named_lock(name, client.names)?);
        client.kill(NAMED_BREAK.with(&[("lock", &lock), ("id", &owner.to_string())])).await?;
        STORE.with_timeout(client.timeout(), client.until_freed(&lock, owner)).await?;
        Ok(true)
    }
}

impl NamedClient {
    /// Returns the session that owns a lock, and the listed sessions that may own it or wait for
    /// it. Without a name, returns the sessions of all locks and no owner.
    async fn look(&self, name: Option<&LockName>) -> Result<(Option<u64>, Vec<ListedSession>)> {
        let lock = name.map(|name| keys::named_lock(name, self.names)).transpose()?;
        // MySQL does not accept NULL as the name of a lock.
        let owner = lock.map_or_else(
            || "NULL".to_owned(),
            |lock| format!("IS_USED_LOCK({})", keys::named_literal(&lock)),
        );
        let batch = NAMED_LOOK.with(&[("owner", &owner)]);
        let reply = self.connection.call(Call::new(batch, self.timeout())).await?;
        let (first, rest) =
            reply.rows.split_first().ok_or_else(|| STORE.unexpected_reply("a query for named locks"))?;
        let owner: Option<i64> = column(first, "owner")?;
        let sessions = rest.iter().map(ListedSession::read).collect::<Result<_>>()?;
        Ok((owner.map(i64::unsigned_abs), sessions))
    }

    /// Returns the locks in one of the servers' own lists, each with the connection id of its
    /// owner. Returns nothing if the server does not have this list.
    async fn owners(&self, list: &Batch) -> Result<Vec<(String, u64)>> {
        let call = Call::new(list.with(&[]), self.timeout());
        let reply = match self.connection.call_without_tables(call).await {
            Ok(reply) => reply,
            Err(error) if error::code_of(&error).is_some_and(|code| NO_LIST.contains(&code)) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let read = |row: &MySqlRow| Ok((text(row, "name")?, column::<i64>(row, "owner")?.unsigned_abs()));
        reply.rows.iter().map(read).collect()
    }

    /// Returns the state of a lock, made of its owner and the listed sessions.
    fn state(&self, name: LockName, owner: Option<u64>, sessions: &[ListedSession]) -> Result<LockState> {
        let lock = keys::named_lock(&name, self.names)?;
        // A statement may name the lock in single or double quotes, or as dlock encodes it.
        let forms = [format!("'{lock}'"), format!("\"{lock}\""), literal(lock.as_bytes())];
        let waits_for_lock = |session: &&ListedSession| {
            session.is_waiting
                && !session.is_watched()
                && Some(session.connection_id) != owner
                && session.statement.contains("GET_LOCK")
                && forms.iter().any(|form| session.statement.contains(form))
        };
        let mut state = LockState::new(name);
        let waiting = sessions.iter().filter(waits_for_lock);
        state.queue = waiting.map(|session| session.contender().since(session.age)).collect();
        if let Some(owner) = owner {
            let listed = sessions.iter().find(|session| session.connection_id == owner);
            state.holders.push(listed.map_or_else(|| unknown_session(owner), ListedSession::contender));
        }
        Ok(state)
    }
}
