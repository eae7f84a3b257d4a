//! The queues of a [`BuggyStore`](crate::BuggyStore), and nearly all of its bugs. Each bug is where
//! a programmer would make it.

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

/// Time of the mark that [`Bug::MarkAfterFailedRun`] leaves.
const MARK_TIME: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(crate) struct BuggyQueues {
    bug: Bug,
    last_number: u64,
    /// Token of an expired holder, to be given out again.
    reusable: Option<u64>,
    queues: BTreeMap<LockName, Vec<ClaimRecord>>,
    /// Names that have a row, for [`Bug::NoRowLock`].
    rows: BTreeSet<LockName>,
    /// Bells of all names ever used, for [`Bug::BellsAreKept`].
    bells: BTreeMap<LockName, Arc<Notify>>,
    /// Mark that was last looked up and not found, for [`Bug::MarkAfterFailedRun`].
    missing_mark: Option<LockName>,
}

#[derive(Debug)]
struct ClaimRecord {
    entry: Entry,
    /// Number of the client that owns the claim.
    client: u64,
    who: Who,
    number: u64,
    expires: Instant,
    detached: bool,
    /// Whether the hold was resumed with a ticket.
    resumed: bool,
    bell: Arc<Notify>,
    /// Whether the claim has received its grant.
    is_granted: bool,
    /// Whether the next renewal reports a loss, for [`Bug::LostOnRelease`].
    reports_loss: bool,
    /// Whether the claim holds without regard to the queue, which it has checked in an earlier
    /// step.
    passes_queue: bool,
}

impl BuggyQueues {
    pub(crate) fn new(bug: Bug) -> Self {
        let last_number = if bug == Bug::NoTokenFloor { 0 } else { token_floor() };
        let (queues, rows, bells) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { bug, last_number, reusable: None, queues, rows, bells, missing_mark: None }
    }

    /// Returns whether a new claim finds no row to lock, and so enters the queue in a second step.
    pub(crate) fn has_no_row(&self, name: &LockName) -> bool {
        self.bug == Bug::NoRowLock && !self.rows.contains(name)
    }

    /// Returns the number of the grant, or the time until the next attempt.
    pub(crate) fn attempt(
        &mut self,
        request: &Request,
        client: u64,
        bell: &Arc<Notify>,
        passes_queue: bool,
    ) -> Result<u64, Duration> {
        let (now, entry) = (Instant::now(), request.entry());
        let Request { name, ttl, wait, .. } = request;
        let (ttl, wait) = (*ttl, *wait);
        self.delete_expired(name, now);
        match self.bug {
            Bug::NoRowLock => drop(self.rows.insert(name.clone())),
            Bug::BellsAreKept => drop(self.bells.insert(name.clone(), Arc::clone(bell))),
            _ => {}
        }
        let known = self.record(name, entry.id).is_some();
        if known && self.bug != Bug::RepeatedAttemptEntersTwice {
            let expires = self.expiry(now, ttl);
            let fresh = (self.bug == Bug::TokenGrowsOnRepeatedAttempt).then(|| self.next_number(name));
            let is_deaf = self.bug == Bug::DowngradeLosesHints;
            let record = self.record(name, entry.id).expect("the claim is in the queue");
            (record.expires, record.number) = (expires, fresh.unwrap_or(record.number));
            if !is_deaf || record.entry.kind == entry.kind {
                record.bell = Arc::clone(bell);
            }
            if entry.kind == Kind::Read && record.entry.kind != Kind::Read {
                self.notify_watchers(name, entry.id);
                self.record(name, entry.id).expect("the claim is in the queue").entry.kind = Kind::Read;
            }
        } else {
            self.insert(request, ttl, client, bell);
            self.record(name, entry.id).expect("the claim was just added").passes_queue = passes_queue;
        }
        match self.turn(name, entry.id) {
            Turn::Behind(_) if wait == Wait::Never && !known => {
                self.remove(name, entry.id);
                Err(ttl)
            }
            Turn::Behind(ahead) => {
                Err(self.record(name, ahead.id).map_or(ttl, |record| record.expires - now))
            }
            _ => {
                let record = self.record(name, entry.id).expect("the claim was just added");
                record.is_granted = true;
                Ok(record.number)
            }
        }
    }

    /// Returns the index of the first lock that would not be granted now.
    pub(crate) fn first_busy(&mut self, requests: &[Request]) -> Option<usize> {
        let passes = self.bug == Bug::JointAttemptPassesWaiters;
        requests.iter().position(|request| {
            self.delete_expired(&request.name, Instant::now());
            let mut queue = self.queues.get(&request.name).into_iter().flatten();
            queue.any(|record| record.is_granted || !passes)
        })
    }

