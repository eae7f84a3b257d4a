//! The queues of a [`WrongStore`](crate::WrongStore), and nearly all of its bugs. Over the usual length, because each bug
//! is in the place where a programmer would make it.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use dlock_core::{
    ClaimId, Contender, Kind, LockName, LockState, Token, Wait, Who,
    driver::{Entry, Request, Turn, turn, watchers},
};
use tokio::{sync::Notify, time::Instant};

use crate::Bug;

#[derive(Debug)]
pub(super) struct WrongShelf {
    bug: Bug,
    last: u64,
    /// A number that may be given out again.
    spare: Option<u64>,
    queues: BTreeMap<LockName, Vec<WrongPlace>>,
    /// Names that have a row, where that matters.
    rows: BTreeSet<LockName>,
    /// What is still kept of unused names, if that is the bug.
    bells: BTreeMap<LockName, Arc<Notify>>,
}

#[derive(Debug)]
struct WrongPlace {
    entry: Entry,
    /// Which client has the claim.
    client: u64,
    who: Who,
    number: u64,
    expires: Instant,
    detached: bool,
    /// It was taken over with a ticket.
    resumed: bool,
    bell: Arc<Notify>,
    /// It was told that it holds.
    told: bool,
    /// It will be told that it is gone.
    doomed: bool,
    /// The claim looked at the queue when it was empty, and entered it later.
    saw_nobody: bool,
}

impl WrongShelf {
    pub(super) fn new(bug: Bug) -> Self {
        let last = if bug == Bug::NoTokenFloor { 0 } else { floor() };
        let (queues, rows, bells) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { bug, last, spare: None, queues, rows, bells }
    }

    /// Whether a newcomer finds no row to lock now, and so enters in a second step.
    pub(super) fn has_no_row(&self, name: &LockName) -> bool {
        self.bug == Bug::NoRowLock && !self.rows.contains(name)
    }

    /// The number of the grant, or when to ask again.
    pub(super) fn attempt(
        &mut self,
        request: &Request,
        client: u64,
        bell: &Arc<Notify>,
        saw_nobody: bool,
    ) -> Result<u64, Duration> {
        let (now, entry) = (Instant::now(), request.entry());
        let Request { name, ttl, wait, .. } = request;
        let (ttl, wait) = (*ttl, *wait);
        self.bury(name, now);
        match self.bug {
            Bug::NoRowLock => drop(self.rows.insert(name.clone())),
            Bug::BellsStay => drop(self.bells.insert(name.clone(), Arc::clone(bell))),
            _ => {}
        }
        let known = self.place(name, entry.id).is_some();
        if known && self.bug != Bug::AskingTwiceEntersTwice {
            let expires = self.expiry(now, ttl);
            let fresh = (self.bug == Bug::TokenGrowsOnAsking).then(|| self.draw(name));
            let is_deaf = self.bug == Bug::DeafDowngrade;
            let place = self.place(name, entry.id).expect("known");
            (place.expires, place.number) = (expires, fresh.unwrap_or(place.number));
            if !is_deaf || place.entry.kind == entry.kind {
                place.bell = Arc::clone(bell);
            }
            if entry.kind == Kind::Read && place.entry.kind != Kind::Read {
                self.ring_watchers(name, entry.id);
                self.place(name, entry.id).expect("known").entry.kind = Kind::Read;
            }
        } else {
            self.enter(request, ttl, client, bell);
            self.place(name, entry.id).expect("it has just entered").saw_nobody = saw_nobody;
        }
        match self.turn(name, entry.id) {
            Turn::Behind(_) if wait == Wait::Never && !known => {
                self.remove(name, entry.id);
                Err(ttl)
            }
            Turn::Behind(ahead) => Err(self.place(name, ahead.id).map_or(ttl, |place| place.expires - now)),
            _ => {
                let place = self.place(name, entry.id).expect("it has just entered");
                place.told = true;
                Ok(place.number)
            }
        }
    }

    /// The first of these locks that would not be granted now.
    pub(super) fn first_busy(&mut self, requests: &[Request]) -> Option<usize> {
        let passes = self.bug == Bug::TogetherPassesWaiters;
        requests.iter().position(|request| {
            self.bury(&request.name, Instant::now());
            let mut queue = self.queues.get(&request.name).into_iter().flatten();
            queue.any(|place| place.told || !passes)
        })
    }

