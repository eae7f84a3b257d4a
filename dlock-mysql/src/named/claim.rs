//! One claim to a named lock. Over the usual length, so that all calls of a claim are in one file.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Error, Result, Token, Wait,
    driver::{Attempt, Claim, Grant, Moment, Release, Renewal, Request},
};
use futures_util::future::join;
use sqlx::mysql::MySqlConnection;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    Calling, Ended, Known, Named, call,
    mark::Mark,
    number,
    watch::{Asked, Held, rhythm},
};
use crate::{
    error::{self, STORE},
    keys,
    sql::{Batch, NAMED_KILL, NAMED_RELEASE, NAMED_RENEW, NAMED_STOP, NAMED_TAKE, NAMED_WATCH, literal},
};

/// How long the server lets a session wait, in seconds. Both servers take it.
const FOR_EVER: u32 = 31_536_000;

/// Longest time for which a session may be silent that has just got the lock it waited for. Its client answers at once; a session whose
/// client has vanished holds up the next waiter for no longer.
const FIRST_SILENCE: Duration = Duration::from_secs(2);

/// Time for the answer of a session that the server has ended to arrive, before its connection counts as broken.
const FAREWELL: Duration = Duration::from_millis(200);

/// How long a session may take that was told to end what it is at.
const STOP: Duration = Duration::from_millis(500);

pub(crate) struct NamedClaim {
    named: Arc<Named>,
    request: Request,
    state: State,
    /// What is known of the session that it was with last.
    known: Known,
}

enum State {
    /// Nothing is on the server.
    Outside,
    /// The session waits for the lock.
    Waits(Calling),
    /// The wait has ended.
    Called(Ended),
    /// The session has the lock, and does nothing.
    Holds(Held, MySqlConnection),
    /// The session has the lock, and is watched, or has not answered yet whether it lives.
    Asked(Held, Asked),
    /// The session had the lock, and has answered. With when it was asked.
    Told(Held, Ended, Moment),
    /// The session may have the lock, and nobody has it here: it was given up, or whoever had it is gone.
    GivenUp,
    /// The session has lost the lock. Its anchor may be left.
    Lost(Held),
}

impl NamedClaim {
    pub(crate) fn new(named: Arc<Named>, request: Request) -> Self {
        Self { named, request, state: State::Outside, known: Known::default() }
    }

    /// How long one call may take.
    fn limit(&self) -> Duration {
        self.named.limit().min(self.request.ttl / 3)
    }

    /// The text of a batch about the lock, which waits for so many seconds.
    fn batch(&self, batch: &Batch, seconds: u32) -> Result<String> {
        let lock = keys::named_lock(&self.request.name, self.named.names)?;
        let name = literal(self.request.name.as_str().as_bytes());
        let silence = if seconds > 0 { FIRST_SILENCE.min(self.request.ttl) } else { self.request.ttl };
        Ok(batch.with(&[
            ("lock", &keys::named_literal(&lock)),
            ("name", &name),
            ("fence", &self.named.fence),
            ("seconds", &seconds.to_string()),
            ("patience", &seconds.max(1).to_string()),
            ("silence", &silence.as_millis().div_ceil(1000).to_string()),
            ("watch", &keys::bell(self.request.id)),
            ("mark", &Mark::of(&self.request).text()),
            ("session", &self.known.id.to_string()),
        ]))
    }

    /// Asks with a session whether the lock is free. The session is silent for the claim's ttl at most from now on.
    async fn take(&mut self) -> Result<Attempt> {
        if let State::GivenUp = self.state {
            self.give_up().await?;
        }
        if let Some((session, known)) = self.named.kept() {
            match self.take_with(session, known).await {
                // The server may have ended it while it was kept.
                Err(error) if error::ended_session(&error) => {
                    if let State::GivenUp = self.state {
                        self.give_up().await?;
                    }
                }
                taken => return taken,
            }
        }
        let (session, known) = self.named.session().await?;
        match self.take_with(session, known).await {
            // The server has lost its data. The next attempt finds new tables.
            Err(error) if error::lacks_tables(&error) => {
                self.named.connection.prepare().await?;
                Err(STORE.unavailable("the tables were not there, and have been made again"))
            }
            taken => taken,
        }
    }

