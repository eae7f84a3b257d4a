//! Work that runs once for each occurrence. Success leaves a mark for every client, and nothing else
//! leaves one.

use std::{
    convert::Infallible,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Error, Kind, Locks, Occurrence, Once, OnceError, Wait};
use tokio::time::{Instant, sleep};

use super::detached::{EARLY, span};
use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind = [of("once", Kind::Mutex), of("once_fair", Kind::Fair), of("once_write", Kind::Write)];
    let others = cases! {
        "once" (Kind::Mutex) [Need::NoDetach] { a_store_that_cannot_keep_a_mark_says_so_before_any_io }
        "once" (Kind::Mutex) [Need::Detach, Need::Inspect] {
            of_many_clients_that_start_at_once_one_does_the_work,
            an_occurrence_that_is_done_is_reported_although_the_lock_is_busy,
            a_busy_lock_is_reported_after_its_wait_limit,
            another_key_and_another_lock_are_not_done,
            a_mark_ends_after_its_time,
            an_occurrence_that_is_forgotten_runs_again,
            a_mark_is_listed_as_a_mark_and_not_as_a_lock,
            an_invalid_occurrence_is_refused,
            the_longest_occurrences_are_done_for_every_client,
        }
        "once" (Kind::Mutex) [] { clients_agree_on_the_period_if_the_store_has_a_clock }
    };
    of_one_kind.into_iter().flatten().chain(others).collect()
}

fn of(topic: &'static str, kind: Kind) -> Vec<Case> {
    cases! {
        topic (kind) [Need::Detach, Need::Inspect] {
            work_that_succeeds_is_done_for_every_client,
            work_that_fails_leaves_no_mark,
            work_that_is_dropped_leaves_no_mark,
            work_that_is_stopped_by_the_loss_of_its_lock_leaves_no_mark,
            work_that_ends_after_an_unnoticed_loss_of_its_lock_leaves_no_mark,
            a_client_that_dies_during_the_work_leaves_no_mark,
        }
    }
}

const KEY: &str = "2026-11-23";

fn occurrence(arena: &Arena, client: &Locks) -> Occurrence {
    client.once(arena.lock(client), KEY)
}

/// Runs the occurrence with work that succeeds. Returns whether the work ran.
async fn ran(occurrence: &Occurrence) -> bool {
    let run = occurrence.run(async |_guard| Ok::<_, Infallible>(())).await;
    match run.expect("the store is reachable") {
        Once::Ran(()) => true,
        Once::Done => false,
        Once::Busy => panic!("the wait for the lock ended without a limit"),
    }
}

/// Runs the occurrence, which must not be marked, with work that succeeds, and removes its mark.
#[track_caller]
fn runs_again<'a>(
    arena: &'a Arena,
    failure: &'a str,
    occurrence: &'a Occurrence,
) -> impl Future<Output = ()> + 'a {
    // The lock of a client that has died may stay for its ttl.
    let run = arena.within(arena.ttl() * 2, failure, ran(occurrence));
    async move {
        assert!(run.await, "{failure}");
        assert!(occurrence.forget().await.expect("the store is reachable"), "the success left no mark");
    }
}

pub(super) async fn work_that_succeeds_is_done_for_every_client(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let first = occurrence(&arena, &a);
    let result = first.run(async |guard| Ok::<_, Infallible>(guard.name().to_string())).await;
    assert_eq!(result.expect("the lock is free"), Once::Ran(arena.name().to_owned()));
    a.close().await;
    let second = occurrence(&arena, &b);
    assert!(second.is_done().await.expect("the store is reachable"), "a success leaves no mark");
    assert!(!ran(&second).await, "the work ran twice");
    drop(arena.take_soon("the lock is not free after the work", &b).await);
    second.forget().await.expect("the store is reachable");
}

