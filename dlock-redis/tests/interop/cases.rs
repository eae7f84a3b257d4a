//! The cases in which dlock and a peer share a lock of Redis.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{
    DistributedLock, Error, Guard, Kind, LockOptions, Locks, MultiLock, RedLock, Ticket, Token,
};
use dlock_testbed::peer::{
    Border, Contender, PeerKind,
    PeerKind::{Fair, Fenced, Mutex, Read, Write},
    Side as _, Taken,
};
use futures_util::future::{join, join_all};
use parking_lot::Mutex as Shared;
use tokio::{task::yield_now, time::Instant};

use crate::{
    Redis, TTL,
    common::{connect, parse_command, raw, soon, unique},
    until,
};

/// A wait limit that no waiter reaches.
const LONG: Duration = Duration::from_secs(60);

/// Redisson misses a message of a read/write lock that arrives between its refusal and its sleep,
/// unless the message is `0`.
pub(crate) async fn whoever_asks_while_the_other_lets_go_is_woken(border: &Border<Redis>, kind: PeerKind) {
    const ROUNDS: u32 = 150;
    let held = if kind == Read { Write } else { kind };
    let locks = border.locks().await;
    let other = border.contender(kind);
    for round in 0..ROUNDS {
        // The delays range from before the request reaches the server until after its reply has
        // arrived.
        let delay = Duration::from_micros(20) * round;
        let name = unique();
        let guard = lock(&locks, held, &name).await;
        let release = async {
            busy_wait(delay).await;
            guard.release().await.expect("the lock is held");
        };
        let (taken, ()) = soon("the peer was not woken", join(other.lock(kind, &name, LONG), release)).await;
        took(taken);
        let release = async {
            busy_wait(delay).await;
            other.unlock(kind, &name).await.expect("the lock is held");
        };
        let (guard, ()) = soon("dlock was not woken", join(lock(&locks, held, &name), release)).await;
        guard.release().await.expect("the lock is held");
    }
    locks.close().await;
}

/// A single held permit and several held permits are stored in different keys.
pub(crate) async fn the_peer_is_excluded_while_permits_are_held(border: &Border<Redis>, kind: PeerKind) {
    let (name, other) = (unique(), border.contender(kind));
    let locks = border.locks().await;
    let pool = locks.semaphore(&name, 2);
    let assert_excluded = async |beside: &str| {
        assert_eq!(
            other.try_lock(kind, &name).await.expect("a reply"),
            None,
            "the peer has the lock beside {beside}"
        );
        let short = Duration::from_millis(50);
        let taken = border.contender(kind).lock(kind, &name, short).await.expect("a reply");
        assert_eq!(taken, None, "the peer has the lock beside {beside}");
    };

    let first = pool.acquire().await.expect("no client holds a permit");
    assert_excluded("a permit").await;
    let second = pool.acquire().await.expect("a permit is free");
    assert_excluded("two permits").await;
    first.release().await.expect("the lock is held");
    assert_excluded("the second permit").await;
    let release = async {
        border.side.until_somebody_waits(&locks, &name).await;
        second.release().await.expect("the lock is held");
    };
    let (taken, ()) = soon("the peer was not woken", join(other.lock(kind, &name, LONG), release)).await;
    took(taken);
    for refused in [pool.acquire().await.map(Some), pool.try_acquire().await] {
        let error = refused.expect_err("the peer holds the lock");
        assert!(matches!(error, Error::WrongKind { .. }), "{error:?}");
    }
    other.unlock(kind, &name).await.expect("the lock is held");

    // The last permit was the only one.
    let last = pool.acquire().await.expect("the peer has released the lock");
    let release = async {
        border.side.until_somebody_waits(&locks, &name).await;
        last.release().await.expect("the lock is held");
    };
    let (taken, ()) = soon("the peer was not woken", join(other.lock(kind, &name, LONG), release)).await;
    took(taken);
    other.unlock(kind, &name).await.expect("the lock is held");
    locks.close().await;
}