    /// Adds all claims to their queues. Returns the number of each grant.
    pub(crate) fn take_all(&mut self, claims: &[(Request, Arc<Notify>)], client: u64) -> Vec<u64> {
        let overtakes = matches!(self.bug, Bug::JointAttemptPassesWaiters | Bug::JointAttemptInTwoSteps);
        let take = |(request, bell): &(Request, Arc<Notify>)| {
            self.insert(request, request.ttl, client, bell);
            let record = self.record(&request.name, request.id).expect("the claim was just added");
            (record.is_granted, record.passes_queue) = (true, overtakes);
            record.number
        };
        claims.iter().map(take).collect()
    }

    fn insert(&mut self, request: &Request, ttl: Duration, client: u64, bell: &Arc<Notify>) {
        let (name, entry) = (&request.name, request.entry());
        let (number, expires) = (self.next_number(name), self.expiry(Instant::now(), ttl));
        let record = ClaimRecord {
            entry,
            client,
            who: request.who.clone(),
            number,
            expires,
            detached: false,
            resumed: false,
            bell: Arc::clone(bell),
            is_granted: false,
            reports_loss: false,
            passes_queue: false,
        };
        let queue = self.queues.entry(name.clone()).or_default();
        let at = if self.bug == Bug::LastInFirstOut { queue.len().min(1) } else { queue.len() };
        queue.insert(at, record);
    }

    /// Extends the claim. Returns whether it existed.
    pub(crate) fn renew(&mut self, request: &Request, client: u64, bell: &Arc<Notify>) -> bool {
        let (now, bug) = (Instant::now(), self.bug);
        let Request { name, id, ttl, .. } = request;
        self.delete_expired(name, now);
        let expires = self.expiry(now, *ttl);
        let has_waiters = self.queues.get(name).is_some_and(|queue| queue.len() > 1);
        if bug == Bug::RenewalGivesWay && has_waiters && self.turn(name, *id) == Turn::Mine {
            self.remove(name, *id);
            return true;
        }
        if let Some(record) = self.record(name, *id) {
            record.expires = if bug == Bug::RenewalShortens { expires } else { record.expires.max(expires) };
            (record.client, record.bell) = (client, Arc::clone(bell));
            return !record.reports_loss;
        }
        match self.bug {
            Bug::RenewalCreates => self.insert(request, *ttl, client, bell),
            Bug::RenewalExtendsAnyHolder => {
                self.queues.get_mut(name).into_iter().flatten().for_each(|record| record.expires = expires);
            }
            Bug::NeverLost => {}
            _ => return false,
        }
        true
    }

    /// Gives the hold the id of its ticket. Returns whether the hold existed.
    pub(crate) fn detach(
        &mut self,
        request: &Request,
        lasting: Duration,
        ticket: ClaimId,
        client: u64,
    ) -> bool {
        let (now, bug) = (Instant::now(), self.bug);
        let Request { name, id, .. } = request;
        self.delete_expired(name, now);
        let span = if bug == Bug::DetachedNeverExpires { Duration::from_secs(365 * 86_400) } else { lasting };
        let expires = self.expiry(now, span);
        let known = if self.is_detached(name, ticket) { ticket } else { *id };
        if bug == Bug::HandingBackReleases && self.record(name, known).is_some_and(|record| record.resumed) {
            self.remove(name, known);
            return true;
        }
        if let Some(record) = self.record(name, known) {
            let expires = if record.detached { record.expires.max(expires) } else { expires };
            (record.expires, record.client, record.detached) = (expires, client, true);
            record.entry.id = if bug == Bug::DetachedKeepsItsId { record.entry.id } else { ticket };
            return !record.reports_loss;
        }
        if self.bug == Bug::DetachmentCreates {
            self.insert(request, span, client, &Arc::default());
        }
        matches!(self.bug, Bug::DetachmentCreates | Bug::NeverLost)
    }

    /// Gives the hold of a ticket the id of the claim that resumes it. Returns the number of its
    /// grant, and the remaining time of its detachment. `None` if there is no such hold.
    pub(crate) fn resume(
        &mut self,
        request: &Request,
        ticket: ClaimId,
        client: u64,
        bell: &Arc<Notify>,
    ) -> Option<(u64, Option<Duration>)> {
        let (now, bug) = (Instant::now(), self.bug);
        let Request { name, id, ttl, .. } = request;
        self.delete_expired(name, now);
        let known = [*id, ticket].into_iter().find(|id| self.turn(name, *id) == Turn::Mine);
        let known = known.or_else(|| (bug == Bug::WaiterIsTakenOver).then_some(ticket))?;
        let expires = self.expiry(now, *ttl);
        let record = self.record(name, known)?;
        let remaining = record.detached.then_some(record.expires - now);
        let (keeps_time, keeps_id) = (bug == Bug::ResumedKeepsItsTime, bug == Bug::TicketWorksTwice);
        record.expires = if keeps_time { record.expires.max(expires) } else { expires };
        record.entry.id = if keeps_id { known } else { *id };
        (record.client, record.detached, record.resumed) = (client, keeps_id, true);
        record.bell = Arc::clone(bell);
        Some((record.number, remaining))
    }

