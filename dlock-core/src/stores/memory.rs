//! The reference store, in the memory of this process, with all kinds in one queue. This file is
//! also an example of a complete backend.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Bound,
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::{
    contract::{
        Attempt, AttemptAll, Backend, Claim, Contender, Entry, Grant, Info, Inspect, LockState, Release,
        Renewal, Request, Resumption, Store, Turn, Watch, turn, watched, watchers,
    },
    kit::{Driver, Moment, StoreUrl, WeakMap},
    model::{ClaimId, Error, Kind, LockName, Result, Token, Wait, Who},
};

/// The driver for `memory:` and `memory:NAME`, with one store for each name in a process.
pub const DRIVER: Driver = Driver::new(&["memory"], |url| Box::pin(connect(url)));

/// A client of a store in the memory of this process. Clones are further clients of the same store.
#[derive(Clone)]
pub struct MemoryBackend {
    queues: Arc<SharedQueues>,
    info: Info,
    /// Time since 1970 at the creation of the store, and the same moment on its own clock.
    created: (Duration, Moment),
}

/// The state that the clients of one store share.
type SharedQueues = Mutex<Queues>;

struct Queues {
    /// Last number that was drawn for any lock. A claim's number determines its position in the
    /// queue, and is its token once the claim is granted.
    last_number: u64,
    /// The queue of each lock, without empty queues.
    by_name: BTreeMap<LockName, Vec<QueuedClaim>>,
    /// Notified when the holders of a lock may have changed, for each lock with an observer.
    observed: WeakMap<LockName, watch::Sender<()>>,
}

/// A claim in the queue of its lock, waiting or held.
struct QueuedClaim {
    entry: Entry,
    number: u64,
    created_at: Moment,
    expires_at: Moment,
    /// Whether the claim holds without a client. Only such a hold can be resumed.
    is_detached: bool,
    who: Who,
    /// Notified when another attempt may have a new result.
    hint: Arc<Notify>,
}

impl MemoryBackend {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::named(ClaimId::random().to_string())
    }

    fn named(name: String) -> Self {
        let info = Info::new("memory", format!("memory:{name}"))
            .kinds(&[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit])
            .tokens(true)
            .detaches(true)
            .clock(true)
            .locks_per_step(usize::MAX)
            .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write]);
        let queues =
            Queues { last_number: number_before_first(), by_name: BTreeMap::new(), observed: WeakMap::new() };
        Self { queues: Arc::new(Mutex::new(queues)), info, created: (since_1970(), Moment::now()) }
    }

    /// Returns the store, with inspection.
    pub fn into_store(self) -> Store {
        Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self))
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryBackend").field(&self.info.identity).finish()
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn info(&self) -> &Info {
        &self.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(MemoryClaim::new(&self.queues, request))
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        let (mut queues, now) = (self.queues.lock(), Moment::now());
        for (at, request) in requests.iter().enumerate() {
            queues.remove_expired(&request.name, now);
            if queues.would_wait(&request.name, request.entry()) {
                return Ok(AttemptAll::Busy(at));
            }
        }
        let granted = requests.into_iter().map(|request| {
            let claim = MemoryClaim::new(&self.queues, request);
            let token = Token::new(queues.push(&claim.request, &claim.hint, now));
            let grant = Grant { token, valid_for: claim.request.ttl };
            (Box::new(claim) as Box<dyn Claim>, grant)
        });
        Ok(AttemptAll::Granted(granted.collect()))
    }

    async fn clock(&self) -> Result<Duration> {
        let (since_1970, at) = self.created;
        Ok(since_1970.saturating_add(at.elapsed()))
    }

    fn watch(&self, name: &LockName) -> Option<Box<dyn Watch>> {
        let sender = self.queues.lock().observed.get_or_insert_with(name, || watch::Sender::new(()));
        let mut changes = sender.subscribe();
        // The first hint says that the subscription is active.
        changes.mark_changed();
        Some(Box::new(MemoryWatch { changes, _sender: sender }))
    }
}

struct MemoryWatch {
    changes: watch::Receiver<()>,
    _sender: Arc<watch::Sender<()>>,
}

#[async_trait]
impl Watch for MemoryWatch {
    async fn changed(&mut self) {
        // Fails only without a sender, and this watch has one.
        self.changes.changed().await.ok();
    }
}

struct MemoryClaim {
    queues: Arc<SharedQueues>,
    request: Request,
    hint: Arc<Notify>,
    /// Id that this claim may be detached as.
    ticket: Option<ClaimId>,
}

impl MemoryClaim {
    fn new(queues: &Arc<SharedQueues>, request: Request) -> Self {
        Self { queues: Arc::clone(queues), request, hint: Arc::default(), ticket: None }
    }
}