pub(crate) async fn a_downgrade_admits_readers_of_the_peer(border: &Border<Redis>) {
    let (name, other) = (unique(), border.contender(Read));
    let locks = border.locks().await;
    let guard = lock(&locks, Write, &name).await;
    let downgrade = async {
        border.side.until_somebody_waits(&locks, &name).await;
        guard.downgrade().await.expect("the lock is held")
    };
    let (taken, guard) = soon("the peer was not woken", join(other.lock(Read, &name, LONG), downgrade)).await;
    took(taken);
    assert!(!guard.is_lost(), "the downgraded hold is lost");
    guard.release().await.expect("the lock is held");
    other.unlock(Read, &name).await.expect("the lock is held");
    locks.close().await;
}

pub(crate) async fn both_queue_in_order_of_arrival(border: &Border<Redis>) {
    let name = unique();
    let locks = border.locks().await;
    let (first, third, fifth) = (border.contender(Fair), border.contender(Fair), border.contender(Fair));
    let order = Shared::new(Vec::new());
    let record = |number: usize| order.lock().push(number);
    let theirs = async |number: usize, contender: &Contender| {
        border.side.queued(&name, number - 2).await;
        took(contender.lock(Fair, &name, LONG).await);
        record(number);
        contender.unlock(Fair, &name).await.expect("the lock is held");
    };
    let ours = async |number: usize| {
        border.side.queued(&name, number - 2).await;
        let guard = lock(&locks, Fair, &name).await;
        record(number);
        guard.release().await.expect("the lock is held");
    };
    took(first.lock(Fair, &name, LONG).await);
    let release = async {
        border.side.queued(&name, 4).await;
        first.unlock(Fair, &name).await.expect("the lock is held");
    };
    let all = join(join(ours(2), theirs(3, &third)), join(ours(4), theirs(5, &fifth)));
    soon("a waiter was not woken", join(all, release)).await;
    assert_eq!(
        *order.lock(),
        [2, 3, 4, 5],
        "the waiters of both programs were not granted in order of arrival"
    );
    locks.close().await;
}

pub(crate) async fn each_reports_what_the_other_holds(border: &Border<Redis>, kind: PeerKind) {
    let (name, other) = (unique(), border.contender(kind));
    let locks = border.locks().await;

    took(other.try_lock(kind, &name).await);
    let state = locks.inspect(&name).await.expect("a reply").expect("the lock is held");
    let [holder] = &state.holders[..] else { panic!("not one holder: {state:?}") };
    // On the server, a held fair lock has the form of a mutex.
    let exclusive = |kind| matches!(kind, Kind::Mutex | Kind::Fair);
    assert!(holder.kind == kind.kind() || exclusive(holder.kind) && exclusive(kind.kind()), "{holder:?}");
    let left = holder.ttl_left.expect("the hold has a ttl");
    assert!(left > TTL / 2 && left <= TTL, "{left:?} are left of {TTL:?}");
    let listed = locks.list(&name).await.expect("a reply");
    assert_eq!(listed.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), [name.as_str()]);
    other.unlock(kind, &name).await.expect("the lock is held");
    assert_eq!(locks.inspect(&name).await.expect("a reply"), None, "a released lock is reported as held");

    let guard = lock(&locks, kind, &name).await;
    let left = other.state(kind, &name).await.expect("a reply").expect("dlock holds the lock");
    assert!(left > TTL / 2 && left <= TTL, "{left:?} are left of {TTL:?}");
    guard.release().await.expect("the lock is held");
    assert_eq!(other.state(kind, &name).await.expect("a reply"), None, "a released lock is reported as held");
    locks.close().await;
}

/// Detaches a hold for `lasting`, with a client that then ends. Returns the ticket.
async fn detached(border: &Border<Redis>, kind: PeerKind, name: &str, lasting: Duration) -> Ticket {
    let locks = border.locks().await;
    let ticket = lock(&locks, kind, name).await.detach(lasting).await.expect("the lock is held");
    locks.close().await;
    ticket
}

