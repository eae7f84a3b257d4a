//! Many clients make the same request at the same time. These races do not occur when contenders
//! arrive one after the other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use dlock_core::{Kind, Owner};
use futures_util::future::try_join_all;
use tokio::{runtime::Handle, sync::Barrier};

use crate::{
    Arena,
    case::{Case, cases},
    cases::exclusive,
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let exclusive = exclusive::TOPICS.into_iter().flat_map(|(topic, kind)| of_exclusive(topic, kind));
    let others = cases! {
        "owner" (Kind::Mutex) [] { an_owner_that_holds_is_never_refused_whatever_its_other_tasks_do }
    };
    exclusive.chain(others).collect()
}

fn of_exclusive(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [] { of_many_racing_for_a_name_never_used_one_gets_it }
    }
}

/// Number of clients that race for each name.
const RACERS: usize = 8;

/// Number of tries of a case that may end without a reply. If the machine stands still for longer than
/// a try may take, it does so for all racers at once.
const MAX_UNANSWERED: usize = 2 * RACERS;

/// A store that can lock the row of a name only if the row exists may grant two clients at first
/// use. Each race is therefore for a name without an earlier use, and all clients start at the same
/// time.
pub(super) async fn of_many_racing_for_a_name_never_used_one_gets_it(arena: Arc<Arena>) {
    let names = if arena.is_disturbed() { 8 } else { 60 };
    let (start, finish) = (Arc::new(Barrier::new(RACERS)), Arc::new(Barrier::new(RACERS)));
    let won: Arc<Vec<AtomicUsize>> = Arc::new((0..names).map(|_| AtomicUsize::new(0)).collect());
    let unanswered = Arc::new(AtomicUsize::new(0));
    let mut racers = Vec::new();
    for _ in 0..RACERS {
        let (client, options) = (arena.client().await, arena.options());
        let (start, finish, won) = (Arc::clone(&start), Arc::clone(&finish), Arc::clone(&won));
        let unanswered = Arc::clone(&unanswered);
        let (race, kind) = (Arc::clone(&arena), arena.kind());
        racers.push(arena.go(async move {
            for (number, won) in won.iter().enumerate() {
                let lock = client.of(kind, race.name_with(&format!("/{number}")));
                start.wait().await;
                let guard = loop {
                    match lock.try_lock(&options).await {
                        Ok(guard) => break guard,
                        Err(error) => {
                            let is_tolerated = unanswered.fetch_add(1, SeqCst) < MAX_UNANSWERED;
                            assert!(
                                error.is_transient() && is_tolerated,
                                "a busy lock is not an error: {error:?}"
                            );
                        }
                    }
                };
                if guard.is_some() {
                    won.fetch_add(1, SeqCst);
                }
                // No client releases before all have their replies.
                finish.wait().await;
                if let Some(guard) = guard {
                    guard.release().await.expect("the lock is still held");
                }
            }
        }));
    }
    // The other racers wait at a barrier for one that panics, so the first panic ends the case.
    try_join_all(racers).await.expect("no task panics");
    let several: Vec<_> = won.iter().map(|won| won.load(SeqCst)).filter(|won| *won > 1).collect();
    assert!(
        several.is_empty(),
        "of {names} names without an earlier use, {} have several holders at once, up to {}: \
         a client that reads a name must exclude others until its own claim is in the store",
        several.len(),
        several.iter().max().copied().unwrap_or_default()
    );
}

/// Re-entry does not use the store, so separate threads can do it even with a paused clock.
pub(super) async fn an_owner_that_holds_is_never_refused_whatever_its_other_tasks_do(arena: Arc<Arena>) {
    const THREADS: usize = 4;
    const TRIES: usize = 2000;
    let (client, owner) = (arena.client().await, Owner::new());
    let lock = client.mutex(arena.name()).owned_by(&owner);
    let held = lock.lock().await.expect("the lock is free");
    let runtime = Handle::current();
    // The runtime does not run for some milliseconds. Only the threads contend with each other.
    let refused: usize = thread::scope(|scope| {
        let storm = |_| {
            scope.spawn(|| {
                let tries = (0..TRIES)
                    .map(|_| runtime.block_on(lock.try_lock()).expect("a busy lock is not an error"));
                tries.filter(Option::is_none).count()
            })
        };
        let threads: Vec<_> = (0..THREADS).map(storm).collect();
        threads.into_iter().map(|thread| thread.join().expect("the task does not panic")).sum()
    });
    assert_eq!(refused, 0, "of {} tries of an owner that holds the lock, some were refused", THREADS * TRIES);
    assert_eq!(held.hold_count(), 1, "dropped guards are still counted");
}
