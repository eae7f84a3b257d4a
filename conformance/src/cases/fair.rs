//! Order of arrival: what a fair lock and a permit add to an exclusive lock.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dlock_core::{Guard, Kind, LockOptions, Locks};
use futures_util::future::join_all;
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    [of("order", Kind::Fair), of("order_permit", Kind::Permit)].concat()
}

fn of(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [] {
            a_newcomers_try_does_not_overtake_a_waiter,
            a_try_leaves_no_place_in_the_queue,
            a_waiter_that_crashed_alone_blocks_nobody_after_its_ttl_or_session,
        }
        topic (kind) [Need::Order] {
            waiters_are_granted_in_order_of_arrival,
            waits_of_all_lengths_keep_the_order,
            a_newcomer_does_not_overtake_a_waiter,
            order_is_kept_when_a_waiter_in_the_middle_leaves,
            order_is_kept_when_the_first_waiter_leaves,
            order_is_kept_when_a_wait_runs_out,
            order_is_kept_when_the_holder_crashes,
            a_crashed_waiter_blocks_others_for_no_longer_than_its_ttl_or_session,
            a_waiter_keeps_its_place_far_beyond_its_ttl,
        }
    }
}

/// Waiters of one lock in order of arrival. Each notes its number while it holds, then lets go: every other one by a
/// release, the rest by a drop.
struct Arrivals {
    arena: Arc<Arena>,
    held: Option<Guard>,
    watch: Locks,
    waiters: Vec<JoinHandle<()>>,
    granted: Arc<Mutex<Vec<usize>>>,
}

impl Arrivals {
    /// Behind a holder of the lock.
    async fn behind_a_holder(arena: &Arc<Arena>) -> Self {
        let watch = arena.client().await;
        let held = arena.take(&watch, arena.kind()).await;
        Self::behind(arena, watch, Some(held))
    }

    fn behind(arena: &Arc<Arena>, watch: Locks, held: Option<Guard>) -> Self {
        Self { arena: Arc::clone(arena), held, watch, waiters: Vec::new(), granted: Arc::default() }
    }

    /// Starts the next waiter, with a client of its own. It has its place in the queue when this returns.
    async fn join(&mut self) {
        self.join_with(self.arena.client().await, self.arena.options()).await;
    }

    async fn join_with(&mut self, client: Locks, options: LockOptions) {
        let (lock, granted, number) =
            (self.arena.lock(&client), Arc::clone(&self.granted), self.waiters.len());
        self.waiters.push(self.arena.go(async move {
            let guard = lock.lock(&options).await.expect("granted in the end");
            granted.lock().unwrap_or_else(PoisonError::into_inner).push(number);
            if number % 2 == 0 {
                guard.release().await.expect("held until now");
            }
        }));
        self.arena.until_contenders(&self.watch, self.waiters.len() + 1).await;
    }

    /// Makes the waiter of this number leave, as by a dropped future. It is gone from the queue when this returns.
    async fn leave(&mut self, number: usize) {
        self.waiters[number].abort();
        self.arena.until_contenders(&self.watch, self.waiters.len()).await;
    }

