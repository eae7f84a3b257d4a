//! One claim to a named lock.

use std::{future::pending, mem, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Error, Result, Token, Wait,
    driver::{Attempt, Claim, Grant, Moment, Release, Renewal, Request},
};
use futures_util::future::join;
use sqlx::mysql::MySqlConnection;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    client::{NamedClient, PendingStatement, SessionId, SessionReply, execute},
    comment::ClaimComment,
    watch::{Check, Hold, watch_seconds},
};
use crate::{
    error::{self, STORE},
    keys,
    sql::{
        Batch, NAMED_KILL, NAMED_RELEASE, NAMED_RENEW, NAMED_STOP, NAMED_TAKE, NAMED_WATCH, column, expect,
        flag, literal,
    },
};

/// Time for which the server lets a session wait, in seconds: one year. Both servers accept it.
const LONGEST_WAIT: u32 = 31_536_000;

/// Maximum silence of a session that has just been granted the lock it waited for. Its client sends
/// the next statement at once. A session whose client has vanished delays the next waiter for no
/// longer than this.
const FIRST_SILENCE: Duration = Duration::from_secs(2);

/// Time for the last reply of a session that the server has ended to arrive. Afterwards its
/// connection counts as broken.
const LAST_REPLY: Duration = Duration::from_millis(200);

/// Time limit for a session to reply after its statement was killed.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) struct NamedClaim {
    client: Arc<NamedClient>,
    request: Request,
    state: State,
    /// Identifies the session that the claim used last.
    session: SessionId,
}

#[derive(Default)]
enum State {
    /// The server has no state of the claim.
    #[default]
    Idle,
    /// The session waits for the lock.
    Waiting(PendingStatement),
    /// The wait has ended, and its reply was not read yet.
    WaitEnded(SessionReply),
    /// The session owns the lock, and executes no statement.
    Acquired(Hold, MySqlConnection),
    /// The session owns the lock, and executes a watch or a renewal.
    Checking(Hold, Check),
    /// The watch or the renewal, which was sent at this time, has ended. Its reply was not read
    /// yet.
    Checked(Hold, SessionReply, Moment),
    /// The claim has no connection to its session. The session may be alive and own the lock.
    Abandoned,
    /// The session has lost the lock. The client may still own the anchor of the session's watch.
    Lost(Hold),
}

/// The end of a check.
struct CheckEnd {
    hold: Hold,
    reply: SessionReply,
    sent: Moment,
    /// Time before the release of the anchor, if the watch waited until then.
    released: Option<Moment>,
}

impl NamedClaim {
    pub(super) fn new(client: Arc<NamedClient>, request: Request) -> Self {
        Self { client, request, state: State::Idle, session: SessionId::default() }
    }

    /// Returns the time limit of a call about this claim.
    fn timeout(&self) -> Duration {
        self.request.time_limit(self.client.timeout())
    }

    fn lock_literal(&self) -> Result<String> {
        Ok(keys::named_literal(&keys::named_lock(&self.request.name, self.client.names)?))
    }

    /// Returns the text of a batch about the lock. `seconds` is the time for which it waits.
    fn sql(&self, batch: &Batch, seconds: u32) -> Result<String> {
        let silence = if seconds > 0 { FIRST_SILENCE.min(self.request.ttl) } else { self.request.ttl };
        Ok(batch.with(&[
            ("lock", &self.lock_literal()?),
            ("name", &literal(self.request.name.as_str().as_bytes())),
            ("fence", &self.client.fence),
            ("seconds", &seconds.to_string()),
            ("table_wait", &seconds.max(1).to_string()),
            ("silence", &silence.as_millis().div_ceil(1000).to_string()),
            ("anchor", &keys::bell_literal(self.request.id)),
            ("comment", &ClaimComment::of(&self.request).text()),
            ("session", &self.session.connection_id.to_string()),
        ]))
    }

    /// Tries to take the lock on an idle session, or on a new one. From then on the session may be
    /// silent for at most the claim's ttl.
    async fn take_lock(&mut self) -> Result<Attempt> {
        if let State::Abandoned = self.state {
            self.end_session().await?;
        }
        if let Some((session, id)) = self.client.take_idle() {
            match self.take_lock_on(session, id).await {
                // The server may have ended the session while it was idle.
                Err(error) if error::ended_session(&error) => {
                    if let State::Abandoned = self.state {
                        self.end_session().await?;
                    }
                }
                result => return self.create_missing_tables(result).await,
            }
        }
        let (session, id) = self.client.open().await?;
        let result = self.take_lock_on(session, id).await;
        self.create_missing_tables(result).await
    }

