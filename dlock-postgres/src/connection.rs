//! The sessions that all calls of a client share.
//!
//! A call is one statement in one round trip, and a transaction of its own. A session executes its
//! calls in order, so calls on which a hold depends do not share a session with attempts, which may
//! wait for a locked queue.

mod dial;
mod location;
mod probe;
mod tls;

use std::{fmt, sync::Arc, time::Duration};

use dlock_core::{
    Result,
    driver::{CallCounter, Lanes, LateExecution, Link, OpenLane, Retries},
};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tokio_postgres::{Row, SimpleQueryRow};

use crate::{
    config::PostgresConfig,
    error::{self, STORE},
    session::{Outcome, Session},
    sql::{self, CLOCK, Function, Param, column},
};
use dial::LaneDial;
pub(crate) use dial::{Dial, Endpoint, Messages, Opened, ServerId, drive, first_row, rows, text_column};
pub(crate) use location::QueueLocation;
pub(crate) use probe::listen;

/// The server's reply to a call.
pub(crate) struct Reply {
    pub(crate) rows: Vec<Row>,
    /// Whether the call was sent twice and may have been executed twice. This is then the reply to
    /// the second execution.
    pub(crate) maybe_repeated: bool,
}

impl Reply {
    /// Returns the only row of a reply. `call` names the call in the error.
    pub(crate) fn row(&self, call: &str) -> Result<&Row> {
        self.rows.first().ok_or_else(|| STORE.unexpected_reply(call))
    }
}

/// A call of a function of the schema, or one of its queries.
pub(crate) struct Call<'a> {
    pub(crate) function: Function,
    pub(crate) params: Vec<Param>,
    pub(crate) timeout: Duration,
    /// If late execution is refused, the last parameter of the function is a deadline on the server's
    /// clock, which is added when the call is sent, and the reply has the columns `clock` and `late`.
    /// The call is executed only in the first half of its time. The second half is for its commit.
    pub(crate) late_execution: LateExecution<'a>,
    pub(crate) priority: Priority,
}

/// The lanes that a call avoids while another lane works.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Renewals, which wait for no locked queue. They avoid no lane.
    Renewal,
    /// Releases, detachments, resumptions, inspections and other queries. They avoid the first
    /// lane.
    Urgent,
    /// Attempts, and polls of waiters. They avoid the first two lanes.
    Attempt,
}

/// The shared sessions of one client.
pub(crate) struct Connection {
    /// The first lanes are reserved, the very first for renewals.
    lanes: Lanes<LaneDial>,
    /// Server of the lane that was opened last. `None` before the first one.
    newest_server: Arc<watch::Sender<Option<ServerId>>>,
    /// Maximum number of lanes that a call avoids: all but one.
    reserved: usize,
    location: Arc<QueueLocation>,
    timeout: Duration,
}

impl Connection {
    /// Connects, and creates the schema if it does not exist.
    pub(crate) async fn open(config: &PostgresConfig) -> Result<Self> {
        let newest_server = Arc::new(watch::Sender::new(None));
        let lanes = (0..config.connections).map(|_| {
            let dial = LaneDial::new(Dial::new(config.clone())?, Arc::clone(&newest_server));
            Ok((Link::new(STORE, config.timeout, dial), CallCounter::default()))
        });
        let connection = Self {
            lanes: Lanes::new(STORE, lanes.collect::<Result<Vec<_>>>()?),
            newest_server,
            reserved: config.connections - 1,
            location: Arc::new(QueueLocation::new(&config.schema)),
            timeout: config.timeout,
        };
        connection.create_schema().await?;
        Ok(connection)
    }

    /// Returns the time limit of a call that does not depend on a claim's ttl.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the location of the queue.
    pub(crate) fn location(&self) -> &Arc<QueueLocation> {
        &self.location
    }

