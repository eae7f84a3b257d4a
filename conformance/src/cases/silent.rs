//! Waiters that are silent for longer than their ttl, and join the queue again.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    Kind,
    driver::{Attempt, Claim, Store},
};
use tokio::time::sleep;

use super::handover::{request, until_granted};
use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind = [
        cases! {
            "silent" (Kind::Mutex) [Need::Driver] { a_silent_waiter_that_joins_again_blocks_no_other }
        },
        cases! {
            "silent_fair" (Kind::Fair) [Need::Driver] { a_silent_waiter_that_joins_again_blocks_no_other }
        },
        cases! {
            "silent_write" (Kind::Write) [Need::Driver] { a_silent_waiter_that_joins_again_blocks_no_other }
        },
    ];
    of_one_kind.concat()
}

/// Pause between the attempts of a waiter.
const PAUSE: Duration = Duration::from_millis(20);

/// The claim has the same id, and a place at the end of the queue. A waiter that came in between must
/// not wait for it any more, whether it belongs to the same client or to another.
pub(super) async fn a_silent_waiter_that_joins_again_blocks_no_other(arena: Arc<Arena>) {
    let (a, b) = (arena.store().await, arena.store().await);
    for of_next in [&a, &b] {
        let claim = |store: &Store, ttl| store.backend.claim(request(&arena, arena.kind(), ttl));
        let long = (arena.ttl() * 12).min(*a.backend.info().ttl.end());
        let mut holder = claim(&a, long);
        arena.soon("a free lock was not granted", until_granted(holder.as_mut())).await;
        let mut silent = claim(&a, arena.short_ttl());
        arena.soon("a waiter does not join", until_busy(silent.as_mut())).await;
        let mut next = claim(of_next, long);
        arena.soon("a waiter does not join", until_busy(next.as_mut())).await;
        sleep(arena.short_ttl() * 3 / 2).await;
        arena.soon("a silent waiter does not join again", until_busy(silent.as_mut())).await;
        arena.soon("a release does not succeed", until_released(holder.as_mut())).await;

        let mut waiters = [silent, next];
        let first =
            arena.soon("no waiter is granted the free lock", until_one_is_granted(&mut waiters)).await;
        arena.soon("a release does not succeed", until_released(waiters[first].as_mut())).await;
        let other = &mut waiters[1 - first];
        arena.soon("the last waiter is not granted the free lock", until_granted(other.as_mut())).await;
        arena.soon("a release does not succeed", until_released(other.as_mut())).await;
    }
}

/// Repeats a release that fails, as the engine does. A RedLock gives its members a tenth of the ttl.
async fn until_released(claim: &mut dyn Claim) {
    while let Err(error) = claim.release().await {
        assert!(error.is_transient(), "{error:?}");
        sleep(PAUSE).await;
    }
}

async fn until_busy(claim: &mut dyn Claim) {
    while !matches!(claim.attempt().await, Ok(Attempt::Busy { .. })) {
        sleep(PAUSE).await;
    }
}

/// Attempts with one claim after the other. Returns the index of the first that is granted the lock.
async fn until_one_is_granted(claims: &mut [Box<dyn Claim>]) -> usize {
    loop {
        for (at, claim) in claims.iter_mut().enumerate() {
            if matches!(claim.attempt().await, Ok(Attempt::Granted(_))) {
                return at;
            }
        }
        sleep(PAUSE).await;
    }
}
