//! One session of the server, and the execution of a batch on it.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use dlock_core::driver::{CallCounter, ClockReading, LateExecution, Moment};
use sqlx::{
    AssertSqlSafe, Connection as _, Row as _,
    mysql::{MySqlConnection, MySqlRow},
};
use tokio::time::{Instant, timeout_at};

use crate::{
    connection::{Call, Priority},
    error,
    sql::{CLOCK, DEADLINE},
};

/// A session that executes one batch at a time.
pub(crate) struct Session {
    /// The server's connection id of the session.
    id: u64,
    /// The connection. `None` once the session has ended.
    state: tokio::sync::Mutex<Option<Connected>>,
    /// Held by one attempt from its turn until its outcome. Other attempts wait here, so at most
    /// one attempt is ahead of an urgent call.
    attempts: tokio::sync::Mutex<()>,
    /// Held by one attempt or urgent call from its turn until its outcome. Renewals do not take it,
    /// so at most one call of another kind is ahead of a renewal.
    before_renewals: tokio::sync::Mutex<()>,
    /// Shortest round trip seen, in microseconds. `u64::MAX` before the first.
    round_trip: AtomicU64,
    /// Whether the server's clock may have been set since it was read.
    is_clock_doubtful: AtomicBool,
    /// Whether the session has to end as soon as it is idle.
    must_end: AtomicBool,
    /// Calls of the session's lane.
    calls: CallCounter,
}

struct Connected {
    connection: MySqlConnection,
    clock: Option<ClockReading>,
}

/// The result of sending a batch to a session.
pub(crate) enum Outcome {
    /// The rows of all statements.
    Done(Vec<MySqlRow>),
    Failed(sqlx::Error),
    /// The batch was not sent, because other calls occupied the session until the deadline.
    NotSent,
    /// No reply arrived before the deadline. The session has ended.
    NoReply,
}

impl Session {
    pub(crate) fn new(connection: MySqlConnection, id: u64, calls: CallCounter) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: tokio::sync::Mutex::new(Some(Connected { connection, clock: None })),
            attempts: tokio::sync::Mutex::default(),
            before_renewals: tokio::sync::Mutex::default(),
            round_trip: AtomicU64::new(u64::MAX),
            is_clock_doubtful: AtomicBool::default(),
            must_end: AtomicBool::default(),
            calls,
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn calls(&self) -> &CallCounter {
        &self.calls
    }

    /// Makes the next call with a deadline read the server's clock again. The server found a call
    /// late, so its clock may have been set.
    pub(crate) fn doubt_clock(&self) {
        self.is_clock_doubtful.store(true, Relaxed);
    }

    /// Returns whether the session has ended, or will end after its present call because
    /// [`end`](Self::end) was called. The server releases the session's doorbells when it ends.
    /// Also ends the session if `end` was called while a call used it, and no call uses it now.
    pub(crate) fn is_ending(&self) -> bool {
        let has_ended = self.state.try_lock().is_ok_and(|state| state.is_none());
        // `end` may have been called while a call used the session.
        self.try_end() || has_ended
    }

    /// Ends the session after the calls that use it. The server then releases all its named locks.
    pub(crate) fn end(&self) {
        self.must_end.store(true, SeqCst);
        self.try_end();
    }

    /// Ends the session if [`end`](Self::end) was called and no call uses the session. If a call
    /// uses it, that call ends it later. Returns whether `end` was called, also if the session has
    /// not ended yet.
    fn try_end(&self) -> bool {
        let must_end = self.must_end.load(SeqCst);
        if must_end && let Ok(mut state) = self.state.try_lock() {
            state.take();
        }
        must_end
    }

    /// Ends the session with `COM_QUIT`, after the calls that use it. The caller limits the time.
    pub(crate) async fn close(&self) {
        self.must_end.store(true, SeqCst);
        if let Some(connected) = self.state.lock().await.take() {
            connected.connection.close().await.ok();
        }
    }

