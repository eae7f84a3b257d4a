//! The cases in which dlock and a peer share a lock of etcd.

use std::time::Duration;

use dlock_core::{Kind, LockOptions, Locks, Token};
use dlock_testbed::peer::{
    Border, Contender,
    PeerKind::{Fenced, Mutex},
    Taken,
};
use tokio::time::sleep;

use crate::{
    Etcd, TTL,
    common::{soon, unique},
};

/// A wait limit that no waiter reaches.
const LONG: Duration = Duration::from_secs(60);

/// Acquires a free lock for the peer.
async fn take(other: &Contender, name: &str) -> Taken {
    other.try_lock(Mutex, name).await.expect("a reply").expect("the lock is free")
}

/// Waits until at least `count` contenders hold the lock or wait for it.
async fn wait_for_contenders(locks: &Locks, name: &str, count: usize) {
    let arrival = async {
        loop {
            let state = locks.inspect(name).await.expect("a reply");
            if state.is_some_and(|state| state.holders.len() + state.queue.len() >= count) {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    soon("a contender did not arrive", arrival).await;
}

pub(crate) async fn they_exclude_each_other(border: &Border<Etcd>) {
    let (name, other, locks) = (unique(), border.contender(Mutex), border.locks().await);
    for kind in [Kind::Mutex, Kind::Fair, Kind::Write] {
        let ours = locks.of(kind, &name);
        let attempt = || async { ours.try_lock(&LockOptions::new().ttl(TTL)).await.expect("a reply") };
        take(&other, &name).await;
        assert!(attempt().await.is_none(), "dlock acquired a lock that the peer holds");
        other.unlock(Mutex, &name).await.expect("the peer holds the lock");
        let guard = attempt().await.expect("the peer has released the lock");
        let taken = other.try_lock(Mutex, &name).await.expect("a reply");
        assert!(taken.is_none(), "the peer acquired a lock that dlock holds");
        guard.release().await.expect("the lock is held");
    }
    locks.close().await;
}

pub(crate) async fn both_queue_in_order_of_arrival(border: &Border<Etcd>) {
    let (name, locks) = (unique(), border.locks().await);
    let order = parking_lot::Mutex::new(Vec::new());
    let guard = locks.mutex(&name).lock().await.expect("the lock is free");
    let (arrived, _) = tokio::sync::watch::channel(1);
    let others: Vec<_> = (0..3).map(|_| border.contender(Mutex)).collect();
    let contend = async |place: usize| {
        let mut turn = arrived.subscribe();
        turn.wait_for(|arrived| *arrived > place).await.expect("the sender is alive");
        if place.is_multiple_of(2) {
            let other = &others[place / 2];
            other.lock(Mutex, &name, LONG).await.expect("a reply").expect("the waiter gets the lock");
            order.lock().push(place);
            other.unlock(Mutex, &name).await.expect("the peer holds the lock");
        } else {
            let kind = [Kind::Mutex, Kind::Fair, Kind::Write][place / 2];
            let held = locks
                .of(kind, &name)
                .lock(&LockOptions::new().ttl(TTL))
                .await
                .expect("the waiter gets the lock");
            order.lock().push(place);
            held.release().await.expect("the lock is held");
        }
    };
    let direct = async {
        for place in 0..6 {
            arrived.send_replace(place + 1);
            wait_for_contenders(&locks, &name, place + 2).await;
        }
        guard.release().await.expect("the lock is held");
    };
    tokio::join!(direct, contend(0), contend(1), contend(2), contend(3), contend(4), contend(5));
    assert_eq!(order.into_inner(), [0, 1, 2, 3, 4, 5]);
    locks.close().await;
}

pub(crate) async fn tokens_grow_across_the_border(border: &Border<Etcd>) {
    let (name, other, locks) = (unique(), border.contender(Mutex), border.locks().await);
    let mut last: Option<Token> = None;
    for round in 0..6 {
        let token = if round % 2 == 0 {
            let guard = locks.mutex(&name).lock().await.expect("the lock is free");
            let token = guard.token();
            guard.release().await.expect("the lock is held");
            token
        } else {
            let taken = other.lock(Fenced, &name, LONG).await.expect("a reply").expect("the lock is free");
            other.unlock(Fenced, &name).await.expect("the peer holds the lock");
            taken.token
        };
        assert!(token > last, "the token {token:?} follows {last:?}");
        last = token;
    }
    locks.close().await;
}

pub(crate) async fn readers_and_permits_wait_for_the_peer_and_it_waits_for_them(border: &Border<Etcd>) {
    let (name, other, locks) = (unique(), border.contender(Mutex), border.locks().await);
    take(&other, &name).await;
    assert!(
        locks.rwlock(&name).read().try_lock().await.expect("a reply").is_none(),
        "a reader holds the lock beside the peer"
    );
    assert!(
        locks.semaphore(&name, 2).try_acquire().await.expect("a reply").is_none(),
        "a permit is held beside the peer"
    );
    other.unlock(Mutex, &name).await.expect("the peer holds the lock");
    let readers = [locks.rwlock(&name).read().lock().await, locks.rwlock(&name).read().lock().await];
    assert!(
        other.try_lock(Mutex, &name).await.expect("a reply").is_none(),
        "the peer acquired the lock beside readers"
    );
    drop(readers);
    locks.mutex(&name).lock().await.expect("the lock is free").release().await.expect("the lock is held");
    locks.close().await;
}

pub(crate) async fn dlock_shows_and_breaks_a_hold_of_the_peer(border: &Border<Etcd>) {
    let (name, other, locks) = (unique(), border.contender(Mutex), border.locks().await);
    take(&other, &name).await;
    let listed = locks.list(&name).await.expect("a reply");
    assert_eq!(listed.len(), 1, "{listed:?}");
    let state = locks.inspect(&name).await.expect("a reply").expect("the lock is held");
    let [holder] = &state.holders[..] else { panic!("{state:?}") };
    assert_eq!((holder.kind, &holder.who), (Kind::Mutex, &None));
    assert!(holder.ttl_left.is_some_and(|left| left <= TTL), "{holder:?}");
    assert!(locks.force_release(&name).await.expect("a reply"));
    let guard = soon("the lock was not free after it was broken", locks.mutex(&name).lock().into_future())
        .await
        .expect("the lock is free");
    guard.release().await.expect("the lock is held");
    locks.close().await;
}

pub(crate) async fn a_detached_hold_excludes_the_peer_until_it_is_released(border: &Border<Etcd>) {
    let (name, other, locks) = (unique(), border.contender(Mutex), border.locks().await);
    let guard = locks.mutex(&name).lock().await.expect("the lock is free");
    let ticket = guard.detach(Duration::from_secs(300)).await.expect("the lock is held");
    locks.close().await;
    assert!(
        other.try_lock(Mutex, &name).await.expect("a reply").is_none(),
        "the peer acquired a lock with a detached hold"
    );
    let locks = border.locks().await;
    locks.release(&ticket).await.expect("the lock is held");
    take(&other, &name).await;
    other.unlock(Mutex, &name).await.expect("the peer holds the lock");
    locks.close().await;
}

pub(crate) async fn no_claim_is_left(border: &Border<Etcd>) {
    let (name, other, locks) = (unique(), border.contender(Mutex), border.locks().await);
    for _ in 0..3 {
        take(&other, &name).await;
        other.unlock(Mutex, &name).await.expect("the peer holds the lock");
        locks.mutex(&name).lock().await.expect("the lock is free").release().await.expect("the lock is held");
    }
    assert_eq!(locks.list(&name).await.expect("a reply"), []);
    locks.close().await;
}