    /// Frees the lock, and waits until all waiters that did not leave have had it. Returns their order.
    async fn proceed(mut self, limit: Duration) -> Vec<usize> {
        if let Some(held) = self.held.take() {
            held.release().await.expect("held until now");
        }
        let ended = join_all(self.waiters);
        for waiter in self.arena.within(limit, "a waiter is never granted the lock", ended).await {
            if let Err(error) = waiter {
                assert!(error.is_cancelled(), "a waiter found something wrong: {error}");
            }
        }
        std::mem::take(&mut *self.granted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Enough for a few hand-offs.
const SOME: Duration = Duration::from_secs(5);

pub(super) async fn waiters_are_granted_in_order_of_arrival(arena: Arc<Arena>) {
    let mut line = Arrivals::behind_a_holder(&arena).await;
    for _ in 0..8 {
        line.join().await;
    }
    assert_eq!(line.proceed(SOME).await, (0..8).collect::<Vec<_>>(), "not in order of arrival");
}

pub(super) async fn waits_of_all_lengths_keep_the_order(arena: Arc<Arena>) {
    let mut line = Arrivals::behind_a_holder(&arena).await;
    for ttls in [40, 400, 10, 100] {
        let (client, options) = (arena.client().await, arena.options());
        line.join_with(client, options.wait(arena.ttl() * ttls)).await;
    }
    line.join().await;
    assert_eq!(line.proceed(SOME).await, [0, 1, 2, 3, 4], "patience moved somebody in the queue");
}

pub(super) async fn a_newcomers_try_does_not_overtake_a_waiter(arena: Arc<Arena>) {
    let mut line = Arrivals::behind_a_holder(&arena).await;
    let ((slow, switch), newcomer) = (arena.client_with_switch().await, arena.client().await);
    line.join_with(slow, arena.options()).await;
    // The waiter is stopped for a moment, so the lock is free, but the next turn is the waiter's.
    switch.freeze();
    line.held.take().expect("held").release().await.expect("held until now");
    assert!(arena.try_take(&newcomer, arena.kind()).await.is_none(), "a try came in before a waiter");
    switch.connect();
    assert_eq!(line.proceed(SOME).await, [0]);
}

pub(super) async fn a_newcomer_does_not_overtake_a_waiter(arena: Arc<Arena>) {
    let mut line = Arrivals::behind_a_holder(&arena).await;
    let ((slow, switch), newcomer) = (arena.client_with_switch().await, arena.client().await);
    line.join_with(slow, arena.options()).await;
    switch.freeze();
    line.held.take().expect("held").release().await.expect("held until now");
    let mut overtaking = Box::pin(arena.take(&newcomer, arena.kind()));
    arena.still_waits("a newcomer came in before a waiter", &mut overtaking).await;
    switch.connect();
    assert_eq!(line.proceed(SOME).await, [0]);
    let _last = arena.soon("the newcomer is never granted", overtaking).await;
}

pub(super) async fn a_try_leaves_no_place_in_the_queue(arena: Arc<Arena>) {
    let mut line = Arrivals::behind_a_holder(&arena).await;
    let client = arena.client().await;
    for _ in 0..3 {
        assert!(arena.try_take(&client, arena.kind()).await.is_none(), "two hold it");
        if let Ok(state) = client.inspect(arena.name()).await {
            assert_eq!(state.expect("held").queue, [], "a try that is over still waits");
        }
    }
    line.join().await;
    assert_eq!(line.proceed(SOME).await, [0]);
}

pub(super) async fn order_is_kept_when_a_waiter_in_the_middle_leaves(arena: Arc<Arena>) {
    assert_eq!(without(&arena, 1).await, [0, 2, 3], "the others' order changed");
}

pub(super) async fn order_is_kept_when_the_first_waiter_leaves(arena: Arc<Arena>) {
    assert_eq!(without(&arena, 0).await, [1, 2, 3], "the others' order changed");
}

async fn without(arena: &Arc<Arena>, leaver: usize) -> Vec<usize> {
    let mut line = Arrivals::behind_a_holder(arena).await;
    for _ in 0..4 {
        line.join().await;
    }
    line.leave(leaver).await;
    line.proceed(SOME).await
}

pub(super) async fn order_is_kept_when_a_wait_runs_out(arena: Arc<Arena>) {
    let mut line = Arrivals::behind_a_holder(&arena).await;
    line.join().await;
    let (client, options) = (arena.client().await, arena.options().wait(Duration::from_millis(200)));
    arena.lock(&client).lock(&options).await.expect_err("others are first");
    line.join().await;
    assert_eq!(line.proceed(SOME).await, [0, 1]);
}

pub(super) async fn order_is_kept_when_the_holder_crashes(arena: Arc<Arena>) {
    let ((crashing, switch), watch) = (arena.client_with_switch().await, arena.client().await);
    let options = arena.options().ttl(arena.kept_ttl());
    let held = arena.lock(&crashing).lock(&options).await.expect("free");
    let mut line = Arrivals::behind(&arena, watch, None);
    for _ in 0..3 {
        line.join().await;
    }
    switch.kill();
    let limit = arena.forgotten_after(&crashing, arena.kept_ttl()) + arena.kept_ttl();
    assert_eq!(line.proceed(limit).await, [0, 1, 2], "not in order of arrival");
    assert!(held.is_lost(), "others held it and its holder was not told");
}

pub(super) async fn a_crashed_waiter_blocks_others_for_no_longer_than_its_ttl_or_session(arena: Arc<Arena>) {
    let mut line = Arrivals::behind_a_holder(&arena).await;
    let (crashing, switch) = arena.client_with_switch().await;
    line.join_with(crashing, arena.options().ttl(arena.short_ttl())).await;
    for _ in 0..2 {
        line.join().await;
    }
    switch.kill();
    line.waiters[0].abort();
    let limit = arena.forgotten_after(&line.watch, arena.short_ttl()) + arena.short_ttl();
    assert_eq!(line.proceed(limit).await, [1, 2], "not in order of arrival");
}

pub(super) async fn a_waiter_that_crashed_alone_blocks_nobody_after_its_ttl_or_session(arena: Arc<Arena>) {
    let mut line = Arrivals::behind_a_holder(&arena).await;
    let (crashing, switch) = arena.client_with_switch().await;
    line.join_with(crashing, arena.options().ttl(arena.short_ttl())).await;
    switch.kill();
    line.waiters[0].abort();
    // Sleep without asking the store, so that no request can notice the death.
    sleep(arena.forgotten_after(&line.watch, arena.short_ttl()) + arena.short_ttl()).await;
    let held = line.held.take().expect("held until now");
    held.release().await.expect("held until now");
    drop(arena.take_soon("a dead waiter blocks a lock that nobody holds", &line.watch).await);
}

pub(super) async fn a_waiter_keeps_its_place_far_beyond_its_ttl(arena: Arc<Arena>) {
    let mut line = Arrivals::behind_a_holder(&arena).await;
    let ttl = arena.kept_ttl();
    line.join_with(arena.client().await, arena.options().ttl(ttl)).await;
    // If the first were forgotten, it would come back behind this one.
    let patient = arena.client().await;
    let long = arena.long_ttl(&patient);
    line.join_with(patient, arena.options().ttl(long)).await;
    sleep(ttl * 2).await;
    assert_eq!(line.proceed(SOME).await, [0, 1], "a waiter was forgotten while it waited");
}