/// Returns a kind that a hold of `kind` excludes. A reader of the peer would share a read hold.
fn excluded(kind: PeerKind) -> PeerKind {
    if kind == Read { Write } else { kind }
}

pub(crate) async fn a_detached_hold_keeps_the_peer_out_until_it_is_released(
    border: &Border<Redis>,
    kind: PeerKind,
) {
    let (name, wanted) = (unique(), excluded(kind));
    let other = border.contender(wanted);
    let ticket = detached(border, kind, &name, LONG * 10).await;
    assert_eq!(other.try_lock(wanted, &name).await.expect("a reply"), None, "the peer took the lock");
    let left = other.state(kind, &name).await.expect("a reply").expect("dlock holds the lock");
    assert!(left > LONG * 9, "the peer reports {left:?}");
    let locks = border.locks().await;
    let release = async {
        border.side.until_somebody_waits(&locks, &name).await;
        locks.release(&ticket).await.expect("the lock is held");
    };
    let (taken, ()) =
        soon("the peer was not woken", join(other.lock(wanted, &name, LONG * 10), release)).await;
    took(taken);
    other.unlock(wanted, &name).await.expect("the lock is held");
    locks.close().await;
}

pub(crate) async fn a_detached_hold_ends_for_the_peer_after_its_time(border: &Border<Redis>, kind: PeerKind) {
    let (name, wanted) = (unique(), excluded(kind));
    let other = border.contender(wanted);
    detached(border, kind, &name, Duration::from_secs(2)).await;
    assert_eq!(other.try_lock(wanted, &name).await.expect("a reply"), None, "the peer took the lock");
    took(soon("the peer waits longer than the detached hold", other.lock(wanted, &name, LONG)).await);
    other.unlock(wanted, &name).await.expect("the lock is held");
}

/// A limit that the README documents. Redisson does not read the keys of dlock's waiters.
pub(crate) async fn readers_of_the_peer_overtake_a_waiting_writer(border: &Border<Redis>) {
    let (name, first, second) = (unique(), border.contender(Read), border.contender(Read));
    let locks = border.locks().await;
    took(first.try_lock(Read, &name).await);
    let overtake = async {
        border.side.until_somebody_waits(&locks, &name).await;
        let reader = locks.rwlock(&name).read().try_lock().await.expect("a reply");
        assert!(reader.is_none(), "a reader of dlock overtakes the writer");
        took(second.try_lock(Read, &name).await);
        for reader in [&first, &second] {
            reader.unlock(Read, &name).await.expect("the lock is held");
        }
    };
    let (guard, ()) = soon("the writer was not woken", join(lock(&locks, Write, &name), overtake)).await;
    guard.release().await.expect("the lock is held");
    locks.close().await;
}

pub(crate) async fn readers_of_the_peer_do_not_shorten_a_detached_reader(border: &Border<Redis>) {
    let (name, reader, writer) = (unique(), border.contender(Read), border.contender(Write));
    let ticket = detached(border, Read, &name, LONG * 10).await;
    for _ in 0..2 {
        took(reader.try_lock(Read, &name).await);
        reader.unlock(Read, &name).await.expect("the lock is held");
        let locks = border.locks().await;
        lock(&locks, Read, &name).await.release().await.expect("the lock is held");
        locks.close().await;
        assert_eq!(writer.try_lock(Write, &name).await.expect("a reply"), None, "a writer beside a reader");
    }
    let mut raw = raw(border.url()).await;
    let left: u64 =
        parse_command(&format!("PTTL {name}")).query_async(&mut raw).await.expect("the lock is held");
    assert!(left > 9 * 60_000, "other readers have shortened ten minutes to {left} ms");
    let locks = border.locks().await;
    locks.release(&ticket).await.expect("the lock is held");
    locks.close().await;
}

