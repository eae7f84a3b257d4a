//! Test cases in which dlock and a peer share a lock of ZooKeeper.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_conformance::Data;
use dlock_core::{Error, Guard, Kind, LockOptions, Locks, Token};
use dlock_testbed::{
    peer::{
        Border, Contender, Fleet, PeerKind,
        PeerKind::{Latch, Mutex, Read, Write},
        Side as _, Taken,
    },
    servers::zookeeper::word,
};
use futures_util::future::{join, join_all};
use parking_lot::Mutex as Shared;
use tokio::time::sleep;

use crate::{
    TTL, Zookeeper,
    common::{soon, unique},
};

/// Wait that outlasts every case.
const LONG: Duration = Duration::from_secs(60);

pub(crate) async fn dlock_shows_what_the_other_holds(border: &Border<Zookeeper>, kind: PeerKind) {
    let (name, other) = (unique(), border.contender(kind));
    let locks = border.locks().await;
    took(other.lock(kind, &name, LONG).await);
    let state = locks.inspect(&name).await.expect("the server replies").expect("the lock is held");
    let [holder] = &state.holders[..] else { panic!("one claim holds the lock, not {state:?}") };
    assert_eq!(holder.kind, kind.kind());
    assert!(holder.token.is_some() && holder.since.is_some_and(|since| since < LONG), "{holder:?}");
    let listed = locks.list(&name).await.expect("the server replies");
    assert_eq!(listed.len(), 1, "{listed:?}");
    other.unlock(kind, &name).await.expect("the claim holds the lock");
    assert_eq!(locks.inspect(&name).await.expect("the server replies"), None);
    locks.close().await;
}

pub(crate) async fn a_fair_hold_and_a_permit_keep_its_mutex_out(border: &Border<Zookeeper>) {
    let (name, other) = (unique(), border.contender(Mutex));
    let locks = border.locks().await;
    let fair = locks.fair(&name).lock().await.expect("the lock is free");
    assert_eq!(other.try_lock(Mutex, &name).await.expect("the server replies"), None, "beside a fair hold");
    fair.release().await.expect("the claim holds the lock");
    let pool = locks.semaphore(&name, 2);
    let permits =
        [pool.acquire().await.expect("the lock is free"), pool.acquire().await.expect("the lock is free")];
    for permit in permits {
        assert_eq!(other.try_lock(Mutex, &name).await.expect("the server replies"), None, "beside a permit");
        permit.release().await.expect("the claim holds the lock");
    }
    took(other.try_lock(Mutex, &name).await);
    assert!(
        pool.try_acquire().await.expect("the server replies").is_none(),
        "a permit beside a mutex of the peer"
    );
    other.unlock(Mutex, &name).await.expect("the claim holds the lock");
    locks.close().await;
}

/// The peer's read and write locks ignore a mutex, so dlock must not take a mutex beside them.
pub(crate) async fn a_mutex_of_dlock_refuses_a_directory_of_its_read_and_write_locks(
    border: &Border<Zookeeper>,
) {
    let (name, other) = (unique(), border.contender(Read));
    let locks = border.locks().await;
    took(other.lock(Read, &name, LONG).await);
    let error = locks.mutex(&name).lock().ttl(TTL).await.expect_err("the peer would ignore it");
    assert!(matches!(error, Error::WrongKind { .. }), "{error:?}");
    other.unlock(Read, &name).await.expect("the claim holds the lock");
    lock(&locks, Mutex, &name).await.release().await.expect("the claim holds the lock");
    locks.close().await;
}

/// The peer's mutex ignores read and write locks, so dlock must not take one beside it.
pub(crate) async fn a_read_or_write_lock_of_dlock_refuses_a_directory_of_its_mutex(
    border: &Border<Zookeeper>,
) {
    let (name, other, locks) = (unique(), border.contender(Mutex), border.locks().await);
    took(other.lock(Mutex, &name, LONG).await);
    for kind in [Kind::Read, Kind::Write] {
        let refused = locks.of(kind, &name).lock(&LockOptions::new().ttl(TTL)).await.map(drop);
        assert!(matches!(refused, Err(Error::WrongKind { .. })), "{kind}: {refused:?}");
    }
    other.unlock(Mutex, &name).await.expect("the claim holds the lock");
    for kind in [Read, Write] {
        lock(&locks, kind, &name).await.release().await.expect("the claim holds the lock");
    }
    locks.close().await;
}

