//! One claim to an advisory lock.

use std::{future::pending, mem, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Error, Kind, LockName, Result, Token, Wait,
    driver::{Attempt, Claim, Grant, Release, Renewal, Request},
};
use futures_util::FutureExt as _;
use tokio::time::timeout;
use tokio_postgres::SimpleQueryRow;

use super::{
    client::AdvisoryClient,
    comment::{ClaimComment, SHOWN_LENGTH},
    key::Key,
    session::{AdvisorySession, PendingStatement},
};
use crate::{
    connection::text_column,
    error::{self, STORE},
    keys,
    sql::{self, advisory},
};

/// Maximum silence of a session that has just been granted the lock it waited for. Its client sends
/// the next statement at once. A session whose client has vanished delays the next waiter for no
/// longer than this.
const FIRST_SILENCE: Duration = Duration::from_secs(2);

/// Time for the last reply of a session that the server has ended to arrive. Afterwards its connection
/// counts as broken.
const LAST_REPLY: Duration = Duration::from_millis(200);

/// Time limit for a session to reply after its statement was cancelled.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum length of a session's application name, in bytes. The server cuts longer names.
const LONGEST_APPLICATION_NAME: usize = 63;

pub(super) struct AdvisoryClaim {
    client: Arc<AdvisoryClient>,
    request: Request,
    /// Comment of the statements after which the session owns the lock.
    comment: String,
    /// Present if the comment is too long for the server's list of sessions. The client then lists the
    /// name by itself.
    _long_name: Option<Arc<LockName>>,
    state: State,
}

#[derive(Default)]
enum State {
    /// No session owns the lock for this claim, or waits for it.
    #[default]
    Idle,
    /// The session waits for the lock.
    Waiting(Arc<AdvisorySession>, PendingStatement),
    /// The wait has ended, and its reply was not read yet.
    WaitEnded(Arc<AdvisorySession>, Result<SimpleQueryRow>),
    /// The session owns the lock, with this token.
    Held(Arc<AdvisorySession>, Token),
    /// The session may own the lock, and may execute a statement.
    Unknown(Arc<AdvisorySession>),
    /// The claim has lost the lock. The server may not have ended its session yet.
    Lost(Arc<AdvisorySession>),
}

/// A way to take a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Take {
    Try,
    Wait,
}

impl AdvisoryClaim {
    pub(super) fn new(client: Arc<AdvisoryClient>, request: Request) -> Self {
        let comment = ClaimComment::of(&request).text();
        let long_name = (comment.len() > SHOWN_LENGTH)
            .then(|| client.long_names.get_or_insert_with(&request.id.to_string(), || request.name.clone()));
        Self { client, request, comment, _long_name: long_name, state: State::Idle }
    }

    /// Returns the time limit of a call about this claim.
    fn time_limit(&self) -> Duration {
        self.request.time_limit(self.client.timeout())
    }

    fn key(&self) -> Result<Key> {
        Key::of(&self.request.name, self.client.key_rule)
    }

    /// Returns the name of a lock function in the form for the claim's kind.
    fn function(&self, name: &str) -> String {
        if self.request.kind == Kind::Read { format!("{name}_shared") } else { name.to_owned() }
    }

    /// Returns the statement that takes the lock.
    fn take_statement(&self, session: &AdvisorySession, take: Take) -> Result<String> {
        let Request { name, ttl, who, .. } = &self.request;
        let (function, silence) = match take {
            Take::Try => ("pg_try_advisory_lock", *ttl),
            Take::Wait => ("pg_advisory_lock", FIRST_SILENCE.min(*ttl)),
        };
        Ok(sql::fill(
            advisory::TAKE,
            &[
                ("comment", &self.comment),
                ("tag", &session.id.tag),
                ("function", &self.function(function)),
                ("key", &self.key()?.arguments()),
                ("schema", &format!("\"{}\"", self.client.connection.location().schema())),
                ("bucket", &keys::bucket(name).to_string()),
                ("silence", &milliseconds(silence)),
                ("who", &application_name(who.text())),
            ],
        ))
    }