    /// Enters the queues of all these locks. The number of each grant.
    pub(super) fn take_all(&mut self, claims: &[(Request, Arc<Notify>)], client: u64) -> Vec<u64> {
        let overtakes = matches!(self.bug, Bug::TogetherPassesWaiters | Bug::TogetherInTwoSteps);
        let take = |(request, bell): &(Request, Arc<Notify>)| {
            self.enter(request, request.ttl, client, bell);
            let place = self.place(&request.name, request.id).expect("it has just entered");
            (place.told, place.saw_nobody) = (true, overtakes);
            place.number
        };
        claims.iter().map(take).collect()
    }

    fn enter(&mut self, request: &Request, ttl: Duration, client: u64, bell: &Arc<Notify>) {
        let (name, entry) = (&request.name, request.entry());
        let (number, expires) = (self.draw(name), self.expiry(Instant::now(), ttl));
        let place = WrongPlace {
            entry,
            client,
            who: request.who.clone(),
            number,
            expires,
            detached: false,
            resumed: false,
            bell: Arc::clone(bell),
            told: false,
            doomed: false,
            saw_nobody: false,
        };
        let queue = self.queues.entry(name.clone()).or_default();
        let at = if self.bug == Bug::LastComeFirst { queue.len().min(1) } else { queue.len() };
        queue.insert(at, place);
    }

    /// Whether it was there.
    pub(super) fn renew(&mut self, request: &Request, client: u64, bell: &Arc<Notify>) -> bool {
        let (now, bug) = (Instant::now(), self.bug);
        let Request { name, id, ttl, .. } = request;
        self.bury(name, now);
        let expires = self.expiry(now, *ttl);
        if let Some(place) = self.place(name, *id) {
            place.expires = if bug == Bug::RenewalShortens { expires } else { place.expires.max(expires) };
            (place.client, place.bell) = (client, Arc::clone(bell));
            return !place.doomed;
        }
        match self.bug {
            Bug::RenewalCreates => self.enter(request, *ttl, client, bell),
            Bug::RenewalExtendsAnybody => {
                self.queues.get_mut(name).into_iter().flatten().for_each(|place| place.expires = expires);
            }
            Bug::NeverLost => {}
            _ => return false,
        }
        true
    }

    /// Gives the hold the id of its ticket. Whether it was there.
    pub(super) fn detach(
        &mut self,
        request: &Request,
        lasting: Duration,
        ticket: ClaimId,
        client: u64,
    ) -> bool {
        let (now, bug) = (Instant::now(), self.bug);
        let Request { name, id, .. } = request;
        self.bury(name, now);
        let span = if bug == Bug::DetachedForEver { Duration::from_secs(365 * 86_400) } else { lasting };
        let expires = self.expiry(now, span);
        let known = if self.is_detached(name, ticket) { ticket } else { *id };
        if bug == Bug::HandingBackReleases && self.place(name, known).is_some_and(|place| place.resumed) {
            self.remove(name, known);
            return true;
        }
        if let Some(place) = self.place(name, known) {
            let expires = if place.detached { place.expires.max(expires) } else { expires };
            (place.expires, place.client, place.detached) = (expires, client, true);
            place.entry.id = if bug == Bug::DetachedKeepsItsId { place.entry.id } else { ticket };
            return !place.doomed;
        }
        if self.bug == Bug::DetachmentCreates {
            self.enter(request, span, client, &Arc::default());
        }
        matches!(self.bug, Bug::DetachmentCreates | Bug::NeverLost)
    }

    /// Gives the hold of a ticket the id of the claim that takes it over. The number of its grant, and for how long it would
    /// still have been kept. `None` if there is no such hold.
    pub(super) fn resume(
        &mut self,
        request: &Request,
        ticket: ClaimId,
        client: u64,
        bell: &Arc<Notify>,
    ) -> Option<(u64, Option<Duration>)> {
        let (now, bug) = (Instant::now(), self.bug);
        let Request { name, id, ttl, .. } = request;
        self.bury(name, now);
        let known = [*id, ticket].into_iter().find(|id| self.turn(name, *id) == Turn::Mine);
        let known = known.or_else(|| (bug == Bug::WaiterIsTakenOver).then_some(ticket))?;
        let expires = self.expiry(now, *ttl);
        let place = self.place(name, known)?;
        let remaining = place.detached.then_some(place.expires - now);
        let (keeps_time, keeps_id) = (bug == Bug::ResumedKeepsItsTime, bug == Bug::TicketForTwo);
        place.expires = if keeps_time { place.expires.max(expires) } else { expires };
        place.entry.id = if keeps_id { known } else { *id };
        (place.client, place.detached, place.resumed) = (client, keeps_id, true);
        place.bell = Arc::clone(bell);
        Some((place.number, remaining))
    }

