//! The sessions that all calls of a client share.
//!
//! A call is one batch in one round trip. A claim's doorbell belongs to the session that took it,
//! so later calls about that claim go to the same session as long as it lives.

mod dial;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{
    Error, Result,
    driver::{Lane, Lanes, LateExecution, Link, LiveConnection, OpenLane, Retries},
};
use futures_util::future::join_all;
use sqlx::{
    Connection as _,
    mysql::{MySqlConnection, MySqlRow},
};
use tokio::time::{Instant, timeout};

use crate::{
    config::MysqlConfig,
    error::{self, STORE},
    keys::{self, Tables},
    session::{Outcome, Session},
    sql::{SCHEMA, VERSION, column, expect},
};
pub(crate) use dial::Dial;

/// The version of the tables that this crate creates.
const TABLES_VERSION: u32 = 1;

/// Maximum time for which a client that closes waits for its sessions to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The server's reply to a batch.
pub(crate) struct Reply {
    /// The rows of all statements.
    pub(crate) rows: Vec<MySqlRow>,
    /// The session that executed the batch.
    pub(crate) session: Arc<Session>,
    /// Whether the batch was sent twice and may have been executed twice. This is then the reply
    /// to the second execution.
    pub(crate) maybe_repeated: bool,
}

impl Reply {
    /// Returns whether a session other than the client's own executed the batch. This happens
    /// behind a proxy that spreads the calls of one connection over several sessions. For batches
    /// whose last row has the column `session`.
    pub(crate) fn is_from_another_session(&self) -> bool {
        let id = self.rows.last().and_then(|row| column::<u64>(row, "session").ok());
        id.is_some_and(|id| id != self.session.id())
    }
}

/// A batch, with the time and the place of its execution.
pub(crate) struct Call<'a> {
    pub(crate) batch: String,
    pub(crate) timeout: Duration,
    /// The session that owns the doorbell of the claim. If it has ended, any other session
    /// executes the batch.
    pub(crate) session: Option<&'a Arc<Session>>,
    /// SQL that is sent after the server has refused a statement of the batch. The statements
    /// behind the refused one were not executed.
    pub(crate) undo: String,
    /// If late execution is refused, the batch compares the server's clock with
    /// [`DEADLINE`](crate::sql::DEADLINE), which is replaced by a time when the batch is sent. It
    /// is executed only in the first half of its time. The second half is for its commit.
    pub(crate) late_execution: LateExecution<'a>,
    pub(crate) priority: Priority,
}

/// Order in which calls get a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Renewals. They may use all sessions, where they wait for each other and for at most one call
    /// of another priority.
    Renewal,
    /// Releases and all else that a hold depends on. One session is reserved for them and for
    /// renewals, and on the others they wait for at most one attempt.
    Urgent,
    /// Attempts and look-ups of waiters.
    Attempt,
}

impl Call<'_> {
    pub(crate) fn new(batch: String, timeout: Duration) -> Self {
        Self {
            batch,
            timeout,
            session: None,
            undo: "ROLLBACK".to_owned(),
            late_execution: LateExecution::Allowed,
            priority: Priority::Urgent,
        }
    }

    /// Returns whether a batch that conflicted with another transaction is sent again.
    ///
    /// A batch that timed out on a locked row would probably time out again. It is sent again only
    /// if the server refuses its late execution (as for attempts), or if more than two thirds of
    /// the call's time is left. Otherwise the rest of the time is reserved, because after a failed
    /// batch of renewals each claim is renewed by a call of its own.
    fn may_retry(&self, error: &sqlx::Error, deadline: Instant) -> bool {
        let may_wait_again = self.late_execution.is_refused() || !error::is_lock_wait_timeout(error);
        let least = if may_wait_again { Duration::ZERO } else { self.timeout * 2 / 3 };
        Instant::now() + least < deadline
    }
}

type Live = LiveConnection<Arc<Session>>;

/// A batch that was given to a session.
struct Executed<'a> {
    session: Arc<Session>,
    /// The lane of the session, unless the call named the session.
    lane: Option<(&'a Lane<Dial>, Live)>,
    outcome: Outcome,
}

