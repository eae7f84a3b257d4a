//! Elections of a leader, as fair locks with observers.

mod candidate;
mod cooldown;
mod leader;
mod observer;
mod term;

use std::time::Duration;

pub use candidate::{Candidate, Next};
pub use leader::{Leader, Observed};
pub use observer::Observer;
pub use term::Term;

use super::{LockOptions, Locks, acquire::Target};
use crate::model::{Kind, LockName, Result};

/// An election of one leader among several candidates. Cheap to clone. The handle itself holds
/// nothing, and creating it does no I/O.
///
/// An election is a [fair](Locks::fair) lock of the same name, or a mutex in a store without fair
/// locks. A [`Term`] is a guard of that lock, and the fencing token of the lock is the number
/// of the term. There is no other record of the leader, so a leader that has lost the lock has lost
/// its term.
///
/// - A [`candidate`](Self::candidate) waits for its term in the queue of the lock.
/// - An [observer](Self::observe) follows who leads. It takes no place in the queue.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// use dlock_core::{Locks, Next, Observed, Term};
/// let election = Locks::memory().election("scheduler");
/// let mut observer = election.observe().await?;
/// assert_eq!(observer.next().await, Observed::Vacant { after: None });
///
/// let candidate = election.candidate().label("10.0.0.7:9000");
/// candidate
///     .lead(async |term: &Term| {
///         assert!(term.is_current() && election.is_leading());
///         let leader = election.leader().await?.expect("this term");
///         assert_eq!(leader.label.as_deref(), Some("10.0.0.7:9000"));
///         Ok::<_, dlock_core::Error>(Next::Done)
///     })
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    target: Target,
    /// Ttl of the candidates' claims, and of the observers.
    ttl: Option<Duration>,
}

impl Election {
    pub(super) fn new(locks: &Locks, name: impl AsRef<str>) -> Self {
        let is_fair = locks.info().kinds.contains(&Kind::Fair);
        let kind = if is_fair { Kind::Fair } else { Kind::Mutex };
        // The first call that uses the election checks its name, so that creating a handle cannot
        // fail.
        let name = LockName::unchecked(name.as_ref());
        let locks = locks.clone();
        Self { target: Target { locks, name, kind, limit: 1, owner: None, is_candidate: true }, ttl: None }
    }

    /// Returns the election's name, which is the name of its lock.
    pub fn name(&self) -> &LockName {
        &self.target.name
    }

    /// Returns the kind of the election's lock: fair, or a mutex in a store without fair locks.
    pub fn kind(&self) -> Kind {
        self.target.kind
    }

    /// Sets the time after which the store deletes the claim of a leader or candidate that is not
    /// renewed, counted from the last request that it has executed for the claim. An observer
    /// inspects the lock every third of this time, at most once a second, and reports
    /// [`Observed::Unknown`] if the store is unreachable for this time. Default: the default ttl of
    /// the client.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Returns a candidate of this election. Set options on it, then call
    /// [`lead`](Candidate::lead) or [`elect`](Candidate::elect).
    pub fn candidate(&self) -> Candidate {
        Candidate::new(self.clone())
    }

    /// Starts to observe the election, and waits for the first reply of the store. All observers of
    /// one client and one ttl share the requests to the store.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// use dlock_core::{Leader, Locks, Observed};
    /// let election = Locks::memory().election("scheduler");
    /// let term = election.candidate().label("10.0.0.7:9000").elect().await?;
    /// let mut observer = election.observe().await?;
    /// match observer.next().await {
    ///     Observed::Leader(Leader { who, term: number, mine, .. }) => {
    ///         assert_eq!((who.as_str(), number, mine), ("10.0.0.7:9000", term.number(), true));
    ///     }
    ///     Observed::Vacant { .. } => println!("there is no leader"),
    ///     Observed::Unknown { .. } => println!("the store is unreachable"),
    /// }
    /// term.resign().await?;
    /// assert!(matches!(observer.next().await, Observed::Vacant { .. } | Observed::Leader(_)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the store cannot report the holder of a
    /// lock, [`Error::InvalidName`](crate::Error::InvalidName),
    /// [`Error::InvalidOptions`](crate::Error::InvalidOptions) for the ttl,
    /// [`Error::Closed`](crate::Error::Closed), [`Error::NoRuntime`](crate::Error::NoRuntime), and
    /// [`Error::Refused`](crate::Error::Refused) if the store refuses the first inspection. An
    /// unreachable store is not an error: the observer then begins with [`Observed::Unknown`].
    ///
    /// # Cancel safety
    /// Safe. Dropping the future leaves nothing behind.
    pub async fn observe(&self) -> Result<Observer> {
        Observer::start(self).await
    }

    /// Inspects the election once. Returns the leader, or `None` if there is none. To follow the
    /// leader, [`observe`](Self::observe) sends fewer requests.
    ///
    /// # Errors
    /// As [`Locks::inspect`], and [`Error::Unavailable`](crate::Error::Unavailable) if the members
    /// of a RedLock that may know the leader are unreachable.
    ///
    /// # Cancel safety
    /// Safe. The call only reads.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let locks = &self.target.locks;
        let holder = locks.holder(self.target.name.clone()).await?;
        Ok(holder.map(|holder| Leader::of(&holder, &locks.client().term_holds.borrow())))
    }

    /// Returns whether a [`Term`] of this client is current, such as the one in which
    /// [`Candidate::lead`] runs its work. False from the deadline of the term on, even if no task
    /// of dlock has run since, because the call compares the clocks itself. Does no I/O, so a
    /// handler of requests can call it each time.
    pub fn is_leading(&self) -> bool {
        let term_holds = self.target.locks.client().term_holds.borrow();
        term_holds.iter().any(|hold| hold.name == self.target.name && hold.loss().is_none())
    }

    /// Returns the options of the election, for the calls of its candidates and observers.
    fn options(&self) -> LockOptions {
        // A leader that has resigned must not keep the lock.
        let options = LockOptions::new().at_least(Duration::ZERO);
        self.ttl.into_iter().fold(options, LockOptions::ttl)
    }
}
