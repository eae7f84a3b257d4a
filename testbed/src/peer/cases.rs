//! What must hold where dlock and a peer share a lock, on any store. [`border_trials!`](crate::border_trials) makes trials of them.

use std::{io, time::Duration};

use dlock_core::{ClaimId, Guard, LockOptions, Locks};
use futures_util::future::join;

use super::{
    Border, Fleet, PeerKind,
    PeerKind::{Mutex, Read, Write},
    Side, Taken,
};

/// Longer than anybody waits here.
const LONG: Duration = Duration::from_secs(60);

/// The longest that a wake-up may take on a busy machine: less than any ttl.
const SOON: Duration = Duration::from_secs(8);

async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, wait).await.unwrap_or_else(|_| panic!("{what}"))
}

/// A name that nobody else uses.
fn unique() -> String {
    format!("t-{}", ClaimId::random())
}

async fn lock(locks: &Locks, kind: PeerKind, name: &str) -> Guard {
    locks.of(kind.kind(), name).lock(&LockOptions::new()).await.expect("it is granted")
}

fn took(taken: io::Result<Option<Taken>>) -> Taken {
    taken.expect("an answer").expect("nobody is in the way")
}

/// Neither takes what the other holds, and each takes what the other has let go.
pub async fn they_exclude_each_other<S: Side>(border: &Border<S>, kind: PeerKind) {
    let (name, other, locks) = (unique(), border.contender(kind), border.locks().await);
    let ours = locks.of(kind.kind(), &name);
    let attempt = async || ours.try_lock(&LockOptions::new()).await.expect("an answer");

    took(other.try_lock(kind, &name).await);
    assert!(attempt().await.is_none(), "dlock took what the peer holds");
    other.unlock(kind, &name).await.expect("it holds it");

    let guard = attempt().await.expect("the peer has let go");
    assert_eq!(other.try_lock(kind, &name).await.expect("an answer"), None, "the peer took what dlock holds");
    let short = Duration::from_millis(50);
    let taken = border.contender(kind).lock(kind, &name, short).await.expect("an answer");
    assert_eq!(taken, None, "the peer waited, and took what dlock holds");
    guard.release().await.expect("it holds it");
    took(other.try_lock(kind, &name).await);
    other.unlock(kind, &name).await.expect("it holds it");
    locks.close().await;
}

/// Readers share across the border, and no writer comes in beside one.
pub async fn readers_of_both_share_and_keep_writers_of_both_out<S: Side>(border: &Border<S>) {
    let (name, other, writer) = (unique(), border.contender(Read), border.contender(Write));
    let locks = border.locks().await;
    let (read, write) = (locks.rwlock(&name).read(), locks.rwlock(&name).write());
    let no_writer = async |beside: &str| {
        assert!(write.try_lock().await.expect("an answer").is_none(), "dlock wrote beside {beside}");
        let taken = writer.try_lock(Write, &name).await.expect("an answer");
        assert_eq!(taken, None, "the peer wrote beside {beside}");
    };

    took(other.try_lock(Read, &name).await);
    let guard = read.try_lock().await.expect("an answer").expect("readers share");
    no_writer("two readers").await;
    other.unlock(Read, &name).await.expect("it holds it");
    no_writer("a reader of dlock").await;
    took(other.try_lock(Read, &name).await);
    guard.release().await.expect("it holds it");
    no_writer("a reader of the peer").await;
    other.unlock(Read, &name).await.expect("it holds it");

    let guard = write.try_lock().await.expect("an answer").expect("nobody reads");
    assert_eq!(other.try_lock(Read, &name).await.expect("an answer"), None, "the peer read beside a writer");
    guard.release().await.expect("it holds it");
    took(writer.try_lock(Write, &name).await);
    assert!(read.try_lock().await.expect("an answer").is_none(), "dlock read beside a writer");
    writer.unlock(Write, &name).await.expect("it holds it");
    locks.close().await;
}

/// A waiter on either side is woken by a release on the other.
pub async fn each_wakes_the_other<S: Side>(border: &Border<S>, kind: PeerKind) {
    // A reader waits for a writer, not for another reader.
    let held = if kind == Read { Write } else { kind };
    let (name, other, locks) = (unique(), border.contender(kind), border.locks().await);
    took(other.lock(held, &name, LONG).await);
    let let_go = async {
        border.side.until_somebody_waits(&locks, &name).await;
        other.unlock(held, &name).await.expect("it holds it");
    };
    let (guard, ()) = soon("dlock was not woken", join(lock(&locks, kind, &name), let_go)).await;
    guard.release().await.expect("it holds it");

    // Another name, which nobody has waited for yet.
    let name = unique();
    let guard = lock(&locks, held, &name).await;
    let let_go = async {
        border.side.until_somebody_waits(&locks, &name).await;
        guard.release().await.expect("it holds it");
    };
    let (taken, ()) = soon("the peer was not woken", join(other.lock(kind, &name, LONG), let_go)).await;
    took(taken);
    other.unlock(kind, &name).await.expect("it holds it");
    locks.close().await;
}

/// A lock of the peer that dlock breaks is granted to the next waiter, and stays its own whatever the first one does.
pub async fn a_lock_that_dlock_breaks_is_its_waiters<S: Side>(border: &Border<S>, kind: PeerKind) {
    let (name, holder, waiter) = (unique(), border.contender(kind), border.contender(kind));
    let locks = border.locks().await;
    took(holder.try_lock(kind, &name).await);
    let breaks = async {
        border.side.until_somebody_waits(&locks, &name).await;
        assert!(locks.force_release(&name).await.expect("an answer"), "somebody held it");
    };
    let (taken, ()) = soon("the waiter was not woken", join(waiter.lock(kind, &name, LONG), breaks)).await;
    took(taken);
    // Redisson says that it does not hold it any more; Curator does not notice.
    let _ = holder.unlock(kind, &name).await;
    let still = locks.of(kind.kind(), &name).try_lock(&LockOptions::new()).await.expect("an answer");
    assert!(still.is_none(), "the waiter holds it");
    waiter.unlock(kind, &name).await.expect("it holds it");
    locks.close().await;
}

/// A peer whose process is killed lets go when its ttl, or its session, ends, and not before.
pub async fn what_it_held_when_it_was_killed_is_free_after_its_ttl<S: Side>(border: &Border<S>) {
    let name = unique();
    let locks = border.locks().await;
    let peer = border.start(Duration::from_secs(4));
    took(peer.contender().try_lock(Mutex, &name).await);
    drop(peer);
    let still = locks.mutex(&name).try_lock().await.expect("an answer");
    assert!(still.is_none(), "its ttl is not over");
    let free = tokio::time::timeout(LONG, lock(&locks, Mutex, &name)).await;
    free.expect("it is never free").release().await.expect("it holds it");
    locks.close().await;
}

/// Four contenders of each side take one lock again and again: never two at once, no token goes back, nobody waits for a ttl.
///
/// Prints what happened.
#[expect(clippy::print_stdout, reason = "what a run shows is for people to read")]
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
