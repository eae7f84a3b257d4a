//! A store has many clients, and a client keeps no memory of names that it no longer uses.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use dlock_core::{Error, Kind, Locks};

use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "client" (Kind::Mutex) [] { two_clients_of_one_store_have_one_identity }
        "client" (Kind::Mutex) [Need::Tokens, Need::TokenFloor] {
            the_first_token_of_a_name_is_not_below_the_clock,
        }
        "client" (Kind::Mutex) [Need::Allocated] {
            the_memory_of_clients_does_not_grow_with_the_names_they_used,
        }
    }
}

pub(super) async fn two_clients_of_one_store_have_one_identity(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    assert_eq!(
        a.info().identity,
        b.info().identity,
        "two clients of one store have two identities, so MultiLock takes the store for two: \
         the order in which it locks then differs between clients, and two clients may deadlock"
    );
}

/// A store that lost its data must not grant tokens that it granted before. The clock is the least
/// token for this reason.
pub(super) async fn the_first_token_of_a_name_is_not_below_the_clock(arena: Arc<Arena>) {
    /// Greatest error of a store's clock that the case accepts.
    const SLACK: Duration = Duration::from_secs(24 * 3600);
    let client = arena.client().await;
    let held = arena.take_soon("a free lock was not granted", &client).await;
    let token = held.token().expect("the store declares that it has tokens").get();
    #[expect(clippy::disallowed_methods, reason = "the least token is given by the wall clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the time is after 1970");
    let floor = u64::try_from((now - SLACK).as_micros()).expect("the time is before the year 500000");
    assert!(
        token >= floor,
        "the first token is {token}, but the microseconds since 1970 are beyond {floor}: \
         after a loss of its data the store would grant smaller tokens than before"
    );
}

/// Number of names that are used between two measurements.
const NAMES: usize = 200;
/// Number of measurements in a row in which memory must have grown. A client that remembers names
/// grows each time. The buffer of a connection that grows once, or a client of another case that
/// ends late, counts in one measurement only.
const WINDOWS: usize = 4;
/// Number of bytes that an unused name may still use. Fewer than the name itself has.
const BYTES_PER_NAME: usize = 24;

pub(super) async fn the_memory_of_clients_does_not_grow_with_the_names_they_used(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    // Maps, buffers and pools have reached their size afterwards.
    let warm_up = arena.warm_up();
    for number in 0..warm_up {
        hand_over(&arena, &a, &b, number).await;
    }
    let mut grown = Vec::with_capacity(WINDOWS);
    for window in 0..WINDOWS {
        let (before, first) = (arena.allocated(), warm_up + window * NAMES);
        for number in first..first + NAMES {
            hand_over(&arena, &a, &b, number).await;
        }
        grown.push(arena.allocated().saturating_sub(before));
        if grown[window] <= NAMES * BYTES_PER_NAME {
            return;
        }
    }
    panic!(
        "each time that {NAMES} more names were locked, waited for and released, more bytes were allocated than before, \
         {grown:?}: the clients remember names that are no longer used"
    );
}

/// One client holds a name. The other waits for it without success, and then takes it.
async fn hand_over(arena: &Arena, a: &Locks, b: &Locks, number: usize) {
    let name = arena.name_with(&format!("/{number:05}"));
    let (one, other, options) = (a.of(arena.kind(), &name), b.of(arena.kind(), &name), arena.options());
    let held = one.lock(&options).await.expect("the lock is free");
    // Long enough for a busy reply and for a subscription to the next release.
    let result = other.lock(&options.clone().wait(Duration::from_millis(3))).await;
    assert!(
        matches!(result, Err(Error::Timeout { .. })),
        "a limited wait for a held lock returned {result:?}"
    );
    held.release().await.expect("the lock is still held");
    let next =
        arena.soon("a free lock was not granted", other.lock(&options)).await.expect("the lock is free");
    next.release().await.expect("the lock is still held");
}