    /// Creates the tables if the server has lost its data. The next attempt then finds them.
    async fn create_missing_tables(&mut self, result: Result<Attempt>) -> Result<Attempt> {
        match result {
            Err(error) if error::lacks_tables(&error) => {
                self.client.connection.create_tables().await?;
                Err(STORE.unavailable("the tables were missing, and have been created again"))
            }
            result => result,
        }
    }

    async fn take_lock_on(&mut self, session: MySqlConnection, id: SessionId) -> Result<Attempt> {
        self.session = id;
        let batch = self.sql(&NAMED_TAKE, 0)?;
        // Until the reply arrives, the session may own the lock.
        self.state = State::Abandoned;
        let reply = execute(session, batch).await;
        self.read_take(reply).await
    }

    /// Reads the reply to a request for the lock. After an error of the server the session may own
    /// the lock, and releases it.
    async fn read_take(&mut self, (session, row): SessionReply) -> Result<Attempt> {
        self.state = State::Abandoned;
        let (session, row) = match (session, row) {
            (Some(session), Ok(row)) => (session, row),
            (Some(session), Err(error)) => {
                // If the release fails, `release_on` ends the session.
                self.release_on(session).await.ok();
                return Err(error);
            }
            (None, row) => return Err(row.err().unwrap_or_else(session_has_ended)),
        };
        let row = expect(row.as_ref(), "a named lock")?;
        let result: i64 = column(row, "result")?;
        self.state = State::Idle;
        match result {
            1 => {
                let number: u64 = column(row, "token")?;
                if number == 0 {
                    self.release_on(session).await.ok();
                    return Err(STORE.refused(error::INCOMPLETE_FENCE));
                }
                let token = Token::new(number);
                self.state = State::Acquired(Hold::new(token), session);
                Ok(Attempt::Granted(Grant { token, valid_for: self.request.ttl }))
            }
            0 if self.request.wait == Wait::Never => {
                self.client.keep_idle(session, self.session.clone());
                Ok(Attempt::Busy { retry_in: self.request.ttl })
            }
            0 => {
                let wait = self.sql(&NAMED_TAKE, LONGEST_WAIT)?;
                self.state = State::Waiting(Box::pin(execute(session, wait)));
                Ok(Attempt::Busy { retry_in: Duration::MAX })
            }
            -2 => Err(STORE.refused(error::SWAPPED_SESSIONS)),
            _ => {
                self.release_on(session).await.ok();
                Err(STORE.unavailable("the server ended the wait"))
            }
        }
    }

    /// Checks whether the session of a hold still owns the lock. Returns the time for which the
    /// hold is valid from now on, or `None` if the lock is lost. A check whose reply is late stays
    /// in flight, and the next call waits for it.
    async fn check(&mut self) -> Result<Option<Duration>> {
        let deadline = Instant::now() + self.timeout();
        loop {
            let confirmed = match self.next_confirmation(deadline).await {
                // A `KILL` ended the statement, and perhaps the session. A further check shows
                // which.
                Err(error) if error::was_interrupted(&error) && Instant::now() < deadline => continue,
                result => result?,
            };
            let Some(confirmed) = confirmed else { return Ok(None) };
            // A watch that was sent long ago confirms the hold for little of the ttl. Another check
            // follows.
            if confirmed.elapsed() <= self.request.ttl / 3 {
                return Ok(Some(self.request.ttl.saturating_sub(confirmed.elapsed())));
            }
        }
    }

    /// Waits for the next reply of the session that owns the lock. Returns the time from which the
    /// server counts the session's silence, or `None` if the session has ended or does not own the
    /// lock.
    async fn next_confirmation(&mut self, deadline: Instant) -> Result<Option<Moment>> {
        let end = match mem::take(&mut self.state) {
            State::Checked(hold, reply, sent) => CheckEnd { hold, reply, sent, released: None },
            State::Acquired(hold, session) => {
                let check = Check::new(session, self.sql(&NAMED_RENEW, 0)?);
                self.finish_check(hold, check, deadline).await?
            }
            State::Checking(hold, check) => self.finish_check(hold, check, deadline).await?,
            state => {
                self.state = state;
                return Ok(None);
            }
        };
        let CheckEnd { mut hold, reply: (session, row), sent, released } = end;
        // A claim without its session has lost the lock, even if the server has not noticed yet.
        let Some(session) = session else {
            self.state = State::Lost(hold);
            return Ok(None);
        };
        let row = match row {
            Ok(row) => row,
            Err(error) if error::was_interrupted(&error) || !error::ended_session(&error) => {
                self.state = State::Acquired(hold, session);
                return Err(error);
            }
            Err(_) => {
                self.state = State::Lost(hold);
                return Ok(None);
            }
        };
        let row = expect(row.as_ref(), "a named lock")?;
        if !flag(row, "has_lock")? {
            self.state = State::Lost(hold);
            return Ok(None);
        }
        let got_anchor = flag(row, "got_anchor")?;
        if got_anchor {
            hold.clear_anchor();
        }
        // If the release of its anchor has ended the watch, the session was not silent before that
        // release.
        let confirmed = released.filter(|_| got_anchor).unwrap_or(sent);
        hold.record_confirmation();
        self.state = State::Acquired(hold, session);
        Ok(Some(confirmed))
    }

