//! Order of arrival, which a fair lock and a permit add to an exclusive lock.

use std::{sync::Arc, time::Duration};

use dlock_core::{Guard, Kind, LockOptions, Locks};
use futures_util::future::join_all;
use parking_lot::Mutex;
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
            a_waiter_that_crashed_alone_blocks_no_client_after_its_ttl_or_session,
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

/// Waiters of one lock in order of arrival. Each records its number when it holds the lock, and
/// then leaves. Even numbers release, odd numbers drop their guard.
struct Arrivals {
    arena: Arc<Arena>,
    held: Option<Guard>,
    observer: Locks,
    waiters: Vec<JoinHandle<()>>,
    granted: Arc<Mutex<Vec<usize>>>,
}

impl Arrivals {
    /// Creates a queue behind a holder of the lock.
    async fn behind_a_holder(arena: &Arc<Arena>) -> Self {
        let observer = arena.client().await;
        let held = arena.take(&observer, arena.kind()).await;
        Self::behind(arena, observer, Some(held))
    }

    fn behind(arena: &Arc<Arena>, observer: Locks, held: Option<Guard>) -> Self {
        Self { arena: Arc::clone(arena), held, observer, waiters: Vec::new(), granted: Arc::default() }
    }

    /// Starts the next waiter with a new client. It has its place in the queue when this method
    /// returns.
    async fn join(&mut self) {
        self.join_with(self.arena.client().await, self.arena.options()).await;
    }

    async fn join_with(&mut self, client: Locks, options: LockOptions) {
        let (lock, granted, number) =
            (self.arena.lock(&client), Arc::clone(&self.granted), self.waiters.len());
        self.waiters.push(self.arena.go(async move {
            let guard = lock.lock(&options).await.expect("an acquisition without a limit is granted");
            granted.lock().push(number);
            if number % 2 == 0 {
                guard.release().await.expect("the lock is still held");
            }
        }));
        self.arena.until_contenders(&self.observer, self.waiters.len() + 1).await;
    }

    /// Makes a waiter leave by dropping its future. Its claim is no longer in the queue when this
    /// method returns.
    async fn leave(&mut self, number: usize) {
        self.waiters[number].abort();
        self.arena.until_contenders(&self.observer, self.waiters.len()).await;
    }

    /// Frees the lock, and waits until all remaining waiters have held it. Returns the order of the
    /// grants.
    async fn proceed(mut self, limit: Duration) -> Vec<usize> {
        if let Some(held) = self.held.take() {
            held.release().await.expect("the lock is still held");
        }
        let ended = join_all(self.waiters);
        for waiter in self.arena.within(limit, "a waiter is never granted the lock", ended).await {
            if let Err(error) = waiter {
                assert!(error.is_cancelled(), "a waiter failed: {error}");
            }
        }
        std::mem::take(&mut *self.granted.lock())
    }
}

/// Time for a few grants in a row.
const PASS_ON_LIMIT: Duration = Duration::from_secs(5);

pub(super) async fn waiters_are_granted_in_order_of_arrival(arena: Arc<Arena>) {
    let mut arrivals = Arrivals::behind_a_holder(&arena).await;
    for _ in 0..8 {
        arrivals.join().await;
    }
    assert_eq!(
        arrivals.proceed(PASS_ON_LIMIT).await,
        (0..8).collect::<Vec<_>>(),
        "the grants are not in order of arrival"
    );
}

pub(super) async fn waits_of_all_lengths_keep_the_order(arena: Arc<Arena>) {
    let mut arrivals = Arrivals::behind_a_holder(&arena).await;
    for ttls in [40, 400, 10, 100] {
        let (client, options) = (arena.client().await, arena.options());
        arrivals.join_with(client, options.wait(arena.ttl() * ttls)).await;
    }
    arrivals.join().await;
    assert_eq!(
        arrivals.proceed(PASS_ON_LIMIT).await,
        [0, 1, 2, 3, 4],
        "the limit of a wait changed the order of the queue"
    );
}

pub(super) async fn a_newcomers_try_does_not_overtake_a_waiter(arena: Arc<Arena>) {
    let mut arrivals = Arrivals::behind_a_holder(&arena).await;
    let ((slow, switch), newcomer) = (arena.client_with_switch().await, arena.client().await);
    arrivals.join_with(slow, arena.options()).await;
    // The waiter is frozen. The lock is free, but the next turn is the waiter's.
    switch.freeze();
    arrivals.held.take().expect("the lock is held").release().await.expect("the lock is still held");
    assert!(arena.try_take(&newcomer, arena.kind()).await.is_none(), "a try was granted before a waiter");
    switch.connect();
    assert_eq!(arrivals.proceed(PASS_ON_LIMIT).await, [0]);
}

pub(super) async fn a_newcomer_does_not_overtake_a_waiter(arena: Arc<Arena>) {
    let mut arrivals = Arrivals::behind_a_holder(&arena).await;
    let ((slow, switch), newcomer) = (arena.client_with_switch().await, arena.client().await);
    arrivals.join_with(slow, arena.options()).await;
    switch.freeze();
    arrivals.held.take().expect("the lock is held").release().await.expect("the lock is still held");
    let mut overtaking = Box::pin(arena.take(&newcomer, arena.kind()));
    arena.still_waits("a newcomer was granted before a waiter", &mut overtaking).await;
    switch.connect();
    assert_eq!(arrivals.proceed(PASS_ON_LIMIT).await, [0]);
    let _last = arena.soon("the newcomer is never granted", overtaking).await;
}