/// Gives up the session of a failed call, if the session was chosen from the lanes.
fn give_up(lane: Option<&(&Lane<Dial>, Live)>, error: Error) -> Error {
    match lane {
        Some((lane, live)) => lane.give_up(live, error),
        None => error,
    }
}

/// The shared sessions of one client.
pub(crate) struct Connection {
    /// If there are several lanes, the first is reserved for renewals and urgent calls.
    lanes: Lanes<Dial>,
    /// Number of sessions whose failure a call has noticed.
    session_epoch: AtomicU64,
    pub(crate) tables: Tables,
    timeout: Duration,
}

impl Connection {
    /// Connects, and creates the tables if they do not exist.
    pub(crate) async fn open(config: &MysqlConfig) -> Result<Self> {
        let lanes = (0..config.connections).map(|_| {
            let dial = Dial::new(config.clone())?;
            let calls = dial.calls().clone();
            Ok((Link::new(STORE, config.timeout, dial), calls))
        });
        let connection = Self {
            lanes: Lanes::new(STORE, lanes.collect::<Result<Vec<_>>>()?),
            session_epoch: AtomicU64::default(),
            tables: config.tables(),
            timeout: config.timeout,
        };
        connection.create_tables().await?;
        Ok(connection)
    }

    /// Returns the number of sessions whose failure a call has noticed so far. The end of an idle
    /// session is not counted until a call uses the session.
    pub(crate) fn session_epoch(&self) -> u64 {
        self.session_epoch.load(Relaxed)
    }

    /// Ends these idle sessions and those of the lanes, for a bounded time. Each sends `COM_QUIT`
    /// first, because the server otherwise writes a line about an aborted connection to its log.
    pub(crate) async fn close(&self, idle: Vec<MySqlConnection>) {
        let idle = join_all(idle.into_iter().map(MySqlConnection::close));
        let sessions = self.lanes.open_connections();
        let lanes = join_all(sessions.map(|session| async move { session.close().await }));
        timeout(CLOSE_TIMEOUT, async { tokio::join!(idle, lanes) }).await.ok();
    }

    /// Returns the time limit of a call about a claim with this ttl.
    pub(crate) fn timeout_for(&self, ttl: Duration) -> Duration {
        self.timeout.min(ttl / 3).max(Duration::from_millis(1))
    }