    /// Releases the anchor of a watch, and waits for the reply of the check.
    async fn finish_check(
        &mut self,
        mut hold: Hold,
        mut check: Check,
        deadline: Instant,
    ) -> Result<CheckEnd> {
        let now = Moment::now();
        let finished = timeout_at(deadline, async {
            let was_released = hold.release_anchor(&self.client, self.request.id).await;
            (was_released, (&mut check.statement).await)
        });
        match finished.await {
            Ok((was_released, reply)) => {
                Ok(CheckEnd { hold, reply, sent: check.sent, released: was_released.then_some(now) })
            }
            Err(_) => {
                self.state = State::Checking(hold, check);
                Err(STORE.timed_out(self.timeout()))
            }
        }
    }

    /// Releases the lock on a session that executes no statement.
    async fn release_on(&mut self, session: MySqlConnection) -> Result<Release> {
        let batch = self.sql(&NAMED_RELEASE, 0)?;
        self.state = State::Abandoned;
        let released = timeout(self.client.timeout(), async {
            match execute(session, batch.clone()).await {
                // A `KILL QUERY` that was to end the wait may have ended this statement.
                (Some(session), Err(_)) => execute(session, batch).await,
                reply => reply,
            }
        });
        match released.await {
            Ok((Some(session), Ok(row))) => {
                let had_lock = flag(expect(row.as_ref(), "a named lock")?, "had_lock")?;
                self.client.keep_idle(session, self.session.clone());
                self.state = State::Idle;
                Ok(if had_lock { Release::Done } else { Release::Gone })
            }
            // The connection had ended, and the lock with it.
            Ok((None, _)) => {
                self.state = State::Idle;
                Ok(Release::Gone)
            }
            Ok((Some(_), Err(_))) | Err(_) => self.end_session().await,
        }
    }

    /// Ends the statement of the session, and releases the lock if the session owns it.
    ///
    /// Ends a session only if it does not reply. A session of MySQL 8.0 may keep its lock after a
    /// `KILL`, until its `wait_timeout`.
    async fn stop(&mut self, mut statement: PendingStatement) -> Result<Release> {
        self.state = State::Abandoned;
        let kill = self.client.kill(NAMED_STOP.with(&[("tag", &self.session.tag)]));
        let stopped = timeout(STOP_TIMEOUT.min(self.client.timeout()), join(kill, &mut statement));
        match stopped.await {
            Ok((_, (Some(session), _))) => self.release_on(session).await.map(|_| Release::Done),
            Ok((_, (None, _))) => self.end_session().await,
            Err(_) => {
                drop(statement);
                self.end_session().await
            }
        }
    }

    /// Ends a session to which the claim has no connection, and waits until the session does not
    /// own the lock.
    ///
    /// # Errors
    /// If the server does not confirm that. The claim stays abandoned, and the session may keep
    /// the lock until the ttl has passed.
    async fn end_session(&mut self) -> Result<Release> {
        self.state = State::Abandoned;
        let (kill, lock) = (NAMED_KILL.with(&[("tag", &self.session.tag)]), self.lock_literal()?);
        let ended = async {
            if self.client.kill(kill).await? {
                self.client.until_freed(&lock, self.session.connection_id).await?;
            }
            Ok(())
        };
        STORE.with_timeout(self.client.timeout(), ended).await?;
        self.state = State::Idle;
        Ok(Release::Done)
    }

    /// Takes the lock, or begins to wait for it.
    async fn begin(&mut self) -> Result<Attempt> {
        let limit = self.timeout();
        let attempt =
            timeout(limit, self.take_lock()).await.unwrap_or_else(|_| Err(STORE.timed_out(limit)))?;
        // The lock may have been released between the two statements.
        if let State::Waiting(statement) = &mut self.state
            && let Ok(reply) = timeout(Duration::ZERO, statement).await
        {
            self.state = State::WaitEnded(reply);
            return Ok(Attempt::Busy { retry_in: Duration::ZERO });
        }
        Ok(attempt)
    }