    /// Tries to take the lock on an idle session, or on a new one. Begins to wait for it if another
    /// session owns it.
    async fn begin(&mut self) -> Result<Attempt> {
        if let State::Unknown(session) | State::Lost(session) = &self.state {
            let session = Arc::clone(session);
            self.end_session(session, self.time_limit() / 2).await?;
        }
        // Also refuses a name that is no key before any I/O.
        self.key()?;
        while let Some(session) = self.client.take_idle() {
            match self.take_on(&session).await {
                // The server may have ended the session while it was idle.
                Err(_) if session.has_ended() => self.end_session(session, self.time_limit() / 2).await?,
                result => return result,
            }
        }
        let session = self.client.open_session().await?;
        self.take_on(&session).await
    }

    async fn take_on(&mut self, session: &Arc<AdvisorySession>) -> Result<Attempt> {
        let statement = self.take_statement(session, Take::Try)?;
        // Until the reply arrives, the session may own the lock.
        self.state = State::Unknown(Arc::clone(session));
        let reply = session.statement(statement).await;
        let attempt = self.read_take(session, reply).await?;
        if attempt.is_none() && self.request.wait != Wait::Never {
            let mut waiting = session.statement(self.take_statement(session, Take::Wait)?);
            // Sends the statement. The lock may have been released since the try.
            self.state = match (&mut waiting).now_or_never() {
                Some(reply) => State::WaitEnded(Arc::clone(session), reply),
                None => State::Waiting(Arc::clone(session), waiting),
            };
            return Ok(Attempt::Busy { retry_in: Duration::MAX });
        }
        if attempt.is_none() {
            self.client.keep_idle(Arc::clone(session));
        }
        Ok(attempt.unwrap_or(Attempt::Busy { retry_in: self.request.ttl }))
    }

    /// Reads the reply to a request for the lock. Returns `None` if another session owns the lock.
    /// After an error, the session may own the lock, and releases it.
    async fn read_take(
        &mut self,
        session: &Arc<AdvisorySession>,
        reply: Result<SimpleQueryRow>,
    ) -> Result<Option<Attempt>> {
        self.state = State::Unknown(Arc::clone(session));
        let row = match reply {
            Ok(row) => row,
            Err(error) => return Err(self.clear_after(session, error).await),
        };
        let Ok(number) = text_column(&row, "token").parse::<u64>() else {
            // The statement was executed on another session.
            self.state = State::Idle;
            return Err(STORE.refused(error::SHARED_SESSIONS));
        };
        let Some(token) = Token::new(number) else {
            self.state = State::Idle;
            return Ok(None);
        };
        self.state = State::Held(Arc::clone(session), token);
        Ok(Some(Attempt::Granted(Grant { token: Some(token), valid_for: self.request.ttl })))
    }

    /// Releases all locks of a session after an error, and returns the error. Creates the schema again
    /// if it is missing, because the server has lost its data.
    async fn clear_after(&mut self, session: &Arc<AdvisorySession>, error: Error) -> Error {
        // If that fails, the next call ends the session.
        self.clear(Arc::clone(session)).await.ok();
        if !error::lacks_schema(&error) {
            return error;
        }
        match self.client.connection.create_schema().await {
            Ok(()) => STORE.unavailable("the schema was missing, and has been created again"),
            Err(error) => error,
        }
    }

    /// Reads the reply to a wait.
    async fn end_wait(
        &mut self,
        session: &Arc<AdvisorySession>,
        reply: Result<SimpleQueryRow>,
    ) -> Result<Attempt> {
        match self.read_take(session, reply).await? {
            Some(_) => self.confirm().await,
            None => Ok(Attempt::Busy { retry_in: Duration::ZERO }),
        }
    }

