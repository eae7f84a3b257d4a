//! Cases for dlock and a peer that share a lock, on any store.
//! [`border_trials!`](crate::border_trials) makes trials of them.

use std::{io, time::Duration};

use dlock_core::{ClaimId, Guard, LockOptions, Locks};
use futures_util::future::join;

use super::{
    Border, Fleet, PeerKind,
    PeerKind::{Mutex, Read, Write},
    Side, Taken,
};

/// Wait limit that no waiter reaches unless it is never woken.
pub(super) const LONG_WAIT: Duration = Duration::from_secs(60);

/// Maximum time of a wake-up on a busy machine. Less than any ttl.
const WAKE_TIMEOUT: Duration = Duration::from_secs(8);

pub(super) async fn soon<T>(failure: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAKE_TIMEOUT, wait).await.unwrap_or_else(|_| panic!("{failure}"))
}

/// Returns a name that no other test uses.
pub(super) fn unique() -> String {
    format!("t-{}", ClaimId::random())
}

async fn lock(locks: &Locks, kind: PeerKind, name: &str) -> Guard {
    locks.of(kind.kind(), name).lock(&LockOptions::new()).await.expect("it is granted")
}

pub(super) fn took(taken: io::Result<Option<Taken>>) -> Taken {
    taken.expect("a reply").expect("the lock is free")
}

/// Checks that neither side takes a lock that the other holds, and that each side can take it after
/// the other's release.
pub async fn they_exclude_each_other<S: Side>(border: &Border<S>, kind: PeerKind) {
    let (name, other, locks) = (unique(), border.contender(kind), border.locks().await);
    let ours = locks.of(kind.kind(), &name);
    let attempt = async || ours.try_lock(&LockOptions::new()).await.expect("a reply");

    took(other.try_lock(kind, &name).await);
    assert!(attempt().await.is_none(), "dlock took what the peer holds");
    other.unlock(kind, &name).await.expect("the contender holds it");

    let guard = attempt().await.expect("the peer has released it");
    assert_eq!(other.try_lock(kind, &name).await.expect("a reply"), None, "the peer took what dlock holds");
    let short = Duration::from_millis(50);
    let taken = border.contender(kind).lock(kind, &name, short).await.expect("a reply");
    assert_eq!(taken, None, "the peer waited, and took what dlock holds");
    guard.release().await.expect("the contender holds it");
    took(other.try_lock(kind, &name).await);
    other.unlock(kind, &name).await.expect("the contender holds it");
    locks.close().await;
}

/// Checks that readers of both sides share a lock, and that no writer is granted beside a reader.
pub async fn readers_of_both_share_and_keep_writers_of_both_out<S: Side>(border: &Border<S>) {
    let (name, other, writer) = (unique(), border.contender(Read), border.contender(Write));
    let locks = border.locks().await;
    let (read, write) = (locks.rwlock(&name).read(), locks.rwlock(&name).write());
    let no_writer = async |beside: &str| {
        assert!(write.try_lock().await.expect("a reply").is_none(), "dlock wrote beside {beside}");
        let taken = writer.try_lock(Write, &name).await.expect("a reply");
        assert_eq!(taken, None, "the peer wrote beside {beside}");
    };

    took(other.try_lock(Read, &name).await);
    let guard = read.try_lock().await.expect("a reply").expect("readers share");
    no_writer("two readers").await;
    other.unlock(Read, &name).await.expect("the contender holds it");
    no_writer("a reader of dlock").await;
    took(other.try_lock(Read, &name).await);
    guard.release().await.expect("the contender holds it");
    no_writer("a reader of the peer").await;
    other.unlock(Read, &name).await.expect("the contender holds it");

    let guard = write.try_lock().await.expect("a reply").expect("no reader holds it");
    assert_eq!(other.try_lock(Read, &name).await.expect("a reply"), None, "the peer read beside a writer");
    guard.release().await.expect("the contender holds it");
    took(writer.try_lock(Write, &name).await);
    assert!(read.try_lock().await.expect("a reply").is_none(), "dlock read beside a writer");
    writer.unlock(Write, &name).await.expect("the contender holds it");
    locks.close().await;
}

