//! The reference store, in this process's memory: all kinds in one queue. Also how to write a backend.
//! Over the usual length, so that a whole backend is read in one place.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Bound,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::{
    contract::{
        Attempt, AttemptAll, Backend, Claim, Contender, Entry, Grant, Info, Inspect, LockState, Release,
        Renewal, Request, Resumption, Store, Turn, turn, watched, watchers,
    },
    kit::{Driver, Moment, StoreUrl},
    model::{ClaimId, Error, Kind, LockName, Result, Token, Wait, Who},
};

/// `memory:` and `memory:NAME`: one store per name and process.
pub const DRIVER: Driver = Driver { schemes: &["memory"], connect: |url| Box::pin(connect(url)) };

/// A client of a store in this process's memory. Clones are further clients of the same store.
#[derive(Clone)]
pub struct MemoryBackend {
    space: Arc<Space>,
    info: Info,
}

/// What the clients of one store share.
type Space = Mutex<Shelf>;

struct Shelf {
    /// The last number that was drawn, for any lock. A claim's number is its place in the queue, and its token once it is
    /// granted.
    last: u64,
    /// The queues, none of them empty.
    queues: BTreeMap<LockName, Vec<Place>>,
}

/// A claim's place in its queue.
struct Place {
    entry: Entry,
    number: u64,
    came: Moment,
    expires: Moment,
    /// Whether the claim holds without a client. Only such a hold can be resumed.
    is_detached: bool,
    who: Who,
    /// Rung when another attempt may have a different result.
    bell: Arc<Notify>,
}

impl MemoryBackend {
    /// A new, empty store.
    pub fn new() -> Self {
        Self::named(ClaimId::random().to_string())
    }

    fn named(name: String) -> Self {
        let info = Info::new("memory", format!("memory:{name}"))
            .kinds(&[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit])
            .tokens(true)
            .detaches(true)
            .locks_per_step(usize::MAX)
            .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write]);
        Self { space: Arc::new(Mutex::new(Shelf { last: floor(), queues: BTreeMap::new() })), info }
    }

    /// The store with all its abilities.
    pub fn into_store(self) -> Store {
        Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self))
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        shelf(&self.space)
    }
}

fn shelf(space: &Space) -> MutexGuard<'_, Shelf> {
    space.lock().unwrap_or_else(PoisonError::into_inner)
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
        Box::new(MemoryClaim::new(&self.space, request))
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        let (mut shelf, now) = (self.shelf(), Moment::now());
        for (at, request) in requests.iter().enumerate() {
            shelf.bury(&request.name, now);
            if shelf.blocks(&request.name, request.entry()) {
                return Ok(AttemptAll::Busy(at));
            }
        }
        let granted = requests.into_iter().map(|request| {
            let claim = MemoryClaim::new(&self.space, request);
            let token = Token::new(shelf.enter(&claim.request, &claim.bell, now));
            let grant = Grant { token, valid_for: claim.request.ttl };
            (Box::new(claim) as Box<dyn Claim>, grant)
        });
        Ok(AttemptAll::Granted(granted.collect()))
    }
}

struct MemoryClaim {
    space: Arc<Space>,
    request: Request,
    bell: Arc<Notify>,
    /// Id that this claim was detached as, or was to be.
    ticket: Option<ClaimId>,
}

impl MemoryClaim {
    fn new(space: &Arc<Space>, request: Request) -> Self {
        Self { space: Arc::clone(space), request, bell: Arc::default(), ticket: None }
    }
}