#[async_trait]
impl Claim for MemoryClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let Request { name, kind, id, ttl, wait, .. } = &self.request;
        let now = Moment::now();
        let mut queues = self.queues.lock();
        queues.remove_expired(name, now);
        if let Some(claim) = queues.find(name, *id) {
            claim.expires_at = now.after(*ttl);
            claim.hint = Arc::clone(&self.hint);
            let downgrades = *kind == Kind::Read && claim.entry.kind != Kind::Read;
            if downgrades {
                queues.notify_watchers(name, *id);
                queues.find(name, *id).expect("found above").entry.kind = Kind::Read;
            }
        } else {
            if *wait == Wait::Never && queues.would_wait(name, self.request.entry()) {
                return Ok(Attempt::Busy { retry_in: *ttl });
            }
            queues.push(&self.request, &self.hint, now);
        }
        Ok(queues.attempt_result(name, *id, *ttl, now))
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let Request { name, id, ttl, .. } = &self.request;
        let now = Moment::now();
        let mut queues = self.queues.lock();
        queues.remove_expired(name, now);
        let Some(claim) = queues.find(name, *id) else { return Ok(Renewal::Lost) };
        claim.extend(now, *ttl);
        Ok(Renewal::Renewed { valid_for: *ttl })
    }

    /// Changes the id and the ttl of the claim. Nothing else is needed, because the store keeps a
    /// claim whether or not its client exists.
    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.ticket = Some(ticket);
        let Request { name, id, .. } = &self.request;
        let now = Moment::now();
        let mut queues = self.queues.lock();
        queues.remove_expired(name, now);
        let known_as = [*id, ticket].into_iter().find(|id| queues.holds(name, *id));
        let Some(claim) = known_as.and_then(|id| queues.find(name, id)) else {
            // The ticket may be that of another claim, which the release must not find.
            self.ticket = None;
            return Ok(Renewal::Lost);
        };
        if claim.entry.id == ticket {
            claim.extend(now, lasting);
        } else {
            (claim.entry.id, claim.expires_at) = (ticket, now.after(lasting));
        }
        claim.is_detached = true;
        queues.notify_observers(name, ticket);
        Ok(Renewal::Renewed { valid_for: lasting })
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let Request { name, id, ttl, who, .. } = &self.request;
        let now = Moment::now();
        let mut queues = self.queues.lock();
        queues.remove_expired(name, now);
        let known_as = [*id, ticket].into_iter().find(|id| queues.holds(name, *id));
        let Some(claim) = known_as.and_then(|id| queues.find(name, id)) else { return Ok(Resumption::Gone) };
        let remaining = if claim.entry.id == *id {
            claim.extend(now, *ttl);
            None
        } else if claim.is_detached {
            let remaining = claim.expires_at.since(now);
            (claim.entry.id, claim.expires_at, claim.is_detached) = (*id, now.after(*ttl), false);
            claim.who = who.clone();
            Some(remaining)
        } else {
            return Ok(Resumption::Gone);
        };
        claim.hint = Arc::clone(&self.hint);
        let grant = Grant { token: Token::new(claim.number), valid_for: *ttl };
        queues.notify_observers(name, *id);
        Ok(Resumption::Resumed { grant, remaining })
    }

    async fn release(&mut self) -> Result<Release> {
        let Request { name, id, .. } = &self.request;
        let mut queues = self.queues.lock();
        let known_as = [Some(*id), self.ticket].into_iter().flatten();
        let present: Vec<_> = known_as.filter(|id| queues.find(name, *id).is_some()).collect();
        present.iter().for_each(|id| queues.remove(name, *id));
        Ok(if present.is_empty() { Release::Gone } else { Release::Done })
    }

    async fn changed(&mut self) {
        self.hint.notified().await;
    }
}

impl QueuedClaim {
    /// Extends the claim's time. Never shortens it, because a renewal may arrive late.
    fn extend(&mut self, now: Moment, ttl: Duration) {
        if self.expires_at.since(now) < ttl {
            self.expires_at = now.after(ttl);
        }
    }
}

impl Queues {
    fn queue(&self, name: &LockName) -> Vec<Entry> {
        self.by_name.get(name).into_iter().flatten().map(|claim| claim.entry).collect()
    }

    fn find(&mut self, name: &LockName, id: ClaimId) -> Option<&mut QueuedClaim> {
        self.by_name.get_mut(name)?.iter_mut().find(|claim| claim.entry.id == id)
    }

    fn holds(&self, name: &LockName, id: ClaimId) -> bool {
        turn(&self.queue(name), id) == Turn::Mine
    }