    /// Returns whether a reply can be expected before `deadline`. Sending a call that has too
    /// little time would cost the session.
    fn has_time(&self, late_execution: LateExecution<'_>, deadline: Instant) -> bool {
        let round_trip = match self.round_trip.load(Relaxed) {
            u64::MAX => 0,
            micros => micros,
        };
        // The server may execute a batch with a deadline only in the first half of its time.
        let trips = if late_execution.is_refused() { 3 } else { 1 };
        Instant::now() + Duration::from_micros(round_trip) * trips < deadline
    }

    /// Executes a batch. Returns `None` if the session has ended.
    ///
    /// The session ends if no reply arrives before `deadline`, or if this future is dropped while
    /// the batch runs.
    pub(crate) async fn execute(&self, call: &Call<'_>, deadline: Instant) -> Option<Outcome> {
        let turn = async {
            let attempt = match call.priority {
                Priority::Attempt => Some(self.attempts.lock().await),
                Priority::Renewal | Priority::Urgent => None,
            };
            let before_renewals = match call.priority {
                Priority::Attempt | Priority::Urgent => Some(self.before_renewals.lock().await),
                Priority::Renewal => None,
            };
            (attempt, before_renewals)
        };
        let Ok(_turn) = timeout_at(deadline, turn).await else { return Some(Outcome::NotSent) };
        let Ok(mut state) = timeout_at(deadline, self.state.lock()).await else {
            return Some(Outcome::NotSent);
        };
        if !self.has_time(call.late_execution, deadline) {
            return Some(Outcome::NotSent);
        }
        let sent = Instant::now();
        let mut connected = state.take().filter(|_| !self.must_end.load(Relaxed))?;
        call.late_execution.note_sent();
        let outcome = match timeout_at(deadline, self.run(&mut connected, call, deadline)).await {
            Err(_) => return Some(Outcome::NoReply),
            Ok(Ok(rows)) => {
                let round_trip = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.round_trip.fetch_min(round_trip, Relaxed);
                Outcome::Done(rows)
            }
            Ok(Err(error)) if error::ends_session(&error) => return Some(Outcome::Failed(error)),
            Ok(Err(error)) => match timeout_at(deadline, run(&mut connected.connection, &call.undo)).await {
                Ok(Ok(_)) => Outcome::Failed(error),
                Err(_) | Ok(Err(_)) => return Some(Outcome::Failed(error)),
            },
        };
        *state = Some(connected);
        drop(state);
        self.try_end();
        Some(outcome)
    }

    /// Sends the batch. A batch that must not be executed late may start in the first half of the
    /// time that is left. The second half is for its commit and for the reply.
    async fn run(
        &self,
        connected: &mut Connected,
        call: &Call<'_>,
        deadline: Instant,
    ) -> sqlx::Result<Vec<MySqlRow>> {
        if !call.late_execution.is_refused() {
            return run(&mut connected.connection, &call.batch).await;
        }
        let is_doubtful = self.is_clock_doubtful.swap(false, Relaxed);
        let known = connected.clock.filter(|clock| !is_doubtful && !clock.is_outdated(Moment::now()));
        let clock = match known {
            Some(clock) => clock,
            None => connected.read_clock().await?,
        };
        let half_of_the_time = deadline.saturating_duration_since(Instant::now()) / 2;
        let server_deadline = clock.deadline(Moment::now(), half_of_the_time);
        let batch = call.batch.replace(DEADLINE, &server_deadline.to_string());
        run(&mut connected.connection, &batch).await
    }
}

impl Connected {
    async fn read_clock(&mut self) -> sqlx::Result<ClockReading> {
        let rows = run(&mut self.connection, &CLOCK.with(&[])).await?;
        let server = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get_unchecked("clock")?;
        Ok(*self.clock.insert(ClockReading::received(server)))
    }
}

/// Sends a batch and reads the rows of all its statements.
pub(crate) async fn run(connection: &mut MySqlConnection, batch: &str) -> sqlx::Result<Vec<MySqlRow>> {
    sqlx::raw_sql(AssertSqlSafe(batch)).fetch_all(connection).await
}