pub(super) async fn work_that_fails_leaves_no_mark(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    for _ in 0..2 {
        let result = occurrence(&arena, &a).run(async |_guard| Err::<(), _>("it failed")).await;
        assert!(matches!(result, Err(OnceError::Work("it failed"))), "a failed run left a mark: {result:?}");
    }
    runs_again(&arena, "a failed run left a mark", &occurrence(&arena, &b)).await;
}

pub(super) async fn work_that_is_dropped_leaves_no_mark(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let started = AtomicUsize::new(0);
    let first = occurrence(&arena, &a);
    let run = first.run(async |_guard| {
        started.fetch_add(1, Relaxed);
        pending::<Result<(), Infallible>>().await
    });
    tokio::select! {
        result = run => panic!("work without an end has ended: {result:?}"),
        () = arena.until("the work did not start", || started.load(Relaxed) == 1) => {}
    }
    runs_again(&arena, "a run that was dropped left a mark or the lock", &occurrence(&arena, &b)).await;
}

pub(super) async fn work_that_is_stopped_by_the_loss_of_its_lock_leaves_no_mark(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let first = occurrence(&arena, &a);
    let run = first.run(async |guard| {
        b.force_release(guard.name()).await.expect("the store is reachable");
        pending::<Result<(), Infallible>>().await
    });
    let result = arena.within(arena.ttl(), "the work continues after the loss of its lock", run).await;
    assert!(matches!(result, Err(OnceError::Lock(Error::Lost { .. }))), "{result:?}");
    runs_again(&arena, "a run that lost its lock left a mark", &occurrence(&arena, &b)).await;
}

pub(super) async fn work_that_ends_after_an_unnoticed_loss_of_its_lock_leaves_no_mark(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let result = occurrence(&arena, &a)
        .run(async |guard| {
            b.force_release(guard.name()).await.expect("the store is reachable");
            Ok::<_, Infallible>(())
        })
        .await;
    assert!(matches!(result, Err(OnceError::Lock(Error::Lost { .. }))), "{result:?}");
    runs_again(&arena, "a run that had lost its lock left a mark", &occurrence(&arena, &b)).await;
}

pub(super) async fn a_client_that_dies_during_the_work_leaves_no_mark(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let first = occurrence(&arena, &a).options(arena.short());
    let killed = AtomicUsize::new(0);
    let run = first.run(async |_guard| {
        switch.kill();
        killed.fetch_add(1, Relaxed);
        pending::<Result<(), Infallible>>().await
    });
    tokio::select! {
        result = run => panic!("work without an end has ended: {result:?}"),
        () = arena.until("the work did not start", || killed.load(Relaxed) == 1) => {}
    }
    runs_again(&arena, "a client that died left a mark", &occurrence(&arena, &b)).await;
}

pub(super) async fn of_many_clients_that_start_at_once_one_does_the_work(arena: Arc<Arena>) {
    const CLIENTS: usize = 8;
    let runs = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    let mut last = None;
    for _ in 0..CLIENTS {
        let client = arena.client().await;
        let (occurrence, runs) = (occurrence(&arena, &client), Arc::clone(&runs));
        last = Some(occurrence.clone());
        tasks.push(arena.go(async move {
            let run = occurrence.run(async |_guard| {
                sleep(Duration::from_millis(5)).await;
                runs.fetch_add(1, Relaxed);
                Ok::<_, Infallible>(())
            });
            run.await.expect("the store is reachable")
        }));
    }
    let mut results = Vec::new();
    for task in tasks {
        let result = arena.within(arena.ttl() * 4, "a run never ends", task).await;
        results.push(result.expect("the task does not panic"));
    }
    let count = |wanted| results.iter().filter(|result| **result == wanted).count();
    assert_eq!((count(Once::Ran(())), count(Once::Done)), (1, CLIENTS - 1), "{results:?}");
    assert_eq!(runs.load(Relaxed), 1, "the work ran more than once");
    last.expect("there are clients").forget().await.expect("the store is reachable");
}