    /// Whether a detached hold is known by this id.
    pub(super) fn is_detached(&mut self, name: &LockName, id: ClaimId) -> bool {
        self.place(name, id).is_some_and(|place| place.detached)
    }

    /// The client is gone.
    pub(super) fn client_died(&mut self, client: u64) {
        if self.bug != Bug::DetachedDiesWithItsClient {
            return;
        }
        let all = self.queues.iter().flat_map(|(name, queue)| queue.iter().map(move |place| (name, place)));
        let dead = all.filter(|(_, place)| place.client == client && place.detached);
        let dead: Vec<_> = dead.map(|(name, place)| (name.clone(), place.entry.id)).collect();
        for (name, id) in dead {
            self.remove(&name, id);
        }
    }

    /// Whether it was there. `by_ticket`: whoever releases it has never asked for it.
    pub(super) fn release(&mut self, name: &LockName, id: ClaimId, by_ticket: bool) -> bool {
        let first = self.queues.get(name).and_then(|queue| queue.first()).map(|place| place.entry.id);
        let mine = self.turn(name, id);
        let was_there = self.place(name, id).is_some() || self.bug == Bug::ReleaseSeesNoLoss;
        let (told, reads) =
            self.place(name, id).map_or((false, false), |place| (place.told, place.entry.kind == Kind::Read));
        match (self.bug, first) {
            (Bug::ReleaseWithoutOwnerCheck, Some(first)) => self.remove(name, first),
            (Bug::ReleaseOfALostClaimRemovesTheNext, Some(first)) if mine == Turn::Absent => {
                self.remove(name, first)
            }
            (Bug::TicketRemovesTheNext, Some(first)) if by_ticket && mine == Turn::Absent => {
                self.remove(name, first)
            }
            (Bug::TicketWakesNobody, _) if by_ticket => {
                self.queues.get_mut(name).into_iter().flatten().for_each(|place| place.bell = Arc::default());
            }
            (Bug::WaiterStaysOnCancel, _) if mine != Turn::Mine => return was_there,
            (Bug::HoldStaysOnCancel, _) if mine == Turn::Mine && !told => return was_there,
            (Bug::LostOnRelease, _) if reads => {
                self.queues.get_mut(name).into_iter().flatten().for_each(|place| place.doomed = place.told);
            }
            _ => {}
        }
        self.remove(name, id);
        was_there
    }

    fn draw(&mut self, name: &LockName) -> u64 {
        self.last += 1;
        match self.bug {
            Bug::TokenStandsStill => 1,
            Bug::TokenRestarts => {
                let queue = self.queues.get(name).into_iter().flatten();
                queue.map(|place| place.number).max().unwrap_or(0) + 1
            }
            _ => self.spare.take().unwrap_or(self.last),
        }
    }

    fn expiry(&self, now: Instant, ttl: Duration) -> Instant {
        now + if self.bug == Bug::ExpiryEarly { ttl / 2 } else { ttl }
    }

    fn entries(&self, name: &LockName) -> Vec<Entry> {
        self.queues.get(name).into_iter().flatten().map(|place| place.entry).collect()
    }

    fn place(&mut self, name: &LockName, id: ClaimId) -> Option<&mut WrongPlace> {
        self.queues.get_mut(name)?.iter_mut().find(|place| place.entry.id == id)
    }

    fn turn(&self, name: &LockName, id: ClaimId) -> Turn {
        let queue = self.entries(name);
        let Some(at) = queue.iter().position(|entry| entry.id == id) else { return Turn::Absent };
        if self.queues[name][at].saw_nobody {
            return Turn::Mine;
        }
        let ahead = &queue[..at];
        let sees = |kind: fn(Kind) -> bool| {
            ahead.iter().rfind(|ahead| kind(ahead.kind)).map_or(Turn::Mine, |ahead| Turn::Behind(*ahead))
        };
        match (self.bug, queue[at].kind) {
            (Bug::ReaderBesideWriter, Kind::Read) => sees(|kind| matches!(kind, Kind::Mutex | Kind::Fair)),
            (Bug::WriterBesideReaders, Kind::Write) => sees(|kind| kind != Kind::Read),
            (Bug::ReaderPassesWriter, Kind::Read) if queue[0].kind == Kind::Read => Turn::Mine,
            (Bug::PermitOffByOne, _) => turn(&with_limits(&queue, |limit| limit.saturating_add(1)), id),
            (Bug::PermitSeesOwnLimitOnly, _) => turn(&with_limits(&queue, |_| queue[at].limit), id),
            _ => turn(&queue, id),
        }
    }

