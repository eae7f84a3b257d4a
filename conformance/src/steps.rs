//! What a case is doing. If a case does not end, its message says which step it waits in, and the last answers to its
//! claims.

use std::{
    collections::BTreeMap,
    fmt,
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Result,
    driver::{Attempt, Claim, Release, Renewal, Request, Resumption, Store},
};

use crate::wrap::wrap;

/// The steps and the claims of one case. Clones show the same.
#[derive(Clone, Default)]
pub(crate) struct Steps(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    /// The number of the next entry of either map.
    next: u64,
    /// The steps that have begun and not ended.
    open: BTreeMap<u64, String>,
    /// The claims that their keepers have, and what each was told last.
    claims: BTreeMap<u64, (String, String)>,
    /// The step that ended last.
    ended: Option<String>,
}

/// A step that has begun. It ends when this is dropped.
pub(crate) struct Step {
    steps: Steps,
    number: u64,
}

impl Steps {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a step begins, and where in the code.
    pub(crate) fn begin(&self, what: &str, at: &Location<'_>) -> Step {
        let mut log = self.log();
        let number = log.number();
        log.open.insert(number, format!("\"{what}\" ({}:{})", at.file(), at.line()));
        Step { steps: self.clone(), number }
    }

    /// The store, whose claims note each call and each answer.
    pub(crate) fn watch(&self, store: Store) -> Store {
        let steps = self.clone();
        wrap(store, move |claim, request| Box::new(Watched::new(steps.clone(), claim, &request)))
    }
}

impl Log {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl fmt::Display for Steps {
    /// As the end of a sentence: `it waits in …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log();
        let open: Vec<_> = log.open.values().map(String::as_str).collect();
        match (open.as_slice(), &log.ended) {
            ([], None) => write!(f, "it has not come to its first step")?,
            ([], Some(ended)) => write!(f, "it waits after {ended}")?,
            (open, _) => write!(f, "it waits in {}", open.join(", and in "))?,
        }
        // More entries would not help the reader.
        for (claim, told) in log.claims.values().take(10) {
            write!(f, "; claim for {claim}: {told}")?;
        }
        Ok(())
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let mut log = self.steps.log();
        log.ended = log.open.remove(&self.number);
    }
}

/// A claim that notes each call and each answer.
struct Watched {
    steps: Steps,
    number: u64,
    claim: Box<dyn Claim>,
}

impl Watched {
    fn new(steps: Steps, claim: Box<dyn Claim>, request: &Request) -> Self {
        let mut log = steps.log();
        let number = log.number();
        let about = format!("{} `{}`", request.kind, request.name);
        log.claims.insert(number, (about, "it has not asked yet".to_owned()));
        drop(log);
        Self { steps, number, claim }
    }

    fn note(&self, told: impl FnOnce() -> String) {
        if let Some((_, note)) = self.steps.log().claims.get_mut(&self.number) {
            *note = told();
        }
    }
}

/// Makes a call; notes that it is under way, and then what it was answered.
macro_rules! noted {
    ($self:ident.$method:ident($($argument:ident),*)) => {{
        $self.note(|| concat!("`", stringify!($method), "` does not return").to_owned());
        let answer = $self.claim.$method($($argument),*).await;
        $self.note(|| format!(concat!("the last answer to `", stringify!($method), "` was {:?}"), answer));
        answer
    }};
}

#[async_trait]
impl Claim for Watched {
    async fn attempt(&mut self) -> Result<Attempt> {
        noted!(self.attempt())
    }

    async fn renew(&mut self) -> Result<Renewal> {
        noted!(self.renew())
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        noted!(self.detach(lasting, ticket))
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        noted!(self.resume(ticket))
    }

    fn locator(&self) -> Option<Arc<str>> {
        self.claim.locator()
    }

    async fn release(&mut self) -> Result<Release> {
        noted!(self.release())
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