/// A limit that the README documents. The peer ignores the node of dlock's mutex.
pub(crate) async fn its_read_and_write_locks_are_granted_beside_a_mutex_of_dlock(border: &Border<Zookeeper>) {
    let (name, locks) = (unique(), border.locks().await);
    let guard = lock(&locks, Mutex, &name).await;
    for kind in [Read, Write] {
        let other = border.contender(kind);
        took(other.try_lock(kind, &name).await);
        assert!(!guard.is_lost(), "the node of the mutex still exists");
        other.unlock(kind, &name).await.expect("the claim holds the lock");
    }
    guard.release().await.expect("the claim holds the lock");
    locks.close().await;
}

/// The peer's leader latch and its mutex ignore each other, so dlock must not take a mutex beside a
/// latch, or stand for election beside a mutex.
pub(crate) async fn a_mutex_of_dlock_refuses_a_directory_of_its_latch(border: &Border<Zookeeper>) {
    let (name, other, locks) = (unique(), border.contender(Latch), border.locks().await);
    took(other.lock(Latch, &name, LONG).await);
    let error = locks.mutex(&name).lock().ttl(TTL).await.expect_err("the peer would ignore it");
    assert!(matches!(error, Error::WrongKind { .. }), "{error:?}");
    other.unlock(Latch, &name).await.expect("the contender leads");
    lock(&locks, Mutex, &name).await.release().await.expect("the claim holds the lock");

    let name = unique();
    took(other.lock(Mutex, &name, LONG).await);
    let error = locks.election(&name).candidate().elect().await.expect_err("the peer would ignore it");
    assert!(matches!(error, Error::WrongKind { .. }), "{error:?}");
    other.unlock(Mutex, &name).await.expect("the claim holds the lock");
    locks.close().await;
}

pub(crate) async fn its_writer_stays_out_of_a_downgraded_hold(border: &Border<Zookeeper>) {
    let (name, writer, reader) = (unique(), border.contender(Write), border.contender(Read));
    let locks = border.locks().await;
    let guard = lock(&locks, Write, &name).await;
    let waits = writer.lock(Write, &name, LONG);
    let downgraded = async {
        border.side.until_somebody_waits(&locks, &name).await;
        let guard = guard.downgrade().await.expect("a write hold can be downgraded");
        sleep(Duration::from_millis(300)).await;
        let state = locks.inspect(&name).await.expect("the server replies").expect("the lock is held");
        let kinds =
            |of: &[dlock_core::Contender]| of.iter().map(|contender| contender.kind).collect::<Vec<_>>();
        assert_eq!((kinds(&state.holders), kinds(&state.queue)), (vec![Kind::Read], vec![Kind::Write]));
        assert_eq!(
            reader.try_lock(Read, &name).await.expect("the server replies"),
            None,
            "a reader passed a writer"
        );
        guard.release().await.expect("the claim holds the lock");
    };
    let (taken, ()) = soon("the writer was not woken", join(waits, downgraded)).await;
    took(taken);
    writer.unlock(Write, &name).await.expect("the claim holds the lock");
    locks.close().await;
}

/// Numbers of the present holders and of all holds, and the tokens in the order of their grants.
#[derive(Default)]
struct Room {
    writers: AtomicUsize,
    readers: AtomicUsize,
    visits: AtomicUsize,
    tokens: Shared<Vec<(Kind, Token)>>,
}

