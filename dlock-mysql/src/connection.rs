//! A few sessions that all calls of a client share, and those that wait for doorbells. Over the usual length, so that the whole
//! life of a call is in one file.
//!
//! A call is one batch in one round trip. A session does one call at a time, and a claim's doorbell belongs to the session that
//! took it: that claim's later calls go there as long as the session lives. Over the usual length: how a call is done, done again and
//! given up is one story.

mod dial;
mod waits;

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use dlock_core::{
    Error, Result,
    driver::{Link, Live},
};
use futures_util::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, Either, Row as _,
    mysql::{MySqlConnection, MySqlRow},
};
use tokio::time::{Instant, timeout_at};

use crate::{
    config::MysqlConfig,
    error::{self, STORE},
    keys::{self, Tables},
    sql::{CLOCK, SCHEMA, UNTIL, VERSION},
};
pub(crate) use dial::Dial;
pub(crate) use waits::Waits;

/// The version of the tables.
const TABLES: u32 = 1;

/// How often a batch that meets other transactions is tried.
const TRIES: usize = 8;

/// How long the server's clock is believed to go as ours does. Two clocks drift apart by some milliseconds in that time.
const CLOCK_HOLDS: Duration = Duration::from_secs(60);

/// Period in which a lane whose session could not be opened is used only if all lanes have failed.
const LANE_BACK_OFF: Duration = Duration::from_secs(1);

/// Number of calls that a lane without an open session counts as, so that urgent calls do not wait for a session to open.
const OPENING: usize = 2;

/// A session for calls.
pub(crate) struct Line {
    /// The server's number of the session.
    id: u64,
    session: tokio::sync::Mutex<Option<Session>>,
    /// Held by the attempt that is next. At most one attempt stands between an urgent call and the session.
    attempts: tokio::sync::Mutex<()>,
    /// Shortest round trip seen, in microseconds.
    round_trip: AtomicU64,
    doubts_clock: AtomicBool,
    ends: AtomicBool,
    calls: Calls,
}

struct Session {
    connection: MySqlConnection,
    /// The server's clock, in microseconds since 1970, and when it was read.
    clock: Option<(u64, Instant)>,
}

impl Line {
    fn new(connection: MySqlConnection, id: u64, calls: Calls) -> Arc<Self> {
        let session = tokio::sync::Mutex::new(Some(Session { connection, clock: None }));
        Arc::new(Self {
            id,
            session,
            attempts: tokio::sync::Mutex::default(),
            round_trip: AtomicU64::new(u64::MAX),
            doubts_clock: AtomicBool::default(),
            ends: AtomicBool::default(),
            calls,
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether a call that must end at `until` has time for its answer. One that has not would cost the session.
    fn has_time(&self, acts: Acts, until: Instant) -> bool {
        let round_trip = match self.round_trip.load(Relaxed) {
            u64::MAX => 0,
            micros => micros,
        };
        // A batch with a deadline may act only in the first half of its time.
        let least = Duration::from_micros(round_trip) * if acts == Acts::InTime { 3 } else { 1 };
        Instant::now() + least < until
    }

    /// The server found a call late: perhaps its clock was set. The next call reads it again.
    pub(crate) fn doubt_clock(&self) {
        self.doubts_clock.store(true, Relaxed);
    }

    /// Whether the session has ended: the server has freed its doorbells.
    pub(crate) fn is_over(&self) -> bool {
        let is_over = self.session.try_lock().is_ok_and(|session| session.is_none());
        // Whoever ended the session meanwhile has found it busy.
        self.end_if_told() || is_over
    }

    /// Ends the session, behind the calls that it is at: the server then frees all its named locks.
    pub(crate) fn end(&self) {
        self.ends.store(true, SeqCst);
        self.end_if_told();
    }

    /// Ends the session if it is to end and does nothing. Whoever finds it busy leaves that to the one who uses it.
    fn end_if_told(&self) -> bool {
        let ends = self.ends.load(SeqCst);
        if ends && let Ok(mut session) = self.session.try_lock() {
            session.take();
        }
        ends
    }
}

/// What the server answered to a batch.
pub(crate) struct Answer {
    pub(crate) rows: Vec<MySqlRow>,
    /// The changed rows of each statement.
    changed: Vec<u64>,
    /// The session that did it.
    pub(crate) line: Arc<Line>,
    /// Whether the batch may have been done twice. The answer is then that of the second time.
    pub(crate) twice: bool,
}

impl Answer {
    /// How many rows the statement changed that stands behind `writable.sql`.
    pub(crate) fn changed(&self) -> u64 {
        self.changed_by(1)
    }

    /// Whether another session did the batch than the client's own: there is a proxy on the way that gives the calls of one
    /// connection to several sessions. For batches whose last row is the number of the session.
    pub(crate) fn is_of_another_session(&self) -> bool {
        let id = self.rows.last().and_then(|row| row.try_get_unchecked::<u64, _>(0).ok());
        id.is_some_and(|id| id != self.line.id)
    }

    /// How many rows a statement changed.
    pub(crate) fn changed_by(&self, statement: usize) -> u64 {
        self.changed.get(statement).copied().unwrap_or_default()
    }
}

/// A batch, how long it may take, and where it is to be done.
pub(crate) struct Call<'a> {
    pub(crate) batch: String,
    pub(crate) limit: Duration,
    /// The session whose doorbell it is about. If that has ended, any other does the call.
    pub(crate) home: Option<&'a Arc<Line>>,
    /// What undoes a batch of which the server refused a part. The rest of the batch was not done.
    pub(crate) undo: String,
    pub(crate) acts: Acts,
    pub(crate) priority: Priority,
}

/// Order in which calls get a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Renewals, releases and all else that a hold depends on. One session is reserved for them, and on the others they wait for at
    /// most two attempts.
    Urgent,
    /// Attempts and look-ups of waiters.
    Attempt,
}

/// When the server may act on a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acts {
    /// Also when its caller has given up.
    Whenever,
    /// Only while its caller waits: the batch looks at [`UNTIL`], in whose place a time is put.
    InTime,
}