/// A limit that the README documents. Redisson renews the lock's hash only for its own watchdog
/// time.
pub(crate) async fn a_reader_of_the_peer_that_dies_may_end_a_detached_reader(border: &Border<Redis>) {
    let name = unique();
    let ticket = detached(border, Read, &name, LONG * 10).await;
    let peer = border.start(Duration::from_secs(3));
    took(peer.contender().try_lock(Read, &name).await);
    let mut raw = raw(border.url()).await;
    let is_shortened = async || {
        let left: u64 =
            parse_command(&format!("PTTL {name}")).query_async(&mut raw).await.expect("the lock is held");
        left <= 3000
    };
    tokio::time::timeout(LONG, until(is_shortened)).await.expect("Redisson renews its reader");
    drop(peer);
    let locks = border.locks().await;
    let guard = soon("the detached hold lasts, and the README is wrong", lock(&locks, Write, &name)).await;
    guard.release().await.expect("the lock is held");
    let resumed = locks.resume(&ticket).await;
    assert!(matches!(resumed, Err(Error::Lost { .. })), "{resumed:?}");
    locks.close().await;
}

pub(crate) async fn tokens_grow_across_the_border(border: &Border<Redis>) {
    let (name, other) = (unique(), border.contender(Fenced));
    let locks = border.locks().await;
    let mut tokens = Vec::new();
    for kind in [Mutex, Fair, Mutex] {
        tokens.push(took(other.try_lock(Fenced, &name).await).token.expect("the lock is fenced"));
        other.unlock(Fenced, &name).await.expect("the lock is held");
        let guard = lock(&locks, kind, &name).await;
        tokens.push(guard.token().expect("Redis has tokens"));
        guard.release().await.expect("the lock is held");
    }
    assert!(tokens.is_sorted_by(|before, after| before < after), "{tokens:?}");
    locks.close().await;
}

/// A limit that the README documents. Redisson's counter has no relation to the clock.
pub(crate) async fn a_counter_whose_key_was_deleted_begins_at_1(border: &Border<Redis>) {
    let (name, other) = (unique(), border.contender(Fenced));
    let (locks, mut raw) = (border.locks().await, raw(border.url()).await);
    let guard = lock(&locks, Mutex, &name).await;
    let first = guard.token().expect("Redis has tokens").get();
    guard.release().await.expect("the lock is held");
    let delete = parse_command(&format!("DEL redisson_lock_token:{{{name}}}"));
    delete.exec_async(&mut raw).await.expect("a reply");
    let taken = took(other.try_lock(Fenced, &name).await);
    assert_eq!(taken.token.map(Token::get), Some(1));
    other.unlock(Fenced, &name).await.expect("the lock is held");
    let guard = lock(&locks, Mutex, &name).await;
    let next = guard.token().expect("Redis has tokens").get();
    assert!(next > first, "dlock's token {next} after {first} is not the clock");
    guard.release().await.expect("the lock is held");
    locks.close().await;
}

/// By default dlock lets the key of a token expire, except if Redisson has created the key, or with
/// `token_ttl=never`.
pub(crate) async fn a_counter_that_both_use_does_not_end(border: &Border<Redis>, params: &str) {
    let (name, other) = (unique(), border.contender(Fenced));
    let store = connect(&format!("{}?{params}", border.url())).await.expect("Redis is running");
    let (locks, mut raw) = (Locks::new(store), raw(border.url()).await);
    let mut last = None;
    if params.is_empty() {
        last = took(other.try_lock(Fenced, &name).await).token;
        other.unlock(Fenced, &name).await.expect("the lock is held");
    }
    for _ in 0..3 {
        let guard = lock(&locks, Mutex, &name).await;
        assert!(guard.token() > last, "dlock got {:?} after {last:?}", guard.token());
        last = guard.token();
        guard.release().await.expect("the lock is held");
        let taken = took(other.try_lock(Fenced, &name).await);
        assert!(taken.token > last, "Redisson got {:?} after {last:?}", taken.token);
        last = taken.token;
        other.unlock(Fenced, &name).await.expect("the lock is held");
        let left = parse_command(&format!("PTTL redisson_lock_token:{{{name}}}"));
        let left: i64 = left.query_async(&mut raw).await.expect("a reply");
        assert_eq!(left, -1, "the counter expires");
    }
    locks.close().await;
}

