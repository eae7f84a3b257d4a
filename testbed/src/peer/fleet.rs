//! Contenders of dlock and of a peer on one lock, and a check of what happened.

use std::{
    env,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_conformance::history::{AcquisitionId, Counts, History, Rule};
use dlock_core::{Guard, Kind, LockOptions, Locks};
use fastrand::Rng;
use futures_util::future::join_all;
use tokio::{sync::watch, task::yield_now, time::Instant};

use super::{Contender, Peer, PeerKind, Report, Taken};

/// Longer than any contender waits, unless it is never woken.
const WAIT: Duration = Duration::from_secs(300);

/// A mixed fleet: equally many contenders of dlock and of a peer, which take and release one lock again and again. A side
/// that is ahead waits for the other, so that both contend to the end.
#[derive(Debug)]
pub struct Fleet<'a> {
    /// dlock's clients, whose contenders take turns.
    pub locks: &'a [Locks],
    /// The other side.
    pub peer: &'a Peer,
    /// The lock.
    pub name: &'a str,
    /// How it is taken, each time by chance.
    pub kinds: &'a [PeerKind],
    /// How many contenders each side has.
    pub contenders: usize,
    /// How often each contender takes the lock.
    pub acquisitions: usize,
    /// The ttl of both sides. A hand-off that takes a tenth of it means that somebody was not woken.
    pub ttl: Duration,
}

impl Fleet<'_> {
    /// The number of acquisitions that `DLOCK_FLEET` says, else this one.
    ///
    /// # Panics
    /// If it says no number.
    pub fn acquisitions(otherwise: usize) -> usize {
        env::var("DLOCK_FLEET").map_or(otherwise, |text| text.parse().expect("`DLOCK_FLEET` is a number"))
    }

    /// Lets them contend, each on a request of its own, all in one task: in order is what they see.
    ///
    /// # Panics
    /// If somebody's request fails.
    pub async fn run(&self) -> Report {
        let began = Instant::now();
        let course = Course::new(self);
        let ours = self.locks.iter().cycle().take(self.contenders).map(Side::Dlock);
        let theirs = (0..self.contenders).map(|_| Side::Peer(self.peer.contender()));
        join_all(ours.chain(theirs).map(|side| course.contend(side))).await;
        course.report(began.elapsed())
    }
}

/// Whose contender.
enum Side<'a> {
    Dlock(&'a Locks),
    Peer(Contender),
}

/// What is held.
enum Held {
    Dlock(Guard),
    Peer(Taken),
}

/// The last release: of whose, for a kind that excludes others or not, and when it began.
type Release = (bool, Kind, Instant);

struct Course<'a> {
    fleet: &'a Fleet<'a>,
    history: History,
    /// Changed by those who hold the lock exclusively, in two steps: right only if no two do.
    counter: AtomicU64,
    writes: AtomicU64,
    /// How often each side was granted the lock: dlock, the peer.
    grants: watch::Sender<[usize; 2]>,
    last: Mutex<Option<Release>>,
    to_peer: Mutex<Vec<Duration>>,
    to_dlock: Mutex<Vec<Duration>>,
}

impl<'a> Course<'a> {
    fn new(fleet: &'a Fleet<'a>) -> Self {
        Self {
            fleet,
            history: History::new(),
            counter: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            grants: watch::Sender::new([0; 2]),
            last: Mutex::default(),
            to_peer: Mutex::default(),
            to_dlock: Mutex::default(),
        }
    }

    async fn contend(&self, side: Side<'_>) {
        let Fleet { name, kinds, acquisitions, ttl, .. } = *self.fleet;
        let mut dice = Rng::new();
        for _ in 0..acquisitions {
            self.other_side_keeps_up(&side).await;
            let kind = kinds[dice.usize(..kinds.len())];
            let stake = self.history.invokes(name, kind.kind(), ttl);
            let asked = Instant::now();
            let held = side.take(kind, name, ttl).await;
            self.granted(stake, &held);
            self.grants.send_modify(|grants| grants[side.index()] += 1);
            self.handed_over(kind.kind(), asked, &held);
            self.work(kind.kind()).await;
            self.look(stake, &held).await;
            self.history.releases(stake);
            *lock(&self.last) = Some((matches!(held, Held::Dlock(_)), kind.kind(), Instant::now()));
            side.leave(kind, name, held).await;
            self.history.released(stake);
        }
    }

