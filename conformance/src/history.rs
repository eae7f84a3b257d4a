//! Records what happens to some locks, and judges whether it was allowed; for runs without a script.
//!
//! Contenders of one process record what they see, in the order in which they see it; [`History::check`] then judges all of
//! it. It needs no model of the store: what a guard claims is an interval of time, so it only looks for intervals that
//! overlap although they must not.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
//! use dlock_conformance::history::{Counts, History};
//! use dlock_core::{Kind, Locks};
//! let (history, locks) = (History::new(), Locks::memory());
//! let ttl = std::time::Duration::from_secs(30);
//! let stake = history.invokes("stock", Kind::Mutex, ttl);
//! let guard = locks.mutex("stock").lock().ttl(ttl).await?;
//! history.granted(stake, guard.token(), tokio::time::Instant::now() + guard.remaining());
//! history.releases(stake);
//! guard.release().await?;
//! history.released(stake);
//! assert_eq!(history.check(&Counts { grants: 1, ..Counts::default() }), []);
//! # Ok(()) }
//! ```

mod check;
mod rule;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use dlock_core::{Kind, LostReason, Token};
use tokio::time::Instant;

pub use rule::{Counts, Rule, Violation};

/// Records what contenders see of their locks. Share it by reference or in an `Arc`.
#[derive(Debug, Default)]
pub struct History(Mutex<Log>);

/// One acquisition in a [`History`]; meaningless in another. An owner's re-entry has no stake of its own: use that of the
/// hold that was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stake(usize);

/// One time that a lock was taken by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Break(usize);

#[derive(Debug, Default)]
struct Log {
    events: u64,
    lives: Vec<Life>,
    writes: Vec<Write>,
    breaks: Vec<Broken>,
    noted: Vec<Violation>,
}

/// A time, and the number of the event. On a paused clock many events have the same time, so only the number orders them.
type Stamp = (Instant, u64);

#[derive(Debug)]
struct Life {
    name: String,
    kind: Kind,
    /// How many permits there are, as this contender says. 1 for the other kinds.
    limit: u32,
    ttl: Duration,
    invoked: Stamp,
    granted: Option<Stamp>,
    token: Option<Token>,
    /// The latest deadline that was promised. Meaningless before the grant.
    valid_until: Instant,
    downgrades: Option<Stamp>,
    /// It went on without a guard for a time, in which nobody could be told of a loss.
    detached: bool,
    releases: Option<Stamp>,
    released: Option<Stamp>,
    lost: Option<(Stamp, LostReason)>,
    /// Said to hold after it was lost.
    revived: Option<Stamp>,
}

#[derive(Debug)]
struct Write {
    stake: usize,
    at: Stamp,
    base: u64,
    accepted: bool,
}

#[derive(Debug)]
struct Broken {
    name: String,
    from: Stamp,
    until: Option<Stamp>,
    robbed: bool,
}

impl History {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Before a lock is asked for, with the ttl or lease that it would be held with. A permit has a limit of one.
    pub fn invokes(&self, name: &str, kind: Kind, ttl: Duration) -> Stake {
        self.begins(name, kind, 1, ttl)
    }

    /// Before a permit of a semaphore with this limit is asked for, with the ttl or lease that it would be held with.
    pub fn invokes_permit(&self, name: &str, limit: u32, ttl: Duration) -> Stake {
        self.begins(name, Kind::Permit, limit, ttl)
    }

    fn begins(&self, name: &str, kind: Kind, limit: u32, ttl: Duration) -> Stake {
        let mut log = self.log();
        let invoked = log.stamp();
        log.lives.push(Life {
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
            revived: None,
        });
        Stake(log.lives.len() - 1)
    }

    /// After it was granted, with what the guard promises now. A stake that is refused, or given up, records nothing.
    pub fn granted(&self, stake: Stake, token: Option<Token>, valid_until: Instant) {
        self.with(stake, |life, now| {
            (life.granted, life.token, life.valid_until) = (Some(now), token, valid_until);
        });
    }

    /// The guard says that it holds, and until when without another renewal. The more often this is recorded, the more
    /// of what the guard claims is checked.
    pub fn holds(&self, stake: Stake, valid_until: Instant) {
        self.with(stake, |life, now| {
            life.valid_until = life.valid_until.max(valid_until);
            if life.lost.is_some() {
                life.revived = Some(now);
            }
        });
    }