/// Redisson 3.44 to 3.52 renews the hash of each lock that a thread reads, but the timeout of only
/// one of them.
pub(crate) async fn several_read_locks_of_one_thread_keep_writers_out(border: &Border<Redis>) {
    let ttl = Duration::from_secs(3);
    let names = [unique(), unique(), unique()];
    let locks = border.locks().await;
    let peer = border.start(ttl);
    let reader = peer.contender();
    for name in &names {
        took(reader.lock(Read, name, LONG).await);
    }
    tokio::time::sleep(ttl * 2).await;
    for name in &names {
        lock(&locks, Read, name).await.release().await.expect("the lock is held");
    }
    for name in &names {
        let write = locks.rwlock(name).write().try_lock().await.expect("a reply");
        assert!(write.is_none(), "dlock writes while the peer still reads");
        reader.unlock(Read, name).await.expect("the peer still holds the lock");
        soon("the writer is not granted", lock(&locks, Write, name))
            .await
            .release()
            .await
            .expect("the lock is held");
    }
    locks.close().await;
}

/// Contenders of both sides repeatedly take three names as one lock.
pub(crate) async fn several_locks_as_one_exclude_each_other(border: &Border<Redis>, kind: PeerKind) {
    const ROUNDS: usize = 20;
    let (name, stores) = (unique(), ["a:", "b:", "c:"]);
    let names = stores.map(|store| format!("{store}{name}")).join(",");
    let holders = AtomicUsize::new(0);
    let hold = async || {
        assert_eq!(holders.fetch_add(1, Relaxed), 0, "two contenders hold the lock");
        tokio::time::sleep(Duration::from_millis(2)).await;
        holders.fetch_sub(1, Relaxed);
    };
    let theirs = async || {
        let contender = border.contender(kind);
        for _ in 0..ROUNDS {
            took(contender.lock(kind, &names, LONG).await);
            hold().await;
            contender.unlock(kind, &names).await.expect("the lock is held");
        }
    };
    let ours = async || {
        let options = LockOptions::new().ttl(TTL);
        let lock: Arc<dyn DistributedLock> = if kind == PeerKind::Multi {
            let locks = border.locks().await;
            let all = names.split(',').map(|name| locks.of(Kind::Mutex, name));
            Arc::new(MultiLock::new(all).expect("the lock has members"))
        } else {
            let all = stores.map(|store| format!("{}?prefix={store}", border.url()));
            let all = join_all(all.iter().map(|url| connect(url))).await.into_iter();
            let all = RedLock::new(all.map(|store| store.expect("Redis is running"))).expect("three stores");
            Locks::new(all.into_store()).of(Kind::Mutex, &name)
        };
        for _ in 0..ROUNDS {
            let guard = lock.lock(&options).await.expect("the lock is granted");
            hold().await;
            guard.release().await.expect("the lock is held");
        }
    };
    let all = join(join(theirs(), theirs()), join(ours(), ours()));
    tokio::time::timeout(LONG * 2, all).await.expect("a contender is not granted");
}

/// Waits for exactly this duration. Tokio's timer sleeps for whole milliseconds.
async fn busy_wait(duration: Duration) {
    let started_at = Instant::now();
    while started_at.elapsed() < duration {
        yield_now().await;
    }
}

async fn lock(locks: &Locks, kind: PeerKind, name: &str) -> Guard {
    locks.of(kind.kind(), name).lock(&LockOptions::new().ttl(TTL)).await.expect("the lock is granted")
}

/// Returns the hold of a peer.
///
/// # Panics
/// If the peer did not get the lock.
fn took(taken: std::io::Result<Option<Taken>>) -> Taken {
    taken.expect("a reply").expect("the lock was busy")
}