    async fn take_with(&mut self, session: MySqlConnection, known: Known) -> Result<Attempt> {
        self.known = known;
        let (batch, sent) = (self.batch(&NAMED_TAKE, 0)?, Moment::now());
        // Until there is an answer, the session may have the lock.
        self.state = State::GivenUp;
        let ended = call(session, batch).await;
        self.judge(ended, sent).await
    }

    /// What a session that asked for the lock was told. One that was told an error may have the lock, and releases it.
    async fn judge(&mut self, (session, row): Ended, sent: Moment) -> Result<Attempt> {
        self.state = State::GivenUp;
        let (session, row) = match (session, row) {
            (Some(session), Ok(row)) => (session, row),
            (Some(session), Err(error)) => {
                // If that fails, the session is given up.
                self.let_go(session).await.ok();
                return Err(error);
            }
            (None, row) => return Err(row.err().unwrap_or_else(gone)),
        };
        let has_lock = number::<i64>(row.as_ref(), 0)?;
        self.state = State::Outside;
        match has_lock {
            1 if number::<u64>(row.as_ref(), 1)? == 0 => {
                self.let_go(session).await.ok();
                Err(STORE.refused(error::FENCE))
            }
            1 => {
                let token = Token::new(number(row.as_ref(), 1)?);
                self.state = State::Holds(Held::new(token, sent), session);
                Ok(Attempt::Granted(Grant { token, valid_for: self.request.ttl }))
            }
            0 if self.request.wait == Wait::Never => {
                self.named.keep(session, self.known.clone());
                Ok(Attempt::Busy { retry_in: self.request.ttl })
            }
            0 => {
                self.state = State::Waits(Box::pin(call(session, self.batch(&NAMED_TAKE, FOR_EVER)?)));
                Ok(Attempt::Busy { retry_in: Duration::MAX })
            }
            -2 => Err(STORE.refused(error::SWAPPED)),
            _ => {
                self.let_go(session).await.ok();
                Err(STORE.unavailable("the server ended the wait"))
            }
        }
    }

    /// Asks the session of a holder whether it has the lock still: for how long from now, or `None`. A question whose answer is
    /// late is waited for again.
    async fn has_lock(&mut self) -> Result<Option<Duration>> {
        let until = Instant::now() + self.limit();
        loop {
            let heard = match self.hear(until).await {
                // Somebody ended what the session was at, and perhaps the session: it is asked again.
                Err(error) if error::was_interrupted(&error) && Instant::now() < until => continue,
                heard => heard?,
            };
            let Some(heard) = heard else { return Ok(None) };
            // A watch that went on for long tells little of the session's future.
            if heard.elapsed() <= self.request.ttl / 3 {
                return Ok(Some(self.request.ttl.saturating_sub(heard.elapsed())));
            }
        }
    }

    /// Waits for the next answer of the session that has the lock: from when on the server counts its silence. `None` if the
    /// session has ended or is to be ended, or has not got the lock.
    async fn hear(&mut self, until: Instant) -> Result<Option<Moment>> {
        let (mut held, (session, row), sent, released) =
            match std::mem::replace(&mut self.state, State::Outside) {
                State::Told(held, ended, sent) => (held, ended, sent, None),
                State::Holds(held, session) => {
                    let asked = Asked::new(session, self.batch(&NAMED_RENEW, 0)?);
                    self.answer(held, asked, until).await?
                }
                State::Asked(held, asked) => self.answer(held, asked, until).await?,
                state => {
                    self.state = state;
                    return Ok(None);
                }
            };
        // With its session a claim has lost its lock, whatever the server knows of it yet.
        let Some(session) = session else {
            self.state = State::Lost(held);
            return Ok(None);
        };
        let row = match row {
            Ok(row) => row,
            Err(error) if error::was_interrupted(&error) || !error::ended_session(&error) => {
                self.state = State::Holds(held, session);
                return Err(error);
            }
            Err(_) => {
                self.state = State::Lost(held);
                return Ok(None);
            }
        };
        if number::<i64>(row.as_ref(), 0)? != 1 {
            self.state = State::Lost(held);
            return Ok(None);
        }
        let was_asked = number::<i64>(row.as_ref(), 1)? == 1;
        if was_asked {
            held.lose_anchor();
        }
        // A watch that was let go has waited until then.
        let heard = released.filter(|_| was_asked).unwrap_or(sent);
        held.hear(heard);
        self.state = State::Holds(held, session);
        Ok(Some(heard))
    }