    /// Before an exclusive hold is turned into a read hold.
    pub fn downgrades(&self, stake: Stake) {
        self.with(stake, |life, now| life.downgrades = Some(now));
    }

    /// After the store has confirmed that the hold goes on without a guard, until `valid_until`.
    pub fn detached(&self, stake: Stake, valid_until: Instant) {
        self.with(stake, |life, _| (life.detached, life.valid_until) = (true, valid_until));
    }

    /// Before a hold is detached or taken back, which may make its time shorter. It claims nothing until
    /// [`detached`](Self::detached) or [`holds`](Self::holds) is recorded.
    pub fn changes(&self, stake: Stake) {
        self.with(stake, |life, now| life.valid_until = life.valid_until.min(now.0));
    }

    /// Before the last guard is released or dropped, or a ticket is given back.
    pub fn releases(&self, stake: Stake) {
        self.with(stake, |life, now| life.releases = Some(now));
    }

    /// After the release was confirmed.
    pub fn released(&self, stake: Stake) {
        self.with(stake, |life, now| life.released = Some(now));
    }

    /// The guard says that it is lost. Only the first report counts.
    pub fn lost(&self, stake: Stake, reason: LostReason) {
        self.with(stake, |life, now| life.lost = life.lost.or(Some((now, reason))));
    }

    /// After a write to what the exclusive lock protects, which must be a counter of its own writes, one per lock name.
    /// `base` is what this holder had read. A write that was `accepted` adds one. The holder reads with its token, so that
    /// the counter can refuse older tokens from then on.
    pub fn wrote(&self, stake: Stake, base: u64, accepted: bool) {
        let mut log = self.log();
        let at = log.stamp();
        if stake.0 < log.lives.len() {
            log.writes.push(Write { stake: stake.0, at, base, accepted });
        }
    }

    /// Before a lock is taken by force, or the store is made to forget it in another way. Guards that held the lock, or
    /// asked for it, before [`broken`](Self::broken) may be lost. Until they are told, they claim no exclusiveness.
    pub fn breaks(&self, name: &str) -> Break {
        let mut log = self.log();
        let from = log.stamp();
        log.breaks.push(Broken { name: name.to_owned(), from, until: None, robbed: false });
        Break(log.breaks.len() - 1)
    }

    /// After it was taken by force. `robbed` if it is known that somebody held it. Do not call this if the attempt failed.
    pub fn broken(&self, one: Break, robbed: bool) {
        let mut log = self.log();
        let now = log.stamp();
        if let Some(broken) = log.breaks.get_mut(one.0) {
            (broken.until, broken.robbed) = (Some(now), robbed);
        }
    }

    /// The machine was suspended for `span`. Tokio's clock stood still meanwhile, so on it every promise ends sooner by
    /// `span`.
    pub fn suspended(&self, span: Duration) {
        let mut log = self.log();
        let now = Instant::now();
        for life in &mut log.lives {
            if life.valid_until > now {
                life.valid_until = life.valid_until.checked_sub(span).map_or(now, |until| until.max(now));
            }
        }
    }

    /// Records a violation that was found by other means. [`check`](Self::check) reports it too.
    pub fn note(&self, rule: Rule, what: impl Into<String>) {
        self.log().noted.push(Violation { rule, what: what.into() });
    }

    /// Every rule that was violated, and how; also [`Rule::Potency`] and [`Rule::SharedReads`] if less than `least`
    /// happened. Takes about as long as sorting what was recorded.
    pub fn check(&self, least: &Counts) -> Vec<Violation> {
        check::all(&self.log(), least)
    }

    /// How much happened.
    pub fn counts(&self) -> Counts {
        check::counts(&self.log())
    }

    fn with(&self, stake: Stake, change: impl FnOnce(&mut Life, Stamp)) {
        let mut log = self.log();
        let now = log.stamp();
        if let Some(life) = log.lives.get_mut(stake.0) {
            change(life, now);
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn stamp(&mut self) -> Stamp {
        self.events += 1;
        (Instant::now(), self.events)
    }
}

impl Life {
    /// When its guard stops claiming the lock.
    fn end(&self) -> Stamp {
        let ends = [self.releases, self.lost.map(|(at, _)| at)];
        ends.into_iter().flatten().fold((self.valid_until, 0), Stamp::min)
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, token, invoked, .. } = self;
        let token = token.map_or("none".to_owned(), |token| token.to_string());
        write!(f, "{kind} `{name}` #{} (token {token})", invoked.1)
    }
}
