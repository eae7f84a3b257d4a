//! Looking at the server's named locks and breaking them.
//!
//! A server says which session has a named lock. What else there is to say stands in the list of sessions, as far as the user may
//! see them: who waits, and the marks of dlock's clients.

use std::{collections::BTreeMap, time::Duration};

use dlock_core::{Contender, Kind, LockName, LockState, Result};
use sqlx::{Row as _, mysql::MySqlRow};

use super::{Named, mark::Mark};
use crate::{
    connection::Call,
    error::{self, STORE},
    keys,
    sql::{Batch, NAMED_BREAK, NAMED_LIST_MARIADB, NAMED_LIST_MYSQL, NAMED_LOOK, literal},
};

/// What a server without a list of its named locks says: it has no such table, or the user may not read it.
const NO_LIST: [u16; 5] = [1109, 1142, 1146, 1044, 1227];

/// A session of the server.
struct Session {
    id: u64,
    /// Its user, and from where it came.
    user: String,
    /// How long it has been doing what it does, in whole seconds.
    time: Duration,
    waits: bool,
    statement: String,
}

impl Session {
    fn of(row: &MySqlRow) -> Result<Self> {
        let text = |at: usize| -> Result<String> {
            let bytes: &[u8] = row.try_get_unchecked(at).map_err(error::explain)?;
            Ok(String::from_utf8_lossy(bytes).into_owned())
        };
        let number = |at: usize| row.try_get_unchecked::<i64, _>(at).map_err(error::explain);
        Ok(Self {
            id: number(0)?.unsigned_abs(),
            user: text(1)?,
            time: Duration::from_secs(number(2)?.unsigned_abs()),
            waits: number(3)? != 0,
            statement: text(4)?,
        })
    }

    /// Whether it has the lock of its mark: it waits for no lock of a user's.
    fn is_watched(&self) -> bool {
        self.statement.contains(&format!("GET_LOCK('{}", keys::BELL))
    }

    /// As people want to see it: a client of dlock as it calls itself, another program by its session.
    fn contender(&self) -> Contender {
        match Mark::find(&self.statement) {
            Some(mark) => Contender::new(mark.id, Kind::Mutex).who(mark.who).ttl_left(mark.ttl),
            None => stranger(self.id).who(&self.user),
        }
    }
}

fn stranger(id: u64) -> Contender {
    Contender::new(format!("connection {id}"), Kind::Mutex)
}

impl Named {
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        let (owner, sessions) = self.look(Some(name)).await?;
        let state = self.state(name.clone(), owner, &sessions)?;
        Ok((!state.is_free()).then_some(state))
    }

    /// The locks that the server tells of, if it keeps a list, and those that are marked. A lock that is not marked is shown by its
    /// named lock.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let mut owners = BTreeMap::new();
        for list in [&NAMED_LIST_MARIADB, &NAMED_LIST_MYSQL] {
            let listed = self.listed(list).await?.into_iter();
            owners.extend(
                listed.filter_map(|(owner, lock)| (!lock.starts_with(keys::BELL)).then_some((lock, owner))),
            );
        }
        let (_, sessions) = self.look(None).await?;
        let mut names = BTreeMap::new();
        for session in &sessions {
            let Some(mark) = Mark::find(&session.statement) else { continue };
            let Ok(name) = LockName::new(&mark.name) else { continue };
            let lock = keys::named_lock(&name, self.names)?;
            if session.is_watched() {
                owners.insert(lock.clone(), session.id);
            }
            names.insert(lock, name);
        }
        for lock in owners.keys().filter(|lock| !names.contains_key(*lock)).cloned().collect::<Vec<_>>() {
            names.extend(LockName::new(&lock).ok().map(|name| (lock, name)));
        }
        let chosen = names.into_iter().filter(|(_, name)| name.as_str().starts_with(prefix));
        let states = chosen.map(|(lock, name)| self.state(name, owners.get(&lock).copied(), &sessions));
        let mut states: Vec<_> = states.collect::<Result<_>>()?;
        states.retain(|state| !state.is_free());
        states.sort_unstable_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        Ok(states)
    }

    /// What sessions tell of a lock.
    fn state(&self, name: LockName, owner: Option<u64>, sessions: &[Session]) -> Result<LockState> {
        let lock = keys::named_lock(&name, self.names)?;
        // As a statement may name a lock: in quotes of either kind, or as dlock writes it.
        let texts = [format!("'{lock}'"), format!("\"{lock}\""), literal(lock.as_bytes())];
        let waits = |session: &&Session| {
            session.waits
                && !session.is_watched()
                && Some(session.id) != owner
                && session.statement.contains("GET_LOCK")
                && texts.iter().any(|text| session.statement.contains(text))
        };
        let waiting = sessions.iter().filter(waits);
        let mut state = LockState::new(name);
        state.queue = waiting.map(|session| session.contender().since(session.time)).collect();
        if let Some(owner) = owner {
            let seen = sessions.iter().find(|session| session.id == owner);
            state.holders.push(seen.map_or_else(|| stranger(owner), Session::contender));
        }
        Ok(state)
    }

    /// Ends the session of the holder, which has then lost all its locks: a session of dlock's has no other of a user's. Waits for that.
    pub(crate) async fn force_release(&self, name: &LockName) -> Result<bool> {
        let (owner, _) = self.look(Some(name)).await?;
        let Some(owner) = owner else { return Ok(false) };
        let lock = keys::named_literal(&keys::named_lock(name, self.names)?);
        self.kill(NAMED_BREAK.with(&[("lock", &lock), ("id", &owner.to_string())])).await?;
        STORE.in_time(self.limit(), self.until_freed(&lock, owner)).await?;
        Ok(true)
    }

    /// The session that has a lock, and the sessions that may be of interest.
    async fn look(&self, name: Option<&LockName>) -> Result<(Option<u64>, Vec<Session>)> {
        let lock = name.map(|name| keys::named_lock(name, self.names)).transpose()?;
        // MySQL takes no NULL for a name.
        let owner = lock.map_or_else(
            || "NULL".to_owned(),
            |lock| format!("IS_USED_LOCK({})", keys::named_literal(&lock)),
        );
        let text = NAMED_LOOK.with(&[("owner", &owner)]);
        let answer = self.connection.call(Call::new(text, self.limit())).await?;
        let (first, rest) =
            answer.rows.split_first().ok_or_else(|| STORE.garbled("a look at named locks"))?;
        let owner: Option<i64> = first.try_get_unchecked(0).map_err(error::explain)?;
        Ok((owner.map(i64::unsigned_abs), rest.iter().map(Session::of).collect::<Result<_>>()?))
    }

    /// What a server's own list says, or nothing if it has none.
    async fn listed(&self, list: &Batch) -> Result<Vec<(u64, String)>> {
        let answer = match self.connection.refusable(Call::new(list.with(&[]), self.limit())).await {
            Ok(answer) => answer,
            Err(error) if error::number_of(&error).is_some_and(|number| NO_LIST.contains(&number)) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let read = |row: &MySqlRow| -> sqlx::Result<(u64, String)> {
            let owner: i64 = row.try_get_unchecked(0)?;
            let lock: &[u8] = row.try_get_unchecked(1)?;
            Ok((owner.unsigned_abs(), String::from_utf8_lossy(lock).into_owned()))
        };
        answer.rows.iter().map(|row| read(row).map_err(error::explain)).collect()
    }
}
