//! One member's part in a claim: what is asked of it, and until when it holds.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::{Attempt, Backend, Claim, Error, Release, Renewal, Request, keeper};

/// One member's claim, and what is known of it.
pub(super) struct Member {
    backend: Arc<dyn Backend>,
    request: Request,
    state: State,
    /// Until when it holds, by its last good answer, counted from before the question.
    pub(super) held_until: Option<Instant>,
}

enum State {
    Idle(Box<dyn Claim>),
    Asked {
        question: Question,
        answer: Asking,
        late: bool,
    },
    /// Nothing of ours is there.
    Gone,
}

/// The claim comes back with its answer.
type Asking = Pin<Box<dyn Future<Output = (Option<Box<dyn Claim>>, Answer)> + Send>>;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Attempt,
    Renew,
    Release,
}

/// What a member says.
#[derive(Debug)]
pub(super) enum Answer {
    HeldUntil(Instant),
    /// Somebody else is first there; asking again may pay after this long.
    Busy(Duration),
    /// It does not know us any more.
    Lost,
    /// It has let go.
    Released(Release),
    /// Whether it did what it was asked to, nobody knows.
    Unknown(Error),
}

impl Member {
    pub(super) fn new(backend: Arc<dyn Backend>, request: Request) -> Self {
        Self { backend, request, state: State::Gone, held_until: None }
    }

    /// Asks. A question that is still unanswered is not asked twice; a release waits for its turn behind it.
    pub(super) fn ask(&mut self, question: Question) {
        self.state = match std::mem::replace(&mut self.state, State::Gone) {
            State::Gone if question == Question::Attempt => {
                let claim = self.backend.claim(self.request.clone());
                State::Asked { question, answer: asking(claim, question), late: false }
            }
            State::Idle(claim) => State::Asked { question, answer: asking(claim, question), late: false },
            State::Asked { question: before, answer, .. }
                if question == Question::Release && before != question =>
            {
                let both = async move {
                    match answer.await {
                        (Some(claim), _) => asking(claim, question).await,
                        gone => gone,
                    }
                };
                State::Asked { question, answer: Box::pin(both), late: false }
            }
            other => other,
        };
    }

    /// Whether something of ours may be there.
    pub(super) fn is_there(&self) -> bool {
        !matches!(self.state, State::Gone)
    }

    /// Whether an answer is still to come.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.state, State::Asked { .. })
    }

    /// The answer to what was asked. May be dropped and polled again.
    pub(super) fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        let State::Asked { answer, .. } = &mut self.state else { return Poll::Pending };
        let Poll::Ready((claim, answer)) = answer.as_mut().poll(context) else { return Poll::Pending };
        self.state = match (claim, &answer) {
            (Some(claim), Answer::HeldUntil(_) | Answer::Busy(_) | Answer::Lost | Answer::Unknown(_)) => {
                State::Idle(claim)
            }
            _ => State::Gone,
        };
        match answer {
            Answer::HeldUntil(until) => self.held_until = Some(until),
            Answer::Busy(_) | Answer::Lost | Answer::Released(_) => self.held_until = None,
            Answer::Unknown(_) => {}
        }
        Poll::Ready(answer)
    }

    /// Lets a question that was not answered in time go on by itself: a driver is never dropped in flight.
    pub(super) fn let_go_on(&mut self) {
        if let State::Asked { answer, late: late @ false, .. } = &mut self.state {
            let going_on = std::mem::replace(answer, Box::pin(std::future::pending()));
            let task = keeper::see_through(going_on);
            *answer =
                Box::pin(async move { task.await.unwrap_or_else(|_| (None, Answer::Unknown(ended()))) });
            *late = true;
        }
    }

    /// Has it released however late it answers, for up to `limit`.
    pub(super) fn release_in_background(&mut self, limit: Duration) {
        self.ask(Question::Release);
        let State::Asked { mut answer, .. } = std::mem::replace(&mut self.state, State::Gone) else { return };
        drop(keeper::see_through(async move {
            let end = Instant::now() + limit;
            let mut pause = Duration::from_millis(50);
            while let (Some(claim), Answer::Unknown(_)) = answer.await {
                if Instant::now() >= end {
                    break;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
                answer = asking(claim, Question::Release);
            }
        }));
    }

    /// The claim, to listen for hints; `None` while a question is open.
    pub(super) fn idle(&mut self) -> Option<&mut dyn Claim> {
        match &mut self.state {
            State::Idle(claim) => Some(claim.as_mut()),
            State::Asked { .. } | State::Gone => None,
        }
    }
}

fn asking(mut claim: Box<dyn Claim>, question: Question) -> Asking {
    Box::pin(async move {
        let sent = Instant::now();
        let answer = match question {
            Question::Attempt => claim.attempt().await.map(|attempt| match attempt {
                Attempt::Granted(grant) => Answer::HeldUntil(sent + grant.valid_for),
                Attempt::Busy { retry_in } => Answer::Busy(retry_in),
            }),
            Question::Renew => claim.renew().await.map(|renewal| match renewal {
                Renewal::Renewed { valid_for } => Answer::HeldUntil(sent + valid_for),
                Renewal::Lost => Answer::Lost,
            }),
            Question::Release => claim.release().await.map(Answer::Released),
        };
        (Some(claim), answer.unwrap_or_else(Answer::Unknown))
    })
}

fn ended() -> Error {
    Error::Unavailable { store: "redlock", source: "a member's driver panicked, or the runtime ended".into() }
}
