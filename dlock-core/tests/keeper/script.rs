//! A store that follows a script, for all tests of this binary.

use std::{collections::VecDeque, future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Guard, Kind, Locks, Result,
    driver::{Attempt, Backend, Claim, Grant, Info, Release, Renewal, Request, Resumption, Store},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use super::watchdog::watch;

pub(super) const TTL: Duration = Duration::from_secs(30);
pub(super) const S: Duration = Duration::from_secs(1);
pub(super) const MS: Duration = Duration::from_millis(1);

/// Reaction of the store to one call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply<T> {
    /// The store replies at once.
    Say(T),
    /// The store is unreachable, so the outcome is unknown.
    Fail,
    /// The driver has no connection, so the call is not sent.
    Unsent,
    /// The store refuses permanently.
    Refuse,
    /// The store cannot write now, but may be able to later.
    Unwritable,
    /// The store replies after this time.
    Late(Duration, T),
    /// The call never ends.
    Hang,
    /// The driver panics at once.
    Panic,
    /// The driver panics after this time.
    LatePanic(Duration),
}
pub(super) use Reply::{Fail, Hang, Late, LatePanic, Panic, Refuse, Say, Unsent, Unwritable};

/// Hints of the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Hints {
    /// No hint.
    Silent,
    /// A hint at every call of `changed`.
    Endless,
    /// One hint, after this time.
    Once(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Attempt,
    Renew,
    /// The reply is the next one for a renewal.
    Resume,
    Detach,
    Release,
}

/// Replies of the store, and a record of its calls. The replies to a method are used one by one,
/// and the last one is repeated.
pub(super) struct Script {
    pub(super) attempt: VecDeque<Reply<Attempt>>,
    pub(super) renew: VecDeque<Reply<Renewal>>,
    pub(super) detach: VecDeque<Reply<Renewal>>,
    pub(super) release: VecDeque<Reply<Release>>,
    pub(super) hints: Hints,
    /// Time until which the store may execute requests that were given up.
    pub(super) late_until: Option<Instant>,
    /// Whether an attempt was sent.
    pub(super) has_sent: bool,
    /// Ttl of every claim that was created.
    pub(super) ttls: Vec<Duration>,
    /// Id of every claim that was created.
    pub(super) ids: Vec<ClaimId>,
    /// Duration of every requested detachment.
    pub(super) detached_for: Vec<Duration>,
    /// Ticket of every detachment and resumption.
    pub(super) tickets: Vec<ClaimId>,
    /// All calls with the times of their starts.
    pub(super) calls: Vec<(Call, Instant)>,
    /// Call in flight.
    pub(super) running: Option<Call>,
    /// Violations of the driver contract by the keeper.
    pub(super) violations: Vec<String>,
}

#[derive(Clone)]
pub(super) struct ScriptedStore(Arc<Mutex<Script>>, pub(super) Info);

impl std::fmt::Debug for ScriptedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScriptedStore")
    }
}

pub(super) const GRANTED: Attempt = Attempt::Granted(Grant { token: None, valid_for: TTL });
pub(super) const RENEWED: Renewal = Renewal::Renewed { valid_for: TTL };
pub(super) const BUSY: Attempt = Attempt::Busy { retry_in: TTL };

