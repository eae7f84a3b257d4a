//! What must hold where dlock and a peer share a lock of Redis.

use std::{
    sync::{
        Arc, Mutex as Shared,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{DistributedLock, Error, Guard, Kind, LockOptions, Locks, MultiLock, RedLock, Ticket};
use dlock_testbed::peer::{
    Border, Contender, PeerKind,
    PeerKind::{Fair, Fenced, Mutex, Read, Write},
    Side as _, Taken,
};
use futures_util::future::{join, join_all};
use tokio::{task::yield_now, time::Instant};

use crate::{
    Redis, TTL,
    common::{connect, parse_command, raw, soon, unique},
    until,
};

/// Longer than anybody waits here.
const LONG: Duration = Duration::from_secs(60);

/// Redisson misses a message of a read/write lock that comes between its error_reply and its sleep, unless it is `0`.
pub(crate) async fn whoever_asks_while_the_other_lets_go_is_woken(border: &Border<Redis>, kind: PeerKind) {
    const ROUNDS: u32 = 150;
    let held = if kind == Read { Write } else { kind };
    let locks = border.locks().await;
    let other = border.contender(kind);
    for round in 0..ROUNDS {
        // The moments go from before the request reaches the server until after its answer is back.
        let moment = Duration::from_micros(20) * round;
        let name = unique();
        let guard = lock(&locks, held, &name).await;
        let let_go = async {
            passes(moment).await;
            guard.release().await.expect("it holds it");
        };
        let (taken, ()) = soon("the peer was not woken", join(other.lock(kind, &name, LONG), let_go)).await;
        took(taken);
        let let_go = async {
            passes(moment).await;
            other.unlock(kind, &name).await.expect("it holds it");
        };
        let (guard, ()) = soon("dlock was not woken", join(lock(&locks, held, &name), let_go)).await;
        guard.release().await.expect("it holds it");
    }
    locks.close().await;
}

/// A permit that is held alone and several permits are kept in different keys.
pub(crate) async fn the_peer_is_excluded_while_permits_are_held(border: &Border<Redis>, kind: PeerKind) {
    let (name, other) = (unique(), border.contender(kind));
    let locks = border.locks().await;
    let pool = locks.semaphore(&name, 2);
    let stays_out = async |what: &str| {
        assert_eq!(other.try_lock(kind, &name).await.expect("an answer"), None, "beside {what}");
        let short = Duration::from_millis(50);
        let taken = border.contender(kind).lock(kind, &name, short).await.expect("an answer");
        assert_eq!(taken, None, "beside {what}");
    };

    let first = pool.acquire().await.expect("nobody holds one");
    stays_out("a permit").await;
    let second = pool.acquire().await.expect("one is free");
    stays_out("two permits").await;
    first.release().await.expect("it holds it");
    stays_out("the second permit").await;
    let let_go = async {
        border.side.until_somebody_waits(&locks, &name).await;
        second.release().await.expect("it holds it");
    };
    let (taken, ()) = soon("the peer was not woken", join(other.lock(kind, &name, LONG), let_go)).await;
    took(taken);
    for refused in [pool.acquire().await.map(Some), pool.try_acquire().await] {
        let error = refused.expect_err("the peer holds it");
        assert!(matches!(error, Error::WrongKind { .. }), "{error:?}");
    }
    other.unlock(kind, &name).await.expect("it holds it");

    // The last permit that is given back was alone.
    let last = pool.acquire().await.expect("the peer has let go");
    let let_go = async {
        border.side.until_somebody_waits(&locks, &name).await;
        last.release().await.expect("it holds it");
    };
    let (taken, ()) = soon("the peer was not woken", join(other.lock(kind, &name, LONG), let_go)).await;
    took(taken);
    other.unlock(kind, &name).await.expect("it holds it");
    locks.close().await;
}

pub(crate) async fn a_downgrade_admits_readers_of_the_peer(border: &Border<Redis>) {
    let (name, other) = (unique(), border.contender(Read));
    let locks = border.locks().await;
    let guard = lock(&locks, Write, &name).await;
    let downgrade = async {
        border.side.until_somebody_waits(&locks, &name).await;
        guard.downgrade().await.expect("it holds it")
    };
    let (taken, guard) = soon("the peer was not woken", join(other.lock(Read, &name, LONG), downgrade)).await;
    took(taken);
    assert!(!guard.is_lost(), "the downgraded hold is held");
    guard.release().await.expect("it holds it");
    other.unlock(Read, &name).await.expect("it holds it");
    locks.close().await;
}

pub(crate) async fn both_queue_in_order_of_arrival(border: &Border<Redis>) {
    let name = unique();
    let locks = border.locks().await;
    let (first, third, fifth) = (border.contender(Fair), border.contender(Fair), border.contender(Fair));
    let order = Shared::new(Vec::new());
    let came = |who: usize| order.lock().expect("nobody panics").push(who);
    let theirs = async |who: usize, contender: &Contender| {
        border.side.queued(&name, who - 2).await;
        took(contender.lock(Fair, &name, LONG).await);
        came(who);
        contender.unlock(Fair, &name).await.expect("it holds it");
    };
    let ours = async |who: usize| {
        border.side.queued(&name, who - 2).await;
        let guard = lock(&locks, Fair, &name).await;
        came(who);
        guard.release().await.expect("it holds it");
    };
    took(first.lock(Fair, &name, LONG).await);
    let let_go = async {
        border.side.queued(&name, 4).await;
        first.unlock(Fair, &name).await.expect("it holds it");
    };
    let all = join(join(ours(2), theirs(3, &third)), join(ours(4), theirs(5, &fifth)));
    soon("somebody was not woken", join(all, let_go)).await;
    assert_eq!(
        *order.lock().expect("nobody panics"),
        [2, 3, 4, 5],
        "the waiters of both programs were not granted in order of arrival"
    );
    locks.close().await;
}

pub(crate) async fn each_reports_what_the_other_holds(border: &Border<Redis>, kind: PeerKind) {
    let (name, other) = (unique(), border.contender(kind));
    let locks = border.locks().await;

    took(other.try_lock(kind, &name).await);
    let state = locks.inspect(&name).await.expect("an answer").expect("it is held");
    let [holder] = &state.holders[..] else { panic!("there is one holder: {state:?}") };
    // On the server, a fair lock that is held looks like a mutex.
    let exclusive = |kind| matches!(kind, Kind::Mutex | Kind::Fair);
    assert!(holder.kind == kind.kind() || exclusive(holder.kind) && exclusive(kind.kind()), "{holder:?}");
    let left = holder.ttl_left.expect("it has a ttl");
    assert!(left > TTL / 2 && left <= TTL, "{left:?} are left of {TTL:?}");
    let listed = locks.list(&name).await.expect("an answer");
    assert_eq!(listed.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), [name.as_str()]);
    other.unlock(kind, &name).await.expect("it holds it");
    assert_eq!(locks.inspect(&name).await.expect("an answer"), None, "nobody holds it");

    let guard = lock(&locks, kind, &name).await;
    let left = other.state(kind, &name).await.expect("an answer").expect("dlock holds it");
    assert!(left > TTL / 2 && left <= TTL, "{left:?} are left of {TTL:?}");
    guard.release().await.expect("it holds it");
    assert_eq!(other.state(kind, &name).await.expect("an answer"), None, "nobody holds it");
    locks.close().await;
}

/// A hold that was detached for so long, by a client that has ended.
async fn detached(border: &Border<Redis>, kind: PeerKind, name: &str, lasting: Duration) -> Ticket {
    let locks = border.locks().await;
    let ticket = lock(&locks, kind, name).await.detach(lasting).await.expect("it holds it");
    locks.close().await;
    ticket
}

/// A reader of the peer would share a read hold.
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
    assert_eq!(other.try_lock(wanted, &name).await.expect("an answer"), None, "the peer took it");
    let left = other.state(kind, &name).await.expect("an answer").expect("dlock holds it");
    assert!(left > LONG * 9, "the peer sees {left:?}");
    let locks = border.locks().await;
    let release = async {
        border.side.until_somebody_waits(&locks, &name).await;
        locks.release(&ticket).await.expect("it is held");
    };
    let (taken, ()) =
        soon("the peer was not woken", join(other.lock(wanted, &name, LONG * 10), release)).await;
    took(taken);
    other.unlock(wanted, &name).await.expect("it holds it");
    locks.close().await;
}

