//! Readers share, writers exclude, neither starves; a writer may stay on as a reader.
//! Over the usual length because it is one table's rows.

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

/// A contender with a client of its own, as a task. The store has it, as the last of `contenders`, when this returns.
async fn arrive(arena: &Arena, kind: Kind, contenders: usize) -> JoinHandle<Guard> {
    let client = arena.client().await;
    let (lock, options) = (client.of(kind, arena.name()), arena.options());
    let task = arena.go(async move { lock.lock(&options).await.expect("granted in the end") });
    arena.until_contenders(&client, contenders).await;
    task
}

/// The guard of a contender whose turn has come.
async fn granted(arena: &Arena, what: &str, contender: JoinHandle<Guard>) -> Guard {
    arena.soon(what, contender).await.expect("no panic")
}

/// A guard of a client of its own.
async fn take(arena: &Arena, kind: Kind) -> Guard {
    arena.take(&arena.client().await, kind).await
}

/// A try of a client of its own.
async fn try_take(arena: &Arena, kind: Kind) -> Option<Guard> {
    arena.try_take(&arena.client().await, kind).await
}

async fn release(guard: Guard) {
    guard.release().await.expect("held until now");
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
            let _guard = lock.lock(&options).await.expect("nobody writes");
            all_read.wait().await;
        }));
    }
    for reader in arena.soon("readers do not share", join_all(readers)).await {
        reader.expect("no panic");
    }
}

pub(super) async fn a_writer_excludes_readers_and_writers(arena: Arc<Arena>) {
    let writer = take(&arena, Write).await;
    assert!(try_take(&arena, Read).await.is_none(), "a reader came in beside a writer");
    assert!(try_take(&arena, Write).await.is_none(), "a writer came in beside a writer");
    release(writer).await;
}

pub(super) async fn a_reader_waits_for_a_writer(arena: Arc<Arena>) {
    let writer = take(&arena, Write).await;
    let mut reader = Box::pin(take(&arena, Read));
    arena.still_waits("a reader came in beside a writer", &mut reader).await;
    release(writer).await;
    let _reader = arena.soon("the writer is gone, the reader waits on", reader).await;
}

pub(super) async fn a_try_to_write_is_busy_beside_a_reader(arena: Arc<Arena>) {
    let reader = take(&arena, Read).await;
    assert!(try_take(&arena, Write).await.is_none(), "a writer came in beside a reader");
    release(reader).await;
    assert!(try_take(&arena, Write).await.is_some(), "the reader is gone");
}

pub(super) async fn a_dropped_reader_lets_a_writer_in(arena: Arc<Arena>) {
    let reader = take(&arena, Read).await;
    let mut writer = Box::pin(take(&arena, Write));
    arena.still_waits("a writer came in beside a reader", &mut writer).await;
    drop(reader);
    let _writer = arena.soon("what was dropped is still held", writer).await;
}

pub(super) async fn a_writer_waits_for_all_readers(arena: Arc<Arena>) {
    let (one, two, three) = (take(&arena, Read).await, take(&arena, Read).await, take(&arena, Read).await);
    let mut writer = Box::pin(take(&arena, Write));
    // The last to come is not the last to go.
    for reader in [three, one] {
        release(reader).await;
        arena.still_waits("a writer came in beside a reader", &mut writer).await;
    }
    release(two).await;
    let _writer = arena.soon("all readers are gone, the writer waits on", writer).await;
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
    let writer = granted(&arena, "the reader is gone, the writer waits on", writer).await;
    arena.still_waits("a reader came in beside a writer", &mut late).await;
    release(writer).await;
    let _late = granted(&arena, "the writer is gone, the reader waits on", late).await;
}

pub(super) async fn a_try_to_read_does_not_overtake_a_waiting_writer(arena: Arc<Arena>) {
    let first = take(&arena, Read).await;
    let writer = arrive(&arena, Write, 2).await;
    assert!(try_take(&arena, Read).await.is_none(), "a reader overtook a waiting writer");
    release(first).await;
    let _writer = granted(&arena, "the reader is gone, the writer waits on", writer).await;
}

pub(super) async fn a_waiting_writer_that_leaves_lets_the_readers_behind_it_in(arena: Arc<Arena>) {
    let _first = take(&arena, Read).await;
    let writer = arrive(&arena, Write, 2).await;
    let one = arrive(&arena, Read, 3).await;
    let other = arrive(&arena, Read, 4).await;
    writer.abort();
    let _one = granted(&arena, "a reader waits for a writer that is gone", one).await;
    let _other = granted(&arena, "a reader waits for a writer that is gone", other).await;
}