    /// Returns the time limit of any other call.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Executes a batch. Creates the tables again if they are missing, because the server has lost
    /// its data.
    ///
    /// # Errors
    /// After any error but a refusal by the server, the batch may or may not have been executed.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Reply> {
        match self.send(&call).await {
            Err(error) if error::lacks_tables(&error) => {
                self.create_tables().await?;
                self.send(&call).await
            }
            result => result,
        }
    }

    /// Executes a batch that uses none of dlock's tables.
    ///
    /// # Errors
    /// As [`call`](Self::call). A missing table is an error here.
    pub(crate) async fn call_without_tables(&self, call: Call<'_>) -> Result<Reply> {
        self.send(&call).await
    }

    /// Creates the tables if they do not exist, and checks their version.
    pub(crate) async fn create_tables(&self) -> Result<()> {
        let Tables { store, fence, queue } = &self.tables;
        let read_version = Call::new(VERSION.with(&[("store", store)]), self.timeout);
        let reply = match self.send(&read_version).await {
            // Without a row, the client that creates the tables is not done yet, or has ended.
            Ok(reply) if !reply.rows.is_empty() => reply,
            Err(error) if !error::lacks_tables(&error) => return Err(error),
            _ => {
                let values = [
                    ("store", store.as_str()),
                    ("fence", fence),
                    ("queue", queue),
                    ("buckets", &keys::fence_rows()),
                ];
                // Three new tables can take longer than other calls.
                let mut create = Call::new(SCHEMA.with(&values), self.timeout * 2);
                create.undo = "ROLLBACK; SET SESSION lock_wait_timeout = 1".to_owned();
                self.send(&create).await?;
                self.send(&read_version).await?
            }
        };
        let found: u32 = column(expect(reply.rows.first(), "a request for the tables' version")?, "version")?;
        if found > TABLES_VERSION {
            return Err(STORE.refused(format!(
                "the tables have version {found}, and this dlock knows versions up to {TABLES_VERSION}: \
                upgrade dlock"
            )));
        }
        Ok(())
    }

    /// Sends a batch until it has an outcome.
    ///
    /// A batch that conflicts with other transactions is sent again while time is left. A batch
    /// whose session breaks is sent once more, on another session. The end of an idle session is
    /// often noticed only by the next call. All batches of this crate may be executed twice. Those
    /// that must not be executed late compare the server's clock with a deadline.
    async fn send(&self, call: &Call<'_>) -> Result<Reply> {
        let deadline = Instant::now() + call.timeout;
        let (mut retries, mut unopened) = (Retries::until(deadline), 0);
        let mut preferred = call.session;
        loop {
            let on_preferred = match preferred.take() {
                Some(session) => execute_on(session, call, deadline).await,
                None => None,
            };
            let executed = match on_preferred {
                Some(executed) => executed,
                None => match self.execute_on_a_lane(call, deadline, &mut unopened).await? {
                    Some(executed) => executed,
                    None => continue,
                },
            };
            let Executed { session, lane, outcome } = executed;
            let error = match outcome {
                Outcome::Done(rows) => {
                    if let Some((lane, _)) = &lane {
                        lane.note_reply();
                    }
                    return Ok(Reply { rows, session, maybe_repeated: retries.maybe_executed() });
                }
                Outcome::NotSent => return Err(STORE.timed_out(call.timeout)),
                Outcome::NoReply => return Err(give_up(lane.as_ref(), STORE.timed_out(call.timeout))),
                Outcome::Failed(error)
                    if error::is_conflict(&error)
                        && call.may_retry(&error, deadline)
                        && retries.after_conflict() =>
                {
                    retries.note_execution();
                    preferred = call.session;
                    continue;
                }
                Outcome::Failed(error) => error,
            };
            if !error::ends_session(&error) {
                return Err(error::explain(error));
            }
            let error = give_up(lane.as_ref(), error::explain(error));
            self.session_epoch.fetch_add(1, Relaxed);
            let is_sent_again = if error::is_read_only(&error) {
                retries.after_refusal_to_write()
            } else {
                call.late_execution.note_lost_reply(deadline.saturating_duration_since(Instant::now()));
                retries.after_break()
            };
            if !is_sent_again {
                return Err(error);
            }
        }
    }

    /// Executes a batch on the least busy lane. Returns `None` if the call should try the next
    /// lane. This is the case if the lane's session has ended, or if it could not be opened and
    /// another lane may still work. `unopened` counts the lanes that could not be opened.
    async fn execute_on_a_lane(
        &self,
        call: &Call<'_>,
        deadline: Instant,
        unopened: &mut usize,
    ) -> Result<Option<Executed<'_>>> {
        let opened = if call.priority == Priority::Renewal {
            self.lanes.open_avoiding_slow(deadline, call.timeout, unopened).await?
        } else {
            let is_attempt = call.priority == Priority::Attempt;
            let reserved = usize::from(is_attempt);
            self.lanes.open_least_busy(reserved, !is_attempt, deadline, call.timeout, unopened).await?
        };
        let Some(OpenLane { lane, live, counted: _counted }) = opened else { return Ok(None) };
        let Some(outcome) = live.connection.execute(call, deadline).await else {
            lane.give_up(&live, STORE.unavailable("the session has ended"));
            return Ok(None);
        };
        Ok(Some(Executed { session: Arc::clone(&live.connection), lane: Some((lane, live)), outcome }))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// Executes a batch on the session that the call names. Returns `None` if that session has ended.
async fn execute_on<'a>(session: &Arc<Session>, call: &Call<'_>, deadline: Instant) -> Option<Executed<'a>> {
    let _counted = session.calls().count();
    let outcome = session.execute(call, deadline).await?;
    Some(Executed { session: Arc::clone(session), lane: None, outcome })
}
