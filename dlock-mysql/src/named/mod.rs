//! Locks that are named locks of the server (`GET_LOCK`), each held by a session of its own.
//!
//! A named lock lives as long as the session that has it, and the server ends a session that was silent for the claim's ttl. So
//! each claim has its own session, and the ttl of a session is that of its claim: nothing stays of a claim that nobody renews.

mod claim;
mod look;
mod mark;
mod watch;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use dlock_core::Result;
use futures_util::future::BoxFuture;
use sqlx::{
    Row as _,
    mysql::{MySqlConnection, MySqlRow},
};
use tokio::time::sleep;

use crate::{
    config::{MysqlConfig, Names},
    connection::{self, Call, Connection, Dial},
    error::{self, STORE},
    keys,
    sql::{NAMED_LIVES, NAMED_OWNS},
};
pub(crate) use claim::NamedClaim;

/// The most sessions that are kept for the next claims.
const IDLE: usize = 16;

/// What the claims of one client share.
pub(crate) struct Named {
    dial: Dial,
    /// The sessions that have no lock of a user's: for watches and looks.
    connection: Arc<Connection>,
    names: Names,
    fence: String,
    idle: Mutex<Vec<(MySqlConnection, Known)>>,
}

/// What is known of a session while it is at a call.
#[derive(Clone, Default)]
struct Known {
    /// The server's number of it. Another session may have it when the server was started again.
    id: u64,
    /// The named lock that only this session has.
    tag: String,
}

/// What a session's call ends with: the session, unless its connection broke, and the first row.
type Ended = (Option<MySqlConnection>, Result<Option<MySqlRow>>);

/// A call of a session. Whoever drops it ends the session.
type Calling = BoxFuture<'static, Ended>;

impl Named {
    pub(crate) fn new(config: MysqlConfig, names: Names, connection: Arc<Connection>) -> Result<Self> {
        let fence = config.tables().fence;
        Ok(Self { dial: Dial::new(config)?, connection, names, fence, idle: Mutex::default() })
    }

    /// How long a call may take.
    fn limit(&self) -> Duration {
        self.dial.limit()
    }

    /// A session that has no lock of a user's and was kept, if there is one. The server may have ended it.
    fn kept(&self) -> Option<(MySqlConnection, Known)> {
        self.idle().pop()
    }

    /// A new session.
    async fn session(&self) -> Result<(MySqlConnection, Known)> {
        let tag = keys::tag();
        let (session, id) = self.dial.session(Some(&tag)).await?;
        Ok((session, Known { id, tag }))
    }

    /// Keeps a session that has no lock of a user's.
    fn keep(&self, session: MySqlConnection, known: Known) {
        let mut idle = self.idle();
        if idle.len() < IDLE {
            idle.push((session, known));
        }
    }

    /// Ends a session, or what it is at: `false` if it had ended already.
    async fn kill(&self, kill: String) -> Result<bool> {
        match self.connection.refusable(Call::new(kill, self.limit())).await {
            Err(error) if error::number_of(&error) == Some(1094) => Ok(false),
            killed => killed.map(|_| true),
        }
    }

    /// Whether a session is still there, as the server says on another connection.
    async fn lives(&self, known: &Known) -> Result<bool> {
        let look = NAMED_LIVES.with(&[("tag", &known.tag), ("id", &known.id.to_string())]);
        let answer = self.connection.call(Call::new(look, self.limit())).await?;
        Ok(number::<i64>(answer.rows.first(), 0)? == 1)
    }

    /// Waits until a session that was ended has a lock no more, which is given as a literal. The server does that in its own time,
    /// and tells nobody when.
    async fn until_freed(&self, lock: &str, id: u64) -> Result<()> {
        let has_it = NAMED_OWNS.with(&[("lock", lock), ("id", &id.to_string())]);
        loop {
            let answer = self.connection.call(Call::new(has_it.clone(), self.limit())).await?;
            if number::<i64>(answer.rows.first(), 0)? == 0 {
                return Ok(());
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(MySqlConnection, Known)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does a batch with a session that nobody else has. A session that answers with an error is still there, as far as is known.
async fn call(mut session: MySqlConnection, batch: String) -> Ended {
    match connection::run(&mut session, &batch).await {
        Ok((rows, _)) => (Some(session), Ok(rows.into_iter().next())),
        Err(error) => (error::number(&error).map(|_| session), Err(error::explain(error))),
    }
}

/// A column of a row about a named lock.
fn number<'r, T>(row: Option<&'r MySqlRow>, at: usize) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::MySql>,
{
    let row = row.ok_or_else(|| STORE.garbled("a named lock"))?;
    row.try_get_unchecked(at).map_err(error::explain)
}