impl Call<'_> {
    pub(crate) fn new(batch: String, limit: Duration) -> Self {
        Self {
            batch,
            limit,
            home: None,
            undo: "ROLLBACK".to_owned(),
            acts: Acts::Whenever,
            priority: Priority::Urgent,
        }
    }

    /// Whether a batch that met others is done again. One that waited for a locked row would wait for it again: it does so only to
    /// enter a queue. Renewals must have time left in which each claim is renewed alone.
    fn may_try_again(&self, error: &sqlx::Error, until: Instant) -> bool {
        let is_patient = self.acts == Acts::InTime || !error::is_wait(error);
        let least = if is_patient { Duration::ZERO } else { self.limit * 2 / 3 };
        Instant::now() + least < until
    }
}

/// Place for one session.
struct Lane {
    calls: Calls,
    link: Link<Dial>,
    is_open: AtomicBool,
    /// Time of the last failure to open the session, if it has not been opened since.
    failed: Mutex<Option<Instant>>,
}

impl Lane {
    fn new(config: &MysqlConfig) -> Result<Self> {
        let dial = Dial::new(config.clone())?;
        Ok(Self {
            calls: dial.calls(),
            link: Link::new(STORE, config.timeout, dial),
            is_open: AtomicBool::default(),
            failed: Mutex::default(),
        })
    }

    fn note(&self, is_open: bool) {
        self.is_open.store(is_open, Relaxed);
        let failed = (!is_open).then(Instant::now);
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = failed;
    }

    fn has_failed(&self) -> bool {
        let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|at| at.elapsed() < LANE_BACK_OFF)
    }

    /// Gives up the session of a call that has failed.
    fn give_up(&self, live: &Live<Arc<Line>>, error: Error) -> Error {
        self.is_open.store(false, Relaxed);
        self.link.give_up(live, error)
    }
}

/// The sessions of one client.
pub(crate) struct Connection {
    /// If there are several, the first is reserved for urgent calls.
    lanes: Vec<Lane>,
    /// How many sessions have ended before their time.
    ended: AtomicU64,
    pub(crate) waits: Waits,
    pub(crate) tables: Tables,
    limit: Duration,
}

impl Connection {
    /// Connects, and makes the tables if they are not there.
    pub(crate) async fn open(config: &MysqlConfig) -> Result<Self> {
        let dial = || Dial::new(config.clone());
        let connection = Self {
            lanes: (0..config.connections).map(|_| Lane::new(config)).collect::<Result<_>>()?,
            ended: AtomicU64::default(),
            waits: Waits::new(Arc::new(dial()?)),
            tables: config.tables(),
            limit: config.timeout,
        };
        connection.prepare().await?;
        Ok(connection)
    }

    /// How many sessions have ended before their time, until now. Of one that does nothing this is not known.
    pub(crate) fn sessions_ended(&self) -> u64 {
        self.ended.load(Relaxed)
    }

    /// How long a call about a claim with this ttl may take.
    pub(crate) fn limit(&self, ttl: Duration) -> Duration {
        self.limit.min(ttl / 3).max(Duration::from_millis(1))
    }

    /// How long any other call may take.
    pub(crate) fn longest(&self) -> Duration {
        self.limit
    }