    /// Returns whether there is a detached hold with this id.
    pub(crate) fn is_detached(&mut self, name: &LockName, id: ClaimId) -> bool {
        self.record(name, id).is_some_and(|record| record.detached)
    }

    /// Called when a client was killed or closed.
    pub(crate) fn client_died(&mut self, client: u64) {
        if self.bug != Bug::DetachedDiesWithItsClient {
            return;
        }
        let all = self.queues.iter().flat_map(|(name, queue)| queue.iter().map(move |record| (name, record)));
        let dead = all.filter(|(_, record)| record.client == client && record.detached);
        let dead: Vec<_> = dead.map(|(name, record)| (name.clone(), record.entry.id)).collect();
        for (name, id) in dead {
            self.remove(&name, id);
        }
    }

    /// Removes the claim. Returns whether it existed. `by_ticket` means that the caller has made no
    /// attempt or renewal for it.
    pub(crate) fn release(&mut self, name: &LockName, id: ClaimId, by_ticket: bool) -> bool {
        let first = self.queues.get(name).and_then(|queue| queue.first()).map(|record| record.entry.id);
        let mine = self.turn(name, id);
        let was_there = self.record(name, id).is_some() || self.bug == Bug::ReleaseHidesLoss;
        let (is_granted, reads) = self
            .record(name, id)
            .map_or((false, false), |record| (record.is_granted, record.entry.kind == Kind::Read));
        match (self.bug, first) {
            (Bug::ReleaseWithoutOwnerCheck, Some(first)) => self.remove(name, first),
            (Bug::ReleaseOfALostClaimRemovesTheNext, Some(first)) if mine == Turn::Absent => {
                self.remove(name, first)
            }
            (Bug::TicketReleaseRemovesTheNext, Some(first)) if by_ticket && mine == Turn::Absent => {
                self.remove(name, first)
            }
            (Bug::TicketReleaseWakesNoWaiter, _) if by_ticket => {
                self.queues
                    .get_mut(name)
                    .into_iter()
                    .flatten()
                    .for_each(|record| record.bell = Arc::default());
            }
            (Bug::WaiterStaysOnCancel, _) if mine != Turn::Mine => return was_there,
            (Bug::HoldStaysOnCancel, _) if mine == Turn::Mine && !is_granted => return was_there,
            (Bug::LostOnRelease, _) if reads => {
                self.queues
                    .get_mut(name)
                    .into_iter()
                    .flatten()
                    .for_each(|record| record.reports_loss = record.is_granted);
            }
            _ => {}
        }
        self.remove(name, id);
        if let Some(mark) = self.missing_mark.take_if(|mark| mark.as_str().contains(name.as_str())) {
            let request = Request::new(mark, Kind::Mutex, MARK_TIME);
            self.insert(&request, MARK_TIME, 0, &Arc::default());
        }
        was_there
    }

    fn next_number(&mut self, name: &LockName) -> u64 {
        self.last_number += 1;
        match self.bug {
            Bug::TokenNeverGrows => 1,
            Bug::TokenRestarts => {
                let queue = self.queues.get(name).into_iter().flatten();
                queue.map(|record| record.number).max().unwrap_or(0) + 1
            }
            _ => self.reusable.take().unwrap_or(self.last_number),
        }
    }

    fn expiry(&self, now: Instant, ttl: Duration) -> Instant {
        now + if self.bug == Bug::ExpiryEarly { ttl / 2 } else { ttl }
    }

    fn entries(&self, name: &LockName) -> Vec<Entry> {
        self.queues.get(name).into_iter().flatten().map(|record| record.entry).collect()
    }

    fn record(&mut self, name: &LockName, id: ClaimId) -> Option<&mut ClaimRecord> {
        self.queues.get_mut(name)?.iter_mut().find(|record| record.entry.id == id)
    }

