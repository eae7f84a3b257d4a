//! A copy of the memory store with a choice of bugs.

use std::{
    sync::{
        Arc,
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
use parking_lot::Mutex;
use tokio::{sync::Notify, task::yield_now, time::sleep};

use crate::{Bug, queues::BuggyQueues};

/// Delay of a claim's first reply, for [`Bug::ValidFromReceipt`].
const FIRST_REPLY_DELAY: Duration = Duration::from_millis(200);

/// Time for which an attempt occupies the connection with [`Bug::RenewalBehindAttempts`].
const ATTEMPT_TIME: Duration = Duration::from_millis(300);

/// Maximum number of locks in a joint attempt. So small that some requests of the suite contain
/// only a part of their locks.
const MAX_LOCKS_PER_STEP: usize = 4;

/// A store in memory with one bug, for tests with a paused clock. Clones are clients of the same
/// store.
#[derive(Clone, Debug)]
pub struct BuggyStore {
    bug: Bug,
    queues: Arc<Mutex<BuggyQueues>>,
    info: Info,
    /// Number of this client.
    client: u64,
    /// The client's only connection, for [`Bug::RenewalBehindAttempts`].
    connection: Arc<tokio::sync::Mutex<()>>,
}

impl BuggyStore {
    /// Creates an empty store with this bug.
    pub fn new(bug: Bug) -> Self {
        let info = Info::new("wrong", format!("wrong:{}", ClaimId::random()))
            .kinds(&[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit])
            .tokens(true)
            .detaches(true)
            .locks_per_step(MAX_LOCKS_PER_STEP)
            .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write]);
        Self {
            bug,
            queues: Arc::new(Mutex::new(BuggyQueues::new(bug))),
            info,
            client: 0,
            connection: Arc::default(),
        }
    }

    /// Returns a new client, with [`Inspect`].
    pub fn into_store(self) -> Store {
        self.into_killable_store().0
    }

    /// Returns a new client, and a function that kills it.
    pub fn into_killable_store(mut self) -> (Store, Kill) {
        self.become_new_client();
        let killed = self.clone();
        let store = Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self));
        (store, Box::new(move || killed.queues.lock().client_died(killed.client)))
    }

    /// Gives this value the number of a new client.
    fn become_new_client(&mut self) {
        static CLIENTS: AtomicU64 = AtomicU64::new(1);
        self.client = CLIENTS.fetch_add(1, Relaxed);
        self.connection = Arc::default();
        if self.bug == Bug::IdentityPerClient {
            self.info.identity = format!("wrong:{}", ClaimId::random());
        }
    }

    fn buggy_claim(&self, mut request: Request) -> BuggyClaim {
        request.name = self.key(&request.name);
        let (store, bell) = (self.clone(), Arc::default());
        BuggyClaim { store, request, bell, ticket: None, has_replied: false, has_called: false }
    }

    fn key(&self, name: &LockName) -> LockName {
        let key =
            if self.bug == Bug::NamesIgnoreCase { name.as_str().to_lowercase() } else { name.to_string() };
        LockName::new(key).unwrap_or_else(|_| name.clone())
    }
}

#[async_trait]
impl Backend for BuggyStore {
    fn info(&self) -> &Info {
        &self.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(self.buggy_claim(request))
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        let mut claims: Vec<_> = requests.into_iter().map(|request| self.buggy_claim(request)).collect();
        let requests: Vec<_> = claims.iter().map(|claim| claim.request.clone()).collect();
        let pairs = claims.iter().map(|claim| (claim.request.clone(), Arc::clone(&claim.bell)));
        let pairs: Vec<_> = pairs.collect();
        let busy = self.queues.lock().first_busy(&requests);
        if let Some(busy) = busy {
            if self.bug == Bug::JointAttemptKeepsSome {
                self.queues.lock().take_all(&pairs[..busy], self.client);
            }
            return Ok(AttemptAll::Busy(busy));
        }
        // Without a pause this is a single step, because tests with a paused clock have one thread.
        if self.bug == Bug::JointAttemptInTwoSteps {
            yield_now().await;
        }
        let numbers = self.queues.lock().take_all(&pairs, self.client);
        claims.iter_mut().for_each(|claim| claim.has_called = true);
        let granted = claims.into_iter().zip(numbers).map(|(claim, number)| {
            let grant = Grant { token: Token::new(number), valid_for: claim.request.ttl };
            (Box::new(claim) as Box<dyn Claim>, grant)
        });
        Ok(AttemptAll::Granted(granted.collect()))
    }