    /// Continues a wait that has not ended, if its session is alive. Another session queries that,
    /// because a connection that breaks without a message never reports its end.
    async fn continue_waiting(&mut self, mut statement: PendingStatement) -> Result<Attempt> {
        let is_alive = timeout(self.timeout(), self.client.is_alive(&self.session)).await;
        if !matches!(is_alive, Ok(Ok(false))) {
            self.state = State::Waiting(statement);
            return Ok(Attempt::Busy { retry_in: Duration::MAX });
        }
        match timeout(LAST_REPLY, &mut statement).await {
            Ok(reply) => {
                self.state = State::WaitEnded(reply);
                Ok(Attempt::Busy { retry_in: Duration::ZERO })
            }
            Err(_) => Err(session_has_ended()),
        }
    }
}

#[async_trait]
impl Claim for NamedClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let attempt = match mem::take(&mut self.state) {
            state @ (State::Idle | State::Lost(_) | State::Abandoned) => {
                self.state = state;
                return self.begin().await;
            }
            State::Waiting(mut statement) => match timeout(Duration::ZERO, &mut statement).await {
                Ok(reply) => self.read_take(reply).await?,
                Err(_) => return self.continue_waiting(statement).await,
            },
            State::WaitEnded(reply) => self.read_take(reply).await?,
            state => {
                self.state = state;
                Attempt::Busy { retry_in: Duration::ZERO }
            }
        };
        let token = match &self.state {
            State::Acquired(hold, _) | State::Checking(hold, _) | State::Checked(hold, ..) => hold.token,
            _ => return Ok(attempt),
        };
        // The server may have granted the lock long ago. The hold is valid from this check on.
        match self.check().await? {
            Some(valid_for) => Ok(Attempt::Granted(Grant { token, valid_for })),
            None => Err(session_has_ended()),
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let valid_for = self.check().await?;
        Ok(valid_for.map_or(Renewal::Lost, |valid_for| Renewal::Renewed { valid_for }))
    }

    async fn release(&mut self) -> Result<Release> {
        match mem::take(&mut self.state) {
            State::Idle => Ok(Release::Gone),
            State::WaitEnded((Some(session), _)) => self.release_on(session).await,
            State::Waiting(statement) => self.stop(statement).await,
            State::WaitEnded((None, _)) | State::Abandoned => self.end_session().await,
            State::Lost(mut hold) => {
                hold.release_anchor(&self.client, self.request.id).await;
                Ok(Release::Gone)
            }
            State::Acquired(mut hold, session) => {
                let (client, id) = (Arc::clone(&self.client), self.request.id);
                join(self.release_on(session), hold.release_anchor(&client, id)).await.0
            }
            State::Checked(mut hold, (session, _), _) => {
                hold.release_anchor(&self.client, self.request.id).await;
                match session {
                    Some(session) => self.release_on(session).await,
                    None => Ok(Release::Gone),
                }
            }
            State::Checking(mut hold, mut check) => {
                let finished = timeout(self.client.timeout(), async {
                    hold.release_anchor(&self.client, self.request.id).await;
                    (&mut check.statement).await
                });
                match finished.await {
                    Ok((Some(session), _)) => self.release_on(session).await,
                    Ok((None, _)) => Ok(Release::Gone),
                    Err(_) => self.stop(check.statement).await,
                }
            }
        }
    }

    /// Also returns when the session that owns the lock has replied or has ended. The next `renew`
    /// distinguishes the two.
    async fn changed(&mut self) {
        loop {
            match &mut self.state {
                State::Waiting(statement) => {
                    let reply = statement.await;
                    self.state = State::WaitEnded(reply);
                }
                State::WaitEnded(_) | State::Checked(..) => return,
                State::Acquired(hold, _) => {
                    hold.until_watchable(&self.client, self.request.id).await;
                    let Ok(watch) = self.sql(&NAMED_WATCH, watch_seconds(self.request.ttl)) else { return };
                    self.state = match mem::take(&mut self.state) {
                        State::Acquired(hold, session) => State::Checking(hold, Check::new(session, watch)),
                        state => state,
                    };
                }
                State::Checking(hold, check) => {
                    // A request for the anchor occupies a shared session until its reply is read.
                    let reply = tokio::select! {
                        reply = &mut check.statement => reply,
                        () = hold.until_anchored() => continue,
                    };
                    self.state = match mem::take(&mut self.state) {
                        State::Checking(hold, check) => State::Checked(hold, reply, check.sent),
                        state => state,
                    };
                }
                State::Idle | State::Abandoned | State::Lost(_) => pending().await,
            }
        }
    }
}

fn session_has_ended() -> Error {
    STORE.unavailable("the session that waited has ended")
}
