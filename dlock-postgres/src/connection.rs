//! The sessions that all calls of a client share.
//!
//! A call is one statement in one round trip, and a transaction of its own. A session executes its
//! calls in order, so calls on which a hold depends do not share a session with attempts, which may
//! wait for a locked queue.

mod dial;
mod tls;

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{
    Error, Result,
    driver::{Link, LiveConnection},
};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use crate::{
    config::PostgresConfig,
    error::{self, STORE},
    session::{Outcome, Session},
    sql::{self, Function, Param, column},
};
pub(crate) use dial::{Dial, Messages, Opened, drive, first_row, word};

/// Maximum number of repetitions of a call that conflicts with other transactions.
const MAX_CONFLICTS: usize = 8;

/// Time after a failure to open a lane's session. During this time the lane is used only if all
/// lanes have failed.
const LANE_BACK_OFF: Duration = Duration::from_secs(1);

/// Load of a lane without an open session, as a number of calls. It makes calls prefer a lane with an
/// open session.
const OPENING: usize = 2;

/// The server's reply to a call.
pub(crate) struct Reply {
    pub(crate) rows: Vec<Row>,
    /// Whether the call was sent twice and may have been executed twice. This is then the reply to
    /// the second execution.
    pub(crate) sent_twice: bool,
}

impl Reply {
    /// Returns the only row of a reply. `call` names the call in the error.
    pub(crate) fn row(&self, call: &str) -> Result<&Row> {
        self.rows.first().ok_or_else(|| STORE.unexpected_reply(call))
    }
}

/// A call of a function of the schema.
pub(crate) struct Call {
    pub(crate) function: Function,
    pub(crate) params: Vec<Param>,
    pub(crate) timeout: Duration,
    pub(crate) late_execution: LateExecution,
    pub(crate) priority: Priority,
}

/// Sessions that a call may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Renewals, which wait for no locked queue. They may use all sessions, and one is reserved for
    /// them.
    Renewal,
    /// Releases and all else that a hold depends on. They may use all other sessions, and attempts
    /// never use one of them.
    Urgent,
    /// Attempts of waiters.
    Attempt,
}

/// Whether the server may execute a call after its caller has given up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateExecution {
    Allowed,
    /// The last parameter of the function is a deadline on the server's clock, which is added when
    /// the call is sent. The reply has the columns `clock` and `late`.
    Refused,
}

/// A slot for one session.
struct Lane {
    /// Number of calls that are executed or wait for the session.
    calls: AtomicUsize,
    link: Link<Dial>,
    is_open: AtomicBool,
    /// Time of the last failure to open the session, if it has not been opened since.
    failed_at: Mutex<Option<Instant>>,
}

type Live = LiveConnection<Arc<Session>>;

impl Lane {
    fn new(config: &PostgresConfig) -> Result<Self> {
        Ok(Self {
            calls: AtomicUsize::new(0),
            link: Link::new(STORE, config.timeout, Dial::new(config.clone())?),
            is_open: AtomicBool::default(),
            failed_at: Mutex::default(),
        })
    }

    /// Returns the lane's session, and opens it if there is none.
    async fn live(&self, deadline: Instant, timeout: Duration) -> Result<Live> {
        let opened = timeout_at(deadline, self.link.live()).await;
        let result = opened.unwrap_or_else(|_| Err(STORE.timed_out(timeout)));
        self.is_open.store(result.is_ok(), Relaxed);
        let failed_at = result.is_err().then(Instant::now);
        *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner) = failed_at;
        result
    }

    fn has_failed(&self) -> bool {
        let failed_at = *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        failed_at.is_some_and(|at| at.elapsed() < LANE_BACK_OFF)
    }

    /// Gives up the session of a call that has failed.
    fn give_up(&self, live: &Live, error: Error) -> Error {
        self.is_open.store(false, Relaxed);
        self.link.give_up(live, error)
    }
}

/// The shared sessions of one client.
pub(crate) struct Connection {
    /// Lanes, the one with the highest priority first.
    lanes: Vec<Lane>,
    schema: String,
    timeout: Duration,
}

impl Connection {
    /// Connects, and creates the schema if it does not exist.
    pub(crate) async fn open(config: &PostgresConfig) -> Result<Self> {
        let connection = Self {
            lanes: (0..config.connections).map(|_| Lane::new(config)).collect::<Result<_>>()?,
            schema: config.schema.clone(),
            timeout: config.timeout,
        };
        connection.create_schema().await?;
        Ok(connection)
    }

    /// Returns the time limit of a call that does not depend on a claim's ttl.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Executes a call. Creates the schema again if it is missing, because the server has lost its
    /// data.
    ///
    /// # Errors
    /// After any error but a refusal by the server, the call may or may not have been executed.
    pub(crate) async fn call(&self, call: Call) -> Result<Reply> {
        match self.send(&call).await {
            Err(error) if error::lacks_schema(&error) => {
                self.create_schema().await?;
                self.send(&call).await
            }
            result => result,
        }
    }

