//! A circuit breaker for commands to unreachable slots of a cluster.
//!
//! The client crate makes connections for each command that fails, for any number of callers. The
//! breaker therefore admits one caller at a time, with growing pauses, and the others get the last
//! error.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use dlock_core::{
    Error, Result,
    driver::{Backoff, SharedError},
};
use parking_lot::Mutex;
use redis::{Arg, Cmd, cluster_routing::Slot};
use tokio::time::Instant;

use crate::error::STORE;

pub(crate) struct Breaker {
    /// Whether any slot fails. If none does, callers need not lock `state`.
    is_tripped: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// The slots whose last command failed because of its connection.
    failing: HashSet<Slot>,
    backoff: Backoff,
    last_error: Option<SharedError>,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        let state = State { failing: HashSet::new(), backoff: Backoff::foreground(), last_error: None };
        Self { is_tripped: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Returns `Ok` if a command may be sent now.
    ///
    /// # Errors
    /// The last failure of the connection, during the pause before the next attempt.
    pub(crate) fn admit(&self, cmd: &Cmd) -> Result<()> {
        if !self.is_tripped.load(Relaxed) {
            return Ok(());
        }
        let mut state = self.state.lock();
        if slot(cmd).is_none_or(|slot| !state.failing.contains(&slot)) {
            return Ok(());
        }
        match &state.last_error {
            Some(error) if state.backoff.next_attempt() > Instant::now() => Err(error.error()),
            _ => {
                state.backoff.note_attempt();
                Ok(())
            }
        }
    }

    /// Records that a node replied to a command. If the command's slot had failed, all slots count
    /// as reachable until one fails again.
    pub(crate) fn note_reply(&self, cmd: &Cmd) {
        if !self.is_tripped.load(Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        if slot(cmd).is_some_and(|slot| state.failing.contains(&slot)) {
            state.failing.clear();
            state.backoff.note_reply();
            state.last_error = None;
            self.is_tripped.store(false, Relaxed);
        }
    }

    /// Records that a command failed because of its connection. Returns the command's error.
    pub(crate) fn note_failure(&self, cmd: &Cmd, error: Error) -> Error {
        let Some(slot) = slot(cmd) else { return error };
        let shared_error = STORE.share(&error);
        let mut state = self.state.lock();
        if state.failing.is_empty() {
            state.backoff.note_attempt();
        }
        state.failing.insert(slot);
        state.last_error = Some(shared_error);
        self.is_tripped.store(true, Relaxed);
        error
    }
}

/// Returns the slot of a command's first key. All keys of a command of this crate are in one slot.
fn slot(cmd: &Cmd) -> Option<Slot> {
    let word = |place| match cmd.args_iter().nth(place) {
        Some(Arg::Simple(word)) => Some(word),
        _ => None,
    };
    let key = match word(0)? {
        b"EVAL" | b"EVALSHA" => word(3)?,
        b"SET" => word(1)?,
        _ => return None,
    };
    Some(Slot::for_key(key))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn get(key: &str) -> Cmd {
        redis::cmd("SET").arg(key).to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_is_admitted_and_the_others_get_the_last_error() {
        let breaker = Breaker::new();
        let (broken, intact) = (get("a"), get("b"));
        assert!(breaker.admit(&broken).is_ok());
        breaker.note_failure(&broken, STORE.unavailable("disconnected"));
        assert!(breaker.admit(&broken).expect_err("admitted during the pause").is_transient());
        assert!(breaker.admit(&intact).is_ok(), "a command for another slot is held back");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(breaker.admit(&broken).is_ok(), "held back after the pause");
        assert!(breaker.admit(&broken).is_err(), "a second caller is admitted");
        breaker.note_reply(&broken);
        assert!(breaker.admit(&broken).is_ok() && breaker.admit(&broken).is_ok(), "held back after a reply");
    }
}
