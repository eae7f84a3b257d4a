//! A client of the session store: one session with a heartbeat, and a reaper that gives each claim a ttl of its own.
//! A few lines over the usual length: a whole driver.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Kind, LockName, LockState, Result, Wait,
    driver::{
        Attempt, Backend, Claim, Grant, Info, Inspect, Moment, Reaper, Release, Renewal, Request, Store,
    },
};
use tokio::{sync::Notify, time::sleep};

use super::server::{Server, SessionIsOver, TIMEOUT, Watch};

/// How often a client sends a heartbeat.
const BEAT: Duration = Duration::from_secs(TIMEOUT.as_secs() / 3);

/// How long after a heartbeat a client may rely on its session. The last third of the timeout is kept back: the clocks may
/// differ, and a heartbeat takes time to arrive.
const CLAIMABLE: Duration = Duration::from_secs(TIMEOUT.as_secs() * 2 / 3);

/// What is wrong with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Nothing: the suite must pass.
    None,
    /// Nobody deletes a claim whose keeper is silent, so the claim stays as long as the session lives.
    NoReaper,
    /// The client accepts any ttl, and promises a holder the whole ttl, however soon the session may end.
    BeyondTheSession,
}

/// A connected client. After a close or a kill the client is dead.
#[derive(Debug)]
pub(crate) struct Client {
    bug: Bug,
    server: Arc<Mutex<Server>>,
    info: Info,
    session: Mutex<Session>,
    reaper: Reaper,
    /// The names of the claims that the reaper may have to delete.
    names: Mutex<HashMap<ClaimId, LockName>>,
    /// Wakes the pump. Either a claim may be overdue before the pump would next look, or the client is dead.
    knock: Notify,
    dead: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    id: u64,
    /// When the client sent the last heartbeat that the server answered.
    beaten: Moment,
}