    /// Lets a watch go, and waits for what the session answers. With when it was asked, and when the watch was let go.
    async fn answer(
        &mut self,
        mut held: Held,
        mut asked: Asked,
        until: Instant,
    ) -> Result<(Held, Ended, Moment, Option<Moment>)> {
        let now = Moment::now();
        let answered = timeout_at(until, async {
            let released = held.ask(&self.named, self.request.id).await;
            (released, (&mut asked.calling).await)
        });
        match answered.await {
            Ok((released, ended)) => Ok((held, ended, asked.sent, released.then_some(now))),
            Err(_) => {
                self.state = State::Asked(held, asked);
                Err(STORE.late(self.limit()))
            }
        }
    }

    /// Releases the lock of a session that does nothing.
    async fn let_go(&mut self, session: MySqlConnection) -> Result<Release> {
        let batch = self.batch(&NAMED_RELEASE, 0)?;
        self.state = State::GivenUp;
        let released = timeout(self.named.limit(), async {
            match call(session, batch.clone()).await {
                // What was to end its wait may have come late.
                (Some(session), Err(_)) => call(session, batch).await,
                ended => ended,
            }
        });
        match released.await {
            Ok((Some(session), Ok(row))) => {
                let had_lock = number::<i64>(row.as_ref(), 0)? == 1;
                self.named.keep(session, self.known.clone());
                self.state = State::Outside;
                Ok(if had_lock { Release::Done } else { Release::Gone })
            }
            // The connection had ended, and the lock with it.
            Ok((None, _)) => {
                self.state = State::Outside;
                Ok(Release::Gone)
            }
            Ok((Some(_), Err(_))) | Err(_) => self.give_up().await,
        }
    }

    /// Ends what a session is at, and releases the lock should it have it. A session that does not answer is ended: MySQL 8.0 may
    /// let a session that was killed keep its lock until its time is over, so that is the last resort.
    async fn end(&mut self, mut calling: Calling) -> Result<Release> {
        self.state = State::GivenUp;
        let stop = self.named.kill(NAMED_STOP.with(&[("tag", &self.known.tag)]));
        let stopped = timeout(STOP.min(self.named.limit()), join(stop, &mut calling));
        match stopped.await {
            Ok((_, (Some(session), _))) => self.let_go(session).await.map(|_| Release::Done),
            Ok((_, (None, _))) => self.give_up().await,
            Err(_) => {
                drop(calling);
                self.give_up().await
            }
        }
    }

    /// Ends a session whose connection is closed here, and waits until it has not got the lock.
    ///
    /// # Errors
    /// If the server does not say so. The session is still given up, and may keep the lock until its ttl is over.
    async fn give_up(&mut self) -> Result<Release> {
        self.state = State::GivenUp;
        let kill = NAMED_KILL.with(&[("tag", &self.known.tag)]);
        let ended = async {
            if self.named.kill(kill).await? {
                let lock = keys::named_lock(&self.request.name, self.named.names)?;
                self.named.until_freed(&keys::named_literal(&lock), self.known.id).await?;
            }
            Ok(())
        };
        STORE.in_time(self.named.limit(), ended).await?;
        self.state = State::Outside;
        Ok(Release::Done)
    }
}