    fn bury(&mut self, name: &LockName, now: Instant) {
        let bug = self.bug;
        let is_dead = |place: &WrongPlace| match bug {
            Bug::ExpiryIgnored => false,
            Bug::DeadWaiterStays => place.told && place.expires <= now,
            Bug::DeadPermitLost if place.told && place.entry.kind == Kind::Permit => false,
            _ => place.expires <= now,
        };
        while let Some(at) = self.queues.get(name).and_then(|queue| queue.iter().position(is_dead)) {
            let dead = &self.queues[name][at];
            if self.bug == Bug::TokenReusedAfterExpiry && dead.told {
                self.spare = Some(dead.number);
            }
            let id = dead.entry.id;
            self.remove(name, id);
            if let (Bug::BurialShiftsOrder, Some(queue)) = (self.bug, self.queues.get_mut(name)) {
                queue[at..].rotate_right(1);
            }
        }
    }

    fn remove(&mut self, name: &LockName, id: ClaimId) {
        self.ring_watchers(name, id);
        let Some(queue) = self.queues.get_mut(name) else { return };
        if let Some(at) = queue.iter().position(|place| place.entry.id == id) {
            queue.remove(at);
        }
        if queue.is_empty() {
            self.queues.remove(name);
        }
    }

    fn ring_watchers(&mut self, name: &LockName, id: ClaimId) {
        let queue = self.entries(name);
        if self.bug == Bug::PermitWakesAll && queue.iter().any(|one| one.id == id && one.kind == Kind::Permit)
        {
            queue.iter().for_each(|one| self.ring(name, one.id));
        }
        let most = if self.bug == Bug::SecondWaiterNotWoken { 1 } else { usize::MAX };
        for watcher in watchers(&self.entries(name), id).take(most) {
            self.ring(name, watcher.id);
        }
    }

    fn ring(&mut self, name: &LockName, id: ClaimId) {
        if let Some(place) = self.place(name, id) {
            place.bell.notify_one();
        }
    }

    /// Takes the lock from its holders; whether there were any.
    pub(super) fn rob(&mut self, name: &LockName) -> bool {
        self.bury(name, Instant::now());
        let entries = self.entries(name).into_iter();
        let holders: Vec<_> = entries.filter(|entry| self.turn(name, entry.id) == Turn::Mine).collect();
        for holder in &holders {
            self.ring(name, holder.id);
            self.remove(name, holder.id);
        }
        !holders.is_empty()
    }

    /// Every lock that somebody holds or waits for.
    pub(super) fn states(&self) -> impl Iterator<Item = LockState> {
        let now = Instant::now();
        self.queues.keys().map(move |name| self.state(name, now)).filter(is_alive)
    }

    pub(super) fn look(&mut self, name: &LockName) -> Option<LockState> {
        let now = Instant::now();
        self.bury(name, now);
        Some(self.state(name, now)).filter(is_alive)
    }

    fn state(&self, name: &LockName, now: Instant) -> LockState {
        let mut state = LockState::new(name.clone());
        for place in self.queues.get(name).into_iter().flatten().filter(|place| place.expires > now) {
            let WrongPlace { entry: Entry { id, kind, .. }, number, expires, who, .. } = place;
            let waits = Contender::new(id.to_string(), *kind).ttl_left(*expires - now).who(who.text());
            match self.turn(name, *id) {
                Turn::Mine => state.holders.push(waits.token(Token::new(*number))),
                _ => state.queue.push(waits),
            }
        }
        state
    }
}

/// The queue with other limits.
fn with_limits(queue: &[Entry], limit: impl Fn(NonZeroU32) -> NonZeroU32) -> Vec<Entry> {
    queue.iter().map(|entry| entry.limit(limit(entry.limit))).collect()
}

/// Where tokens begin.
#[expect(clippy::disallowed_methods, reason = "the floor of tokens is by the wall clock")]
fn floor() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX / 2)
}

fn is_alive(state: &LockState) -> bool {
    !state.holders.is_empty() || !state.queue.is_empty()
}
