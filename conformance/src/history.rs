//! Records what happens to some locks, and checks afterwards whether it was allowed. For runs
//! without a script.
//!
//! The contenders of one process record events in the order in which they observe them.
//! [`History::check`] then checks the complete record. It needs no model of the store. The record
//! of a hold is an interval of time during which its guard claims the lock, and the check looks for
//! intervals that overlap although their kinds exclude each other.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
//! use dlock_conformance::history::{Counts, History};
//! use dlock_core::{Kind, Locks};
//! let (history, locks) = (History::new(), Locks::memory());
//! let ttl = std::time::Duration::from_secs(30);
//! let acquisition = history.invokes("stock", Kind::Mutex, ttl);
//! let guard = locks.mutex("stock").lock().ttl(ttl).await?;
//! history.granted(acquisition, guard.token(), tokio::time::Instant::now() + guard.remaining());
//! history.releases(acquisition);
//! guard.release().await?;
//! history.released(acquisition);
//! assert_eq!(history.check(&Counts { grants: 1, ..Counts::default() }), []);
//! # Ok(()) }
//! ```

mod check;
#[cfg(feature = "soak")]
mod recorded;
mod rule;
#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

use dlock_core::{Kind, LostReason, Token};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

#[cfg(feature = "soak")]
pub(crate) use recorded::Recorded;
pub use rule::{Counts, Rule, Violation};

/// A record of what contenders observe of their locks. Share it by reference or in an `Arc`.
///
/// Call methods whose name is a verb in the present tense, such as [`invokes`](Self::invokes) and
/// [`releases`](Self::releases), before the operation. Call methods whose name is a participle, such
/// as [`granted`](Self::granted) and [`released`](Self::released), after it.
#[derive(Debug, Default)]
pub struct History(Mutex<Log>);

/// Identifies one acquisition in a [`History`]. It has no meaning in another history. The re-entry
/// of an owner has no acquisition of its own: use that of the hold that was re-entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquisitionId(usize);

impl AcquisitionId {
    #[cfg(feature = "soak")]
    pub(crate) fn new(index: usize) -> Self {
        Self(index)
    }

    /// Returns the number of acquisitions that were recorded before this one.
    pub fn index(self) -> usize {
        self.0
    }
}

/// Identifies one forced release of a lock in a [`History`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Break(usize);

#[derive(Debug, Default)]
struct Log {
    events: u64,
    acquisitions: Vec<Acquisition>,
    writes: Vec<Write>,
    breaks: Vec<Broken>,
    violations: Vec<Violation>,
}

/// Time and number of an event. On a paused clock many events have the same time, so only the
/// number orders them.
type Stamp = (Instant, u64);

#[derive(Debug)]
struct Acquisition {
    id: AcquisitionId,
    name: String,
    kind: Kind,
    /// Number of permits according to this contender. 1 for the other kinds.
    limit: u32,
    ttl: Duration,
    invoked: Stamp,
    granted: Option<Stamp>,
    token: Option<Token>,
    /// Latest deadline that the guard promised. No meaning before the grant.
    valid_until: Instant,
    downgrades: Option<Stamp>,
    /// The hold continued without a guard for a time, in which no loss could be reported.
    detached: bool,
    releases: Option<Stamp>,
    released: Option<Stamp>,
    lost: Option<(Stamp, LostReason)>,
    /// Event in which the guard claimed the lock after it was lost.
    claimed_after_loss: Option<Stamp>,
}

#[derive(Debug)]
struct Write {
    acquisition: usize,
    at: Stamp,
    base: u64,
    accepted: bool,
}

#[derive(Debug)]
struct Broken {
    name: String,
    from: Stamp,
    until: Option<Stamp>,
    had_holder: bool,
}

impl History {
    /// Creates an empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that a lock is about to be requested, with the ttl or lease of the hold. A permit has
    /// a limit of one.
    pub fn invokes(&self, name: &str, kind: Kind, ttl: Duration) -> AcquisitionId {
        self.begins(name, kind, 1, ttl)
    }

    /// Records that a permit of a semaphore with this limit is about to be requested, with the ttl
    /// or lease of the hold.
    pub fn invokes_permit(&self, name: &str, limit: u32, ttl: Duration) -> AcquisitionId {
        self.begins(name, Kind::Permit, limit, ttl)
    }

    fn begins(&self, name: &str, kind: Kind, limit: u32, ttl: Duration) -> AcquisitionId {
        let mut log = self.log();
        let invoked = log.stamp();
        let id = AcquisitionId(log.acquisitions.len());
        log.acquisitions.push(Acquisition {
            id,
            name: name.to_owned(),
            kind,
            limit,
            ttl,
            invoked,
            granted: None,
            token: None,
            valid_until: invoked.0,
            downgrades: None,
            detached: false,
            releases: None,
            released: None,
            lost: None,
            claimed_after_loss: None,
        });
        id
    }

    /// Records that the acquisition was granted, with the guard's token and current deadline.
    /// Nothing is recorded for an acquisition that is refused or abandoned.
    pub fn granted(&self, acquisition: AcquisitionId, token: Option<Token>, valid_until: Instant) {
        self.update(acquisition, |record, now| {
            (record.granted, record.token, record.valid_until) = (Some(now), token, valid_until);
        });
    }