    fn turn(&self, name: &LockName, id: ClaimId) -> Turn {
        let queue = self.entries(name);
        let Some(at) = queue.iter().position(|entry| entry.id == id) else { return Turn::Absent };
        if self.queues[name][at].passes_queue {
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

    fn delete_expired(&mut self, name: &LockName, now: Instant) {
        let bug = self.bug;
        let is_dead = |record: &ClaimRecord| match bug {
            Bug::ExpiryIgnored => false,
            Bug::SilentWaiterStays => record.is_granted && record.expires <= now,
            Bug::DeadPermitLost if record.is_granted && record.entry.kind == Kind::Permit => false,
            _ => record.expires <= now,
        };
        while let Some(at) = self.queues.get(name).and_then(|queue| queue.iter().position(is_dead)) {
            let dead = &self.queues[name][at];
            if self.bug == Bug::TokenReusedAfterExpiry && dead.is_granted {
                self.reusable = Some(dead.number);
            }
            let id = dead.entry.id;
            self.remove(name, id);
            if let (Bug::ExpiryReordersQueue, Some(queue)) = (self.bug, self.queues.get_mut(name)) {
                queue[at..].rotate_right(1);
            }
        }
    }

    fn remove(&mut self, name: &LockName, id: ClaimId) {
        self.notify_watchers(name, id);
        let Some(queue) = self.queues.get_mut(name) else { return };
        if let Some(at) = queue.iter().position(|record| record.entry.id == id) {
            queue.remove(at);
        }
        if queue.is_empty() {
            self.queues.remove(name);
        }
    }

    fn notify_watchers(&mut self, name: &LockName, id: ClaimId) {
        let queue = self.entries(name);
        let is_permit = queue.iter().any(|entry| entry.id == id && entry.kind == Kind::Permit);
        if self.bug == Bug::ReleaseWakesAll || self.bug == Bug::PermitWakesAll && is_permit {
            queue.iter().for_each(|entry| self.notify(name, entry.id));
        }
        let most = if self.bug == Bug::SecondWaiterNotWoken { 1 } else { usize::MAX };
        for watcher in watchers(&self.entries(name), id).take(most) {
            self.notify(name, watcher.id);
        }
    }

    fn notify(&mut self, name: &LockName, id: ClaimId) {
        if let Some(record) = self.record(name, id) {
            record.bell.notify_one();
        }
    }

    /// Removes the holders. Returns whether there were any.
    pub(crate) fn force_release(&mut self, name: &LockName) -> bool {
        self.delete_expired(name, Instant::now());
        let entries = self.entries(name).into_iter();
        let holders: Vec<_> = entries.filter(|entry| self.turn(name, entry.id) == Turn::Mine).collect();
        for holder in &holders {
            self.notify(name, holder.id);
            self.remove(name, holder.id);
        }
        !holders.is_empty()
    }

    /// Returns the state of every lock with a holder or waiter.
    pub(crate) fn states(&self) -> impl Iterator<Item = LockState> {
        let now = Instant::now();
        self.queues.keys().map(move |name| self.state(name, now)).filter(is_alive)
    }

    pub(crate) fn inspect(&mut self, name: &LockName) -> Option<LockState> {
        let now = Instant::now();
        if self.bug != Bug::InspectionShowsTheDead {
            self.delete_expired(name, now);
        }
        let state = Some(self.state(name, now)).filter(is_alive);
        if self.bug == Bug::MarkAfterFailedRun && state.is_none() && name.as_str().starts_with("dlock-once:")
        {
            self.missing_mark = Some(name.clone());
        }
        state
    }

    fn state(&self, name: &LockName, now: Instant) -> LockState {
        let mut state = LockState::new(name.clone());
        let shows_dead = self.bug == Bug::InspectionShowsTheDead;
        let records = self.queues.get(name).into_iter().flatten();
        for record in records.filter(|record| record.expires > now || shows_dead) {
            let ClaimRecord { entry: Entry { id, kind, .. }, number, expires, who, .. } = record;
            let waits = Contender::new(id.to_string(), *kind).ttl_left(*expires - now).who(who.text());
            match self.turn(name, *id) {
                Turn::Mine => {
                    let falls = self.bug == Bug::InspectedTokenDecreases;
                    let token = if falls { i64::MAX as u64 - number } else { *number };
                    state.holders.push(waits.token(Token::new(token)));
                }
                _ => state.queue.push(waits),
            }
        }
        state
    }
}

/// Returns the queue with other limits.
fn with_limits(queue: &[Entry], limit: impl Fn(NonZeroU32) -> NonZeroU32) -> Vec<Entry> {
    queue.iter().map(|entry| entry.limit(limit(entry.limit))).collect()
}

/// Returns the number with which tokens start, the microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "tokens start at the wall clock")]
fn token_floor() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX / 2)
}

fn is_alive(state: &LockState) -> bool {
    !state.holders.is_empty() || !state.queue.is_empty()
}
