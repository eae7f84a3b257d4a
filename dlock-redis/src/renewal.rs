//! Renewals of many locks in few calls. A few lines over the usual length: one meeting and its outcomes.
//!
//! Whoever renews first waits a moment for others, and has them ask in chunks. No task of its own: a chunk is asked for on
//! the time of one of its claims, so that one that hangs is no other's.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Kind, Result};
use futures_util::future::join_all;
use redis::{Value, cluster_routing::Slot};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use crate::{
    config::Replicas,
    connection::Connection,
    error::{self, STORE},
    keys::Keys,
    script::{Call, Script, millis},
};

/// How long the first waits for others, and the ttl from which that is less than a hundredth.
const GATHERING: Duration = Duration::from_millis(20);
const LEAST_TTL: Duration = Duration::from_secs(2);

/// How long the others wait for the first, whose runtime may have ended or stand still, before each asks for itself.
const PATIENCE: Duration = Duration::from_millis(60);

/// The most holds in one call: some 0.3 ms of the server's time.
const MOST: usize = 200;

/// What is to be renewed.
pub(crate) struct Hold {
    pub(crate) keys: Keys,
    pub(crate) owner: String,
    pub(crate) kind: Kind,
    pub(crate) ttl: Duration,
}

impl Hold {
    /// The lock, and what lives as long as this hold: the timeout of a read hold, the token of a write hold, else the lock again.
    fn keys(&self) -> [Cow<'_, str>; 2] {
        let lock = Cow::Borrowed(self.keys.lock());
        let beside = match self.kind {
            Kind::Read => self.keys.read_timeout(&self.owner).to_string().into(),
            Kind::Write => self.keys.token().to_string().into(),
            _ => lock.clone(),
        };
        [lock, beside]
    }

    fn field(&self) -> Cow<'_, str> {
        match self.kind {
            Kind::Write => format!("{}:write", self.owner).into(),
            _ => Cow::Borrowed(&self.owner),
        }
    }
}

/// One client's renewals.
pub(crate) struct Renewals {
    connection: Arc<Connection>,
    script: &'static Script,
    /// Those that gather now; `None` if nobody leads.
    gathering: Mutex<Option<Vec<Waiting>>>,
    /// Whether the server is a proxy that takes one key at a time.
    single: AtomicBool,
}

struct Waiting {
    hold: Arc<Hold>,
    since: Instant,
    answer: oneshot::Sender<Told>,
}

/// What whoever waits is told.
enum Told {
    Renewed(Result<bool>),
    /// To ask for all these, of whom it is one, and where it then hears of its own.
    Ask(Vec<Waiting>, oneshot::Receiver<Self>),
}

impl Renewals {
    pub(crate) fn new(connection: Arc<Connection>, script: &'static Script) -> Self {
        Self { connection, script, gathering: Mutex::new(None), single: AtomicBool::new(false) }
    }

    /// Renews; `false` if the hold is gone.
    pub(crate) async fn renew(&self, hold: Arc<Hold>) -> Result<bool> {
        if hold.ttl < LEAST_TTL {
            return self.ask_for_one(&hold).await;
        }
        let (answer, mut told) = oneshot::channel();
        let mut next = if self.leads(Waiting { hold: Arc::clone(&hold), since: Instant::now(), answer }) {
            sleep(GATHERING).await;
            let all = self.gathering().take();
            self.share_out(all.unwrap_or_default());
            hear(&hold, told).await
        } else {
            match timeout(PATIENCE, &mut told).await {
                Ok(next) => next.ok(),
                Err(_) if self.withdraw(&hold) => return self.ask_for_one(&hold).await,
                Err(_) => hear(&hold, told).await,
            }
        };
        loop {
            match next {
                Some(Told::Renewed(outcome)) => return outcome,
                Some(Told::Ask(chunk, told)) => {
                    self.renew_chunk(chunk).await;
                    next = told.await.ok();
                }
                // Whoever was to ask has gone with its runtime, or stands still with it.
                None => return self.ask_for_one(&hold).await,
            }
        }
    }

    /// Joins those who gather; `true` for the first.
    fn leads(&self, waiting: Waiting) -> bool {
        let mut gathering = self.gathering();
        match &mut *gathering {
            Some(all) if all.first().is_some_and(|first| waiting.since < first.since + PATIENCE) => {
                all.push(waiting);
                false
            }
            _ => {
                *gathering = Some(vec![waiting]);
                true
            }
        }
    }

    /// Leaves those who still gather; `false` if they do no more.
    fn withdraw(&self, hold: &Arc<Hold>) -> bool {
        let mut gathering = self.gathering();
        let Some(all) = &mut *gathering else { return false };
        let place = all.iter().position(|waiting| Arc::ptr_eq(&waiting.hold, hold));
        place.map(|place| all.remove(place)).is_some()
    }