#[async_trait]
impl Claim for MemoryClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let Request { name, kind, id, ttl, wait, .. } = &self.request;
        let now = Moment::now();
        let mut shelf = shelf(&self.space);
        shelf.bury(name, now);
        if let Some(place) = shelf.place(name, *id) {
            place.expires = now.after(*ttl);
            place.bell = Arc::clone(&self.bell);
            let downgrades = *kind == Kind::Read && place.entry.kind != Kind::Read;
            if downgrades {
                shelf.ring_watchers(name, *id);
                shelf.place(name, *id).expect("found above").entry.kind = Kind::Read;
            }
        } else {
            if *wait == Wait::Never && shelf.blocks(name, self.request.entry()) {
                return Ok(Attempt::Busy { retry_in: *ttl });
            }
            shelf.enter(&self.request, &self.bell, now);
        }
        Ok(shelf.answer(name, *id, *ttl, now))
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let Request { name, id, ttl, .. } = &self.request;
        let now = Moment::now();
        let mut shelf = shelf(&self.space);
        shelf.bury(name, now);
        let Some(place) = shelf.place(name, *id) else { return Ok(Renewal::Lost) };
        place.keep(now, *ttl);
        Ok(Renewal::Renewed { valid_for: *ttl })
    }

    /// A claim is in the store whether its client lives or not, so a detached claim is one with another id and ttl.
    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.ticket = Some(ticket);
        let Request { name, id, .. } = &self.request;
        let now = Moment::now();
        let mut shelf = shelf(&self.space);
        shelf.bury(name, now);
        let known_as = [*id, ticket].into_iter().find(|id| shelf.holds(name, *id));
        let Some(place) = known_as.and_then(|id| shelf.place(name, id)) else { return Ok(Renewal::Lost) };
        if place.entry.id == ticket {
            place.keep(now, lasting);
        } else {
            (place.entry.id, place.expires) = (ticket, now.after(lasting));
        }
        place.is_detached = true;
        Ok(Renewal::Renewed { valid_for: lasting })
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        let Request { name, id, ttl, who, .. } = &self.request;
        let now = Moment::now();
        let mut shelf = shelf(&self.space);
        shelf.bury(name, now);
        let known_as = [*id, ticket].into_iter().find(|id| shelf.holds(name, *id));
        let Some(place) = known_as.and_then(|id| shelf.place(name, id)) else { return Ok(Resumption::Gone) };
        let remaining = if place.entry.id == *id {
            place.keep(now, *ttl);
            None
        } else if place.is_detached {
            let remaining = place.expires.since(now);
            (place.entry.id, place.expires, place.is_detached) = (*id, now.after(*ttl), false);
            place.who = who.clone();
            Some(remaining)
        } else {
            return Ok(Resumption::Gone);
        };
        place.bell = Arc::clone(&self.bell);
        let grant = Grant { token: Token::new(place.number), valid_for: *ttl };
        Ok(Resumption::Resumed { grant, remaining })
    }

    async fn release(&mut self) -> Result<Release> {
        let Request { name, id, .. } = &self.request;
        let mut shelf = shelf(&self.space);
        let known_as = [Some(*id), self.ticket].into_iter().flatten();
        let there: Vec<_> = known_as.filter(|id| shelf.place(name, *id).is_some()).collect();
        there.iter().for_each(|id| shelf.remove(name, *id));
        Ok(if there.is_empty() { Release::Gone } else { Release::Done })
    }

    async fn changed(&mut self) {
        self.bell.notified().await;
    }
}

impl Place {
    /// Extends the claim's time, and never shortens it: a renewal may arrive late.
    fn keep(&mut self, now: Moment, ttl: Duration) {
        if self.expires.since(now) < ttl {
            self.expires = now.after(ttl);
        }
    }
}

impl Shelf {
    fn queue(&self, name: &LockName) -> Vec<Entry> {
        self.queues.get(name).into_iter().flatten().map(|place| place.entry).collect()
    }

    fn place(&mut self, name: &LockName, id: ClaimId) -> Option<&mut Place> {
        self.queues.get_mut(name)?.iter_mut().find(|place| place.entry.id == id)
    }

    fn holds(&self, name: &LockName, id: ClaimId) -> bool {
        turn(&self.queue(name), id) == Turn::Mine
    }

    /// Puts a claim at the end of its queue. Returns the claim's number.
    fn enter(&mut self, request: &Request, bell: &Arc<Notify>, now: Moment) -> u64 {
        self.last += 1;
        let queue = self.queues.entry(request.name.clone()).or_insert_with(|| Vec::with_capacity(1));
        queue.push(Place {
            entry: request.entry(),
            number: self.last,
            came: now,
            expires: now.after(request.ttl),
            is_detached: false,
            who: request.who.clone(),
            bell: Arc::clone(bell),
        });
        self.last
    }

    /// Whether a newcomer would have to wait.
    fn blocks(&self, name: &LockName, newcomer: Entry) -> bool {
        let mut queue = self.queue(name);
        queue.push(newcomer);
        turn(&queue, newcomer.id) != Turn::Mine
    }

