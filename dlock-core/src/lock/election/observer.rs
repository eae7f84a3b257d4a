//! Observers, who follow the leader of an election.

use std::{fmt, future::pending, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Election, Leader, Observed, leader::hold_of};
use crate::{
    contract::Inspect,
    engine::{Hold, Lookout, Sighting},
    lock::Locks,
    model::{Result, Token},
};

/// An observer of an [`Election`], which follows who leads. Observing takes no
/// place in the queue, and does not delay any candidate.
///
/// The interface resembles that of a receiver of [`tokio::sync::watch`]: the first
/// [`next`](Self::next) returns the present state, and each further one the latest state that
/// differs from the last one. States in between may be skipped.
///
/// - **A dead leader** is reported as [`Vacant`](Observed::Vacant), or its successor as the leader,
///   at the latest when the ttl of its claim has passed since its last renewal, plus the time of
///   one inspection. In a store whose claims live as long as a session (ZooKeeper, etcd, MySQL's
///   named locks, PostgreSQL's advisory locks), it is reported at the latest with the first
///   inspection after the end of that session.
/// - **A change of the leader** is reported with the next inspection, every third of the
///   [ttl](crate::Election::ttl) and at most once a second. A store that implements
///   [`Backend::watch`](crate::driver::Backend::watch) causes one at each change.
/// - **An unreachable store** is reported as [`Unknown`](Observed::Unknown) one ttl after the last
///   inspection with a reply, or three seconds after it if the ttl is shorter. If the leader's
///   claim ends first, it is reported a third of the ttl, and at least one second, after that end.
/// - **Term numbers never decrease.** If the store reports a smaller term than before, as after a
///   loss of its data, the observer reports [`Unknown`](Observed::Unknown). A new observer accepts
///   every number.
///
/// All observers of one client and one ttl share one task, which inspects the lock for all of them.
/// It ends with the last of them. After [`Locks::close`] the observers report
/// [`Unknown`](Observed::Unknown).
pub struct Observer {
    locks: Locks,
    inspect: Arc<dyn Inspect>,
    lookout: Arc<Lookout>,
    sighting: watch::Receiver<Sighting>,
    /// Holds of this client's terms.
    term_holds: watch::Receiver<Vec<Arc<Hold>>>,
    /// The last state that `next` has returned.
    last: Option<Observed>,
    /// The greatest term that this observer has reported.
    term: Option<Token>,
}

impl Observer {
    pub(super) async fn start(election: &Election) -> Result<Self> {
        let (locks, name) = (&election.target.locks, &election.target.name);
        let options = election.options().or(locks.defaults());
        name.check()?;
        options.validate(locks.info())?;
        let inspect = locks.inspector("tell who leads an election")?;
        let key = (name.clone(), options.terms(locks.info()).ttl);
        let new = || Lookout::new(key.0.clone(), key.1);
        let lookout = locks.client().lookouts.get_or_insert_with(&key, new);
        let (sighting, term_holds) = (lookout.subscribe(), locks.client().term_holds.subscribe());
        let mut observer =
            Self { locks: locks.clone(), inspect, lookout, sighting, term_holds, last: None, term: None };
        observer.ensure_lookout_runs().await?;
        // Fails only without a sender, which the lookout has.
        let checked = observer.sighting.wait_for(|sighting| sighting.is_checked).await.ok();
        let refusal = checked.and_then(|sighting| Some(sighting.error.as_ref()?.error()));
        match refusal.filter(|error| !error.is_transient()) {
            Some(error) => Err(error),
            None => Ok(observer),
        }
    }

    /// Waits for a state that differs from the one that the last call has returned, and returns it.
    /// The first call returns the present state. Two [`Observed::Unknown`] states that differ only
    /// in the time of the last reply count as the same state. Never returns after [`Locks::close`],
    /// once it has returned [`Observed::Unknown`].
    ///
    /// # Cancel safety
    /// Safe. Dropping the future loses no change.
    pub async fn next(&mut self) -> Observed {
        loop {
            let state = self.judge();
            if let Some(state) = state.filter(|state| self.is_change(state)) {
                self.last = Some(state.clone());
                return state;
            }
            if !self.lookout.is_running() {
                // Without a runtime the state stays unknown.
                self.ensure_lookout_runs().await.ok();
            }
            let lost = self.loss_of_own_term();
            let lost = async {
                match &lost {
                    Some(lost) => lost.cancelled().await,
                    None => pending().await,
                }
            };
            // The senders exist as long as the lookout and the client do.
            tokio::select! {
                _ = self.sighting.changed() => {}
                _ = self.term_holds.changed() => {}
                () = lost => {}
            }
        }
    }

    /// Returns the present state without waiting. It is [`Observed::Unknown`] if the last reply of
    /// the store is too old to be relied on.
    pub fn present(&mut self) -> Observed {
        let state = self.judge();
        state.unwrap_or_else(|| unknown(&self.sighting.borrow()))
    }

