//! Behaviour of every exclusive lock, whatever its kind.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use dlock_core::{Error, Guard, Kind, LockOptions, Locks, Result};
use futures_util::future::join_all;
use tokio::time::sleep;

use crate::{
    Arena,
    case::{Case, cases},
    cases::stress::Room,
};

/// Every exclusive kind, with the topic of its cases. A permit is exclusive if its limit is one.
pub(super) const TOPICS: [(&str, Kind); 4] =
    [("mutex", Kind::Mutex), ("fair", Kind::Fair), ("write", Kind::Write), ("permit", Kind::Permit)];

/// The cases of this file, for each kind.
pub(super) fn cases() -> Vec<Case> {
    TOPICS.into_iter().flat_map(|(topic, kind)| of(topic, kind)).collect()
}

fn of(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [] {
            a_free_lock_is_granted,
            a_try_of_a_free_lock_succeeds,
            a_second_contender_waits_until_the_release,
            a_try_of_a_held_lock_is_busy,
            of_many_tries_at_once_at_most_one_succeeds,
            a_released_lock_is_free_for_others_at_once,
            a_released_lock_is_free_for_the_same_client_at_once,
            many_rounds_leave_nothing_behind,
            a_bounded_wait_succeeds_when_the_lock_is_freed_in_time,
            a_wait_that_runs_out_is_a_timeout_that_says_so,
            a_wait_of_zero_is_one_try,
            a_waiter_that_gave_up_takes_no_later_turn,
            a_hold_and_a_wait_outlast_the_ttl,
            default_options_protect_long_work,
            a_dropped_guard_lets_the_next_one_in,
            a_guard_dropped_outside_a_runtime_lets_the_next_one_in,
            a_guard_dropped_in_a_panic_lets_the_next_one_in,
            a_release_wakes_a_waiter_long_before_the_ttl_ends,
            a_release_wakes_a_waiter_of_the_same_client,
            handles_of_one_client_exclude_each_other,
            without_an_owner_a_lock_is_not_re_entered,
            locks_of_two_names_do_not_disturb_each_other,
            a_lock_passes_through_a_chain_of_waiters,
            every_waiter_of_one_client_is_granted_once,
        }
    }
}

async fn take(arena: &Arena, client: &Locks) -> Guard {
    arena.take(client, arena.kind()).await
}

async fn try_take(arena: &Arena, client: &Locks) -> Option<Guard> {
    arena.try_take(client, arena.kind()).await
}

pub(super) async fn a_free_lock_is_granted(arena: Arc<Arena>) {
    let client = arena.client().await;
    let guard = arena.soon("a free lock was not granted", take(&arena, &client)).await;
    assert_eq!(guard.name().as_str(), arena.name(), "the guard is of another lock");
    assert!(!guard.is_lost(), "the lock was lost right after its grant");
}

pub(super) async fn a_try_of_a_free_lock_succeeds(arena: Arc<Arena>) {
    let client = arena.client().await;
    let guard = try_take(&arena, &client).await.expect("the lock is free");
    assert!(!guard.is_lost(), "the lock was lost right after its grant");
}

pub(super) async fn a_second_contender_waits_until_the_release(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let first = take(&arena, &a).await;
    let (lock, options) = (arena.lock(&b), arena.options());
    let mut second = lock.lock(&options);
    arena.still_waits("two claims hold the lock", &mut second).await;
    first.release().await.expect("the lock is still held");
    let second = second.await.expect("the lock is free");
    assert!(!second.is_lost());
}

pub(super) async fn a_try_of_a_held_lock_is_busy(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = take(&arena, &a).await;
    assert!(try_take(&arena, &b).await.is_none(), "two claims hold the lock");
    held.release().await.expect("the lock is still held");
}

pub(super) async fn of_many_tries_at_once_at_most_one_succeeds(arena: Arc<Arena>) {
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(arena.client().await);
    }
    let tries = join_all(clients.iter().map(|client| try_take(&arena, client))).await;
    assert!(tries.iter().flatten().count() <= 1, "several claims hold the lock: {tries:?}");
}

pub(super) async fn a_released_lock_is_free_for_others_at_once(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    take(&arena, &a).await.release().await.expect("the lock is still held");
    assert!(try_take(&arena, &b).await.is_some(), "the release was confirmed, but the lock is still held");
}

pub(super) async fn a_released_lock_is_free_for_the_same_client_at_once(arena: Arc<Arena>) {
    let client = arena.client().await;
    for round in 0..3 {
        let guard = try_take(&arena, &client)
            .await
            .unwrap_or_else(|| panic!("the lock is not free in round {round}"));
        guard.release().await.expect("the lock is still held");
    }
}

pub(super) async fn many_rounds_leave_nothing_behind(arena: Arc<Arena>) {
    let client = arena.client().await;
    for _ in 0..20 {
        take(&arena, &client).await.release().await.expect("the lock is still held");
    }
    if let Ok(state) = client.inspect(arena.name()).await {
        assert_eq!(state, None, "the releases were confirmed, but the store still has a claim");
    }
}