pub(super) async fn readers_behind_a_writer_enter_together(arena: Arc<Arena>) {
    let writer = take(&arena, Write).await;
    let mut readers = Vec::new();
    for contenders in 2..6 {
        readers.push(arrive(&arena, Read, contenders).await);
    }
    release(writer).await;
    // Nobody lets go before all hold.
    for reader in arena.soon("readers wait for each other", join_all(readers)).await {
        assert!(!reader.expect("no panic").is_lost());
    }
}

pub(super) async fn a_crashed_reader_is_forgotten_while_others_read(arena: Arc<Arena>) {
    let ((crashing, switch), short) = (arena.client_with_switch().await, arena.short_ttl());
    // Connected beforehand: nobody goes on with what the writer does during the long sleep.
    let writing = arena.client().await;
    let live = take(&arena, Read).await;
    let options = arena.options().ttl(short);
    let crashed = arena.lock(&crashing).lock(&options).await.expect("readers share");
    let mut writer = Box::pin(arena.take(&writing, Write));
    switch.kill();
    arena.within(short * 2, "a holder that cannot renew is not told", crashed.lost()).await;
    arena.still_waits("a writer came in beside a live reader", &mut writer).await;
    sleep(arena.forgotten_after(&crashing, short) + short).await;
    assert!(!live.is_lost(), "one reader's end was another's");
    release(live).await;
    let _writer = arena.soon("a dead reader lives on while others read", writer).await;
}

pub(super) async fn readers_hold_far_beyond_the_ttl(arena: Arc<Arena>) {
    let ttl = arena.kept_ttl();
    let (a, b, options) = (arena.client().await, arena.client().await, arena.options().ttl(ttl));
    let one = arena.lock(&a).lock(&options).await.expect("free");
    let other = arena.lock(&b).lock(&options).await.expect("readers share");
    sleep(ttl * 2).await;
    assert!(!one.is_lost() && !other.is_lost(), "lost although it was renewed");
    release(one).await;
    assert!(try_take(&arena, Write).await.is_none(), "a writer came in beside a reader");
    release(other).await;
}

pub(super) async fn readers_without_rest_do_not_starve_a_writer(arena: Arc<Arena>) {
    enters_among(&arena, Write, Read).await;
}

pub(super) async fn writers_without_rest_do_not_starve_a_reader(arena: Arc<Arena>) {
    enters_among(&arena, Read, Write).await;
}

/// Three contenders of one kind take the lock again as soon as they let go of it. Then one of another kind comes, and must
/// get its turn.
async fn enters_among(arena: &Arena, one: Kind, crowd: Kind) {
    let (over, held_once) = (Arc::new(AtomicBool::new(false)), Arc::new(Semaphore::new(0)));
    let mut restless = Vec::new();
    // Holds of different lengths, so that readers overlap for ever.
    for hold in [5, 7, 11].map(Duration::from_millis) {
        let (lock, options) = (arena.client().await.of(crowd, arena.name()), arena.options());
        let (over, held_once) = (Arc::clone(&over), Arc::clone(&held_once));
        restless.push(arena.go(async move {
            while !over.load(Relaxed) {
                let _guard = lock.lock(&options).await.expect("granted in the end");
                held_once.add_permits(1);
                sleep(hold).await;
            }
        }));
    }
    held_once.acquire_many(6).await.expect("never closed").forget();
    let guard = arena.within(Duration::from_secs(10), "it starves", take(arena, one)).await;
    over.store(true, Relaxed);
    release(guard).await;
    for contender in join_all(restless).await {
        contender.expect("no panic");
    }
}

pub(super) async fn the_tokens_of_writers_grow_past_those_of_readers(arena: Arc<Arena>) {
    let mut last = None;
    for kind in [Write, Read, Write, Write, Read, Write] {
        let guard = take(&arena, kind).await;
        let token = guard.token();
        assert!(token.is_some(), "the store promised tokens");
        if kind == Write {
            assert!(token > last, "a later writer has an older token: {token:?} after {last:?}");
        }
        last = last.max(token);
        release(guard).await;
    }
}

pub(super) async fn downgrading_a_reader_changes_nothing(arena: Arc<Arena>) {
    let reader = take(&arena, Read).await.downgrade().await.expect("it reads already");
    assert!(try_take(&arena, Read).await.is_some(), "readers share");
    assert!(try_take(&arena, Write).await.is_none(), "a writer came in beside a reader");
    release(reader).await;
}
