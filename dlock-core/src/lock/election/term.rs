//! A term: the guard of an election's lock.

use std::{fmt, ops::Deref, sync::Arc};

use crate::{
    engine::{Client, Hold},
    lock::{Guard, Locks},
    model::{Result, Token},
};

/// The time for which one candidate leads, as a guard of the election's lock.
///
/// All methods of a [`Guard`] that do not consume it are available, such as
/// [`lost`](Guard::lost), [`remaining`](Guard::remaining) and
/// [`lost_signal`](Guard::lost_signal). The limits of a guard are those of a term, too: a resource
/// that compares term numbers can refuse the late writes of an earlier leader.
///
/// Dropping the term resigns in the background. [`resign`](Self::resign) waits for the store's
/// reply. The next candidate can be elected then, so first stop the work of the leader.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// use std::time::Duration;
/// let election = dlock_core::Locks::memory().election("scheduler");
/// let term = election.candidate().wait(Duration::from_secs(5)).elect().await?;
/// tokio::select! {
///     reason = term.lost() => eprintln!("stopped: {reason}"),
///     () = async { /* the work of the leader */ } => term.resign().await?,
/// }
/// # Ok(()) }
/// ```
#[must_use = "dropping a term resigns; bind it to a name, not to `_`"]
pub struct Term {
    // Dropped first, because an observer must not report the term as its own when it has ended.
    registration: Registration,
    guard: Guard,
}

/// Registration of a term's hold at its client.
struct Registration {
    client: Arc<Client>,
    hold: Option<Arc<Hold>>,
}

impl Term {
    pub(super) fn new(guard: Guard, locks: &Locks) -> Self {
        let (client, hold) = (Arc::clone(locks.client()), guard.hold().cloned());
        client.term_holds.send_modify(|holds| holds.extend(hold.clone()));
        Self { registration: Registration { client, hold }, guard }
    }

    /// Returns the number of the term, which is the fencing [token](Guard::token) of its lock. Each
    /// term of an election has a greater number than the terms before it. `None` in a store without
    /// tokens.
    pub fn number(&self) -> Option<Token> {
        self.guard.token()
    }

    /// Returns whether this candidate still leads. False from the deadline on, even if no task of
    /// dlock has run since, because the call compares the clocks itself. Does no I/O.
    pub fn is_current(&self) -> bool {
        !self.guard.is_lost()
    }

    /// Ends the term, and waits until the store has confirmed it. One waiting candidate is elected
    /// next. End the work of the leader before this call.
    ///
    /// # Errors
    /// As [`Guard::release`]. [`Error::Lost`](crate::Error::Lost) says that the term had ended
    /// before, so another candidate may have led already.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest to the keeper, as dropping the term does.
    pub async fn resign(self) -> Result<()> {
        let Self { registration, guard } = self;
        drop(registration);
        guard.release().await
    }
}

impl Deref for Term {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Term").field(&self.guard).finish()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(ended) = &self.hold else { return };
        self.client.term_holds.send_modify(|holds| holds.retain(|hold| !Arc::ptr_eq(hold, ended)));
    }
}