#[async_trait]
impl Claim for NamedClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let limit = self.limit();
        match std::mem::replace(&mut self.state, State::Outside) {
            state @ (State::Outside | State::Lost(_) | State::GivenUp) => {
                self.state = state;
                let busy = timeout(limit, self.take()).await.unwrap_or_else(|_| Err(STORE.late(limit)))?;
                if let State::Waits(waits) = &mut self.state
                    && let Ok(ended) = timeout(Duration::ZERO, waits).await
                {
                    self.state = State::Called(ended);
                    return Ok(Attempt::Busy { retry_in: Duration::ZERO });
                }
                return Ok(busy);
            }
            State::Waits(mut waits) => match timeout(Duration::ZERO, &mut waits).await {
                Ok(ended) => self.judge(ended, Moment::now()).await?,
                Err(_) => {
                    // A connection that breaks in silence never tells the end of its session.
                    let is_over =
                        matches!(timeout(limit, self.named.lives(&self.known)).await, Ok(Ok(false)));
                    if is_over {
                        return match timeout(FAREWELL, &mut waits).await {
                            Ok(ended) => {
                                self.state = State::Called(ended);
                                Ok(Attempt::Busy { retry_in: Duration::ZERO })
                            }
                            Err(_) => Err(gone()),
                        };
                    }
                    self.state = State::Waits(waits);
                    return Ok(Attempt::Busy { retry_in: Duration::MAX });
                }
            },
            State::Called(ended) => self.judge(ended, Moment::now()).await?,
            holds => {
                self.state = holds;
                Attempt::Busy { retry_in: Duration::ZERO }
            }
        };
        let token = match &self.state {
            State::Holds(held, _) | State::Asked(held, _) | State::Told(held, ..) => held.token,
            _ => return Ok(Attempt::Busy { retry_in: Duration::MAX }),
        };
        // The server may have given the lock long ago. What counts begins now.
        match self.has_lock().await? {
            Some(valid_for) => Ok(Attempt::Granted(Grant { token, valid_for })),
            None => Err(gone()),
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let has_lock = self.has_lock().await?;
        Ok(has_lock.map_or(Renewal::Lost, |valid_for| Renewal::Renewed { valid_for }))
    }

    async fn release(&mut self) -> Result<Release> {
        match std::mem::replace(&mut self.state, State::Outside) {
            State::Outside => Ok(Release::Gone),
            State::Called((Some(session), _)) => self.let_go(session).await,
            State::Waits(calling) => self.end(calling).await,
            State::Called((None, _)) | State::GivenUp => self.give_up().await,
            State::Lost(mut held) => {
                held.ask(&self.named, self.request.id).await;
                Ok(Release::Gone)
            }
            State::Holds(mut held, session) => {
                let (named, id) = (Arc::clone(&self.named), self.request.id);
                join(self.let_go(session), held.ask(&named, id)).await.0
            }
            State::Told(mut held, (session, _), _) => {
                held.ask(&self.named, self.request.id).await;
                match session {
                    Some(session) => self.let_go(session).await,
                    None => Ok(Release::Gone),
                }
            }
            State::Asked(mut held, mut asked) => {
                let answered = timeout(self.named.limit(), async {
                    held.ask(&self.named, self.request.id).await;
                    (&mut asked.calling).await
                });
                match answered.await {
                    Ok((Some(session), _)) => self.let_go(session).await,
                    Ok((None, _)) => Ok(Release::Gone),
                    Err(_) => self.end(asked.calling).await,
                }
            }
        }
    }

    /// Ends also when the session that has the lock has answered, or has ended: `renew` then tells which.
    async fn changed(&mut self) {
        loop {
            match &mut self.state {
                State::Waits(waits) => {
                    let ended = waits.await;
                    self.state = State::Called(ended);
                }
                State::Called(_) | State::Told(..) => return,
                State::Holds(held, _) => {
                    held.settle(&self.named, self.request.id).await;
                    let Ok(watch) = self.batch(&NAMED_WATCH, rhythm(self.request.ttl)) else { return };
                    self.state = match std::mem::replace(&mut self.state, State::Outside) {
                        State::Holds(held, session) => State::Asked(held, Asked::new(session, watch)),
                        state => state,
                    };
                }
                State::Asked(held, asked) => {
                    // An anchor that is being taken keeps others from their calls until it is.
                    let ended = tokio::select! {
                        ended = &mut asked.calling => ended,
                        () = held.anchored() => continue,
                    };
                    self.state = match std::mem::replace(&mut self.state, State::Outside) {
                        State::Asked(held, asked) => State::Told(held, ended, asked.sent),
                        state => state,
                    };
                }
                State::Outside | State::GivenUp | State::Lost(_) => pending().await,
            }
        }
    }
}

fn gone() -> Error {
    STORE.unavailable("the session that waited has ended")
}
