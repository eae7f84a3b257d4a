//! Locks that outer dlock processes hold. An environment variable lists them, and the store must
//! confirm each one.

use std::{env, fs};

use dlock::{ClaimId, Contender, Error, Guard, Kind, LockName, Locks, Token};
use serde::{Deserialize, Serialize};

use crate::{
    descendants::Status,
    exit::{Failure, Outcome},
};

/// Variable with the locks that a dlock and its outer dlocks hold, for nested dlocks. Its format is
/// private and may change.
pub(crate) const VARIABLE: &str = "DLOCK_HELD";

/// A lock that an outer dlock holds, unless it has lost it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    store: String,
    name: String,
    kind: String,
    token: Option<u64>,
    /// Id of the hold. Another holder's hold may have the same name and kind.
    claim: String,
    /// Process that holds the lock.
    #[serde(default)]
    run: Option<Run>,
}

/// A dlock process. The start time distinguishes it from a later process with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    pid: i32,
    started: u64,
    /// Namespace of the process number.
    namespace: String,
}

impl Run {
    /// Returns this process. `None` if the system does not report its start time.
    fn this_process() -> Option<Self> {
        let pid = i32::try_from(std::process::id()).ok()?;
        Some(Self { pid, started: Status::of(pid)?.started, namespace: namespace()? })
    }

    /// Returns whether the process still runs. A process in another namespace cannot be checked and
    /// counts as running.
    fn is_running(&self) -> bool {
        let is_visible = namespace().is_some_and(|own| own == self.namespace);
        !is_visible
            || Status::of(self.pid).is_some_and(|status| !status.has_ended && status.started == self.started)
    }
}

/// Returns the namespace of this process's number. The first namespace has the same number on every
/// host, so the boot of the host is a part of it.
fn namespace() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Some(format!("{} {}", fs::read_link("/proc/self/ns/pid").ok()?.display(), boot.trim_end()))
}

/// Locks of all outer dlocks, from the outermost.
#[derive(Clone, Debug)]
pub(crate) struct OuterHolds(Vec<Held>);

impl OuterHolds {
    pub(crate) fn from_env() -> Outcome<Self> {
        let Some(value) = env::var_os(VARIABLE) else { return Ok(Self(Vec::new())) };
        let held = value.to_str().and_then(|value| serde_json::from_str(value).ok());
        // Not ignored, because dlock could otherwise wait forever for a lock of an outer dlock.
        held.map(Self).ok_or_else(|| {
            Failure::config(format!("{VARIABLE} has an invalid value that dlock has not set; unset it"))
        })
    }

    /// Returns the outer hold of `name` that a nested hold of `kind` may share. `None` if there is
    /// none, or if the store no longer confirms it.
    ///
    /// If the store cannot list holders, the environment is trusted.
    pub(crate) async fn enter(&self, locks: &Locks, name: &LockName, kind: Kind) -> Outcome<Option<&Held>> {
        let store = &locks.info().identity;
        let is_outer = |held: &&Held| held.store == *store && held.name == name.as_str();
        // A background process of the command may outlive the outer run.
        let is_running = |held: &&Held| held.run.as_ref().is_none_or(Run::is_running);
        let Some(held) = self.0.iter().rfind(is_outer).filter(is_running) else {
            return Ok(None);
        };
        let holders = match locks.inspect(name).await {
            Ok(state) => state.map(|state| state.holders).unwrap_or_default(),
            Err(Error::Unsupported { .. }) => return held.admits(name, kind).map(Some),
            Err(error) => return Err(error.into()),
        };
        let is_held = |id: ClaimId| holders.iter().any(|holder: &Contender| id.is_reported_as(&holder.id));
        if !held.claim.parse().is_ok_and(is_held) {
            return Ok(None);
        }
        held.admits(name, kind).map(Some)
    }

    /// Returns the value of [`VARIABLE`] with one more hold.
    pub(crate) fn with(mut self, held: Held) -> Outcome<String> {
        self.0.retain(|old| (&old.store, &old.name) != (&held.store, &held.name));
        self.0.push(held);
        serde_json::to_string(&self.0)
            .map_err(|error| Failure::internal("cannot encode the held locks for the command", &error))
    }
}

impl Held {
    pub(crate) fn new(locks: &Locks, kind: Kind, guard: &Guard) -> Self {
        let (store, name, kind) = (locks.info().identity.clone(), guard.name().to_string(), kind.to_string());
        let claim = guard.id().map(|id| id.to_string()).unwrap_or_default();
        Self { store, name, kind, token: guard.token().map(Token::get), claim, run: Run::this_process() }
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
                "lock `{name}` is held with --slots by an outer dlock; {kind} would deadlock; use --slots here too"
            )));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn outer(kind: Kind, guard: &Guard, locks: &Locks) -> OuterHolds {
        OuterHolds(vec![Held::new(locks, kind, guard)])
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_outer_run_on_another_host_counts_as_running() {
        let mut run = Run::this_process().unwrap();
        assert!(run.is_running());
        run.started += 1;
        assert!(!run.is_running(), "this host has no such process");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        run.namespace = run.namespace.replace(boot.trim_end(), "that of another host");
        assert!(run.is_running());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_lock_that_is_no_longer_held_is_not_entered() {
        let (locks, name) = (Locks::memory(), LockName::new("x").unwrap());
        let guard = locks.mutex(&name).lock().await.unwrap();
        let outer = outer(Kind::Mutex, &guard, &locks);
        assert!(
            outer.enter(&locks, &name, Kind::Fair).await.unwrap().is_some(),
            "the outer hold was not entered"
        );
        guard.release().await.unwrap();
        assert!(outer.enter(&locks, &name, Kind::Fair).await.unwrap().is_none(), "a free lock was entered");
        let _other = locks.mutex(&name).lock().await.unwrap();
        assert!(
            outer.enter(&locks, &name, Kind::Fair).await.unwrap().is_none(),
            "the lock of another holder was entered"
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn only_readers_enter_where_a_reader_holds() {
        let (locks, name) = (Locks::memory(), LockName::new("x").unwrap());
        let guard = locks.rwlock(&name).read().lock().await.unwrap();
        let outer = outer(Kind::Read, &guard, &locks);
        assert!(outer.enter(&locks, &name, Kind::Read).await.unwrap().is_some());
        for kind in [Kind::Mutex, Kind::Fair, Kind::Write] {
            outer.enter(&locks, &name, kind).await.expect_err("would deadlock");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn only_a_permit_enters_where_a_permit_is_held() {
        let (locks, name) = (Locks::memory(), LockName::new("x").unwrap());
        let guard = locks.semaphore(&name, 2).acquire().await.unwrap();
        let outer = outer(Kind::Permit, &guard, &locks);
        assert!(outer.enter(&locks, &name, Kind::Permit).await.unwrap().is_some());
        for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write] {
            outer.enter(&locks, &name, kind).await.expect_err("would deadlock");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn another_store_is_another_lock() {
        let (locks, other, name) = (Locks::memory(), Locks::memory(), LockName::new("x").unwrap());
        let guard = locks.mutex(&name).lock().await.unwrap();
        let outer = outer(Kind::Mutex, &guard, &locks);
        assert!(outer.enter(&other, &name, Kind::Mutex).await.unwrap().is_none());
    }
}