    async fn other_side_keeps_up(&self, side: &Side<'_>) {
        let (this, other, lead) = (side.index(), 1 - side.index(), 2 * self.fleet.contenders);
        let keeps_up = |grants: &[usize; 2]| grants[this] < grants[other] + lead;
        // Fails only once the sender is gone, which is here.
        let _ = self.grants.subscribe().wait_for(keeps_up).await;
    }

    fn granted(&self, stake: AcquisitionId, held: &Held) {
        let now = Instant::now();
        match held {
            Held::Dlock(guard) => self.history.granted(stake, guard.token(), now + guard.remaining()),
            // It renews by itself, so this is not too much.
            Held::Peer(taken) => self.history.granted(stake, taken.token, now + self.fleet.ttl),
        }
    }

    /// Notes the time of the hand-off if this contender waited for the other side, and the hand-off was not from reader to
    /// reader.
    fn handed_over(&self, kind: Kind, asked: Instant, held: &Held) {
        let Some((dlock, released, at)) = *lock(&self.last) else { return };
        let ours = matches!(held, Held::Dlock(_));
        if dlock != ours && asked < at && (kind, released) != (Kind::Read, Kind::Read) {
            lock(if ours { &self.to_dlock } else { &self.to_peer }).push(at.elapsed());
        }
    }

    async fn work(&self, kind: Kind) {
        let seen = self.counter.load(Relaxed);
        yield_now().await;
        if kind != Kind::Read {
            self.counter.store(seen + 1, Relaxed);
            self.writes.fetch_add(1, Relaxed);
        } else if self.counter.load(Relaxed) != seen {
            self.history.note(Rule::Exclusive, "somebody wrote while somebody read");
        }
    }

    async fn look(&self, stake: AcquisitionId, held: &Held) {
        let Held::Dlock(guard) = held else { return };
        if guard.is_lost() {
            self.history.lost(stake, guard.lost().await);
        } else {
            self.history.holds(stake, Instant::now() + guard.remaining());
        }
    }

    fn report(self, took: Duration) -> Report {
        let Self { fleet, history, counter, writes, to_peer, to_dlock, .. } = self;
        let (written, writes) = (counter.into_inner(), writes.into_inner());
        if written != writes {
            history.note(Rule::Fence, format!("{writes} writes count as {written}: some were lost"));
        }
        let sorted = |hand_offs: Mutex<Vec<Duration>>| {
            let mut hand_offs = hand_offs.into_inner().unwrap_or_else(PoisonError::into_inner);
            hand_offs.sort_unstable();
            hand_offs
        };
        let (to_peer, to_dlock) = (sorted(to_peer), sorted(to_dlock));
        for (hand_offs, whom) in [(&to_peer, fleet.peer.name()), (&to_dlock, "dlock")] {
            match hand_offs.last() {
                None => history.note(Rule::Potency, format!("nothing was ever handed over to {whom}")),
                Some(longest) if *longest > fleet.ttl / 10 => {
                    history.note(Rule::Progress, format!("{whom} was not woken for {longest:?}"));
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
                let options = LockOptions::new().ttl(ttl).wait(WAIT);
                let guard = locks.of(kind.kind(), name).lock(&options).await;
                Held::Dlock(guard.unwrap_or_else(|error| panic!("{error}")))
            }
            Self::Peer(contender) => {
                let taken = contender.lock(kind, name, WAIT).await.unwrap_or_else(|error| panic!("{error}"));
                Held::Peer(
                    taken.unwrap_or_else(|| panic!("a contender of the peer waited in vain for {WAIT:?}")),
                )
            }
        }
    }

    async fn leave(&self, kind: PeerKind, name: &str, held: Held) {
        let left = match (self, held) {
            (_, Held::Dlock(guard)) => guard.release().await.map_err(|error| error.to_string()),
            (Self::Peer(contender), Held::Peer(_)) => {
                contender.unlock(kind, name).await.map_err(|error| error.to_string())
            }
            (Self::Dlock(_), Held::Peer(_)) => Ok(()),
        };
        left.unwrap_or_else(|error| panic!("{error}"));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