    /// Does a batch. Makes the tables if they are gone: the server has lost its data.
    ///
    /// # Errors
    /// After any error but the server's refusal, the batch may or may not have been done.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Answer> {
        match self.do_it(&call).await {
            Err(error) if error::lacks_tables(&error) => {
                self.prepare().await?;
                self.do_it(&call).await
            }
            outcome => outcome,
        }
    }

    /// Does a batch about tables that are none of dlock's.
    ///
    /// # Errors
    /// As [`call`](Self::call). That a table is not there is one of them.
    pub(crate) async fn refusable(&self, call: Call<'_>) -> Result<Answer> {
        self.do_it(&call).await
    }

    /// Makes the tables if they are not there, and checks their version.
    pub(crate) async fn prepare(&self) -> Result<()> {
        let Tables { store, fence, queue } = &self.tables;
        let call = Call::new(VERSION.with(&[("store", store)]), self.limit);
        let version = match self.do_it(&call).await {
            // A client that makes the tables may have ended, or may not have come to the version yet.
            Ok(answer) if !answer.rows.is_empty() => answer,
            Err(error) if !error::lacks_tables(&error) => return Err(error),
            _ => {
                let values = [
                    ("store", store.as_str()),
                    ("fence", fence),
                    ("queue", queue),
                    ("buckets", &keys::buckets()),
                ];
                // The disk may take its time for three new tables.
                let mut make = Call::new(SCHEMA.with(&values), self.limit * 2);
                make.undo = "ROLLBACK; SET SESSION lock_wait_timeout = 1".to_owned();
                self.do_it(&make).await?;
                self.do_it(&call).await?
            }
        };
        let found = version.rows.first().ok_or_else(|| STORE.garbled("a look at the tables"))?;
        let found: u32 = found.try_get_unchecked(0).map_err(error::explain)?;
        if found > TABLES {
            return Err(STORE.refused(format!(
                "the tables are of version {found}, and this dlock knows versions up to {TABLES}"
            )));
        }
        Ok(())
    }

    /// A batch that meets other transactions is done again while time is left. So is a batch whose session breaks, once, on another
    /// session: often only the next call notices that an idle session has ended. All batches of this crate may be done twice, and
    /// those that must not act behind their caller's back look at the clock.
    async fn do_it(&self, call: &Call<'_>) -> Result<Answer> {
        let (until, mut twice, mut breaks, mut conflicts) = (Instant::now() + call.limit, false, 0, 0);
        let (mut home, mut unopened) = (call.home, 0);
        loop {
            let at_home = match home.take() {
                Some(line) => {
                    let _counted = Counted::count(&line.calls);
                    on_line(line, call, until).await
                }
                None => None,
            };
            let (line, live, outcome) = match at_home {
                Some(outcome) => (call.home.map(Arc::clone), None, outcome),
                None => {
                    let (lane, _counted) = self.least_busy(call.priority);
                    let live = match timeout_at(until, lane.link.live()).await {
                        Ok(Ok(live)) => live,
                        // The server may allow fewer sessions than there are lanes.
                        Ok(Err(error)) => {
                            lane.note(false);
                            unopened += 1;
                            if unopened < self.lanes.len() && self.lanes.iter().any(|lane| !lane.has_failed())
                            {
                                continue;
                            }
                            return Err(error);
                        }
                        Err(_) => {
                            lane.note(false);
                            return Err(STORE.late(call.limit));
                        }
                    };
                    lane.note(true);
                    let outcome = on_line(&live.connection, call, until).await;
                    let Some(outcome) = outcome else {
                        lane.give_up(&live, STORE.unavailable("the session has ended"));
                        continue;
                    };
                    (Some(Arc::clone(&live.connection)), Some((lane, live)), outcome)
                }
            };
            let error = match outcome {
                Outcome::Done(rows, changed) => {
                    if let Some((lane, _)) = &live {
                        lane.link.note_answer();
                    }
                    let line = line.ok_or_else(|| STORE.garbled("a call"))?;
                    return Ok(Answer { rows, changed, line, twice });
                }
                Outcome::NotBegun => return Err(STORE.late(call.limit)),
                Outcome::Late => return Err(give_up(live.as_ref(), STORE.late(call.limit))),
                Outcome::Failed(error)
                    if error::is_conflict(&error)
                        && conflicts < TRIES
                        && call.may_try_again(&error, until) =>
                {
                    conflicts += 1;
                    twice = true;
                    home = call.home;
                    continue;
                }
                Outcome::Failed(error) => error,
            };
            if !error::is_broken(&error) {
                return Err(error::explain(error));
            }
            let error = give_up(live.as_ref(), error::explain(error));
            self.ended.fetch_add(1, Relaxed);
            // Each refusal of a read-only server ends a session from before, and new ones are on another server.
            breaks += usize::from(!error::is_read_only(&error));
            if breaks > 1 || Instant::now() >= until {
                return Err(error);
            }
            twice = true;
        }
    }

    /// The lane with the fewest calls that can be used, and the count of one more.
    fn least_busy(&self, priority: Priority) -> (&Lane, Counted<'_>) {
        let rank = |(at, lane): &(usize, &Lane)| {
            let is_reserved = *at == 0 && priority == Priority::Attempt;
            let is_opening = priority == Priority::Urgent && !lane.is_open.load(Relaxed);
            let calls = lane.calls.load(Relaxed) + if is_opening { OPENING } else { 0 };
            (lane.has_failed(), is_reserved, calls)
        };
        let (_, lane) = self.lanes.iter().enumerate().min_by_key(rank).unwrap_or((0, &self.lanes[0]));
        (lane, Counted::count(&lane.calls))
    }
}