pub(super) async fn a_bounded_wait_succeeds_when_the_lock_is_freed_in_time(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = take(&arena, &a).await;
    let (lock, options) = (arena.lock(&b), arena.options().wait(arena.ttl() * 8));
    let mut bounded = lock.lock(&options);
    arena.still_waits("a limited wait does not wait", &mut bounded).await;
    held.release().await.expect("the lock is still held");
    let _late = bounded.await.expect("the lock was freed long before the limit");
}

pub(super) async fn a_wait_that_runs_out_is_a_timeout_that_says_so(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let _held = take(&arena, &a).await;
    let limit = Duration::from_millis(250);
    let error = timed_out(&arena, arena.lock(&b).lock(&arena.options().wait(limit)).await, limit);
    let message = error.to_string();
    assert!(
        message.contains("250ms") && message.contains(arena.name()),
        "the error does not name the lock or the limit: {message}"
    );
}

pub(super) async fn a_wait_of_zero_is_one_try(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = take(&arena, &a).await;
    let options = arena.options().wait(Duration::ZERO);
    let refused = arena.soon("a wait of zero does not end", arena.lock(&b).lock(&options)).await;
    timed_out(&arena, refused, Duration::ZERO);
    held.release().await.expect("the lock is still held");
    let _free = arena.lock(&b).lock(&options).await.expect("a free lock is granted to one try");
}

fn timed_out(arena: &Arena, outcome: Result<Guard>, wait: Duration) -> Error {
    match outcome {
        Err(error @ Error::Timeout { .. }) => {
            let Error::Timeout { name, limit, .. } = &error else { unreachable!("matched above") };
            assert_eq!((name.as_str(), *limit), (arena.name(), wait), "the error describes another wait");
            error
        }
        other => panic!("a wait that ran out must be a timeout, not {other:?}"),
    }
}

pub(super) async fn a_waiter_that_gave_up_takes_no_later_turn(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    let held = take(&arena, &a).await;
    let options = arena.options().ttl(arena.long_ttl(&b)).wait(Duration::from_millis(100));
    arena.lock(&b).lock(&options).await.expect_err("the lock is held");
    held.release().await.expect("the lock is still held");
    let _next = arena.soon("a waiter that gave up still blocks the queue", take(&arena, &c)).await;
}

pub(super) async fn a_hold_and_a_wait_outlast_the_ttl(arena: Arc<Arena>) {
    let (a, b, c) = (arena.client().await, arena.client().await, arena.client().await);
    let ttl = arena.kept_ttl();
    let options = arena.options().ttl(ttl);
    let held = arena.lock(&a).lock(&options).await.expect("the lock is free");
    let lock = arena.lock(&b);
    let waiter = arena.go(async move { lock.lock(&options).await });
    sleep(ttl * 2).await;
    assert!(!held.is_lost(), "the lock was lost although it was renewed");
    assert!(!waiter.is_finished(), "the wait ended while the lock was held");
    assert!(try_take(&arena, &c).await.is_none(), "two claims hold the lock");
    held.release().await.expect("the lock is still held");
    let waiter = arena.soon("a wait without a limit is never granted", waiter).await;
    drop(waiter.expect("the task does not panic").expect("the lock is free"));
}

pub(super) async fn a_dropped_guard_lets_the_next_one_in(arena: Arc<Arena>) {
    lets_the_next_one_in(&arena, async |held| drop(held)).await;
}

pub(super) async fn a_guard_dropped_outside_a_runtime_lets_the_next_one_in(arena: Arc<Arena>) {
    lets_the_next_one_in(&arena, async |held| {
        std::thread::spawn(move || drop(held)).join().expect("dropping a guard needs no runtime");
    })
    .await;
}

pub(super) async fn a_guard_dropped_in_a_panic_lets_the_next_one_in(arena: Arc<Arena>) {
    lets_the_next_one_in(&arena, async |held| {
        let bug = arena.go::<()>(async move {
            let _held = held;
            // This panic prints nothing.
            resume_unwind(Box::new("a bug of the user"));
        });
        assert!(bug.await.expect_err("the task panics").is_panic());
    })
    .await;
}

/// Releases a held lock by `let_go`, which does not wait for the store. Without the release, the
/// next contender would wait for a long ttl.
async fn lets_the_next_one_in(arena: &Arena, let_go: impl AsyncFnOnce(Guard)) {
    let (a, b) = (arena.client().await, arena.client().await);
    let options = arena.options().ttl(arena.long_ttl(&a));
    let held = arena.lock(&a).lock(&options).await.expect("the lock is free");
    let lock = arena.lock(&b);
    let mut next = lock.lock(&options);
    arena.still_waits("two claims hold the lock", &mut next).await;
    let_go(held).await;
    let _next = arena
        .soon("the lock is still held after its guard was dropped", next)
        .await
        .expect("the lock is free");
}

pub(super) async fn a_release_wakes_a_waiter_long_before_the_ttl_ends(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    release_wakes(&arena, &a, &b).await;
}