pub(crate) async fn a_detached_hold_ends_for_the_peer_after_its_time(border: &Border<Redis>, kind: PeerKind) {
    let (name, wanted) = (unique(), excluded(kind));
    let other = border.contender(wanted);
    detached(border, kind, &name, Duration::from_secs(2)).await;
    assert_eq!(other.try_lock(wanted, &name).await.expect("an answer"), None, "the peer took it");
    took(soon("the peer waits for longer", other.lock(wanted, &name, LONG)).await);
    other.unlock(wanted, &name).await.expect("it holds it");
}

pub(crate) async fn readers_of_the_peer_do_not_shorten_a_detached_reader(border: &Border<Redis>) {
    let (name, reader, writer) = (unique(), border.contender(Read), border.contender(Write));
    let ticket = detached(border, Read, &name, LONG * 10).await;
    for _ in 0..2 {
        took(reader.try_lock(Read, &name).await);
        reader.unlock(Read, &name).await.expect("it holds it");
        let locks = border.locks().await;
        lock(&locks, Read, &name).await.release().await.expect("it holds it");
        locks.close().await;
        assert_eq!(writer.try_lock(Write, &name).await.expect("an answer"), None, "a writer beside a reader");
    }
    let mut raw = raw(border.url()).await;
    let left: u64 = parse_command(&format!("PTTL {name}")).query_async(&mut raw).await.expect("it is held");
    assert!(left > 9 * 60_000, "the readers that came and went have left {left} ms of ten minutes");
    let locks = border.locks().await;
    locks.release(&ticket).await.expect("it is held");
    locks.close().await;
}

