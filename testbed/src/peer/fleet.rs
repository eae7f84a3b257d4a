//! A mixed fleet: contenders of dlock and of a peer on one lock, with a checked history.

use std::{
    env,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use dlock_conformance::history::{AcquisitionId, Counts, History, Rule};
use dlock_core::{Guard, Kind, LockOptions, Locks};
use fastrand::Rng;
use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, task::yield_now, time::Instant};

use super::{Contender, Peer, PeerKind, Report, Taken};

/// Wait limit that no contender reaches unless it is never woken.
const WAIT_LIMIT: Duration = Duration::from_secs(300);

/// Contenders of dlock and the same number of contenders of a peer, which take and release one lock
/// repeatedly.
///
/// A side with more grants waits for the other, so that both sides contend until the end.
#[derive(Debug)]
pub struct Fleet<'a> {
    /// dlock's clients. Its contenders are distributed over them.
    pub locks: &'a [Locks],
    /// The peer.
    pub peer: &'a Peer,
    /// Name of the lock.
    pub name: &'a str,
    /// Kinds of the lock. Each acquisition uses one of them, chosen at random.
    pub kinds: &'a [PeerKind],
    /// Number of contenders of each side.
    pub contenders: usize,
    /// Number of acquisitions by each contender.
    pub acquisitions: usize,
    /// Ttl of both sides. A hand-off that takes a tenth of it means that a waiter was not woken.
    pub ttl: Duration,
}

impl Fleet<'_> {
    /// Returns the number of acquisitions in `DLOCK_FLEET`, or `default` if the variable is not
    /// set.
    ///
    /// # Panics
    /// If the variable is not a number.
    pub fn acquisitions(default: usize) -> usize {
        env::var("DLOCK_FLEET").map_or(default, |text| text.parse().expect("`DLOCK_FLEET` is a number"))
    }

    /// Runs the fleet. All contenders run concurrently in one task, so that the history is in the
    /// order of their observations.
    ///
    /// # Panics
    /// If a request of a contender fails.
    pub async fn run(&self) -> Report {
        let began = Instant::now();
        let run = Run::new(self);
        let ours = self.locks.iter().cycle().take(self.contenders).map(Side::Dlock);
        let theirs = (0..self.contenders).map(|_| Side::Peer(self.peer.contender()));
        join_all(ours.chain(theirs).map(|side| run.contend(side))).await;
        run.report(began.elapsed())
    }
}

/// A contender of either side.
enum Side<'a> {
    Dlock(&'a Locks),
    Peer(Contender),
}

/// A hold of either side.
enum Held {
    Dlock(Guard),
    Peer(Taken),
}

/// The last release.
#[derive(Clone, Copy)]
struct Release {
    is_dlock: bool,
    kind: Kind,
    /// Time at which the release began.
    at: Instant,
}

struct Run<'a> {
    fleet: &'a Fleet<'a>,
    history: History,
    /// Counter that exclusive holders increment with a read and a write, so that overlapping holds
    /// lose increments.
    counter: AtomicU64,
    /// Number of increments of `counter`.
    writes: AtomicU64,
    /// Number of grants of dlock and of the peer.
    grants: watch::Sender<[usize; 2]>,
    last_release: Mutex<Option<Release>>,
    to_peer: Mutex<Vec<Duration>>,
    to_dlock: Mutex<Vec<Duration>>,
}

impl<'a> Run<'a> {
    fn new(fleet: &'a Fleet<'a>) -> Self {
        Self {
            fleet,
            history: History::new(),
            counter: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            grants: watch::Sender::new([0; 2]),
            last_release: Mutex::default(),
            to_peer: Mutex::default(),
            to_dlock: Mutex::default(),
        }
    }

    async fn contend(&self, side: Side<'_>) {
        let Fleet { name, kinds, acquisitions, ttl, .. } = *self.fleet;
        let mut dice = Rng::new();
        for _ in 0..acquisitions {
            self.wait_for_other_side(&side).await;
            let kind = kinds[dice.usize(..kinds.len())];
            let acquisition = self.history.invokes(name, kind.kind(), ttl);
            let requested_at = Instant::now();
            let held = side.take(kind, name, ttl).await;
            self.granted(acquisition, &held);
            self.grants.send_modify(|grants| grants[side.index()] += 1);
            self.record_hand_off(kind.kind(), requested_at, &held);
            self.work(kind.kind()).await;
            self.check_hold(acquisition, &held).await;
            self.history.releases(acquisition);
            let is_dlock = matches!(held, Held::Dlock(_));
            *lock(&self.last_release) = Some(Release { is_dlock, kind: kind.kind(), at: Instant::now() });
            side.release(kind, name, held).await;
            self.history.released(acquisition);
        }
    }