/// How many calls a session has, and those before it in its place.
type Calls = Arc<AtomicUsize>;

/// Counts a call until it is dropped.
struct Counted<'a>(&'a Calls);

impl<'a> Counted<'a> {
    fn count(calls: &'a Calls) -> Self {
        calls.fetch_add(1, Relaxed);
        Self(calls)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

enum Outcome {
    Done(Vec<MySqlRow>, Vec<u64>),
    Failed(sqlx::Error),
    /// The session was busy with other calls until the time was over.
    NotBegun,
    /// The server has not answered in time. The session is given up.
    Late,
}

/// Does a batch on one session; `None` if that session has ended. A session that may still be busy with the batch is ended, and
/// so is one whose call is dropped.
async fn on_line(line: &Line, call: &Call<'_>, until: Instant) -> Option<Outcome> {
    let _next = match call.priority {
        Priority::Urgent => None,
        Priority::Attempt => match timeout_at(until, line.attempts.lock()).await {
            Ok(next) => Some(next),
            Err(_) => return Some(Outcome::NotBegun),
        },
    };
    let Ok(mut slot) = timeout_at(until, line.session.lock()).await else { return Some(Outcome::NotBegun) };
    if !line.has_time(call.acts, until) {
        return Some(Outcome::NotBegun);
    }
    let began = Instant::now();
    let mut session = slot.take().filter(|_| !line.ends.load(Relaxed))?;
    let outcome = match timeout_at(until, session.run(line, call, until)).await {
        Err(_) => return Some(Outcome::Late),
        Ok(Ok((rows, changed))) => {
            let round_trip = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            line.round_trip.fetch_min(round_trip, Relaxed);
            Outcome::Done(rows, changed)
        }
        Ok(Err(error)) if error::is_broken(&error) => return Some(Outcome::Failed(error)),
        Ok(Err(error)) => match timeout_at(until, run(&mut session.connection, &call.undo)).await {
            Ok(Ok(_)) => Outcome::Failed(error),
            Err(_) | Ok(Err(_)) => return Some(Outcome::Failed(error)),
        },
    };
    *slot = Some(session);
    drop(slot);
    line.end_if_told();
    Some(outcome)
}

pub(crate) type Told = (Vec<MySqlRow>, Vec<u64>);

impl Session {
    /// Does the batch. If it must act in time, it may do so for half of the time that is left: the rest is for the commit and the
    /// way back.
    async fn run(&mut self, line: &Line, call: &Call<'_>, until: Instant) -> sqlx::Result<Told> {
        if call.acts != Acts::InTime {
            return run(&mut self.connection, &call.batch).await;
        }
        let is_doubted = line.doubts_clock.swap(false, Relaxed);
        let clock = self.clock.filter(|(_, read)| !is_doubted && read.elapsed() < CLOCK_HOLDS);
        let (clock, read) = match clock {
            Some(clock) => clock,
            None => self.read_clock().await?,
        };
        let half_of_the_rest = until.saturating_duration_since(Instant::now()) / 2;
        let until = u128::from(clock) + (read.elapsed() + half_of_the_rest).as_micros();
        run(&mut self.connection, &call.batch.replace(UNTIL, &until.to_string())).await
    }

    async fn read_clock(&mut self) -> sqlx::Result<(u64, Instant)> {
        let (rows, _) = run(&mut self.connection, &CLOCK.with(&[])).await?;
        let clock = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get_unchecked(0)?;
        Ok(*self.clock.insert((clock, Instant::now())))
    }
}

/// Sends a batch and reads all answers.
pub(crate) async fn run(session: &mut MySqlConnection, batch: &str) -> sqlx::Result<Told> {
    let (mut rows, mut changed) = (Vec::new(), Vec::new());
    let mut answers = sqlx::raw_sql(AssertSqlSafe(batch)).fetch_many(session);
    while let Some(answer) = answers.try_next().await? {
        match answer {
            Either::Left(done) => changed.push(done.rows_affected()),
            Either::Right(row) => rows.push(row),
        }
    }
    drop(answers);
    Ok((rows, changed))
}

fn give_up(live: Option<&(&Lane, Live<Arc<Line>>)>, error: Error) -> Error {
    match live {
        Some((lane, live)) => lane.give_up(live, error),
        None => error,
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
