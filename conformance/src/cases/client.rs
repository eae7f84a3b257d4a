//! A store has many clients, and a client keeps no memory of names that it does not use any more.

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
         the order in which it locks is then not the same everywhere, and two of them may wait for each other"
    );
}

/// A store that came back empty must not grant tokens that it granted before: a clock as their floor sees to that.
pub(super) async fn the_first_token_of_a_name_is_not_below_the_clock(arena: Arc<Arena>) {
    /// The clocks of stores are not that wrong.
    const SLACK: Duration = Duration::from_secs(24 * 3600);
    let client = arena.client().await;
    let held = arena.take_soon("nobody holds it", &client).await;
    let token = held.token().expect("the store says that it has tokens").get();
    #[expect(clippy::disallowed_methods, reason = "the floor of tokens is by the wall clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let floor = u64::try_from((now - SLACK).as_micros()).expect("before the year 500000");
    assert!(
        token >= floor,
        "the first token is {token}, and the microseconds since 1970 are beyond {floor}: \
         after a loss of its data the store would grant smaller tokens than before"
    );
}

/// Names that are used between two measurements.
const NAMES: usize = 200;
/// How often memory must have grown. A client that remembers names grows each time. A connection's buffer that grows once, or a
/// client of another case that ends late, counts in one window only.
const WINDOWS: usize = 4;
/// The bytes that an unused name may still take: fewer than the name itself has.
const BYTES_PER_NAME: usize = 24;

pub(super) async fn the_memory_of_clients_does_not_grow_with_the_names_they_used(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    // Maps, buffers and pools have their size then.
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
         {grown:?}: the clients remember names that nobody uses any more"
    );
}

/// One client holds a name, the other waits for it in vain, and then takes it.
async fn hand_over(arena: &Arena, a: &Locks, b: &Locks, number: usize) {
    let name = arena.name_with(&format!("/{number:05}"));
    let (one, other, options) = (a.of(arena.kind(), &name), b.of(arena.kind(), &name), arena.options());
    let held = one.lock(&options).await.expect("nobody holds it");
    // Long enough to be told that it is busy, and to listen for its turn.
    let told = other.lock(&options.clone().wait(Duration::from_millis(3))).await;
    assert!(matches!(told, Err(Error::Timeout { .. })), "a wait for a lock that is held is told {told:?}");
    held.release().await.expect("held until now");
    let next = arena.soon("it is free, but not to be had", other.lock(&options)).await.expect("free again");
    next.release().await.expect("held until now");
}