    /// Waits while this side has too many more grants than the other.
    async fn wait_for_other_side(&self, side: &Side<'_>) {
        let (this, other, lead) = (side.index(), 1 - side.index(), 2 * self.fleet.contenders);
        let keeps_up = |grants: &[usize; 2]| grants[this] < grants[other] + lead;
        // Fails only after a drop of the sender, which `self` owns.
        let _ = self.grants.subscribe().wait_for(keeps_up).await;
    }

    fn granted(&self, acquisition: AcquisitionId, held: &Held) {
        let now = Instant::now();
        match held {
            Held::Dlock(guard) => self.history.granted(acquisition, guard.token(), now + guard.remaining()),
            // The peer renews its lock, so this deadline is not too late.
            Held::Peer(taken) => self.history.granted(acquisition, taken.token, now + self.fleet.ttl),
        }
    }

    /// Records the time of the hand-off if this contender waited for the other side. Hand-offs
    /// between readers are not recorded.
    fn record_hand_off(&self, kind: Kind, requested_at: Instant, held: &Held) {
        let Some(release) = *lock(&self.last_release) else { return };
        let is_dlock = matches!(held, Held::Dlock(_));
        let has_waited = requested_at < release.at;
        let is_read = (kind, release.kind) == (Kind::Read, Kind::Read);
        if release.is_dlock != is_dlock && has_waited && !is_read {
            lock(if is_dlock { &self.to_dlock } else { &self.to_peer }).push(release.at.elapsed());
        }
    }

    async fn work(&self, kind: Kind) {
        let before = self.counter.load(Relaxed);
        yield_now().await;
        if kind != Kind::Read {
            self.counter.store(before + 1, Relaxed);
            self.writes.fetch_add(1, Relaxed);
        } else if self.counter.load(Relaxed) != before {
            self.history.note(Rule::Exclusive, "a writer held the lock beside a reader");
        }
    }

    async fn check_hold(&self, acquisition: AcquisitionId, held: &Held) {
        let Held::Dlock(guard) = held else { return };
        if guard.is_lost() {
            self.history.lost(acquisition, guard.lost().await);
        } else {
            self.history.holds(acquisition, Instant::now() + guard.remaining());
        }
    }

    fn report(self, took: Duration) -> Report {
        let Self { fleet, history, counter, writes, to_peer, to_dlock, .. } = self;
        let (counted, writes) = (counter.into_inner(), writes.into_inner());
        if counted != writes {
            history.note(Rule::Fence, format!("{writes} writes count as {counted}, so some were lost"));
        }
        let sorted = |hand_offs: Mutex<Vec<Duration>>| {
            let mut hand_offs = hand_offs.into_inner();
            hand_offs.sort_unstable();
            hand_offs
        };
        let (to_peer, to_dlock) = (sorted(to_peer), sorted(to_dlock));
        for (hand_offs, side) in [(&to_peer, fleet.peer.name()), (&to_dlock, "dlock")] {
            match hand_offs.last() {
                None => history.note(Rule::Potency, format!("nothing was ever handed over to {side}")),
                Some(longest) if *longest > fleet.ttl / 10 => {
                    history.note(Rule::Progress, format!("{side} was not woken for {longest:?}"));
                }
                Some(_) => {}
            }
        }
        let shares = fleet.kinds.contains(&PeerKind::Read);
        let grants = 2 * fleet.contenders * fleet.acquisitions;
        let least = Counts { grants, shared_reads: usize::from(shares), ..Counts::default() };
        Report { violations: history.check(&least), counts: history.counts(), to_peer, to_dlock, took }
    }
}

impl Side<'_> {
    fn index(&self) -> usize {
        match self {
            Self::Dlock(_) => 0,
            Self::Peer(_) => 1,
        }
    }

    async fn take(&self, kind: PeerKind, name: &str, ttl: Duration) -> Held {
        match self {
            Self::Dlock(locks) => {
                let options = LockOptions::new().ttl(ttl).wait(WAIT_LIMIT);
                let guard = locks.of(kind.kind(), name).lock(&options).await;
                Held::Dlock(guard.unwrap_or_else(|error| panic!("{error}")))
            }
            Self::Peer(contender) => {
                let taken =
                    contender.lock(kind, name, WAIT_LIMIT).await.unwrap_or_else(|error| panic!("{error}"));
                Held::Peer(taken.unwrap_or_else(|| {
                    panic!("a contender of the peer was not granted the lock within {WAIT_LIMIT:?}")
                }))
            }
        }
    }

    async fn release(&self, kind: PeerKind, name: &str, held: Held) {
        let result = match (self, held) {
            (_, Held::Dlock(guard)) => guard.release().await.map_err(|error| error.to_string()),
            (Self::Peer(contender), Held::Peer(_)) => {
                contender.unlock(kind, name).await.map_err(|error| error.to_string())
            }
            (Self::Dlock(_), Held::Peer(_)) => Ok(()),
        };
        result.unwrap_or_else(|error| panic!("{error}"));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
