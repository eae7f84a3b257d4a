//! A copy of the memory store that asks everywhere which bug it has.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use dlock_conformance::Kill;
use dlock_core::{
    ClaimId, Kind, LockName, LockState, Result, Token,
    driver::{
        Attempt, AttemptAll, Backend, Claim, Grant, Info, Inspect, Release, Renewal, Request, Resumption,
        Store,
    },
};
use tokio::{sync::Notify, task::yield_now, time::sleep};

use crate::{Bug, shelf::WrongShelf};

/// How long a claim's first answer takes where that matters.
const FIRST_ANSWER: Duration = Duration::from_millis(200);

/// So few that a request for several locks is sometimes one for some of them.
const MOST_TOGETHER: usize = 4;

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
            .locks_per_step(MOST_TOGETHER)
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

    fn wrong_claim(&self, mut request: Request) -> WrongClaim {
        request.name = self.key(&request.name);
        let (store, bell) = (self.clone(), Arc::default());
        WrongClaim { store, request, bell, ticket: None, asked: false, known: false }
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

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(self.wrong_claim(request))
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        let mut claims: Vec<_> = requests.into_iter().map(|request| self.wrong_claim(request)).collect();
        let asked: Vec<_> = claims.iter().map(|claim| claim.request.clone()).collect();
        let pairs = claims.iter().map(|claim| (claim.request.clone(), Arc::clone(&claim.bell)));
        let pairs: Vec<_> = pairs.collect();
        let busy = self.shelf().first_busy(&asked);
        if let Some(busy) = busy {
            if self.bug == Bug::TogetherKeepsSome {
                self.shelf().take_all(&pairs[..busy], self.client);
            }
            return Ok(AttemptAll::Busy(busy));
        }
        // Without a pause this is one step, because the clock of these tests has one thread.
        if self.bug == Bug::TogetherInTwoSteps {
            yield_now().await;
        }
        let numbers = self.shelf().take_all(&pairs, self.client);
        claims.iter_mut().for_each(|claim| claim.known = true);
        let granted = claims.into_iter().zip(numbers).map(|(claim, number)| {
            let grant = Grant { token: Token::new(number), valid_for: claim.request.ttl };
            (Box::new(claim) as Box<dyn Claim>, grant)
        });
        Ok(AttemptAll::Granted(granted.collect()))
    }

    async fn close(&self) {
        self.shelf().client_died(self.client);
    }
}

struct WrongClaim {
    store: WrongStore,
    request: Request,
    bell: Arc<Notify>,
    /// The other id under which the store may know its hold.
    ticket: Option<ClaimId>,
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
        let renewed = self.store.shelf().renew(&self.request, self.store.client, &self.bell);
        Ok(if renewed { Renewal::Renewed { valid_for: self.request.ttl } } else { Renewal::Lost })
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.ticket = Some(ticket);
        let detached = self.store.shelf().detach(&self.request, lasting, ticket, self.store.client);
        Ok(if detached { Renewal::Renewed { valid_for: lasting } } else { Renewal::Lost })
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        (self.known, self.ticket) = (true, Some(ticket));
        let resumed = self.store.shelf().resume(&self.request, ticket, self.store.client, &self.bell);
        if self.store.bug == Bug::TicketForTwo && resumed.is_some() {
            self.request.id = ticket;
        }
        Ok(resumed.map_or(Resumption::Gone, |(number, remaining)| Resumption::Resumed {
            grant: Grant { token: Token::new(number), valid_for: self.request.ttl },
            remaining,
        }))
    }

    async fn release(&mut self) -> Result<Release> {
        let (mut shelf, name) = (self.store.shelf(), &self.request.name);
        let by_ticket = self.ticket.filter(|ticket| shelf.is_detached(name, *ticket));
        let was_there = shelf.release(name, by_ticket.unwrap_or(self.request.id), !self.known);
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
