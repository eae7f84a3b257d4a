//! Readers share the lock, writers exclude all others, and neither starves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{
    Guard,
    Kind::{self, Read, Write},
};
use futures_util::future::join_all;
use tokio::{
    sync::{Barrier, Semaphore},
    task::JoinHandle,
    time::sleep,
};

use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "rwlock" (Read) [Need::Kind(Write)] {
            readers_share,
            many_readers_hold_at_the_same_time,
            a_writer_excludes_readers_and_writers,
            a_reader_waits_for_a_writer,
            a_try_to_write_is_busy_beside_a_reader,
            a_dropped_reader_lets_a_writer_in,
            a_writer_waits_for_all_readers,
            one_of_two_readers_keeps_a_try_to_write_out,
            a_reader_that_comes_after_a_waiting_writer_waits_behind_it,
            a_try_to_read_does_not_overtake_a_waiting_writer,
            a_waiting_writer_that_leaves_lets_the_readers_behind_it_in,
            readers_behind_a_writer_enter_together,
            a_crashed_reader_is_forgotten_while_others_read,
            readers_hold_far_beyond_the_ttl,
            readers_without_rest_do_not_starve_a_writer,
            writers_without_rest_do_not_starve_a_reader,
            downgrading_a_reader_changes_nothing,
        }
        "rwlock" (Read) [Need::Kind(Write), Need::Tokens] {
            the_tokens_of_writers_grow_past_those_of_readers,
        }
    }
}

/// Starts a contender as a task with a new client. When this function returns, the store has its
/// claim as the last of `contenders` claims.
async fn arrive(arena: &Arena, kind: Kind, contenders: usize) -> JoinHandle<Guard> {
    let client = arena.client().await;
    let (lock, options) = (client.of(kind, arena.name()), arena.options());
    let task = arena
        .go(async move { lock.lock(&options).await.expect("an acquisition without a limit is granted") });
    arena.until_contenders(&client, contenders).await;
    task
}

/// Returns the guard of a contender that must be granted now.
async fn granted(arena: &Arena, failure: &str, contender: JoinHandle<Guard>) -> Guard {
    arena.soon(failure, contender).await.expect("the task does not panic")
}

/// Takes the lock with a new client.
async fn take(arena: &Arena, kind: Kind) -> Guard {
    arena.take(&arena.client().await, kind).await
}

/// Tries the lock once with a new client.
async fn try_take(arena: &Arena, kind: Kind) -> Option<Guard> {
    arena.try_take(&arena.client().await, kind).await
}

async fn release(guard: Guard) {
    guard.release().await.expect("the lock is still held");
}

pub(super) async fn readers_share(arena: Arc<Arena>) {
    let _one = take(&arena, Read).await;
    let other = arena.soon("a reader waits for a reader", take(&arena, Read)).await;
    assert!(try_take(&arena, Read).await.is_some(), "a try to read is busy beside readers");
    assert!(!other.is_lost());
}

pub(super) async fn many_readers_hold_at_the_same_time(arena: Arc<Arena>) {
    let all_read = Arc::new(Barrier::new(8));
    let mut readers = Vec::new();
    for _ in 0..8 {
        let (lock, options) = (arena.lock(&arena.client().await), arena.options());
        let all_read = Arc::clone(&all_read);
        readers.push(arena.go(async move {
            let _guard = lock.lock(&options).await.expect("no writer holds the lock");
            all_read.wait().await;
        }));
    }
    for reader in arena.soon("readers do not share the lock", join_all(readers)).await {
        reader.expect("the task does not panic");
    }
}

pub(super) async fn a_writer_excludes_readers_and_writers(arena: Arc<Arena>) {
    let writer = take(&arena, Write).await;
    assert!(try_take(&arena, Read).await.is_none(), "a reader was granted beside a writer");
    assert!(try_take(&arena, Write).await.is_none(), "a writer was granted beside a writer");
    release(writer).await;
}

