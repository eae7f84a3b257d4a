//! Records the open steps of a case and the last reply to each of its claims, for the message of a
//! case that does not end.

use std::{collections::BTreeMap, fmt, panic::Location, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Result,
    driver::{Attempt, Claim, Release, Renewal, Request, Resumption, Store},
};
use parking_lot::{Mutex, MutexGuard};

use crate::wrap::wrap;

/// The steps and the claims of one case. Clones share one log.
#[derive(Clone, Default)]
pub(crate) struct Steps(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    /// Number of the last entry, in either map.
    last_number: u64,
    /// Steps that have begun and not ended.
    open: BTreeMap<u64, String>,
    /// Claims that exist, by number.
    claims: BTreeMap<u64, ClaimEntry>,
    /// The step that ended last.
    last_ended: Option<String>,
}

/// A claim as the message shows it.
struct ClaimEntry {
    /// Kind and name of its lock.
    lock: String,
    /// State of its last call.
    last_call: String,
}

/// An open step. Dropping it ends the step.
pub(crate) struct Step {
    steps: Steps,
    number: u64,
}

impl Steps {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock()
    }

    /// Begins a step, and records its place in the code.
    pub(crate) fn begin(&self, description: &str, at: &Location<'_>) -> Step {
        let mut log = self.log();
        let number = log.next_number();
        log.open.insert(number, format!("\"{description}\" ({}:{})", at.file(), at.line()));
        Step { steps: self.clone(), number }
    }

    /// Wraps a store so that its claims record each call and each reply.
    pub(crate) fn watch(&self, store: Store) -> Store {
        let steps = self.clone();
        wrap(store, move |claim, request| Box::new(Watched::new(steps.clone(), claim, &request)))
    }
}

impl Log {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

impl fmt::Display for Steps {
    /// Formats the steps as the end of a sentence: `it waits in …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log();
        let open: Vec<_> = log.open.values().map(String::as_str).collect();
        match (open.as_slice(), &log.last_ended) {
            ([], None) => write!(f, "it has not reached its first step")?,
            ([], Some(last_ended)) => write!(f, "it waits after {last_ended}")?,
            (open, _) => write!(f, "it waits in {}", open.join(", and in "))?,
        }
        // More entries would not help the reader.
        for ClaimEntry { lock, last_call } in log.claims.values().take(10) {
            write!(f, "; claim for {lock}: {last_call}")?;
        }
        Ok(())
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let mut log = self.steps.log();
        log.last_ended = log.open.remove(&self.number);
    }
}

/// A claim that records each call and each reply.
struct Watched {
    steps: Steps,
    number: u64,
    claim: Box<dyn Claim>,
}

impl Watched {
    fn new(steps: Steps, claim: Box<dyn Claim>, request: &Request) -> Self {
        let mut log = steps.log();
        let number = log.next_number();
        let lock = format!("{} `{}`", request.kind, request.name);
        log.claims.insert(number, ClaimEntry { lock, last_call: "no request yet".to_owned() });
        drop(log);
        Self { steps, number, claim }
    }

    fn record(&self, last_call: impl FnOnce() -> String) {
        if let Some(entry) = self.steps.log().claims.get_mut(&self.number) {
            entry.last_call = last_call();
        }
    }
}

/// Makes a call. Records that the call is in flight, and then its reply.
macro_rules! recorded {
    ($self:ident.$method:ident($($argument:ident),*)) => {{
        $self.record(|| concat!("`", stringify!($method), "` does not return").to_owned());
        let reply = $self.claim.$method($($argument),*).await;
        $self.record(|| format!(concat!("the last reply to `", stringify!($method), "` was {:?}"), reply));
        reply
    }};
}

#[async_trait]
impl Claim for Watched {
    async fn attempt(&mut self) -> Result<Attempt> {
        recorded!(self.attempt())
    }

    async fn renew(&mut self) -> Result<Renewal> {
        recorded!(self.renew())
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        recorded!(self.detach(lasting, ticket))
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        recorded!(self.resume(ticket))
    }

    fn locator(&self) -> Option<Arc<str>> {
        self.claim.locator()
    }

    fn leave(&mut self) {
        self.claim.leave();
    }

    fn late_for(&self) -> Duration {
        self.claim.late_for()
    }

    async fn release(&mut self) -> Result<Release> {
        recorded!(self.release())
    }

    async fn changed(&mut self) {
        self.claim.changed().await;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.steps.log().claims.remove(&self.number);
    }
}