pub(super) async fn an_occurrence_that_is_done_is_reported_although_the_lock_is_busy(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let occurrence = occurrence(&arena, &a);
    assert!(ran(&occurrence).await);
    let held = arena.take_soon("the lock is not free after the work", &b).await;
    let run = ran(&occurrence);
    assert!(!arena.soon("a run waits although its occurrence is done", run).await, "the work ran twice");
    held.release().await.expect("the lock is still held");
    occurrence.forget().await.expect("the store is reachable");
}

pub(super) async fn a_busy_lock_is_reported_after_its_wait_limit(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    for wait in [Wait::Never, Wait::For(Duration::from_millis(100))] {
        let busy = occurrence(&arena, &b).wait(wait);
        let result = busy.run(async |_guard| Ok::<_, Infallible>(())).await;
        assert_eq!(result.expect("a busy lock is not an error"), Once::Busy);
    }
    held.release().await.expect("the lock is still held");
    runs_again(&arena, "a busy lock left a mark", &occurrence(&arena, &b)).await;
}

pub(super) async fn another_key_and_another_lock_are_not_done(arena: Arc<Arena>) {
    let a = arena.client().await;
    let occurrences = [
        occurrence(&arena, &a),
        a.once(arena.lock(&a), "2026-11-24"),
        a.once(arena.lock(&a), "2026-11-23 "),
        a.mutex(arena.name_with("-2")).once(KEY),
        // Name and key together are those of the first occurrence.
        a.mutex(arena.name_with(":20")).once("26-11-23"),
    ];
    for occurrence in &occurrences {
        assert!(ran(occurrence).await, "{occurrence:?} was taken for another occurrence");
    }
    for occurrence in &occurrences {
        assert!(!ran(occurrence).await, "{occurrence:?} ran twice");
        assert!(occurrence.forget().await.expect("the store is reachable"));
    }
}

pub(super) async fn a_mark_ends_after_its_time(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let keep = span(&arena).max(*a.info().leases.start());
    let began = Instant::now();
    assert!(ran(&occurrence(&arena, &a).keep(keep)).await);
    a.close().await;
    let again = occurrence(&arena, &b);
    let ended = async {
        while again.is_done().await.expect("the store is reachable") {
            sleep(Duration::from_millis(20)).await;
        }
    };
    arena.within(keep, "the mark never ends", ended).await;
    assert!(
        began.elapsed() + EARLY >= keep,
        "the mark ended {:?} after the start of its work",
        began.elapsed()
    );
    runs_again(&arena, "the work does not run after the end of the mark", &again).await;
}

pub(super) async fn an_occurrence_that_is_forgotten_runs_again(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let occurrence = occurrence(&arena, &a);
    assert!(!b.forget(arena.name(), KEY).await.expect("the store is reachable"), "there is no mark yet");
    for _ in 0..2 {
        assert!(ran(&occurrence).await, "the mark was not removed");
        assert!(b.forget(arena.name(), KEY).await.expect("the store is reachable"), "the mark was not found");
    }
}

pub(super) async fn a_mark_is_listed_as_a_mark_and_not_as_a_lock(arena: Arc<Arena>) {
    let a = arena.client().await;
    let held = arena.take_soon("a free lock was not granted", &a).await;
    let other = a.mutex(arena.name_with("-2")).once(KEY).keep(arena.ttl() * 100);
    assert!(ran(&other).await);
    let states = a.list("").await.expect("the store is reachable");
    let names: Vec<_> = states.into_iter().map(|state| state.name).collect();
    assert!(names.iter().any(|name| name == held.name()), "a held lock is not listed");
    assert!(
        !names.iter().any(|name| name.as_str().contains(&arena.name_with("-2"))),
        "a mark is listed as a lock"
    );
    let marks = a.marks(arena.name()).await.expect("the store is reachable");
    let found: Vec<_> = marks.iter().map(|mark| (mark.name.to_string(), mark.key.as_str())).collect();
    assert_eq!(found, [(arena.name_with("-2"), KEY)]);
    held.release().await.expect("the lock is still held");
    assert!(other.forget().await.expect("the store is reachable"));
    assert_eq!(a.marks(arena.name()).await.expect("the store is reachable"), []);
}