    /// Returns a receiver of the server of the lane that was opened last. Another value means that
    /// calls have moved to another server.
    pub(crate) fn newest_server(&self) -> watch::Receiver<Option<ServerId>> {
        self.newest_server.subscribe()
    }

    /// Executes a call. Creates the schema again if it is missing, because the server has lost its
    /// data.
    ///
    /// # Errors
    /// After any error but a refusal by the server, the call may or may not have been executed.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Reply> {
        match self.send(&call).await {
            Err(error) if error::lacks_schema(&error) => {
                self.create_schema().await?;
                self.send(&call).await
            }
            result => result,
        }
    }

    /// Executes a query, which is sent as text, on one of the lanes. It may be executed twice. A lane that
    /// does not reply within `limit` is given up, so a caller must not drop this call before.
    pub(crate) async fn rows(&self, query: &str, limit: Duration) -> Result<Vec<SimpleQueryRow>> {
        self.on_a_session(limit, |session| async move { session.rows(query).await }).await
    }

    /// Sends a notification from a lane to the server of the connection that listens. Returns the
    /// process id of its session. Gives up the lanes to other servers that were opened before the
    /// listening connection.
    ///
    /// # Errors
    /// If a lane was opened to another server after that connection, which has to move, too.
    pub(crate) async fn notify(&self, channel: &str, payload: &str, listener: Endpoint) -> Result<String> {
        // Both texts consist of letters, digits and `_`.
        let query = format!(
            "SELECT pg_catalog.pg_notify('{channel}', '{payload}'), pg_catalog.pg_backend_pid() AS pid"
        );
        let query = &query;
        let row = self
            .on_a_session_of(Some(listener), self.long_timeout(), |session| async move {
                session.first_row(query).await
            })
            .await?;
        Ok(text_column(&row, "pid").to_owned())
    }

    /// Returns the time since 1970 on the server's clock.
    pub(crate) async fn clock(&self) -> Result<Duration> {
        let row = self
            .on_a_session(self.long_timeout(), |session| async move { session.first_row(CLOCK).await })
            .await?;
        let micros = text_column(&row, "clock")
            .parse()
            .map_err(|_| STORE.unexpected_reply("a request for the time"))?;
        Ok(Duration::from_micros(micros))
    }

    /// Creates the tables and functions if they do not exist.
    pub(crate) async fn create_schema(&self) -> Result<()> {
        let schema = self.location.schema();
        let (exists, create) = (&sql::exists(schema), &sql::create(schema));
        let identity = &sql::identity(schema);
        let row = self.on_a_session(self.long_timeout(), |session| async move {
            if text_column(&session.first_row(exists).await?, "is_complete") != "true" {
                let mut created = session.execute_all(create).await;
                if created.as_ref().is_err_and(error::was_conflict) {
                    created = session.execute_all(create).await;
                }
                match created {
                    Err(error) if error::is_complete(&error) => {}
                    created => created?,
                }
            }
            session.first_row(identity).await
        });
        self.location.set_id(text_column(&row.await?, "id"));
        Ok(())
    }

    /// Returns the time limit of a call that can take longer than others, as one that creates the schema.
    fn long_timeout(&self) -> Duration {
        self.timeout * 2
    }

    /// Makes requests on one session, within `timeout`. Repeats them once if the session has ended.
    async fn on_a_session<T, F>(&self, timeout: Duration, requests: impl Fn(Arc<Session>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.on_a_session_of(None, timeout, requests).await
    }

    /// As [`on_a_session`](Self::on_a_session), on a session of the server of `listener` if there is
    /// one. Gives up each earlier lane to another server at most once.
    async fn on_a_session_of<T, F>(
        &self,
        listener: Option<Endpoint>,
        timeout: Duration,
        requests: impl Fn(Arc<Session>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let deadline = Instant::now() + timeout;
        let lanes = self.reserved + 1;
        let mut given_up = 0;
        let (mut retries, mut unopened) = (Retries::until(deadline), 0);
        loop {
            let reserved = self.reserved(Priority::Urgent);
            let opened = self.lanes.open_least_busy(reserved, true, deadline, timeout, &mut unopened).await?;
            let Some(OpenLane { lane, live, counted: _counted }) = opened else { continue };
            let endpoint = live.connection.endpoint();
            if let Some(listener) = listener.filter(|listener| listener.server != endpoint.server) {
                let error = STORE.unavailable("the session is on another server");
                if endpoint.opened_at >= listener.opened_at {
                    return Err(error);
                }
                let error = lane.give_up(&live, error);
                given_up += 1;
                if given_up > lanes {
                    return Err(error);
                }
                continue;
            }
            let sent = Instant::now();
            let error = match timeout_at(deadline, requests(Arc::clone(&live.connection))).await {
                Ok(Ok(result)) => {
                    lane.note_reply();
                    return Ok(result);
                }
                Ok(Err(error)) if !live.connection.has_ended() => return Err(error),
                Ok(Err(error)) => lane.give_up(&live, error),
                Err(_) => {
                    let error = STORE.timed_out(timeout);
                    // A session that replies to other calls is only busy.
                    let is_silent = live.connection.is_silent_since(sent);
                    return Err(if is_silent { lane.give_up(&live, error) } else { error });
                }
            };
            if !retries.after_break() {
                return Err(error);
            }
        }
    }

    /// Sends a call until it has an outcome.
    ///
    /// A call that conflicts with other transactions is sent again while time is left. A call whose
    /// session breaks is sent once more, on another session. All calls of this crate may be executed
    /// twice.
    async fn send(&self, call: &Call<'_>) -> Result<Reply> {
        let deadline = Instant::now() + call.timeout;
        let (mut retries, mut unopened) = (Retries::until(deadline), 0);
        loop {
            let (lanes, timeout) = (&self.lanes, call.timeout);
            let opened = if call.priority == Priority::Renewal {
                lanes.open_avoiding_slow(deadline, timeout, &mut unopened).await?
            } else {
                let reserved = self.reserved(call.priority);
                lanes.open_least_busy(reserved, true, deadline, timeout, &mut unopened).await?
            };
            let Some(OpenLane { lane, live, counted: _counted }) = opened else { continue };
            call.late_execution.note_sent();
            let sent = Instant::now();
            let error = match live.connection.execute(call, deadline).await {
                Outcome::Done(rows) => {
                    lane.note_reply();
                    if !call.late_execution.is_refused() || is_in_time(&rows, &live.connection)? {
                        return Ok(Reply { rows, maybe_repeated: retries.maybe_executed() });
                    }
                    if Instant::now() >= deadline {
                        return Err(STORE.timed_out(call.timeout));
                    }
                    continue;
                }
                Outcome::NoReply => {
                    let error = STORE.timed_out(call.timeout);
                    // A session that replies to other calls is only busy.
                    let is_silent = live.connection.is_silent_since(sent);
                    return Err(if is_silent { lane.give_up(&live, error) } else { error });
                }
                Outcome::Failed(error) if error::is_conflict(&error) && retries.after_conflict() => continue,
                Outcome::Failed(error) if !error::ends_session(&error) => return Err(error::explain(error)),
                Outcome::Failed(error) => lane.give_up(&live, error::explain(error)),
            };
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

    /// Returns the number of lanes that a call of this priority may not use. At least one is left.
    fn reserved(&self, priority: Priority) -> usize {
        self.reserved.min(priority as usize)
    }
}

/// Returns whether the server has executed a call before its deadline. Records the server's clock.
fn is_in_time(rows: &[Row], session: &Session) -> Result<bool> {
    let row = rows.first().ok_or_else(|| STORE.unexpected_reply("a call"))?;
    session.note_clock(column(row, "clock")?);
    Ok(!column::<bool>(row, "late")?)
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