/// Checks that a release on either side wakes a waiter on the other.
pub async fn each_wakes_the_other<S: Side>(border: &Border<S>, kind: PeerKind) {
    // A reader waits for a writer, not for another reader.
    let held = if kind == Read { Write } else { kind };
    let (name, other, locks) = (unique(), border.contender(kind), border.locks().await);
    took(other.lock(held, &name, LONG_WAIT).await);
    let release = async {
        border.side.until_somebody_waits(&locks, &name).await;
        other.unlock(held, &name).await.expect("the contender holds it");
    };
    let (guard, ()) = soon("dlock was not woken", join(lock(&locks, kind, &name), release)).await;
    guard.release().await.expect("the contender holds it");

    // Another name, because nothing has waited for it yet.
    let name = unique();
    let guard = lock(&locks, held, &name).await;
    let release = async {
        border.side.until_somebody_waits(&locks, &name).await;
        guard.release().await.expect("the contender holds it");
    };
    let (taken, ()) = soon("the peer was not woken", join(other.lock(kind, &name, LONG_WAIT), release)).await;
    took(taken);
    other.unlock(kind, &name).await.expect("the contender holds it");
    locks.close().await;
}

/// Checks that a lock that dlock breaks is granted to the next waiter of the peer. A late release
/// by the previous holder must not free it.
pub async fn a_lock_that_dlock_breaks_is_its_waiters<S: Side>(border: &Border<S>, kind: PeerKind) {
    let (name, holder, waiter) = (unique(), border.contender(kind), border.contender(kind));
    let locks = border.locks().await;
    took(holder.try_lock(kind, &name).await);
    let breaks = async {
        border.side.until_somebody_waits(&locks, &name).await;
        assert!(locks.force_release(&name).await.expect("a reply"), "the peer did not hold it");
    };
    let (taken, ()) =
        soon("the waiter was not woken", join(waiter.lock(kind, &name, LONG_WAIT), breaks)).await;
    took(taken);
    // Redisson reports an error, because the holder has lost the lock. Curator reports none.
    let _ = holder.unlock(kind, &name).await;
    let still = locks.of(kind.kind(), &name).try_lock(&LockOptions::new()).await.expect("a reply");
    assert!(still.is_none(), "the waiter holds it");
    waiter.unlock(kind, &name).await.expect("the contender holds it");
    locks.close().await;
}

/// Checks that the lock of a killed process is free after its ttl, or the end of its session, and
/// not earlier.
pub async fn what_it_held_when_it_was_killed_is_free_after_its_ttl<S: Side>(border: &Border<S>) {
    let name = unique();
    let locks = border.locks().await;
    let peer = border.start(Duration::from_secs(4));
    took(peer.contender().try_lock(Mutex, &name).await);
    drop(peer);
    let still = locks.mutex(&name).try_lock().await.expect("a reply");
    assert!(still.is_none(), "the lock was free before the end of its ttl");
    let free = tokio::time::timeout(LONG_WAIT, lock(&locks, Mutex, &name)).await;
    free.expect("the lock is never free").release().await.expect("the contender holds it");
    locks.close().await;
}

/// Checks a lock that four contenders of each side take repeatedly. Holds must not overlap, tokens
/// must grow, and no waiter may wait for a ttl.
///
/// Prints the report.
#[expect(clippy::print_stdout, reason = "people read the report of a run")]
pub async fn a_mixed_fleet_loses_nothing<S: Side>(border: &Border<S>, kinds: &[PeerKind]) {
    let locks = [border.locks().await, border.locks().await];
    let fleet = Fleet {
        locks: &locks,
        peer: border.peer(),
        name: &unique(),
        kinds,
        contenders: 4,
        acquisitions: Fleet::acquisitions(border.side.acquisitions()),
        ttl: border.side.ttl(),
    };
    let report = fleet.run().await;
    println!("{}, {kinds:?}: {report}", border.name());
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    for locks in locks {
        locks.close().await;
    }
}