    /// Returns the grant of the lock that the session owns. The server may have granted it long ago, so
    /// the hold is valid from a renewal on.
    async fn confirm(&mut self) -> Result<Attempt> {
        match (self.check().await?, &self.state) {
            (true, State::Held(_, token)) => {
                Ok(Attempt::Granted(Grant { token: Some(*token), valid_for: self.request.ttl }))
            }
            _ => Err(session_has_ended()),
        }
    }

    /// Renews the hold. Returns whether the session still owns the lock. The session may then be silent
    /// for the ttl, which the server counts from a time after this call began.
    async fn check(&mut self) -> Result<bool> {
        let State::Held(session, _) = &self.state else { return Ok(false) };
        let session = Arc::clone(session);
        let statement = sql::fill(
            advisory::RENEW,
            &[
                ("comment", &self.comment),
                ("tag", &session.id.tag),
                ("silence", &milliseconds(self.request.ttl)),
            ],
        );
        let reply = match session.has_ended() {
            false => STORE.with_timeout(self.time_limit(), session.statement(statement)).await,
            true => Err(session_has_ended()),
        };
        let is_lost = match &reply {
            Ok(row) => text_column(row, "is_own") != "true",
            // A claim without its session has lost the lock, even if the server has not noticed yet.
            Err(error) => session.has_ended() || error::ended_session(error),
        };
        if is_lost {
            self.state = State::Lost(session);
            return Ok(false);
        }
        reply.map(|_| true)
    }

    /// Releases the lock on a session that owns it.
    async fn release_on(&mut self, session: Arc<AdvisorySession>) -> Result<Release> {
        self.state = State::Unknown(Arc::clone(&session));
        let statement = sql::fill(
            advisory::RELEASE,
            &[
                ("tag", &session.id.tag),
                ("function", &self.function("pg_advisory_unlock")),
                ("key", &self.key()?.arguments()),
            ],
        );
        let released = timeout(self.client.timeout(), session.statement(statement)).await;
        match released {
            Ok(Ok(row)) if text_column(&row, "had_lock") == "true" => {
                self.state = State::Idle;
                self.client.keep_idle(session);
                Ok(Release::Done)
            }
            // Another program has released the locks of the session, as a connection pooler lets it.
            Ok(Ok(_)) => {
                self.state = State::Lost(Arc::clone(&session));
                self.end_session(session, self.client.timeout()).await?;
                Ok(Release::Gone)
            }
            // The lock has ended with the session.
            Ok(Err(_)) if session.was_ended_by_server() => {
                self.state = State::Idle;
                Ok(Release::Gone)
            }
            Ok(Err(_)) | Err(_) => {
                self.end_session(session, self.client.timeout()).await?;
                Ok(Release::Done)
            }
        }
    }

    /// Ends the statement of a session, and releases the lock if the session owns it.
    async fn stop(
        &mut self,
        session: Arc<AdvisorySession>,
        mut statement: PendingStatement,
    ) -> Result<Release> {
        self.state = State::Unknown(Arc::clone(&session));
        let limit = STOP_TIMEOUT.min(self.client.timeout());
        let is_cancelled = self.client.cancel(&session.id, limit).await.is_ok();
        if is_cancelled && timeout(limit, &mut statement).await.is_ok() {
            self.clear(session).await?;
        } else {
            self.end_session(session, self.client.timeout()).await?;
        }
        Ok(Release::Done)
    }

    /// Releases all locks of a session that executes no statement. Ends the session if it does not
    /// confirm that.
    async fn clear(&mut self, session: Arc<AdvisorySession>) -> Result<()> {
        self.state = State::Unknown(Arc::clone(&session));
        let statement = sql::fill(advisory::CLEAR, &[("tag", &session.id.tag)]);
        let cleared = timeout(self.client.timeout(), async {
            match session.statement(statement.clone()).await {
                // A request to cancel the wait may have cancelled this statement.
                Err(error) if error::was_cancelled(&error) => session.statement(statement).await,
                reply => reply,
            }
        });
        if let Ok(Ok(row)) = cleared.await
            && text_column(&row, "is_own") == "true"
        {
            self.state = State::Idle;
            self.client.keep_idle(session);
            return Ok(());
        }
        self.end_session(session, self.client.timeout()).await
    }

