//! Which locks the parent processes hold. They say so in an environment variable, and the store must confirm it.

use std::{env, fs};

use dlock::{Error, Guard, Kind, LockName, Locks, Token};
use serde::{Deserialize, Serialize};

use crate::{
    descendants::Status,
    exit::{Failure, Outcome},
};

/// The variable in which a dlock tells child processes which locks it and its parents hold. Private: its form may change.
pub(crate) const VARIABLE: &str = "DLOCK_HELD";

/// One lock that a dlock among the parent processes holds, unless it has lost it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    store: String,
    name: String,
    kind: String,
    token: Option<u64>,
    /// The id of the hold: somebody else's hold may be of the same kind.
    claim: String,
    /// The dlock that holds it.
    #[serde(default)]
    run: Option<Run>,
}

/// A process of dlock. A process of the same number that was started later is another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    pid: i32,
    started: u64,
    /// Namespace of the process number.
    namespace: String,
}

impl Run {
    /// This process. `None` where the system does not tell when it was started.
    fn here() -> Option<Self> {
        let pid = i32::try_from(std::process::id()).ok()?;
        Some(Self { pid, started: Status::of(pid)?.started, namespace: namespace()? })
    }

    /// Whether it has not ended yet, as far as this process can see.
    fn lives(&self) -> bool {
        let is_visible = namespace().is_some_and(|here| here == self.namespace);
        !is_visible
            || Status::of(self.pid).is_some_and(|status| !status.has_ended && status.started == self.started)
    }
}

fn namespace() -> Option<String> {
    Some(fs::read_link("/proc/self/ns/pid").ok()?.to_string_lossy().into_owned())
}

/// Characters of a claim's id that are the same on all members of a RedLock, and unique all the same.
const COMMON: usize = 30;

/// All of them, from the outermost.
#[derive(Debug)]
pub(crate) struct Above(Vec<Held>);

impl Above {
    pub(crate) fn from_env() -> Outcome<Self> {
        let Some(value) = env::var_os(VARIABLE) else { return Ok(Self(Vec::new())) };
        let held = value.to_str().and_then(|value| serde_json::from_str(value).ok());
        // An error, not ignored: dlock would wait for ever for a lock that its own parent holds.
        held.map(Self)
            .ok_or_else(|| Failure::config(format!("{VARIABLE} was not set by this dlock; unset it")))
    }

    /// The hold of `name` that `kind` may share, if the store confirms it. `None` if there is none (any more).
    ///
    /// If the store cannot tell who holds a lock, this trusts the environment.
    pub(crate) async fn enter(&self, locks: &Locks, name: &LockName, kind: Kind) -> Outcome<Option<&Held>> {
        let store = &locks.info().identity;
        let is_above = |held: &&Held| held.store == *store && held.name == name.as_str();
        // A process that the command has left running may come when the run around it is over.
        let lives = |held: &&Held| held.run.as_ref().is_none_or(Run::lives);
        let Some(held) = self.0.iter().rfind(is_above).filter(lives) else {
            return Ok(None);
        };
        let holders = match locks.inspect(name).await {
            Ok(state) => state.map(|state| state.holders).unwrap_or_default(),
            Err(Error::Unsupported { .. }) => return held.admits(name, kind).map(Some),
            Err(error) => return Err(error.into()),
        };
        let claim = held.claim.get(..COMMON).unwrap_or(&held.claim);
        if claim.is_empty() || !holders.iter().any(|holder| holder.id.starts_with(claim)) {
            return Ok(None);
        }
        held.admits(name, kind).map(Some)
    }

    /// With one more, as the value of [`VARIABLE`].
    pub(crate) fn with(mut self, held: Held) -> Outcome<String> {
        self.0.retain(|old| (&old.store, &old.name) != (&held.store, &held.name));
        self.0.push(held);
        serde_json::to_string(&self.0)
            .map_err(|error| Failure::internal("cannot tell the command what is held", &error))
    }
}

impl Held {
    pub(crate) fn new(locks: &Locks, kind: Kind, guard: &Guard) -> Self {
        let (store, name, kind) = (locks.info().identity.clone(), guard.name().to_string(), kind.to_string());
        let claim = guard.id().map(|id| id.to_string()).unwrap_or_default();
        Self { store, name, kind, token: guard.token().map(Token::get), claim, run: Run::here() }
    }

    pub(crate) fn token(&self) -> Option<u64> {
        self.token
    }

    fn admits(&self, name: &LockName, kind: Kind) -> Outcome<&Self> {
        if self.kind == Kind::Read.to_string() && kind != Kind::Read {
            return Err(Error::Deadlock { name: name.clone(), kind }.into());
        }
        if self.kind == Kind::Permit.to_string() && kind != Kind::Permit {
            return Err(Failure::usage(format!(
                "lock `{name}` is held with --slots by a dlock around this one; {kind} would wait for that for ever"
            )));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn above(kind: Kind, guard: &Guard, locks: &Locks) -> Above {
        Above(vec![Held::new(locks, kind, guard)])
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_lock_that_is_no_longer_held_is_not_entered() {
        let (locks, name) = (Locks::memory(), LockName::new("x").unwrap());
        let guard = locks.mutex(&name).lock().await.unwrap();
        let above = above(Kind::Mutex, &guard, &locks);
        assert!(above.enter(&locks, &name, Kind::Fair).await.unwrap().is_some(), "it is held");
        guard.release().await.unwrap();
        assert!(above.enter(&locks, &name, Kind::Fair).await.unwrap().is_none(), "it is free");
        let _other = locks.mutex(&name).lock().await.unwrap();
        assert!(above.enter(&locks, &name, Kind::Fair).await.unwrap().is_none(), "it is another's");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn only_readers_enter_where_a_reader_holds() {
        let (locks, name) = (Locks::memory(), LockName::new("x").unwrap());
        let guard = locks.rwlock(&name).read().lock().await.unwrap();
        let above = above(Kind::Read, &guard, &locks);
        assert!(above.enter(&locks, &name, Kind::Read).await.unwrap().is_some());
        for kind in [Kind::Mutex, Kind::Fair, Kind::Write] {
            above.enter(&locks, &name, kind).await.expect_err("would wait for itself");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn only_a_permit_enters_where_a_permit_is_held() {
        let (locks, name) = (Locks::memory(), LockName::new("x").unwrap());
        let guard = locks.semaphore(&name, 2).acquire().await.unwrap();
        let above = above(Kind::Permit, &guard, &locks);
        assert!(above.enter(&locks, &name, Kind::Permit).await.unwrap().is_some());
        for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write] {
            above.enter(&locks, &name, kind).await.expect_err("would wait for itself");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn another_store_is_another_lock() {
        let (locks, other, name) = (Locks::memory(), Locks::memory(), LockName::new("x").unwrap());
        let guard = locks.mutex(&name).lock().await.unwrap();
        let above = above(Kind::Mutex, &guard, &locks);
        assert!(above.enter(&other, &name, Kind::Mutex).await.unwrap().is_none());
    }
}