impl ScriptedStore {
    /// Creates a store that grants, renews and releases. Starts the watchdog.
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
            late_until: None,
            has_sent: false,
            ttls: Vec::new(),
            ids: Vec::new(),
            detached_for: Vec::new(),
            tickets: Vec::new(),
            calls: Vec::new(),
            running: None,
            violations: Vec::new(),
        };
        Self(Arc::new(Mutex::new(script)), info)
    }

    /// Creates a store that can also keep a claim without its client.
    pub(super) fn detaching() -> Self {
        let mut store = Self::new();
        store.1 = store.1.detaches(true).tokens(true);
        store
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

    /// Sets the time from now for which the store may execute requests that were given up.
    pub(super) fn late_for(self, span: Duration) -> Self {
        self.script().late_until = Some(Instant::now() + span);
        self
    }

    pub(super) fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock()
    }

    pub(super) fn client(&self) -> Locks {
        Locks::new(Store::new(Arc::new(self.clone())))
    }

    pub(super) async fn hold(&self) -> Guard {
        self.client().mutex("x").lock().await.expect("the script grants it")
    }

    /// Returns the start times of the calls of one method, counted from `start`.
    pub(super) fn times(&self, call: Call, start: Instant) -> Vec<Duration> {
        let script = self.script();
        let calls = script.calls.iter().filter(|(called, _)| *called == call);
        calls.map(|(_, at)| at.saturating_duration_since(start)).collect()
    }

    pub(super) fn count(&self, call: Call) -> usize {
        self.script().calls.iter().filter(|(called, _)| *called == call).count()
    }

    /// Closes the client, and asserts that its keepers have kept the driver contract.
    pub(super) async fn close(&self, client: &Locks) {
        client.close().await;
        assert_eq!(self.script().violations, [] as [String; 0]);
    }

    async fn execute<T>(&self, call: Call, reply: Reply<T>) -> Result<T> {
        /// Records a violation if the call is dropped in flight.
        struct InFlight<'a>(&'a ScriptedStore, Call);
        impl Drop for InFlight<'_> {
            fn drop(&mut self) {
                if self.0.script().running.take().is_some() && !std::thread::panicking() {
                    self.0.script().violations.push(format!("{:?} dropped in flight", self.1));
                }
            }
        }
        let concurrent = {
            let mut script = self.script();
            script.calls.push((call, Instant::now()));
            script.running.replace(call)
        };
        if let Some(concurrent) = concurrent {
            self.script().violations.push(format!("{call:?} during {concurrent:?}"));
        }
        let _in_flight = InFlight(self, call);
        let result = match reply {
            Say(reply) => Ok(reply),
            Fail | Unsent => Err(Error::Unavailable { store: "script", source: "no reply".into() }),
            Unwritable => Err(Error::Unwritable { store: "script", source: "disk full".into() }),
            Refuse => Err(Error::Refused { store: "script", source: "access denied".into() }),
            Late(delay, reply) => {
                sleep(delay).await;
                Ok(reply)
            }
            Hang => pending().await,
            Panic => panic!("as the script requires"),
            LatePanic(delay) => {
                sleep(delay).await;
                panic!("as the script requires")
            }
        };
        self.script().running = None;
        result
    }
}

/// Returns the next reply, or the last one again.
fn next<T: Copy>(replies: &mut VecDeque<Reply<T>>) -> Reply<T> {
    if replies.len() > 1 { replies.pop_front() } else { replies.front().copied() }
        .expect("a script is never empty")
}

impl Backend for ScriptedStore {
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
impl Claim for ScriptedStore {
    async fn attempt(&mut self) -> Result<Attempt> {
        let reply = next(&mut self.script().attempt);
        self.script().has_sent |= !matches!(reply, Unsent);
        self.execute(Call::Attempt, reply).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let reply = next(&mut self.script().renew);
        self.execute(Call::Renew, reply).await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let reply = next(&mut self.script().detach);
        self.script().detached_for.push(lasting);
        self.script().tickets.push(ticket);
        self.execute(Call::Detach, reply).await
    }

    /// Replies as the script has it for a renewal.
    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let reply = next(&mut self.script().renew);
        self.script().tickets.push(ticket);
        Ok(match self.execute(Call::Resume, reply).await? {
            Renewal::Renewed { valid_for } => {
                Resumption::Resumed { grant: Grant { token: None, valid_for }, remaining: Some(TTL * 10) }
            }
            Renewal::Lost => Resumption::Gone,
        })
    }

    async fn release(&mut self) -> Result<Release> {
        let reply = next(&mut self.script().release);
        self.execute(Call::Release, reply).await
    }

    fn may_be_stored(&self) -> bool {
        self.script().has_sent
    }

    fn late_for(&self) -> Duration {
        let late_until = self.script().late_until;
        late_until.map(|until| until.saturating_duration_since(Instant::now())).unwrap_or_default()
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

/// Returns whether two times differ by no more than the granularity and jitter of timers.
pub(super) fn is_about(a: Duration, b: Duration) -> bool {
    a.abs_diff(b) <= 25 * MS
}