pub(super) async fn a_release_wakes_a_waiter_of_the_same_client(arena: Arc<Arena>) {
    let client = arena.client().await;
    release_wakes(&arena, &client, &client).await;
}

async fn release_wakes(arena: &Arena, a: &Locks, b: &Locks) {
    let options = arena.options().ttl(arena.long_ttl(a));
    let held = arena.lock(a).lock(&options).await.expect("the lock is free");
    let lock = arena.lock(b);
    let mut waiter = lock.lock(&options);
    arena.still_waits("two claims hold the lock", &mut waiter).await;
    held.release().await.expect("the lock is still held");
    let _next = arena.soon("the release wakes no waiter", waiter).await.expect("the lock is free");
}

pub(super) async fn handles_of_one_client_exclude_each_other(arena: Arc<Arena>) {
    let client = arena.client().await;
    let (one, other) = (arena.lock(&client), arena.lock(&client.clone()));
    let held = one.lock(&arena.options()).await.expect("the lock is free");
    let tried = other.try_lock(&arena.options()).await.expect("a busy lock is not an error");
    assert!(tried.is_none(), "the lock is held by the client instead of the guard");
    held.release().await.expect("the lock is still held");
    let tried = other.try_lock(&arena.options()).await.expect("the store is reachable");
    assert!(tried.is_some(), "a released lock is not free");
}

pub(super) async fn without_an_owner_a_lock_is_not_re_entered(arena: Arc<Arena>) {
    let client = arena.client().await;
    let (lock, options) = (arena.lock(&client), arena.options());
    let held = lock.lock(&options).await.expect("the lock is free");
    let mut again = lock.lock(&options);
    arena.still_waits("a claim without an owner re-entered another claim's hold", &mut again).await;
    assert_eq!(held.hold_count(), 1, "two guards share the hold");
    held.release().await.expect("the lock is still held");
    let _again = again.await.expect("the lock is free");
}

pub(super) async fn locks_of_two_names_do_not_disturb_each_other(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    // One name is a prefix of the other. A store that searches by prefix confuses them.
    let (name, longer) = (arena.name().to_owned(), arena.name_with("2"));
    for (one, other) in [(&name, &longer), (&longer, &name)] {
        let held = a.of(arena.kind(), one).lock(&arena.options()).await.expect("the lock is free");
        let lock = b.of(arena.kind(), other);
        let free = lock
            .try_lock(&arena.options())
            .await
            .expect("the store is reachable")
            .expect("a lock of another name is free");
        free.release().await.expect("the lock is still held");
        assert!(
            b.of(arena.kind(), one)
                .try_lock(&arena.options())
                .await
                .expect("the store is reachable")
                .is_none(),
            "releasing `{other}` released `{one}`"
        );
        held.release().await.expect("the lock is held although the other was released");
    }
}

pub(super) async fn a_lock_passes_through_a_chain_of_waiters(arena: Arc<Arena>) {
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(arena.client().await);
    }
    pass_on(&arena, &clients).await;
}

pub(super) async fn every_waiter_of_one_client_is_granted_once(arena: Arc<Arena>) {
    let client = arena.client().await;
    pass_on(&arena, &vec![client; 8]).await;
}

/// Frees a lock for which every client waits, and checks that each waiter holds it once, and alone.
async fn pass_on(arena: &Arena, clients: &[Locks]) {
    let (room, granted) = (Arc::new(Room::default()), Arc::new(AtomicUsize::new(0)));
    let holder = arena.client().await;
    let options = arena.options().ttl(arena.long_ttl(&holder));
    let held = arena.lock(&holder).lock(&options).await.expect("the lock is free");
    let kind = arena.kind();
    let waiters = clients.iter().map(|client| {
        let (lock, room, granted) = (arena.lock(client), Arc::clone(&room), Arc::clone(&granted));
        let options = options.clone();
        arena.go(async move {
            let _guard = lock.lock(&options).await.expect("an acquisition without a limit is granted");
            room.visit(kind, Duration::from_millis(1)).await;
            granted.fetch_add(1, Ordering::Relaxed);
        })
    });
    let mut all = join_all(waiters.collect::<Vec<_>>());
    arena.still_waits("all waiters ended while the lock was held", &mut all).await;
    assert_eq!(granted.load(Ordering::Relaxed), 0, "a waiter was granted while the lock was held");
    held.release().await.expect("the lock is still held");
    let hand_offs = Duration::from_secs(1) * clients.len() as u32;
    for waiter in arena.within(hand_offs, "the lock is not passed to all waiters", all).await {
        waiter.expect("two claims held the lock");
    }
    assert_eq!(granted.load(Ordering::Relaxed), clients.len());
}

pub(super) async fn default_options_protect_long_work(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.lock(&a).lock(&LockOptions::new()).await.expect("the lock is free");
    sleep(arena.short_ttl() * 3).await;
    assert!(!held.is_lost(), "the default options did not keep the lock");
    assert!(try_take(&arena, &b).await.is_none(), "two claims hold the lock");
    held.release().await.expect("the lock is still held");
}