/// The limit that the README tells of. Redisson renews the lock's hash for its own watchdog time only.
pub(crate) async fn a_reader_of_the_peer_that_dies_may_end_a_detached_reader(border: &Border<Redis>) {
    let name = unique();
    let ticket = detached(border, Read, &name, LONG * 10).await;
    let peer = border.start(Duration::from_secs(3));
    took(peer.contender().try_lock(Read, &name).await);
    let mut raw = raw(border.url()).await;
    let cut = async || {
        let left: u64 =
            parse_command(&format!("PTTL {name}")).query_async(&mut raw).await.expect("it is held");
        left <= 3000
    };
    tokio::time::timeout(LONG, until(cut)).await.expect("Redisson renews its reader");
    drop(peer);
    let locks = border.locks().await;
    let guard = soon("it lasts, and the README is wrong", lock(&locks, Write, &name)).await;
    guard.release().await.expect("it holds it");
    let told = locks.resume(&ticket).await;
    assert!(matches!(told, Err(Error::Lost { .. })), "{told:?}");
    locks.close().await;
}

pub(crate) async fn tokens_grow_across_the_border(border: &Border<Redis>) {
    let (name, other) = (unique(), border.contender(Fenced));
    let locks = border.locks().await;
    let mut tokens = Vec::new();
    for kind in [Mutex, Fair, Mutex] {
        tokens.push(took(other.try_lock(Fenced, &name).await).token.expect("it is fenced"));
        other.unlock(Fenced, &name).await.expect("it holds it");
        let guard = lock(&locks, kind, &name).await;
        tokens.push(guard.token().expect("Redis has tokens"));
        guard.release().await.expect("it holds it");
    }
    assert!(tokens.is_sorted_by(|before, after| before < after), "{tokens:?}");
    locks.close().await;
}