pub(super) async fn a_try_leaves_no_place_in_the_queue(arena: Arc<Arena>) {
    let mut arrivals = Arrivals::behind_a_holder(&arena).await;
    let client = arena.client().await;
    for _ in 0..3 {
        assert!(arena.try_take(&client, arena.kind()).await.is_none(), "two claims hold the lock");
        if let Ok(state) = client.inspect(arena.name()).await {
            assert_eq!(state.expect("the lock is held").queue, [], "a try that has ended still waits");
        }
    }
    arrivals.join().await;
    assert_eq!(arrivals.proceed(PASS_ON_LIMIT).await, [0]);
}

pub(super) async fn order_is_kept_when_a_waiter_in_the_middle_leaves(arena: Arc<Arena>) {
    assert_eq!(without(&arena, 1).await, [0, 2, 3], "the order of the other waiters changed");
}

pub(super) async fn order_is_kept_when_the_first_waiter_leaves(arena: Arc<Arena>) {
    assert_eq!(without(&arena, 0).await, [1, 2, 3], "the order of the other waiters changed");
}

async fn without(arena: &Arc<Arena>, leaver: usize) -> Vec<usize> {
    let mut arrivals = Arrivals::behind_a_holder(arena).await;
    for _ in 0..4 {
        arrivals.join().await;
    }
    arrivals.leave(leaver).await;
    arrivals.proceed(PASS_ON_LIMIT).await
}

pub(super) async fn order_is_kept_when_a_wait_runs_out(arena: Arc<Arena>) {
    let mut arrivals = Arrivals::behind_a_holder(&arena).await;
    arrivals.join().await;
    let (client, options) = (arena.client().await, arena.options().wait(Duration::from_millis(200)));
    arena.lock(&client).lock(&options).await.expect_err("other waiters are ahead");
    arrivals.join().await;
    assert_eq!(arrivals.proceed(PASS_ON_LIMIT).await, [0, 1]);
}

pub(super) async fn order_is_kept_when_the_holder_crashes(arena: Arc<Arena>) {
    let ((crashing, switch), observer) = (arena.client_with_switch().await, arena.client().await);
    let options = arena.options().ttl(arena.kept_ttl());
    let held = arena.lock(&crashing).lock(&options).await.expect("the lock is free");
    let mut arrivals = Arrivals::behind(&arena, observer, None);
    for _ in 0..3 {
        arrivals.join().await;
    }
    switch.kill();
    let limit = arena.forgotten_after(&crashing, arena.kept_ttl()) + arena.kept_ttl();
    assert_eq!(arrivals.proceed(limit).await, [0, 1, 2], "the grants are not in order of arrival");
    assert!(held.is_lost(), "other claims held the lock, but the loss was not reported");
}

pub(super) async fn a_crashed_waiter_blocks_others_for_no_longer_than_its_ttl_or_session(arena: Arc<Arena>) {
    let mut arrivals = Arrivals::behind_a_holder(&arena).await;
    let (crashing, switch) = arena.client_with_switch().await;
    arrivals.join_with(crashing, arena.options().ttl(arena.short_ttl())).await;
    for _ in 0..2 {
        arrivals.join().await;
    }
    switch.kill();
    arrivals.waiters[0].abort();
    let limit = arena.forgotten_after(&arrivals.observer, arena.short_ttl()) + arena.short_ttl();
    assert_eq!(arrivals.proceed(limit).await, [1, 2], "the grants are not in order of arrival");
}

pub(super) async fn a_waiter_that_crashed_alone_blocks_no_client_after_its_ttl_or_session(arena: Arc<Arena>) {
    let mut arrivals = Arrivals::behind_a_holder(&arena).await;
    let (crashing, switch) = arena.client_with_switch().await;
    arrivals.join_with(crashing, arena.options().ttl(arena.short_ttl())).await;
    switch.kill();
    arrivals.waiters[0].abort();
    // Sends no request during the sleep, so that no request can notice the crash.
    sleep(arena.forgotten_after(&arrivals.observer, arena.short_ttl()) + arena.short_ttl()).await;
    let held = arrivals.held.take().expect("the lock is still held");
    held.release().await.expect("the lock is still held");
    drop(arena.take_soon("a dead waiter blocks a free lock", &arrivals.observer).await);
}

pub(super) async fn a_waiter_keeps_its_place_far_beyond_its_ttl(arena: Arc<Arena>) {
    let mut arrivals = Arrivals::behind_a_holder(&arena).await;
    let ttl = arena.kept_ttl();
    arrivals.join_with(arena.client().await, arena.options().ttl(ttl)).await;
    // If the store deleted the first waiter's claim, the waiter would return behind this one.
    let patient = arena.client().await;
    let long = arena.long_ttl(&patient);
    arrivals.join_with(patient, arena.options().ttl(long)).await;
    sleep(ttl * 2).await;
    assert_eq!(arrivals.proceed(PASS_ON_LIMIT).await, [0, 1], "the store deleted the claim of a live waiter");
}