pub(super) async fn a_reader_waits_for_a_writer(arena: Arc<Arena>) {
    let writer = take(&arena, Write).await;
    let mut reader = Box::pin(take(&arena, Read));
    arena.still_waits("a reader was granted beside a writer", &mut reader).await;
    release(writer).await;
    let _reader = arena.soon("the writer has released, but the reader still waits", reader).await;
}

pub(super) async fn a_try_to_write_is_busy_beside_a_reader(arena: Arc<Arena>) {
    let reader = take(&arena, Read).await;
    assert!(try_take(&arena, Write).await.is_none(), "a writer was granted beside a reader");
    release(reader).await;
    assert!(try_take(&arena, Write).await.is_some(), "the reader has released");
}

pub(super) async fn a_dropped_reader_lets_a_writer_in(arena: Arc<Arena>) {
    let reader = take(&arena, Read).await;
    let mut writer = Box::pin(take(&arena, Write));
    arena.still_waits("a writer was granted beside a reader", &mut writer).await;
    drop(reader);
    let _writer = arena.soon("the lock is still held after its guard was dropped", writer).await;
}

pub(super) async fn a_writer_waits_for_all_readers(arena: Arc<Arena>) {
    let (one, two, three) = (take(&arena, Read).await, take(&arena, Read).await, take(&arena, Read).await);
    let mut writer = Box::pin(take(&arena, Write));
    // The last reader to arrive is not the last to leave.
    for reader in [three, one] {
        release(reader).await;
        arena.still_waits("a writer was granted beside a reader", &mut writer).await;
    }
    release(two).await;
    let _writer = arena.soon("all readers have released, but the writer still waits", writer).await;
}

pub(super) async fn one_of_two_readers_keeps_a_try_to_write_out(arena: Arc<Arena>) {
    let (one, other) = (take(&arena, Read).await, take(&arena, Read).await);
    release(one).await;
    assert!(try_take(&arena, Write).await.is_none(), "releasing one reader released the other");
    release(other).await;
}

pub(super) async fn a_reader_that_comes_after_a_waiting_writer_waits_behind_it(arena: Arc<Arena>) {
    let first = take(&arena, Read).await;
    let writer = arrive(&arena, Write, 2).await;
    let mut late = arrive(&arena, Read, 3).await;
    arena.still_waits("a reader overtook a waiting writer", &mut late).await;
    release(first).await;
    let writer = granted(&arena, "the reader has released, but the writer still waits", writer).await;
    arena.still_waits("a reader was granted beside a writer", &mut late).await;
    release(writer).await;
    let _late = granted(&arena, "the writer has released, but the reader still waits", late).await;
}

pub(super) async fn a_try_to_read_does_not_overtake_a_waiting_writer(arena: Arc<Arena>) {
    let first = take(&arena, Read).await;
    let writer = arrive(&arena, Write, 2).await;
    assert!(try_take(&arena, Read).await.is_none(), "a reader overtook a waiting writer");
    release(first).await;
    let _writer = granted(&arena, "the reader has released, but the writer still waits", writer).await;
}

pub(super) async fn a_waiting_writer_that_leaves_lets_the_readers_behind_it_in(arena: Arc<Arena>) {
    let _first = take(&arena, Read).await;
    let writer = arrive(&arena, Write, 2).await;
    let one = arrive(&arena, Read, 3).await;
    let other = arrive(&arena, Read, 4).await;
    writer.abort();
    let _one = granted(&arena, "a reader waits for a writer that has left", one).await;
    let _other = granted(&arena, "a reader waits for a writer that has left", other).await;
}

pub(super) async fn readers_behind_a_writer_enter_together(arena: Arc<Arena>) {
    let writer = take(&arena, Write).await;
    let mut readers = Vec::new();
    for contenders in 2..6 {
        readers.push(arrive(&arena, Read, contenders).await);
    }
    release(writer).await;
    // All readers hold at the same time.
    for reader in arena.soon("readers wait for each other", join_all(readers)).await {
        assert!(!reader.expect("the task does not panic").is_lost());
    }
}