/// By default dlock gives the key of a token an end, but not where Redisson made it, nor with `token_ttl=never`.
pub(crate) async fn a_counter_that_both_use_does_not_end(border: &Border<Redis>, params: &str) {
    let (name, other) = (unique(), border.contender(Fenced));
    let store = connect(&format!("{}?{params}", border.url())).await.expect("Redis is there");
    let (locks, mut raw) = (Locks::new(store), raw(border.url()).await);
    let mut last = None;
    if params.is_empty() {
        last = took(other.try_lock(Fenced, &name).await).token;
        other.unlock(Fenced, &name).await.expect("it holds it");
    }
    for _ in 0..3 {
        let guard = lock(&locks, Mutex, &name).await;
        assert!(guard.token() > last, "dlock got {:?} after {last:?}", guard.token());
        last = guard.token();
        guard.release().await.expect("it holds it");
        let taken = took(other.try_lock(Fenced, &name).await);
        assert!(taken.token > last, "Redisson got {:?} after {last:?}", taken.token);
        last = taken.token;
        other.unlock(Fenced, &name).await.expect("it holds it");
        let left = parse_command(&format!("PTTL redisson_lock_token:{{{name}}}"));
        let left: i64 = left.query_async(&mut raw).await.expect("an answer");
        assert_eq!(left, -1, "the counter ends");
    }
    locks.close().await;
}

/// From 3.44 to 3.52 Redisson renews the hash of each lock that a thread reads, but the timeout of one only.
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
        lock(&locks, Read, name).await.release().await.expect("it holds it");
    }
    for name in &names {
        let writes = locks.rwlock(name).write().try_lock().await.expect("an answer");
        assert!(writes.is_none(), "dlock writes where the peer still reads");
        reader.unlock(Read, name).await.expect("it still holds it");
        soon("the writer is not let in", lock(&locks, Write, name))
            .await
            .release()
            .await
            .expect("it holds it");
    }
    locks.close().await;
}

/// Contenders of both sides take three names as one lock, again and again.
pub(crate) async fn several_locks_as_one_exclude_each_other(border: &Border<Redis>, kind: PeerKind) {
    const TURNS: usize = 20;
    let (name, stores) = (unique(), ["a:", "b:", "c:"]);
    let names = stores.map(|store| format!("{store}{name}")).join(",");
    let holders = AtomicUsize::new(0);
    let hold = async || {
        assert_eq!(holders.fetch_add(1, Relaxed), 0, "two hold it");
        tokio::time::sleep(Duration::from_millis(2)).await;
        holders.fetch_sub(1, Relaxed);
    };
    let theirs = async || {
        let contender = border.contender(kind);
        for _ in 0..TURNS {
            took(contender.lock(kind, &names, LONG).await);
            hold().await;
            contender.unlock(kind, &names).await.expect("it holds it");
        }
    };
    let ours = async || {
        let options = LockOptions::new().ttl(TTL);
        let lock: Arc<dyn DistributedLock> = if kind == PeerKind::Multi {
            let locks = border.locks().await;
            let all = names.split(',').map(|name| locks.of(Kind::Mutex, name));
            Arc::new(MultiLock::new(all).expect("it has members"))
        } else {
            let all = stores.map(|store| format!("{}?prefix={store}", border.url()));
            let all = join_all(all.iter().map(|url| connect(url))).await.into_iter();
            let all = RedLock::new(all.map(|store| store.expect("Redis is there"))).expect("three stores");
            Locks::new(all.into_store()).of(Kind::Mutex, &name)
        };
        for _ in 0..TURNS {
            let guard = lock.lock(&options).await.expect("it is granted");
            hold().await;
            guard.release().await.expect("it holds it");
        }
    };
    let all = join(join(theirs(), theirs()), join(ours(), ours()));
    tokio::time::timeout(LONG * 2, all).await.expect("nobody is stuck");
}

/// Waits for just this long. Tokio's timer would sleep for whole milliseconds.
async fn passes(moment: Duration) {
    let began = Instant::now();
    while began.elapsed() < moment {
        yield_now().await;
    }
}

async fn lock(locks: &Locks, kind: PeerKind, name: &str) -> Guard {
    locks.of(kind.kind(), name).lock(&LockOptions::new().ttl(TTL)).await.expect("it is granted")
}

fn took(taken: std::io::Result<Option<Taken>>) -> Taken {
    taken.expect("an answer").expect("nobody is in the way")
}