    /// Ends a session, and waits until the session owns no lock.
    ///
    /// # Errors
    /// If the server does not confirm that within `limit`. The state of the claim stays as it is, and the
    /// session may keep the lock until the ttl has passed.
    async fn end_session(&mut self, session: Arc<AdvisorySession>, limit: Duration) -> Result<()> {
        if !session.was_ended_by_server() {
            self.client.terminate(&session.id, limit).await?;
        }
        self.state = State::Idle;
        Ok(())
    }

    /// Handles a wait that has not ended. The end of a connection that breaks in silence is never
    /// received, so the server is asked on another session whether this one is alive.
    async fn continue_waiting(
        &mut self,
        session: Arc<AdvisorySession>,
        mut statement: PendingStatement,
    ) -> Result<Attempt> {
        let is_alive = self.client.is_alive(&session.id, self.time_limit()).await;
        if !matches!(is_alive, Ok(false)) {
            self.state = State::Waiting(session, statement);
            return Ok(Attempt::Busy { retry_in: Duration::MAX });
        }
        match timeout(LAST_REPLY, &mut statement).await {
            Ok(reply) => {
                self.state = State::WaitEnded(session, reply);
                Ok(Attempt::Busy { retry_in: Duration::ZERO })
            }
            Err(_) => Err(session_has_ended()),
        }
    }
}

#[async_trait]
impl Claim for AdvisoryClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let limit = self.time_limit();
        let (session, reply) = match mem::take(&mut self.state) {
            State::Waiting(session, mut statement) => match (&mut statement).now_or_never() {
                Some(reply) => (session, reply),
                None => return self.continue_waiting(session, statement).await,
            },
            State::WaitEnded(session, reply) => (session, reply),
            state @ State::Held(..) => {
                self.state = state;
                return self.confirm().await;
            }
            state => {
                self.state = state;
                return STORE.with_timeout(limit, self.begin()).await;
            }
        };
        STORE.with_timeout(limit, self.end_wait(&session, reply)).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        Ok(match self.check().await? {
            true => Renewal::Renewed { valid_for: self.request.ttl },
            false => Renewal::Lost,
        })
    }

    async fn release(&mut self) -> Result<Release> {
        match mem::take(&mut self.state) {
            State::Idle => Ok(Release::Gone),
            State::Waiting(session, statement) => self.stop(session, statement).await,
            State::WaitEnded(session, _) => self.clear(session).await.map(|()| Release::Done),
            State::Held(session, _) => self.release_on(session).await,
            State::Unknown(session) => {
                self.state = State::Unknown(Arc::clone(&session));
                self.end_session(session, self.client.timeout()).await.map(|()| Release::Done)
            }
            State::Lost(session) => {
                self.state = State::Lost(Arc::clone(&session));
                self.end_session(session, self.client.timeout()).await.map(|()| Release::Gone)
            }
        }
    }

    /// Also returns when the session that owns the lock has ended.
    async fn changed(&mut self) {
        match &mut self.state {
            State::Waiting(session, statement) => {
                let session = Arc::clone(session);
                let reply = statement.await;
                self.state = State::WaitEnded(session, reply);
            }
            State::WaitEnded(..) => {}
            State::Held(session, _) => session.until_ended().await,
            State::Idle | State::Unknown(_) | State::Lost(_) => pending().await,
        }
    }
}

fn session_has_ended() -> Error {
    STORE.unavailable("the session of the claim has ended")
}

/// Returns the number of whole milliseconds that are not less than a duration.
fn milliseconds(duration: Duration) -> String {
    duration.as_micros().div_ceil(1000).to_string()
}

/// Returns the application name of a session, which names its claim in the server's list of sessions.
fn application_name(who: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " ._:;,@-+/()".contains(c);
    let name = who.chars().map(|c| if is_plain(c) { c } else { '?' });
    "dlock ".chars().chain(name).take(LONGEST_APPLICATION_NAME).collect()
}