    fn gathering(&self) -> MutexGuard<'_, Option<Vec<Waiting>>> {
        self.gathering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has one of each chunk ask for all of it.
    fn share_out(&self, mut all: Vec<Waiting>) {
        // What has least time left goes first: renewals come after the same share of their ttl.
        all.sort_by_key(|waiting| waiting.since + waiting.hold.ttl);
        let mut slots: HashMap<Option<Slot>, Vec<Waiting>> = HashMap::new();
        for waiting in all {
            let slot = self.connection.is_cluster().then(|| Slot::for_key(waiting.hold.keys.lock()));
            slots.entry(slot).or_default().push(waiting);
        }
        for mut slot in slots.into_values() {
            while !slot.is_empty() {
                let rest = slot.split_off(slot.len().min(self.most()));
                let mut chunk = std::mem::replace(&mut slot, rest);
                let (answer, next) = oneshot::channel();
                let first = std::mem::replace(&mut chunk[0].answer, answer);
                first.send(Told::Ask(chunk, next)).ok();
            }
        }
    }

    async fn renew_chunk(&self, chunk: Vec<Waiting>) {
        let (holds, answers): (Vec<_>, Vec<_>) = chunk.into_iter().map(|one| (one.hold, one.answer)).unzip();
        let many = holds.len() > 1;
        let outcome = match self.ask(&holds).await {
            // One key that this user may not touch, or that is being moved, has the server refuse all: no other's fault.
            Err(error) if many && error::was_refused(&error) => {
                self.single.fetch_or(error::is_cross_slot(&error), Relaxed);
                Ok(vec![false; holds.len()])
            }
            outcome => outcome,
        };
        match outcome {
            // A proxy refuses keys of several servers, or looks for all of them where the first is: who is not found among
            // many is asked for alone.
            Ok(renewed) => {
                let mut missing = Vec::new();
                for ((one, renewed), answer) in holds.chunks(1).zip(renewed).zip(answers) {
                    if renewed || !many {
                        answer.send(Told::Renewed(Ok(renewed))).ok();
                    } else {
                        missing.push((one, answer));
                    }
                }
                let alone = missing.into_iter().map(async |(one, answer)| {
                    answer.send(Told::Renewed(self.ask_for_one(&one[0]).await)).ok();
                });
                join_all(alone).await;
            }
            Err(error) => {
                let again = STORE.retell(&error);
                for answer in answers {
                    answer.send(Told::Renewed(Err(again.error()))).ok();
                }
            }
        }
    }

    async fn ask_for_one(&self, hold: &Arc<Hold>) -> Result<bool> {
        self.ask(std::slice::from_ref(hold)).await.map(|renewed| renewed[0])
    }

    /// Waits until a replica has what was just granted.
    pub(crate) async fn confirm(&self, hold: &Arc<Hold>, wanted: Replicas) -> Result<()> {
        let call = self.call(std::slice::from_ref(hold));
        let answer = self.connection.confirm(&call, hold.keys.lock(), wanted).await?;
        if answers(&answer, 1)?[0] {
            return Ok(());
        }
        Err(STORE.unavailable(
            "the grant was gone before a replica had it: the server has lost it, or another has come",
        ))
    }

    /// Whether each is still held, and renewed.
    async fn ask(&self, holds: &[Arc<Hold>]) -> Result<Vec<bool>> {
        answers(&self.connection.run(&self.call(holds)).await?, holds.len())
    }

    fn call(&self, holds: &[Arc<Hold>]) -> Call {
        let keys: Vec<_> = holds.iter().flat_map(|hold| hold.keys()).collect();
        let fields: Vec<_> = holds.iter().map(|hold| hold.field()).collect();
        let ttls: Vec<_> = holds.iter().map(|hold| millis(hold.ttl)).collect();
        self.script.call(keys, (fields, ttls))
    }

    fn most(&self) -> usize {
        if self.single.load(Relaxed) { 1 } else { MOST }
    }
}

fn answers(answer: &Value, count: usize) -> Result<Vec<bool>> {
    match answer {
        Value::Array(all) if all.len() == count => Ok(all.iter().map(|one| *one == Value::Int(1)).collect()),
        _ => Err(STORE.garbled("a renewal")),
    }
}

/// What it is told. Bounded, because whoever asks may stand still; later there would be no time left to ask alone.
async fn hear(hold: &Hold, told: oneshot::Receiver<Told>) -> Option<Told> {
    timeout(hold.ttl / 4, told).await.ok()?.ok()
}
