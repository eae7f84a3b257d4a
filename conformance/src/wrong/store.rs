//! A copy of the memory store that asks everywhere which bug it has.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Kind, LockName, LockState, Result, Token,
    driver::{Attempt, Backend, Claim, Grant, Info, Inspect, Release, Renewal, Request, Store},
};
use tokio::{sync::Notify, task::yield_now, time::sleep};

use super::{Bug, shelf::WrongShelf};
use crate::Kill;

/// How long a claim's first answer takes where that matters.
const FIRST_ANSWER: Duration = Duration::from_millis(200);

/// A store in memory with one bug, for tests with a paused clock. Clones are clients of the same store.
#[derive(Clone, Debug)]
pub struct WrongStore {
    bug: Bug,
    shelf: Arc<Mutex<WrongShelf>>,
    info: Info,
    /// Which client this is.
    client: u64,
}

impl WrongStore {
    /// A new, empty store with this bug.
    pub fn new(bug: Bug) -> Self {
        let info = Info::new("wrong", format!("wrong:{}", ClaimId::random()))
            .kinds(&[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit])
            .tokens(true)
            .detaches(true)
            .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write]);
        Self { bug, shelf: Arc::new(Mutex::new(WrongShelf::new(bug))), info, client: 0 }
    }

    /// The store with all its abilities: a client of its own.
    pub fn into_store(self) -> Store {
        self.into_killable_store().0
    }

    /// The same with a way to kill the client.
    pub fn into_killable_store(mut self) -> (Store, Kill) {
        self.become_a_client();
        let victim = self.clone();
        let store = Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self));
        (store, Box::new(move || victim.shelf().client_died(victim.client)))
    }

    /// Makes it a client of its own.
    fn become_a_client(&mut self) {
        static CLIENTS: AtomicU64 = AtomicU64::new(1);
        self.client = CLIENTS.fetch_add(1, Relaxed);
        if self.bug == Bug::IdentityPerClient {
            self.info.identity = format!("wrong:{}", ClaimId::random());
        }
    }

    fn shelf(&self) -> MutexGuard<'_, WrongShelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, name: &LockName) -> LockName {
        let key =
            if self.bug == Bug::NamesIgnoreCase { name.as_str().to_lowercase() } else { name.to_string() };
        LockName::new(key).unwrap_or_else(|_| name.clone())
    }
}

#[async_trait]
impl Backend for WrongStore {
    fn info(&self) -> &Info {
        &self.info
    }

    fn claim(&self, mut request: Request) -> Box<dyn Claim> {
        request.name = self.key(&request.name);
        Box::new(WrongClaim {
            store: self.clone(),
            request,
            bell: Arc::default(),
            asked: false,
            known: false,
        })
    }

    async fn close(&self) {
        self.shelf().client_died(self.client);
    }
}

struct WrongClaim {
    store: WrongStore,
    request: Request,
    bell: Arc<Notify>,
    asked: bool,
    /// Whether it has ever asked for the lock: otherwise it is there to release by ticket.
    known: bool,
}

#[async_trait]
impl Claim for WrongClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let Request { name, ttl, .. } = &self.request;
        self.known = true;
        let saw_nobody = self.store.shelf().has_no_row(name);
        if saw_nobody {
            yield_now().await;
        }
        let answer = self.store.shelf().attempt(&self.request, self.store.client, &self.bell, saw_nobody);
        let mut valid_for = *ttl;
        if self.store.bug == Bug::ValidFromReceipt && !self.asked {
            self.asked = true;
            sleep(FIRST_ANSWER).await;
            valid_for += FIRST_ANSWER;
        }
        Ok(answer.map_or_else(
            |retry_in| Attempt::Busy { retry_in },
            |number| Attempt::Granted(Grant { token: Token::new(number), valid_for }),
        ))
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.known = true;
        let renewed = self.store.shelf().renew(&self.request, None, self.store.client, &self.bell);
        Ok(if renewed { Renewal::Renewed { valid_for: self.request.ttl } } else { Renewal::Lost })
    }

    async fn detach(&mut self, lasting: Duration) -> Result<Renewal> {
        let renewed = self.store.shelf().renew(&self.request, Some(lasting), self.store.client, &self.bell);
        Ok(if renewed { Renewal::Renewed { valid_for: lasting } } else { Renewal::Lost })
    }

    async fn release(&mut self) -> Result<Release> {
        let was_there = self.store.shelf().release(&self.request.name, self.request.id, !self.known);
        Ok(if was_there { Release::Done } else { Release::Gone })
    }

    async fn changed(&mut self) {
        self.bell.notified().await;
    }
}

#[async_trait]
impl Inspect for WrongStore {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        Ok(self.shelf().look(&self.key(name)))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        Ok(self.shelf().states().filter(|state| state.name.as_str().starts_with(prefix)).collect())
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        Ok(self.shelf().rob(&self.key(name)))
    }
}