    /// Adds a claim to the end of its queue. Returns the claim's number.
    fn push(&mut self, request: &Request, hint: &Arc<Notify>, now: Moment) -> u64 {
        self.last_number += 1;
        let queue = self.by_name.entry(request.name.clone()).or_insert_with(|| Vec::with_capacity(1));
        queue.push(QueuedClaim {
            entry: request.entry(),
            number: self.last_number,
            created_at: now,
            expires_at: now.after(request.ttl),
            is_detached: false,
            who: request.who.clone(),
            hint: Arc::clone(hint),
        });
        self.notify_observers(&request.name, request.id);
        self.last_number
    }

    /// Returns whether a new claim would have to wait.
    fn would_wait(&self, name: &LockName, newcomer: Entry) -> bool {
        let mut queue = self.queue(name);
        queue.push(newcomer);
        turn(&queue, newcomer.id) != Turn::Mine
    }

    /// Returns the result of an attempt. A waiting claim should retry when a claim ahead expires.
    fn attempt_result(&mut self, name: &LockName, id: ClaimId, ttl: Duration, now: Moment) -> Attempt {
        let queue = self.queue(name);
        let expiry = |ahead: &Entry| Some(self.find(name, ahead.id)?.expires_at.since(now));
        match watched(&queue, id).iter().filter_map(expiry).min() {
            Some(retry_in) => Attempt::Busy { retry_in },
            None => {
                let claim = self.find(name, id).expect("just entered");
                Attempt::Granted(Grant { token: Token::new(claim.number), valid_for: ttl })
            }
        }
    }

    /// Removes the claims whose time has passed.
    fn remove_expired(&mut self, name: &LockName, now: Moment) {
        let is_expired = |claim: &&QueuedClaim| claim.expires_at.since(now).is_zero();
        while let Some(id) =
            self.by_name.get(name).and_then(|queue| queue.iter().find(is_expired)).map(|claim| claim.entry.id)
        {
            self.remove(name, id);
        }
    }

    fn remove(&mut self, name: &LockName, id: ClaimId) {
        self.notify_observers(name, id);
        self.notify_watchers(name, id);
        if let Some(queue) = self.by_name.get_mut(name) {
            queue.retain(|claim| claim.entry.id != id);
            if queue.is_empty() {
                self.by_name.remove(name);
            }
        }
    }

    /// Notifies the observers of a lock, if this claim holds it.
    fn notify_observers(&self, name: &LockName, id: ClaimId) {
        if let Some(changes) = self.observed.get(name)
            && self.holds(name, id)
        {
            changes.send_replace(());
        }
    }

    /// Notifies the claims that wait for this one.
    fn notify_watchers(&mut self, name: &LockName, id: ClaimId) {
        for watcher in watchers(&self.queue(name), id) {
            self.find(name, watcher.id).expect("in the queue").hint.notify_one();
        }
    }

    fn state(&self, name: &LockName, now: Moment) -> Option<LockState> {
        let queue = self.queue(name);
        let contender = |claim: &QueuedClaim| {
            Contender::new(claim.entry.id.to_string(), claim.entry.kind)
                .since(now.since(claim.created_at))
                .ttl_left(claim.expires_at.since(now))
                .who(claim.who.text())
        };
        let mut state = LockState::new(name.clone());
        for claim in self.by_name.get(name)?.iter().filter(|claim| !claim.expires_at.since(now).is_zero()) {
            match turn(&queue, claim.entry.id) {
                Turn::Mine => state.holders.push(contender(claim).token(Token::new(claim.number))),
                _ => state.queue.push(contender(claim)),
            }
        }
        Some(state).filter(|state| !state.is_free())
    }
}

#[async_trait]
impl Inspect for MemoryBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        let mut queues = self.queues.lock();
        let now = Moment::now();
        queues.remove_expired(name, now);
        Ok(queues.state(name, now))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let (queues, now) = (self.queues.lock(), Moment::now());
        let names =
            queues.by_name.range::<str, _>((Bound::Included(prefix), Bound::Unbounded)).map(|(name, _)| name);
        let names = names.take_while(|name| name.as_str().starts_with(prefix));
        Ok(names.filter_map(|name| queues.state(name, now)).collect())
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        let mut queues = self.queues.lock();
        queues.remove_expired(name, Moment::now());
        let queue = queues.queue(name);
        let holders: Vec<_> = queue.iter().filter(|entry| turn(&queue, entry.id) == Turn::Mine).collect();
        for holder in &holders {
            queues.find(name, holder.id).expect("in the queue").hint.notify_one();
            queues.remove(name, holder.id);
        }
        Ok(!holders.is_empty())
    }
}