    /// Sends a notification from one of the lanes. Returns the process id of its session.
    pub(crate) async fn notify(&self, channel: &str, payload: &str) -> Result<String> {
        // Both texts consist of letters, digits and `_`.
        let query = format!(
            "SELECT pg_catalog.pg_notify('{channel}', '{payload}'), pg_catalog.pg_backend_pid() AS pid"
        );
        let query = &query;
        let row = self.on_a_session(|session| async move { session.first_row(query).await }).await?;
        Ok(word(&row, "pid").to_owned())
    }

    /// Creates the tables and functions if they do not exist.
    async fn create_schema(&self) -> Result<()> {
        let (exists, create) = (&sql::exists(&self.schema), &sql::create(&self.schema));
        self.on_a_session(|session| async move {
            if word(&session.first_row(exists).await?, "is_complete") == "true" {
                return Ok(());
            }
            match session.execute_all(create).await {
                Err(error) if error::was_conflict(&error) => session.execute_all(create).await,
                result => result,
            }
        })
        .await
    }

    /// Makes requests on one session. Repeats them once if the session has ended.
    async fn on_a_session<T, F>(&self, requests: impl Fn(Arc<Session>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        // Creating the schema can take longer than other calls.
        let timeout = self.timeout * 2;
        let deadline = Instant::now() + timeout;
        let mut is_repeated = false;
        loop {
            let (lane, _counted) = self.least_busy(Priority::Urgent);
            let live = lane.live(deadline, timeout).await?;
            let error = match timeout_at(deadline, requests(Arc::clone(&live.connection))).await {
                Ok(Ok(result)) => {
                    lane.link.note_answer();
                    return Ok(result);
                }
                Ok(Err(error)) if !live.connection.has_ended() => return Err(error),
                Ok(Err(error)) => lane.give_up(&live, error),
                Err(_) => return Err(lane.give_up(&live, STORE.timed_out(timeout))),
            };
            if std::mem::replace(&mut is_repeated, true) {
                return Err(error);
            }
        }
    }

    /// Sends a call until it has an outcome.
    ///
    /// A call that conflicts with other transactions is sent again while time is left. A call whose
    /// session breaks is sent once more, on another session. All calls of this crate may be executed
    /// twice.
    async fn send(&self, call: &Call) -> Result<Reply> {
        let deadline = Instant::now() + call.timeout;
        let (mut sent_twice, mut breaks, mut conflicts, mut unopened) = (false, 0, 0, 0);
        loop {
            let (lane, _counted) = self.least_busy(call.priority);
            let live = match lane.live(deadline, call.timeout).await {
                Ok(live) => live,
                // The server may allow fewer sessions than there are lanes.
                Err(error) => {
                    unopened += 1;
                    let may_work =
                        unopened < self.lanes.len() && self.lanes.iter().any(|lane| !lane.has_failed());
                    if may_work && Instant::now() < deadline {
                        continue;
                    }
                    return Err(error);
                }
            };
            let sent = Instant::now();
            let error = match live.connection.execute(call, deadline).await {
                Outcome::Done(rows) => {
                    lane.link.note_answer();
                    if call.late_execution == LateExecution::Allowed || is_in_time(&rows, &live.connection)? {
                        return Ok(Reply { rows, sent_twice });
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
                Outcome::Failed(error)
                    if error::is_conflict(&error)
                        && conflicts < MAX_CONFLICTS
                        && Instant::now() < deadline =>
                {
                    conflicts += 1;
                    continue;
                }
                Outcome::Failed(error) if !error::ends_session(&error) => return Err(error::explain(error)),
                Outcome::Failed(error) => lane.give_up(&live, error::explain(error)),
            };
            // These breaks are not counted. After a server has become read-only, each of its
            // sessions refuses one call, and is replaced by a session on another server.
            breaks += usize::from(!error::is_read_only(&error));
            if breaks > 1 || Instant::now() >= deadline {
                return Err(error);
            }
            sent_twice = true;
        }
    }

    /// Returns the usable lane with the fewest calls, and counts one more call for it.
    fn least_busy(&self, priority: Priority) -> (&Lane, CountedCall<'_>) {
        let last = self.lanes.len() - 1;
        let rank = |(index, lane): &(usize, &Lane)| {
            let is_reserved = *index < last && *index < priority as usize;
            let opening = if lane.is_open.load(Relaxed) { 0 } else { OPENING };
            (lane.has_failed(), is_reserved, lane.calls.load(Relaxed) + opening)
        };
        let (_, lane) = self.lanes.iter().enumerate().min_by_key(rank).unwrap_or((0, &self.lanes[0]));
        (lane, CountedCall::new(&lane.calls))
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

/// Counts a call until it is dropped.
struct CountedCall<'a>(&'a AtomicUsize);

impl<'a> CountedCall<'a> {
    fn new(calls: &'a AtomicUsize) -> Self {
        calls.fetch_add(1, Relaxed);
        Self(calls)
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