    /// Returns the present state. `None` if the claim of the last known leader has ended since the
    /// last reply, and the next reply will say who leads.
    fn judge(&mut self) -> Option<Observed> {
        let sighting = self.sighting.borrow_and_update().clone();
        let term_holds = self.term_holds.borrow_and_update();
        if sighting.is_stale || sighting.trusted_until.has_passed() {
            return Some(unknown(&sighting));
        }
        let Some(holder) = &sighting.holder else { return Some(Observed::Vacant { after: self.term }) };
        if sighting.claim_ends.is_some_and(|end| end.has_passed()) {
            return None;
        }
        if holder.token.is_some() && holder.token < self.term {
            return Some(unknown(&sighting));
        }
        self.term = self.term.max(holder.token);
        Some(Observed::Leader(Leader::of(holder, &term_holds)))
    }

    /// Returns whether this state differs from the one that was returned last. A reply that was too
    /// old when it arrived only moves the time of the last reply.
    fn is_change(&self, state: &Observed) -> bool {
        match (&self.last, state) {
            (Some(Observed::Unknown { .. }), Observed::Unknown { .. }) => false,
            (last, state) => last.as_ref() != Some(state),
        }
    }

    /// Returns the signal of the loss of this client's own term, if that is the last state that
    /// was returned.
    fn loss_of_own_term(&self) -> Option<CancellationToken> {
        let is_mine = matches!(&self.last, Some(Observed::Leader(leader)) if leader.mine);
        let sighting = self.sighting.borrow();
        let holder = sighting.holder.as_ref().filter(|_| is_mine)?;
        let lost = hold_of(holder, &self.term_holds.borrow()).map(|hold| hold.lost_token().clone());
        // A loss that was reported before is no news.
        lost.filter(|lost| !lost.is_cancelled())
    }

    /// Starts the task that inspects the lock, unless it runs.
    ///
    /// # Errors
    /// If the client is closed, or there is no runtime.
    async fn ensure_lookout_runs(&self) -> Result<()> {
        let (client, inspect) = (Arc::clone(self.locks.client()), Arc::clone(&self.inspect));
        let (lookout, name) = (Arc::downgrade(&self.lookout), self.lookout.name().clone());
        let starting = async move {
            let open = client.check(&name);
            if let (Ok(()), Some(lookout)) = (&open, lookout.upgrade()) {
                lookout.ensure_runs(&client, &inspect);
            }
            open
        };
        self.locks.on_thread(starting).await
    }
}

fn unknown(sighting: &Sighting) -> Observed {
    Observed::Unknown { since: sighting.replied_at.instant() }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("name", self.lookout.name())
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use std::time::Duration;

    use crate::{Leader, Locks, Observed, driver};

    /// No task of dlock runs between the suspend and the assertions, because nothing is awaited.
    #[tokio::test(start_paused = true)]
    async fn after_a_suspend_neither_a_term_nor_an_observer_relies_on_the_past() {
        let election = Locks::memory().election("x").ttl(Duration::from_secs(30));
        let term = election.candidate().elect().await.expect("no rival");
        let mut observer = election.observe().await.expect("memory can be inspected");
        let before = observer.present();
        assert!(matches!(before, Observed::Leader(Leader { mine: true, .. })), "{before:?}");
        driver::pretend_suspend(Duration::from_secs(30));
        assert!(!term.is_current() && !election.is_leading(), "the flag is stale");
        let after = observer.next().await;
        assert!(matches!(after, Observed::Unknown { .. }), "an old leader is reported: {after:?}");
        // The term is lost, and its claim expires in the store.
        let after = observer.next().await;
        assert!(matches!(after, Observed::Vacant { .. }), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_reply_is_not_reported_as_another_unknown_state() {
        let election = Locks::memory().election("scheduler");
        let mut observer = election.observe().await.expect("memory can be inspected");
        assert_eq!(observer.next().await, Observed::Vacant { after: None });
        driver::pretend_suspend(Duration::from_secs(60));
        let state = observer.next().await;
        assert!(matches!(state, Observed::Unknown { .. }), "{state:?}");
        // The store replies again, and the reply is old before the observer reads it.
        tokio::time::sleep(Duration::from_secs(60)).await;
        driver::pretend_suspend(Duration::from_secs(60));
        assert_eq!(observer.next().await, Observed::Vacant { after: None });
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_with_its_runtime_is_started_again_by_the_next_observer() {
        let locks = Locks::memory();
        let (started, first) = std::sync::mpsc::channel();
        let election = locks.election("x");
        let first_runtime = std::thread::spawn({
            let election = election.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let observing = election.observe();
                started.send(runtime.expect("a runtime").block_on(observing)).ok();
            }
        });
        first_runtime.join().expect("no panic");
        let mut observer = first.recv().expect("sent").expect("memory can be inspected");
        assert!(matches!(observer.present(), Observed::Unknown { .. }), "no task inspects the lock");
        let state = loop {
            match observer.next().await {
                Observed::Unknown { .. } => {}
                state => break state,
            }
        };
        assert_eq!(state, Observed::Vacant { after: None });
    }
}
