//! Leftovers: after all clients have ended and the store has had time to forget their claims, every lock
//! is free and nothing is listed.

use dlock_core::{Error, LockOptions, Locks};
use futures_util::{StreamExt, stream};

use super::{client::describe, plan::Name};
use crate::history::{Rule, Violation};

/// Number of locks that are checked at the same time.
const AT_ONCE: usize = 16;

/// Checks every lock with a client of its own.
pub(super) async fn find(locks: &Locks, names: &[Name]) -> Vec<Violation> {
    let found: Vec<_> =
        stream::iter(names).map(|name| of(locks, name)).buffer_unordered(AT_ONCE).collect().await;
    let found = found.into_iter().flatten();
    found.map(|what| Violation::new(Rule::Residue, what, Vec::new())).collect()
}

/// Returns what is left of one lock.
async fn of(locks: &Locks, Name { name, kinds }: &Name) -> Option<String> {
    match locks.inspect(name).await {
        Ok(None) | Err(Error::Unsupported { .. }) => {}
        Ok(Some(state)) => {
            let claim = |contender: &dlock_core::Contender| {
                format!("{} {} ({:?} left)", contender.kind, contender.id, contender.ttl_left)
            };
            let list =
                |claims: &[dlock_core::Contender]| claims.iter().map(claim).collect::<Vec<_>>().join(", ");
            let (holders, queue) = (list(&state.holders), list(&state.queue));
            return Some(format!("`{name}` has holders [{holders}] and waiters [{queue}]"));
        }
        Err(error) => return Some(format!("`{name}` cannot be inspected: {}", describe(&error))),
    }
    match locks.of(kinds[0], name).try_lock(&LockOptions::new()).await {
        Ok(Some(guard)) => {
            let error = guard.release().await.err()?;
            Some(format!("`{name}` was free, and its release failed: {}", describe(&error)))
        }
        Ok(None) => Some(format!("`{name}` is not free: a {} is refused", kinds[0])),
        Err(error) => Some(format!("`{name}` cannot be acquired: {}", describe(&error))),
    }
}
