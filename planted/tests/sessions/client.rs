//! A client of the session store. It has one session with a heartbeat, and a reaper that deletes
//! each claim after its ttl.

use std::{
    collections::HashMap,
    sync::{
        Arc,
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
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::sleep};

use super::server::{Server, SessionIsOver, TIMEOUT, Watch};

/// Interval of a client's heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(TIMEOUT.as_secs() / 3);

/// Time after a heartbeat for which a client may rely on its session. The last third of the timeout
/// is a reserve for different clock rates and for the way of the heartbeat.
const SESSION_VALIDITY: Duration = Duration::from_secs(TIMEOUT.as_secs() * 2 / 3);

/// The bug of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// No bug. The suite must pass.
    None,
    /// A claim that is not renewed is never deleted, so it stays until the end of the session.
    NoReaper,
    /// The client accepts any ttl, and promises the whole ttl to a holder, even if the session may
    /// end before.
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
    /// Names of the claims that the reaper may have to delete.
    names: Mutex<HashMap<ClaimId, LockName>>,
    /// Wakes the pump, because an earlier claim may be overdue, or because the client is dead.
    wake: Notify,
    dead: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    id: u64,
    /// Send time of the last acknowledged heartbeat.
    last_heartbeat_at: Moment,
}

fn unavailable(reason: &str) -> Error {
    Error::Unavailable { store: "sessions", source: reason.into() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Client {
    /// Connects a client, whose pump runs until the client is dead.
    #[expect(clippy::disallowed_methods, reason = "the pump of the client's one session")]
    pub(crate) fn connect(server: &Arc<Mutex<Server>>, bug: Bug) -> Arc<Self> {
        let longest = if bug == Bug::BeyondTheSession { TIMEOUT * 100 } else { TIMEOUT / 2 };
        let info = Info::new("sessions", format!("sessions:{:p}", Arc::as_ptr(server)))
            .kinds(&[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit])
            .tokens(true)
            .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
            .ttl(Duration::from_millis(1)..=longest)
            .session(TIMEOUT, Duration::from_millis(1)..=Duration::from_secs(365 * 24 * 3600));
        let session = Session { last_heartbeat_at: Moment::now(), id: lock(server).open_session() };
        let client = Arc::new(Self {
            bug,
            server: Arc::clone(server),
            info,
            session: Mutex::new(session),
            reaper: Reaper::new(),
            names: Mutex::default(),
            wake: Notify::new(),
            dead: AtomicBool::new(false),
        });
        tokio::spawn(Arc::clone(&client).pump());
        client
    }

    pub(crate) fn into_store(self: Arc<Self>) -> Store {
        Store::new(Arc::new(Handle(Arc::clone(&self)))).with_inspect(Arc::new(Handle(self)))
    }

    /// Stops all requests of the client: calls, heartbeats and deletions.
    pub(crate) fn kill(&self) {
        self.dead.store(true, Relaxed);
        self.wake.notify_one();
    }

    /// Sends heartbeats, and deletes overdue claims.
    async fn pump(self: Arc<Self>) {
        let mut next_heartbeat = Moment::now();
        while !self.dead.load(Relaxed) {
            if next_heartbeat.has_passed() {
                next_heartbeat = Moment::now().after(HEARTBEAT_INTERVAL);
                self.send_heartbeat();
            }
            for id in self.reaper.begin_deletions() {
                let name = lock(&self.names).get(&id).cloned();
                if let Some(name) = name.filter(|_| self.bug != Bug::NoReaper) {
                    lock(&self.server).delete(&name, id);
                }
                self.forget(id);
            }
            let next =
                self.reaper.next_deadline().map_or(next_heartbeat, |overdue| overdue.min(next_heartbeat));
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep(next.remaining().max(Duration::from_millis(1))) => {}
            }
        }
    }

    fn send_heartbeat(&self) {
        let (sent_at, mut session) = (Moment::now(), lock(&self.session));
        let mut server = lock(&self.server);
        if !server.heartbeat(session.id) {
            // The server has deleted the claims of the old session. Each claim detects that at its
            // next call.
            session.id = server.open_session();
            self.reaper.forget_all();
            lock(&self.names).clear();
        }
        session.last_heartbeat_at = sent_at;
    }

    fn forget(&self, id: ClaimId) {
        self.reaper.forget(id);
        lock(&self.names).remove(&id);
    }

    /// Returns the session, and the time for which the client may still rely on it.
    fn session(&self) -> Result<(u64, Duration)> {
        if self.dead.load(Relaxed) {
            return Err(unavailable("the client is dead"));
        }
        let session = *lock(&self.session);
        match SESSION_VALIDITY.checked_sub(session.last_heartbeat_at.elapsed()) {
            Some(_) if self.bug == Bug::BeyondTheSession => Ok((session.id, Duration::MAX)),
            Some(left) if !left.is_zero() => Ok((session.id, left)),
            _ => Err(unavailable("no heartbeat was acknowledged in time")),
        }
    }
}

/// The client as the engine owns it.
#[derive(Debug)]
struct Handle(Arc<Client>);

impl Drop for Handle {
    fn drop(&mut self) {
        // A store has two handles, and dropping either of them kills the client. The session of a
        // client that was not closed times out.
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
    /// Session in which the claim has created its node.
    session: Option<u64>,
    watch: Arc<Watch>,
}

impl SessionClaim {
    /// Restarts the claim's ttl. Returns `false` if the claim is being deleted.
    fn touch(&self) -> bool {
        let is_kept = self.client.reaper.touch(self.request.id, self.request.ttl);
        self.client.wake.notify_one();
        is_kept
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
        // A waiting claim joins again with a new session.
        self.session = Some(session);
        let entry = self.request.entry();
        let result = lock(&self.client.server).attempt(session, name, (entry, who), stays, &self.watch);
        let token = result.map_err(|SessionIsOver| unavailable("the session is over"))?;
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
        let is_held = self.session == Some(session) && !self.watch.deleted.load(Relaxed);
        Ok(if is_held && self.touch() {
            Renewal::Renewed { valid_for: left.min(self.request.ttl) }
        } else {
            Renewal::Lost
        })
    }

    async fn release(&mut self) -> Result<Release> {
        let (session, _) = self.client.session()?;
        let Request { name, id, .. } = &self.request;
        // The end of the claim's session has deleted the node.
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
        Ok(lock(&self.0.server).inspect(name.as_str(), true).pop())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        self.0.session()?;
        Ok(lock(&self.0.server).inspect(prefix, false))
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        self.0.session()?;
        Ok(lock(&self.0.server).force_release(name))
    }
}