    /// Records that the guard claims the lock, and its deadline without a further renewal. The more
    /// often this is recorded, the more of the guard's claims are checked.
    pub fn holds(&self, acquisition: AcquisitionId, valid_until: Instant) {
        self.update(acquisition, |record, now| {
            record.valid_until = record.valid_until.max(valid_until);
            if record.lost.is_some() {
                record.claimed_after_loss = Some(now);
            }
        });
    }

    /// Records that an exclusive hold is about to be downgraded to a read hold.
    pub fn downgrades(&self, acquisition: AcquisitionId) {
        self.update(acquisition, |record, now| record.downgrades = Some(now));
    }

    /// Records that the store has confirmed a detachment. The hold continues without a guard until
    /// `valid_until`.
    pub fn detached(&self, acquisition: AcquisitionId, valid_until: Instant) {
        self.update(acquisition, |record, _| (record.detached, record.valid_until) = (true, valid_until));
    }

    /// Records that a hold is about to be detached or resumed, which may shorten its time. It
    /// claims nothing until [`detached`](Self::detached) or [`holds`](Self::holds) is recorded.
    pub fn changes(&self, acquisition: AcquisitionId) {
        self.update(acquisition, |record, now| record.valid_until = record.valid_until.min(now.0));
    }

    /// Records that the last guard is about to be released or dropped, or that a ticket is about to
    /// be used for a release.
    pub fn releases(&self, acquisition: AcquisitionId) {
        self.update(acquisition, |record, now| record.releases = Some(now));
    }

    /// Records that the release was confirmed.
    pub fn released(&self, acquisition: AcquisitionId) {
        self.update(acquisition, |record, now| record.released = Some(now));
    }

    /// Records that the guard reports a loss. Only the first report counts.
    pub fn lost(&self, acquisition: AcquisitionId, reason: LostReason) {
        self.update(acquisition, |record, now| record.lost = record.lost.or(Some((now, reason))));
    }

    /// Records a write to the resource that the exclusive lock protects. The resource must be a
    /// counter of its own writes, one for each lock name.
    ///
    /// `base` is the value that this holder had read. A write that was `accepted` adds one. The
    /// holder reads with its token, so that the counter can refuse older tokens from then on.
    pub fn wrote(&self, acquisition: AcquisitionId, base: u64, accepted: bool) {
        let mut log = self.log();
        let at = log.stamp();
        if acquisition.0 < log.acquisitions.len() {
            log.writes.push(Write { acquisition: acquisition.0, at, base, accepted });
        }
    }

    /// Records that a lock is about to be force-released, or deleted from the store in another way.
    /// Guards that held or requested the lock before [`broken`](Self::broken) may be lost. They
    /// claim no exclusiveness until the loss is reported.
    pub fn breaks(&self, name: &str) -> Break {
        let mut log = self.log();
        let from = log.stamp();
        log.breaks.push(Broken { name: name.to_owned(), from, until: None, had_holder: false });
        Break(log.breaks.len() - 1)
    }

    /// Records that the lock was force-released. `had_holder` is true if it is known that a
    /// contender held the lock. Do not call this method if the attempt failed.
    pub fn broken(&self, forced: Break, had_holder: bool) {
        let mut log = self.log();
        let now = log.stamp();
        if let Some(broken) = log.breaks.get_mut(forced.0) {
            (broken.until, broken.had_holder) = (Some(now), had_holder);
        }
    }

    /// Records that the machine was suspended for `span`. Tokio's clock stood still during the
    /// suspension, so by that clock every promise ends earlier by `span`.
    pub fn suspended(&self, span: Duration) {
        let mut log = self.log();
        let now = Instant::now();
        for record in &mut log.acquisitions {
            if record.valid_until > now {
                record.valid_until = record.valid_until.checked_sub(span).map_or(now, |until| until.max(now));
            }
        }
    }

    /// Records a violation that was found by other means. [`check`](Self::check) reports it too.
    pub fn note(&self, rule: Rule, detail: impl Into<String>) {
        self.log().violations.push(Violation::new(rule, detail, Vec::new()));
    }

    /// Returns every violation. Also reports [`Rule::Potency`] and [`Rule::SharedReads`] if less
    /// than `least` happened. Takes about as long as sorting the record.
    pub fn check(&self, least: &Counts) -> Vec<Violation> {
        check::all(&self.log(), least)
    }

    /// Returns how often each kind of event was recorded.
    pub fn counts(&self) -> Counts {
        check::counts(&self.log())
    }

    fn update(&self, acquisition: AcquisitionId, change: impl FnOnce(&mut Acquisition, Stamp)) {
        let mut log = self.log();
        let now = log.stamp();
        if let Some(record) = log.acquisitions.get_mut(acquisition.0) {
            change(record, now);
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock()
    }
}

impl Log {
    fn stamp(&mut self) -> Stamp {
        self.events += 1;
        (Instant::now(), self.events)
    }
}

impl Acquisition {
    /// Returns the time at which the guard stops claiming the lock.
    fn end(&self) -> Stamp {
        let ends = [self.releases, self.lost.map(|(at, _)| at)];
        ends.into_iter().flatten().fold((self.valid_until, 0), Stamp::min)
    }
}

impl fmt::Display for Acquisition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, kind, token, .. } = self;
        let token = token.map_or("none".to_owned(), |token| token.to_string());
        write!(f, "{kind} `{name}` #{} (token {token})", id.0)
    }
}
