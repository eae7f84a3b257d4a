//! A store that follows a script.

use std::{
    collections::VecDeque,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Guard, Kind, Locks, Result,
    driver::{Attempt, Backend, Claim, Grant, Info, Release, Renewal, Request, Resumption, Store},
};
use tokio::time::{Instant, sleep};

use super::watchdog::watch;

pub(super) const TTL: Duration = Duration::from_secs(30);
pub(super) const S: Duration = Duration::from_secs(1);
pub(super) const MS: Duration = Duration::from_millis(1);

/// What the store answers to one call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply<T> {
    Say(T),
    /// No answer: unknown.
    Fail,
    /// An answer that asking again will not change.
    Refuse,
    /// The store cannot write now, but may later.
    Unwritable,
    Late(Duration, T),
    Hang,
    Panic,
    LatePanic(Duration),
}
pub(super) use Reply::{Fail, Hang, Late, LatePanic, Panic, Refuse, Say, Unwritable};

/// How the store hints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Hints {
    Silent,
    Endless,
    Once(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Attempt,
    Renew,
    /// Answered as a renewal.
    Resume,
    Detach,
    Release,
}

/// What the store answers. The replies of a call are used up one by one, and the last one is repeated.
pub(super) struct Script {
    pub(super) attempt: VecDeque<Reply<Attempt>>,
    pub(super) renew: VecDeque<Reply<Renewal>>,
    pub(super) detach: VecDeque<Reply<Renewal>>,
    pub(super) release: VecDeque<Reply<Release>>,
    pub(super) hints: Hints,
    /// The ttl of every claim that was made.
    pub(super) ttls: Vec<Duration>,
    /// The id of every claim that was made.
    pub(super) ids: Vec<ClaimId>,
    /// For how long the claim was to be detached, call by call.
    pub(super) spans: Vec<Duration>,
    /// Ids that holds were detached as or resumed from.
    pub(super) tickets: Vec<ClaimId>,
    /// What was called and when, and what is being called now.
    pub(super) calls: Vec<(Call, Instant)>,
    pub(super) running: Option<Call>,
    /// Each time that the keeper broke the contract with the driver.
    pub(super) broken: Vec<String>,
}

#[derive(Clone)]
pub(super) struct Play(Arc<Mutex<Script>>, pub(super) Info);

impl std::fmt::Debug for Play {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Play")
    }
}

pub(super) const GRANTED: Attempt = Attempt::Granted(Grant { token: None, valid_for: TTL });
pub(super) const RENEWED: Renewal = Renewal::Renewed { valid_for: TTL };
pub(super) const BUSY: Attempt = Attempt::Busy { retry_in: TTL };

impl Play {
    /// A store that grants, renews and releases.
    pub(super) fn new() -> Self {
        watch();
        let info = Info::new("script", "script")
            .kinds(&[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write])
            .ttl(MS..=TTL * 1000);
        let script = Script {
            attempt: [Say(GRANTED)].into(),
            renew: [Say(RENEWED)].into(),
            detach: [Say(RENEWED)].into(),
            release: [Say(Release::Done)].into(),
            hints: Hints::Silent,
            ttls: Vec::new(),
            ids: Vec::new(),
            spans: Vec::new(),
            tickets: Vec::new(),
            calls: Vec::new(),
            running: None,
            broken: Vec::new(),
        };
        Self(Arc::new(Mutex::new(script)), info)
    }

    /// The same, and it can keep a claim without its client.
    pub(super) fn detaching() -> Self {
        let mut play = Self::new();
        play.1 = play.1.detaches(true);
        play
    }

    pub(super) fn attempt(self, replies: impl IntoIterator<Item = Reply<Attempt>>) -> Self {
        self.script().attempt = replies.into_iter().collect();
        self
    }

    pub(super) fn renew(self, replies: impl IntoIterator<Item = Reply<Renewal>>) -> Self {
        self.script().renew = replies.into_iter().collect();
        self
    }

    pub(super) fn detach(self, replies: impl IntoIterator<Item = Reply<Renewal>>) -> Self {
        self.script().detach = replies.into_iter().collect();
        self
    }

    pub(super) fn release(self, replies: impl IntoIterator<Item = Reply<Release>>) -> Self {
        self.script().release = replies.into_iter().collect();
        self
    }