pub(super) async fn an_invalid_occurrence_is_refused(arena: Arc<Arena>) {
    let a = arena.client().await;
    let too_long = *a.info().leases.end() + Duration::from_millis(1);
    let mutex = || a.mutex(arena.name());
    let long = "x".repeat(1000);
    let mut invalid = vec![
        mutex().once(""),
        mutex().once("a\nb"),
        mutex().once(long),
        mutex().once(KEY).keep(Duration::ZERO),
        mutex().once(KEY).keep(too_long),
        mutex().once(KEY).options(dlock_core::LockOptions::new().ttl(Duration::ZERO)),
    ];
    invalid.extend([Kind::Read, Kind::Permit].map(|kind| a.once(a.of(kind, arena.name()), KEY)));
    for occurrence in invalid {
        let result = occurrence.run(async |_guard| Ok::<_, Infallible>(())).await;
        let is_refused = matches!(result, Err(OnceError::Lock(Error::InvalidOptions { .. })));
        assert!(is_refused, "{occurrence:?} returned {result:?}");
        assert!(occurrence.check().is_err(), "{occurrence:?}");
    }
}

/// The name of the mark is then as long as a mark's can be, and its time as great as it can be.
pub(super) async fn the_longest_occurrences_are_done_for_every_client(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (mut occurrences, longest) = (Vec::new(), *a.info().leases.end());
    for character in ["x", "'", "%", "/", ":", "é", "🔒"] {
        let name = arena.name_with(character);
        let count = (1000 - name.len()) / character.len();
        let key = format!("{}{}", character.repeat(count), "x".repeat((1000 - name.len()) % character.len()));
        let first = a.mutex(&name).once(key.as_str()).keep(longest);
        assert!(ran(&first).await, "the work of another occurrence counts as done: {first:?}");
        assert!(!ran(&b.mutex(&name).once(key.as_str())).await, "the work ran twice: {first:?}");
        let too_long = a.mutex(&name).once(format!("{key}x"));
        assert!(too_long.check().is_err(), "{too_long:?}");
        occurrences.push((first, (name, key)));
    }
    let marks = b.marks(arena.name()).await.expect("the store is reachable");
    let found: Vec<_> = marks.into_iter().map(|mark| (mark.name.to_string(), mark.key)).collect();
    for (occurrence, mark) in occurrences {
        assert!(found.contains(&mark), "the mark of {occurrence:?} is not listed");
        assert!(occurrence.forget().await.expect("the store is reachable"), "{occurrence:?} has no mark");
    }
}

pub(super) async fn a_store_that_cannot_keep_a_mark_says_so_before_any_io(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.cut();
    let result = occurrence(&arena, &a).run(async |_guard| Ok::<_, Infallible>(())).await;
    let Err(OnceError::Lock(error @ Error::Unsupported { .. })) = result else { panic!("{result:?}") };
    let text = error.to_string();
    assert!(text.contains("redis") && text.contains("sqlite"), "the error names no other store: {text}");
}

pub(super) async fn clients_agree_on_the_period_if_the_store_has_a_clock(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let length = Duration::from_secs(3600);
    if !a.info().clock {
        let result = a.period_key(length).await;
        assert!(matches!(result, Err(Error::Unsupported { .. })), "{result:?}");
        return;
    }
    let key = async |client: &Locks| client.period_key(length).await.expect("the store is reachable");
    // The period may end between two readings.
    let (before, other, after) = (key(&a).await, key(&b).await, key(&a).await);
    assert!(other == before || other == after, "{other} is neither {before} nor {after}");
    assert!(other.ends_with(":00:00Z/1h"), "{other}");
}