/// Returns the number before the first token: the microseconds since 1970. Tokens therefore grow
/// across restarts of the process, if it grants fewer than a million a second.
fn number_before_first() -> u64 {
    u64::try_from(since_1970().as_micros()).unwrap_or(u64::MAX / 2)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the first token must outlive the process, and users of the store's clock expect the time of day"
)]
fn since_1970() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

async fn connect(url: StoreUrl) -> Result<Store> {
    static STORES: LazyLock<Mutex<HashMap<String, MemoryBackend>>> = LazyLock::new(Mutex::default);
    url.allow(&[])?;
    if !url.hosts().is_empty() {
        let reason = format!("`{url}` names a host, and memory has none: write `memory:` or `memory:NAME`");
        return Err(Error::InvalidConfig { reason });
    }
    let name = url.path().to_owned();
    let mut stores = STORES.lock();
    Ok(stores.entry(name.clone()).or_insert_with(|| MemoryBackend::named(name)).clone().into_store())
}

#[cfg(test)]
mod tests {
    use std::{env, io::Write as _, process::Command};

    use super::*;
    use crate::lock::{Locks, Registry};

    #[tokio::test(start_paused = true)]
    async fn a_lock_whose_holder_fell_silent_is_not_listed() {
        let store = MemoryBackend::new();
        let name = LockName::new("x").expect("legal");
        let ttl = Duration::from_secs(30);
        let request = Request::new(name, Kind::Mutex, ttl).wait(Wait::Never);
        assert!(matches!(store.claim(request).attempt().await, Ok(Attempt::Granted(_))), "free");
        assert_eq!(store.list("").await.expect("memory lists locks").len(), 1);
        tokio::time::advance(ttl).await;
        assert_eq!(store.list("").await.expect("memory lists locks"), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_is_shown_with_its_token_and_a_waiter_without() {
        let store = MemoryBackend::named("jobs".to_owned());
        assert!(format!("{store:?}").contains("memory:jobs"), "{store:?}");
        let locks = Locks::new(store.into_store());
        let held = locks.mutex("x").lock().await.expect("free");
        let waiting = locks.fair("x");
        let mut waiting = Box::pin(async move { waiting.lock().await });
        assert!(futures_util::poll!(&mut waiting).is_pending());
        tokio::time::sleep(Duration::from_millis(1)).await;
        let state = locks.inspect("x").await.expect("memory shows locks").expect("the lock is held");
        assert_eq!(state.holders[0].token, held.token());
        assert_eq!((state.queue.len(), state.queue[0].token), (1, None));
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_claim_stays_in_memory_until_its_name_is_used_again() {
        let store = MemoryBackend::new();
        let ttl = Duration::from_secs(30);
        let claims_after_use = async |name: &str| {
            let name = LockName::new(name).expect("legal");
            let request = Request::new(name, Kind::Mutex, ttl).wait(Wait::Never);
            assert!(matches!(store.claim(request).attempt().await, Ok(Attempt::Granted(_))), "free");
            store.queues.lock().by_name.values().map(Vec::len).sum::<usize>()
        };
        assert_eq!(claims_after_use("x").await, 1);
        tokio::time::advance(ttl).await;
        assert_eq!(claims_after_use("y").await, 2, "the expired claim of `x` is no longer in memory");
        tokio::time::advance(ttl).await;
        assert_eq!(claims_after_use("x").await, 2, "not the expired claim of `y` and the new one of `x`");
    }

    /// Environment variable of the processes that the next test starts.
    const IS_CHILD: &str = "DLOCK_TEST_MEMORY_CHILD";

    /// Runs in this process and in its children. A child ends while it holds the lock.
    #[tokio::test]
    async fn a_named_store_exists_in_one_process_and_its_tokens_grow_from_process_to_process() {
        let locks = Registry::new().connect("memory:processes").await.expect("a legal URL");
        let held = locks.mutex("x").try_lock().await.expect("memory replies").expect("a new store");
        let mut last = held.token().expect("memory has tokens").get();
        if env::var_os(IS_CHILD).is_some() {
            // Not `println!`, whose output the harness keeps.
            writeln!(std::io::stdout(), "token={last};").expect("the parent reads it");
            return std::mem::forget(held);
        }
        let test = "stores::memory::tests::\
                    a_named_store_exists_in_one_process_and_its_tokens_grow_from_process_to_process";
        for _ in 0..2 {
            let mut child = Command::new(env::current_exe().expect("this binary exists"));
            let output = child.args([test, "--exact"]).env(IS_CHILD, "1").output().expect("it starts");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "the other process did not get the lock: {text}");
            let token = text.split_once("token=").and_then(|(_, rest)| rest.split_once(';'));
            let token: u64 = token.and_then(|(token, _)| token.parse().ok()).expect("the child ran the test");
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        assert!(!held.is_lost(), "another process took the lock");
    }
}