    pub(super) fn hints(self, hints: Hints) -> Self {
        self.script().hints = hints;
        self
    }

    pub(super) fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn client(&self) -> Locks {
        Locks::new(Store::new(Arc::new(self.clone())))
    }

    pub(super) async fn hold(&self) -> Guard {
        self.client().mutex("x").lock().await.expect("the script grants it")
    }

    /// When calls of one sort were made, counted from `start`.
    pub(super) fn times(&self, call: Call, start: Instant) -> Vec<Duration> {
        let script = self.script();
        let calls = script.calls.iter().filter(|(called, _)| *called == call);
        calls.map(|(_, at)| at.saturating_duration_since(start)).collect()
    }

    pub(super) fn count(&self, call: Call) -> usize {
        self.script().calls.iter().filter(|(called, _)| *called == call).count()
    }

    /// Waits until nothing of the client is left.
    pub(super) async fn over(&self, client: &Locks) {
        client.close().await;
        assert_eq!(self.script().broken, [] as [String; 0]);
    }

    async fn play<T>(&self, call: Call, reply: Reply<T>) -> Result<T> {
        /// Notes when a call is dropped in flight.
        struct Flight<'a>(&'a Play, Call);
        impl Drop for Flight<'_> {
            fn drop(&mut self) {
                if self.0.script().running.take().is_some() && !std::thread::panicking() {
                    self.0.script().broken.push(format!("{:?} dropped in flight", self.1));
                }
            }
        }
        let beside = {
            let mut script = self.script();
            script.calls.push((call, Instant::now()));
            script.running.replace(call)
        };
        if let Some(beside) = beside {
            self.script().broken.push(format!("{call:?} beside {beside:?}"));
        }
        let _flight = Flight(self, call);
        let answer = match reply {
            Say(answer) => Ok(answer),
            Fail => Err(Error::Unavailable { store: "script", source: "no answer".into() }),
            Unwritable => Err(Error::Unwritable { store: "script", source: "disk full".into() }),
            Refuse => Err(Error::Refused { store: "script", source: "not you".into() }),
            Late(span, answer) => {
                sleep(span).await;
                Ok(answer)
            }
            Hang => pending().await,
            Panic => panic!("as the script says"),
            LatePanic(span) => {
                sleep(span).await;
                panic!("as the script says")
            }
        };
        self.script().running = None;
        answer
    }
}

fn next<T: Copy>(replies: &mut VecDeque<Reply<T>>) -> Reply<T> {
    if replies.len() > 1 { replies.pop_front() } else { replies.front().copied() }
        .expect("a script is never empty")
}

impl Backend for Play {
    fn info(&self) -> &Info {
        &self.1
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.script().ttls.push(request.ttl);
        self.script().ids.push(request.id);
        Box::new(self.clone())
    }
}

#[async_trait]
impl Claim for Play {
    async fn attempt(&mut self) -> Result<Attempt> {
        let reply = next(&mut self.script().attempt);
        self.play(Call::Attempt, reply).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let reply = next(&mut self.script().renew);
        self.play(Call::Renew, reply).await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let reply = next(&mut self.script().detach);
        self.script().spans.push(lasting);
        self.script().tickets.push(ticket);
        self.play(Call::Detach, reply).await
    }

    /// Answers what the script has for a renewal.
    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let reply = next(&mut self.script().renew);
        self.script().tickets.push(ticket);
        Ok(match self.play(Call::Resume, reply).await? {
            Renewal::Renewed { valid_for } => {
                Resumption::Resumed { grant: Grant { token: None, valid_for }, remaining: Some(TTL * 10) }
            }
            Renewal::Lost => Resumption::Gone,
        })
    }

    async fn release(&mut self) -> Result<Release> {
        let reply = next(&mut self.script().release);
        self.play(Call::Release, reply).await
    }

    async fn changed(&mut self) {
        let hints = self.script().hints;
        match hints {
            Hints::Silent => pending().await,
            Hints::Endless => {}
            Hints::Once(after) => {
                sleep(after).await;
                self.script().hints = Hints::Silent;
            }
        }
    }
}

/// Whether two times are the same but for a timer's granularity and jitter.
pub(super) fn about(a: Duration, b: Duration) -> bool {
    a.abs_diff(b) <= 25 * MS
}