fn unavailable(why: &str) -> Error {
    Error::Unavailable { store: "sessions", source: why.into() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// A client whose pump runs until it is dead.
    #[expect(clippy::disallowed_methods, reason = "the pump of the client's one session")]
    pub(crate) fn connect(server: &Arc<Mutex<Server>>, bug: Bug) -> Arc<Self> {
        let longest = if bug == Bug::BeyondTheSession { TIMEOUT * 100 } else { TIMEOUT / 2 };
        let info = Info::new("sessions", format!("sessions:{:p}", Arc::as_ptr(server)))
            .kinds(&[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit])
            .tokens(true)
            .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
            .ttl(Duration::from_millis(1)..=longest)
            .session(TIMEOUT, Duration::from_millis(1)..=Duration::from_secs(365 * 24 * 3600));
        let session = Session { beaten: Moment::now(), id: lock(server).open_session() };
        let client = Arc::new(Self {
            bug,
            server: Arc::clone(server),
            info,
            session: Mutex::new(session),
            reaper: Reaper::new(),
            names: Mutex::default(),
            knock: Notify::new(),
            dead: AtomicBool::new(false),
        });
        tokio::spawn(Arc::clone(&client).pump());
        client
    }

    pub(crate) fn into_store(self: Arc<Self>) -> Store {
        Store::new(Arc::new(Handle(Arc::clone(&self)))).with_inspect(Arc::new(Handle(self)))
    }

    /// From now on the client sends nothing: no call, no heartbeat, no deletion.
    pub(crate) fn kill(&self) {
        self.dead.store(true, Relaxed);
        self.knock.notify_one();
    }

    /// Sends heartbeats, and deletes the claims that are overdue.
    async fn pump(self: Arc<Self>) {
        let mut next_beat = Moment::now();
        while !self.dead.load(Relaxed) {
            if next_beat.has_passed() {
                next_beat = Moment::now().after(BEAT);
                self.beat();
            }
            for id in self.reaper.overdue() {
                let name = lock(&self.names).get(&id).cloned();
                if let Some(name) = name.filter(|_| self.bug != Bug::NoReaper) {
                    lock(&self.server).delete(&name, id);
                }
                self.forget(id);
            }
            let next = self.reaper.next_deadline().map_or(next_beat, |overdue| overdue.min(next_beat));
            tokio::select! {
                () = self.knock.notified() => {}
                () = sleep(next.remaining().max(Duration::from_millis(1))) => {}
            }
        }
    }

    fn beat(&self) {
        let (beaten, mut session) = (Moment::now(), lock(&self.session));
        let mut server = lock(&self.server);
        if !server.beat(session.id) {
            // Every claim of the old session is gone. Each claim finds that out at its next call.
            session.id = server.open_session();
            self.reaper.forget_all();
            lock(&self.names).clear();
        }
        session.beaten = beaten;
    }

    fn forget(&self, id: ClaimId) {
        self.reaper.forget(id);
        lock(&self.names).remove(&id);
    }

    /// The session, and how long the client may still rely on it.
    fn session(&self) -> Result<(u64, Duration)> {
        if self.dead.load(Relaxed) {
            return Err(unavailable("the client is dead"));
        }
        let session = *lock(&self.session);
        match CLAIMABLE.checked_sub(session.beaten.elapsed()) {
            Some(_) if self.bug == Bug::BeyondTheSession => Ok((session.id, Duration::MAX)),
            Some(left) if !left.is_zero() => Ok((session.id, left)),
            _ => Err(unavailable("no heartbeat was answered for too long")),
        }
    }
}

/// The client, as the engine owns it.
#[derive(Debug)]
struct Handle(Arc<Client>);

impl Drop for Handle {
    fn drop(&mut self) {
        // A store has two handles; dropping either of them kills the client. If nobody closed it before, its session times out.
        self.0.kill();
    }
}

#[async_trait]
impl Backend for Handle {
    fn info(&self) -> &Info {
        &self.0.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        let client = Arc::clone(&self.0);
        Box::new(SessionClaim { client, request, session: None, watch: Arc::default() })
    }

    async fn close(&self) {
        if !self.0.dead.load(Relaxed) {
            self.0.kill();
            let session = lock(&self.0.session).id;
            lock(&self.0.server).close_session(session);
        }
    }
}

struct SessionClaim {
    client: Arc<Client>,
    request: Request,
    /// The session in which the claim made its node.
    session: Option<u64>,
    watch: Arc<Watch>,
}

impl SessionClaim {
    /// Begins the claim's ttl anew; `false` if it is being deleted.
    fn touch(&self) -> bool {
        let known = self.client.reaper.touch(self.request.id, self.request.ttl);
        self.client.knock.notify_one();
        known
    }
}

#[async_trait]
impl Claim for SessionClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let (session, left) = self.client.session()?;
        if !self.touch() {
            return Err(unavailable("the claim is being deleted"));
        }
        let Request { name, id, ttl, wait, who, .. } = &self.request;
        lock(&self.client.names).insert(*id, name.clone());
        let stays = *wait != Wait::Never;
        // A claim that only waits joins again with a new session.
        self.session = Some(session);
        let entry = self.request.entry();
        let answer = lock(&self.client.server).attempt(session, name, (entry, who), stays, &self.watch);
        let token = answer.map_err(|SessionIsOver| unavailable("the session is over"))?;
        if token.is_none() && !stays {
            self.client.forget(*id);
        }
        Ok(match token {
            Some(_) => Attempt::Granted(Grant { token, valid_for: left.min(*ttl) }),
            None => Attempt::Busy { retry_in: *ttl },
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let (session, left) = self.client.session()?;
        let is_there = self.session == Some(session) && !self.watch.deleted.load(Relaxed);
        Ok(if is_there && self.touch() {
            Renewal::Renewed { valid_for: left.min(self.request.ttl) }
        } else {
            Renewal::Lost
        })
    }

    async fn release(&mut self) -> Result<Release> {
        let (session, _) = self.client.session()?;
        let Request { name, id, .. } = &self.request;
        // If the claim's session is over, its end has removed the node.
        let was_there = self.session == Some(session) && lock(&self.client.server).delete(name, *id);
        self.client.forget(*id);
        Ok(if was_there { Release::Done } else { Release::Gone })
    }

    async fn changed(&mut self) {
        self.watch.bell.notified().await;
    }
}

#[async_trait]
impl Inspect for Handle {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        self.0.session()?;
        Ok(lock(&self.0.server).look(name.as_str(), true).pop())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        self.0.session()?;
        Ok(lock(&self.0.server).look(prefix, false))
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        self.0.session()?;
        Ok(lock(&self.0.server).rob(name))
    }
}