pub(super) async fn a_crashed_reader_is_forgotten_while_others_read(arena: Arc<Arena>) {
    let ((crashing, switch), short) = (arena.client_with_switch().await, arena.short_ttl());
    // Connected beforehand, because during the long sleep no task polls the writer's future.
    let writing = arena.client().await;
    let live = take(&arena, Read).await;
    let options = arena.options().ttl(short);
    let crashed = arena.lock(&crashing).lock(&options).await.expect("readers share the lock");
    let mut writer = Box::pin(arena.take(&writing, Write));
    switch.kill();
    arena.within(short * 2, "the loss is not reported to a holder that cannot renew", crashed.lost()).await;
    arena.still_waits("a writer was granted beside a live reader", &mut writer).await;
    sleep(arena.forgotten_after(&crashing, short) + short).await;
    assert!(!live.is_lost(), "the end of one reader ended the other");
    release(live).await;
    let _writer = arena.soon("the claim of a dead reader stays while others read", writer).await;
}

pub(super) async fn readers_hold_far_beyond_the_ttl(arena: Arc<Arena>) {
    let ttl = arena.kept_ttl();
    let (a, b, options) = (arena.client().await, arena.client().await, arena.options().ttl(ttl));
    let one = arena.lock(&a).lock(&options).await.expect("the lock is free");
    let other = arena.lock(&b).lock(&options).await.expect("readers share the lock");
    sleep(ttl * 2).await;
    assert!(!one.is_lost() && !other.is_lost(), "the lock was lost although it was renewed");
    release(one).await;
    assert!(try_take(&arena, Write).await.is_none(), "a writer was granted beside a reader");
    release(other).await;
}

pub(super) async fn readers_without_rest_do_not_starve_a_writer(arena: Arc<Arena>) {
    enters_among(&arena, Write, Read).await;
}

pub(super) async fn writers_without_rest_do_not_starve_a_reader(arena: Arc<Arena>) {
    enters_among(&arena, Read, Write).await;
}

/// Three contenders of one kind take the lock again as soon as they have released it. Then one
/// contender of another kind arrives, and must be granted.
async fn enters_among(arena: &Arena, one: Kind, crowd: Kind) {
    let (over, held_once) = (Arc::new(AtomicBool::new(false)), Arc::new(Semaphore::new(0)));
    let mut contenders = Vec::new();
    // Holds of different lengths, so that readers overlap without end.
    for hold in [5, 7, 11].map(Duration::from_millis) {
        let (lock, options) = (arena.client().await.of(crowd, arena.name()), arena.options());
        let (over, held_once) = (Arc::clone(&over), Arc::clone(&held_once));
        contenders.push(arena.go(async move {
            while !over.load(Relaxed) {
                let _guard = lock.lock(&options).await.expect("an acquisition without a limit is granted");
                held_once.add_permits(1);
                sleep(hold).await;
            }
        }));
    }
    held_once.acquire_many(6).await.expect("the semaphore is never closed").forget();
    let guard = arena.within(Duration::from_secs(10), "the contender starves", take(arena, one)).await;
    over.store(true, Relaxed);
    release(guard).await;
    for contender in join_all(contenders).await {
        contender.expect("the task does not panic");
    }
}

pub(super) async fn the_tokens_of_writers_grow_past_those_of_readers(arena: Arc<Arena>) {
    let mut last = None;
    for kind in [Write, Read, Write, Write, Read, Write] {
        let guard = take(&arena, kind).await;
        let token = guard.token();
        assert!(token.is_some(), "the store declares that it has tokens");
        if kind == Write {
            assert!(token > last, "a later writer has an older token: {token:?} after {last:?}");
        }
        last = last.max(token);
        release(guard).await;
    }
}

pub(super) async fn downgrading_a_reader_changes_nothing(arena: Arc<Arena>) {
    let reader = take(&arena, Read).await.downgrade().await.expect("a downgrade of a reader succeeds");
    assert!(try_take(&arena, Read).await.is_some(), "a reader was not granted beside a reader");
    assert!(try_take(&arena, Write).await.is_none(), "a writer was granted beside a reader");
    release(reader).await;
}
