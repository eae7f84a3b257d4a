//! Holds back commands for slots of a cluster that cannot be reached. The client crate makes connections for each command that
//! fails, however many callers there are. So one caller tries, ever less often, and the others are told why it failed.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use dlock_core::{
    Error, Result,
    driver::{Backoff, SharedError},
};
use redis::{Arg, Cmd, cluster_routing::Slot};
use tokio::time::Instant;

use crate::error::STORE;

pub(crate) struct Breaker {
    /// Whether any slot fails. If none does, nobody needs to lock `state`.
    is_tripped: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// The slots whose last command failed because of its connection.
    failing: HashSet<Slot>,
    backoff: Backoff,
    last: Option<SharedError>,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        let state = State { failing: HashSet::new(), backoff: Backoff::foreground(), last: None };
        Self { is_tripped: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Whether a command may be sent now.
    ///
    /// # Errors
    /// The last failure, where it is not yet time to try again.
    pub(crate) fn admit(&self, cmd: &Cmd) -> Result<()> {
        if !self.is_tripped.load(Relaxed) {
            return Ok(());
        }
        let mut state = self.state();
        if slot(cmd).is_none_or(|slot| !state.failing.contains(&slot)) {
            return Ok(());
        }
        match &state.last {
            Some(told) if state.backoff.next_attempt() > Instant::now() => Err(told.error()),
            _ => {
                state.backoff.note_attempt();
                Ok(())
            }
        }
    }

    /// Notes that a command was answered. If its slot had failed, all slots are taken for reachable until one fails again.
    pub(crate) fn note_answer(&self, cmd: &Cmd) {
        if !self.is_tripped.load(Relaxed) {
            return;
        }
        let mut state = self.state();
        if slot(cmd).is_some_and(|slot| state.failing.contains(&slot)) {
            state.failing.clear();
            state.backoff.note_answer();
            state.last = None;
            self.is_tripped.store(false, Relaxed);
        }
    }

    /// Notes that a command failed because of its connection.
    pub(crate) fn note_failure(&self, cmd: &Cmd, error: Error) -> Error {
        let Some(slot) = slot(cmd) else { return error };
        let told = STORE.share(&error);
        let mut state = self.state();
        if state.failing.is_empty() {
            state.backoff.note_attempt();
        }
        state.failing.insert(slot);
        state.last = Some(told);
        self.is_tripped.store(true, Relaxed);
        error
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of a command's first key. A command of this crate has all its keys in one slot.
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
    async fn one_of_many_callers_tries_and_the_others_are_told() {
        let breaker = Breaker::new();
        let (broken, sound) = (get("a"), get("b"));
        assert!(breaker.admit(&broken).is_ok());
        breaker.note_failure(&broken, STORE.unavailable("gone"));
        assert!(breaker.admit(&broken).expect_err("too soon").is_transient());
        assert!(breaker.admit(&sound).is_ok(), "another slot is another node's");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(breaker.admit(&broken).is_ok(), "it is time to try");
        assert!(breaker.admit(&broken).is_err(), "one is enough");
        breaker.note_answer(&broken);
        assert!(breaker.admit(&broken).is_ok() && breaker.admit(&broken).is_ok(), "it is reachable again");
    }
}