    /// Whether the claim holds. If not, it is to ask again when one of the claims expires that it waits for.
    fn answer(&mut self, name: &LockName, id: ClaimId, ttl: Duration, now: Moment) -> Attempt {
        let queue = self.queue(name);
        let left = |ahead: &Entry| Some(self.place(name, ahead.id)?.expires.since(now));
        match watched(&queue, id).iter().filter_map(left).min() {
            Some(retry_in) => Attempt::Busy { retry_in },
            None => {
                let place = self.place(name, id).expect("just entered");
                Attempt::Granted(Grant { token: Token::new(place.number), valid_for: ttl })
            }
        }
    }

    /// Removes the claims whose clients were silent for a ttl.
    fn bury(&mut self, name: &LockName, now: Moment) {
        let dead = |place: &&Place| place.expires.since(now).is_zero();
        while let Some(id) =
            self.queues.get(name).and_then(|queue| queue.iter().find(dead)).map(|place| place.entry.id)
        {
            self.remove(name, id);
        }
    }

    fn remove(&mut self, name: &LockName, id: ClaimId) {
        self.ring_watchers(name, id);
        if let Some(queue) = self.queues.get_mut(name) {
            queue.retain(|place| place.entry.id != id);
            if queue.is_empty() {
                self.queues.remove(name);
            }
        }
    }

    /// Rings the claims that wait for this one.
    fn ring_watchers(&mut self, name: &LockName, id: ClaimId) {
        for watcher in watchers(&self.queue(name), id) {
            self.place(name, watcher.id).expect("in the queue").bell.notify_one();
        }
    }

    fn state(&self, name: &LockName, now: Moment) -> Option<LockState> {
        let queue = self.queue(name);
        let contender = |place: &Place| {
            Contender::new(place.entry.id.to_string(), place.entry.kind)
                .since(now.since(place.came))
                .ttl_left(place.expires.since(now))
                .who(place.who.text())
        };
        let mut state = LockState::new(name.clone());
        for place in self.queues.get(name)?.iter().filter(|place| !place.expires.since(now).is_zero()) {
            match turn(&queue, place.entry.id) {
                Turn::Mine => state.holders.push(contender(place).token(Token::new(place.number))),
                _ => state.queue.push(contender(place)),
            }
        }
        Some(state).filter(|state| !state.is_free())
    }
}

#[async_trait]
impl Inspect for MemoryBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        let mut shelf = self.shelf();
        let now = Moment::now();
        shelf.bury(name, now);
        Ok(shelf.state(name, now))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let (shelf, now) = (self.shelf(), Moment::now());
        let names =
            shelf.queues.range::<str, _>((Bound::Included(prefix), Bound::Unbounded)).map(|(name, _)| name);
        let names = names.take_while(|name| name.as_str().starts_with(prefix));
        Ok(names.filter_map(|name| shelf.state(name, now)).collect())
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        let mut shelf = self.shelf();
        shelf.bury(name, Moment::now());
        let queue = shelf.queue(name);
        let holders: Vec<_> = queue.iter().filter(|entry| turn(&queue, entry.id) == Turn::Mine).collect();
        for holder in &holders {
            shelf.place(name, holder.id).expect("in the queue").bell.notify_one();
            shelf.remove(name, holder.id);
        }
        Ok(!holders.is_empty())
    }
}

/// Where tokens begin: microseconds since 1970. So tokens grow across restarts of the process, as long as it grants less
/// than a million a second.
#[expect(
    clippy::disallowed_methods,
    reason = "the floor of tokens is the one use of the wall clock: it outlives the process"
)]
fn floor() -> u64 {
    let now = std::time::SystemTime::now();
    let since_1970 = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX / 2)
}

async fn connect(url: StoreUrl) -> Result<Store> {
    static STORES: LazyLock<Mutex<HashMap<String, MemoryBackend>>> = LazyLock::new(Mutex::default);
    url.allow(&[])?;
    if !url.hosts().is_empty() {
        let reason = format!("`{url}` names a host, and memory has none: write `memory:` or `memory:NAME`");
        return Err(Error::InvalidConfig { reason });
    }
    let name = url.path().to_owned();
    let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(stores.entry(name.clone()).or_insert_with(|| MemoryBackend::named(name)).clone().into_store())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Locks;

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
}