    async fn close(&self) {
        self.queues.lock().client_died(self.client);
    }
}

struct BuggyClaim {
    store: BuggyStore,
    request: Request,
    bell: Arc<Notify>,
    /// Other id that the store may have for the hold.
    ticket: Option<ClaimId>,
    /// Whether the store has replied to an attempt, for [`Bug::ValidFromReceipt`].
    has_replied: bool,
    /// Whether the claim has attempted, renewed or resumed. Otherwise it only releases by ticket.
    has_called: bool,
}

impl BuggyClaim {
    /// Returns the validity that the driver reports for a ttl.
    fn validity(&self, ttl: Duration) -> Duration {
        match self.store.bug {
            Bug::MarginAdded => ttl * 3 / 2,
            Bug::StaleFlag => ttl * 2,
            _ => ttl,
        }
    }
}

#[async_trait]
impl Claim for BuggyClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let Request { name, ttl, .. } = &self.request;
        self.has_called = true;
        if self.store.bug == Bug::RenewalBehindAttempts {
            let _connection = self.store.connection.lock().await;
            sleep(ATTEMPT_TIME).await;
        }
        let passes_queue = self.store.queues.lock().has_no_row(name);
        if passes_queue {
            yield_now().await;
        }
        let result =
            self.store.queues.lock().attempt(&self.request, self.store.client, &self.bell, passes_queue);
        let mut valid_for = self.validity(*ttl);
        if self.store.bug == Bug::ValidFromReceipt && !self.has_replied {
            self.has_replied = true;
            sleep(FIRST_REPLY_DELAY).await;
            valid_for += FIRST_REPLY_DELAY;
        }
        Ok(result.map_or_else(
            |retry_in| Attempt::Busy { retry_in },
            |number| Attempt::Granted(Grant { token: Token::new(number), valid_for }),
        ))
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.has_called = true;
        if self.store.bug == Bug::RenewalBehindAttempts {
            drop(self.store.connection.lock().await);
        }
        let renewed = self.store.queues.lock().renew(&self.request, self.store.client, &self.bell);
        let valid_for = self.validity(self.request.ttl);
        Ok(if renewed { Renewal::Renewed { valid_for } } else { Renewal::Lost })
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        let detached = self.store.queues.lock().detach(&self.request, lasting, ticket, self.store.client);
        self.ticket = (detached || self.store.bug == Bug::LostKeepsTheTicket).then_some(ticket);
        Ok(if detached { Renewal::Renewed { valid_for: lasting } } else { Renewal::Lost })
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        (self.has_called, self.ticket) = (true, Some(ticket));
        let resumed = self.store.queues.lock().resume(&self.request, ticket, self.store.client, &self.bell);
        if self.store.bug == Bug::TicketWorksTwice && resumed.is_some() {
            self.request.id = ticket;
        }
        Ok(resumed.map_or(Resumption::Gone, |(number, remaining)| Resumption::Resumed {
            grant: Grant { token: Token::new(number), valid_for: self.validity(self.request.ttl) },
            remaining,
        }))
    }

    async fn release(&mut self) -> Result<Release> {
        let (mut queues, name) = (self.store.queues.lock(), &self.request.name);
        let by_ticket = self.ticket.filter(|ticket| queues.is_detached(name, *ticket));
        let was_there = queues.release(name, by_ticket.unwrap_or(self.request.id), !self.has_called);
        Ok(if was_there { Release::Done } else { Release::Gone })
    }

    async fn changed(&mut self) {
        self.bell.notified().await;
    }
}

#[async_trait]
impl Inspect for BuggyStore {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        Ok(self.queues.lock().inspect(&self.key(name)))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        Ok(self.queues.lock().states().filter(|state| state.name.as_str().starts_with(prefix)).collect())
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        Ok(self.queues.lock().force_release(&self.key(name)))
    }
}