impl Room {
    async fn visit(&self, kind: Kind) {
        let exclusive = kind != Kind::Read;
        let inside = if exclusive { &self.writers } else { &self.readers };
        let before = inside.fetch_add(1, Relaxed);
        assert!(!exclusive || before == 0, "two claims hold the lock");
        sleep(Duration::from_millis(1)).await;
        let others = if exclusive { &self.readers } else { &self.writers };
        assert_eq!(others.load(Relaxed), 0, "a reader and a writer hold the lock");
        inside.fetch_sub(1, Relaxed);
        self.visits.fetch_add(1, Relaxed);
    }
}

/// Contenders of both sides take one lock while leaders are killed and restarted. After an error a
/// contender tries again. An exclusive holder must never hold the lock together with another one.
#[expect(clippy::print_stdout, reason = "figures for the reader of the test's output")]
pub(crate) async fn a_mixed_fleet_survives_killed_leaders(
    border: &Border<Zookeeper>,
    kinds: &'static [PeerKind],
) {
    const KILLS: usize = 3;
    /// Two fleets on one ensemble would kill two of its servers at once.
    static ENSEMBLE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = ENSEMBLE.lock().await;
    let (room, done, name) = (Arc::new(Room::default()), Arc::new(AtomicBool::new(false)), unique());
    let turns = Fleet::acquisitions(border.side.acquisitions());
    let pick = |turn: usize, number: usize| kinds[(turn + number) % kinds.len()];
    let ours = async |number: usize| {
        let locks = border.locks().await;
        for turn in 0..turns {
            let kind = pick(turn, number);
            let guard = loop {
                match locks.of(kind.kind(), &name).lock(&LockOptions::new().ttl(TTL)).await {
                    Ok(guard) => break guard,
                    Err(error) => assert!(error.is_transient(), "{error:?}"),
                }
            };
            room.tokens.lock().push((kind.kind(), guard.token().expect("a token")));
            if !guard.is_lost() {
                room.visit(kind.kind()).await;
            }
            // After an error the keeper continues to release.
            let _ = guard.release().await;
        }
        locks.close().await;
    };
    let theirs = async |number: usize| {
        let contender: Contender = border.contender(kinds[0]);
        for turn in 0..turns {
            let kind = pick(turn, number);
            if let Ok(Some(_)) = contender.lock(kind, &name, LONG).await {
                room.visit(kind.kind()).await;
                // After an error Curator continues to delete the node in the background.
                let _ = contender.unlock(kind, &name).await;
            }
        }
    };
    let kills = async {
        let mut killed = 0;
        while !done.load(Relaxed) {
            sleep(Duration::from_secs(2)).await;
            if killed < KILLS {
                for server in border.side.running.servers() {
                    let reply = word(server.address(), "srvr").await.unwrap_or_default();
                    if reply.contains("Mode: leader") {
                        server.kill().await.expect("the server is running");
                        sleep(Duration::from_millis(500)).await;
                        server.start(Data::Kept).await.expect("the server starts");
                        killed += 1;
                        break;
                    }
                }
                border.side.running.ready().await.expect("the servers agree");
            }
        }
        killed
    };
    let fleet = async {
        join(join_all((0..4).map(ours)), join_all((0..4).map(theirs))).await;
        done.store(true, Relaxed);
    };
    let ((), killed) = join(fleet, kills).await;
    let visits = room.visits.load(Relaxed);
    println!("{}, {kinds:?}: {visits} acquisitions, {killed} leaders killed", border.name());
    assert!(killed > 0, "no leader was killed during the contest: set `DLOCK_FLEET` to a larger number");
    assert!(visits >= turns * 7, "too few locks were granted: {visits} of {}", turns * 8);
    let tokens = room.tokens.lock().clone();
    let exclusive: Vec<_> =
        tokens.iter().filter(|(kind, _)| *kind != Kind::Read).map(|(_, token)| *token).collect();
    assert!(exclusive.is_sorted_by(|a, b| a < b), "tokens decreased");
}

async fn lock(locks: &Locks, kind: PeerKind, name: &str) -> Guard {
    locks.of(kind.kind(), name).lock(&LockOptions::new().ttl(TTL)).await.expect("the lock is granted")
}

fn took(taken: std::io::Result<Option<Taken>>) -> Taken {
    taken.expect("the server replies").expect("the lock is free")
}
