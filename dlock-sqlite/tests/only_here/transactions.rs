//! Tests of the clock, the fence and the connection, on which all transactions rely.

use std::time::Duration;

use dlock_core::{
    Error, Kind, Wait,
    driver::{Attempt, Backend},
};
use tokio::time::{Instant, sleep, timeout};

use super::{Place, SOON, connect, refusal, request, run};
#[cfg(target_os = "linux")]
use crate::doorbells::Holder;

/// Records another boot of the host in the file, so that its claims are of an earlier boot.
async fn set_another_boot(place: &Place) {
    run(&mut place.raw().await, "UPDATE dlock_store SET boot = 'an earlier one'").await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn another_boot_frees_every_lock() {
    let place = Place::new();
    Holder::of(&place).kill();
    set_another_boot(&place).await;
    let after = place.client().await;
    assert!(
        after.mutex("x").try_lock().await.unwrap().is_some(),
        "the lock is held although no holder survives a boot"
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn another_boot_is_refused_while_a_client_lives() {
    let place = Place::new();
    let client = place.client().await;
    let guard = client.mutex("x").lock().await.unwrap();
    set_another_boot(&place).await;
    let text = refusal(&place.path()).await;
    assert!(text.contains("see another boot of this host"), "{text}");
    // The store is also refused without the doorbells. According to the host's clock the claim may
    // be of this boot, so its holder may still run.
    std::fs::remove_dir_all(format!("{}-bells", place.path().display())).unwrap();
    let text = refusal(&place.path()).await;
    assert!(text.contains("cannot detect whether their processes still run"), "{text}");
    run(&mut place.raw().await, "UPDATE dlock_queue SET since = since * 1000, expires = expires * 1000")
        .await;
    assert!(
        place.client().await.mutex("x").try_lock().await.unwrap().is_some(),
        "refused, although a claim from later than now must be of an earlier boot"
    );
    drop(guard);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_restored_copy_of_an_earlier_boot_is_refused_until_one_client_is_left() {
    let [place, source] = [Place::new(), Place::new()];
    let [client, other] = [place.client().await, place.client().await];
    drop(source.client().await);
    set_another_boot(&source).await;
    run(&mut source.raw().await, "PRAGMA wal_checkpoint(TRUNCATE)").await;
    for side in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{side}", place.path().display())).unwrap();
    }
    std::fs::rename(source.path(), place.path()).unwrap();
    let mutex = client.mutex("x");
    let error = mutex.try_lock().await.expect_err("the other client is alive");
    assert!(error.to_string().contains("if it is a restored copy, stop all of them once"), "{error}");
    drop(other);
    let accepted = async {
        while mutex.try_lock().await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, accepted).await.expect("the only client is refused");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn claims_end_on_a_clock_that_cannot_be_set() {
    use rustix::time::{ClockId, clock_gettime};
    let place = Place::new();
    let client = place.client().await;
    let before = clock_gettime(ClockId::Boottime).tv_sec;
    let guard = client.mutex("x").lock().ttl(Duration::from_secs(30)).await.unwrap();
    let sql = "SELECT expires FROM dlock_queue";
    let expires: i64 = sqlx::query_scalar(sql).fetch_one(&mut place.raw().await).await.unwrap();
    let left = expires / 1_000_000_000 - before;
    assert!((30..40).contains(&left), "the claim ends in {left} s on the clock since boot");
    guard.release().await.unwrap();
}

/// All claims that one transaction renews expire at the same time.
#[tokio::test]
async fn many_locks_are_renewed_by_few_transactions() {
    const LOCKS: usize = 300;
    let (place, ttl) = (Place::new(), Duration::from_secs(6));
    let client = place.client().await;
    let mut held = Vec::new();
    for number in 0..LOCKS {
        held.push(client.mutex(format!("x{number}")).lock().ttl(ttl).await.expect("free"));
    }
    let mut raw = place.raw().await;
    let last: i64 =
        sqlx::query_scalar("SELECT max(expires) FROM dlock_queue").fetch_one(&mut raw).await.unwrap();
    let all_renewed = async {
        let query = "SELECT count(*), count(DISTINCT expires) FROM dlock_queue WHERE expires > ?1";
        loop {
            let counted =
                sqlx::query_as::<_, (i64, i64)>(query).bind(last).fetch_one(&mut raw).await.unwrap();
            if usize::try_from(counted.0) == Ok(LOCKS) {
                break counted.1;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let transactions = timeout(SOON * 2, all_renewed).await.expect("every claim is renewed");
    // Each claim is renewed every 2 s, and a transaction collects renewals for 20 ms.
    assert!(transactions <= 150, "{LOCKS} claims were renewed in {transactions} transactions");
    assert!(held.iter().all(|guard| !guard.is_lost()));
}

#[tokio::test]
async fn tokens_grow_from_the_fence_after_the_wall_clock_was_set_back() {
    let place = Place::new();
    let client = place.client().await;
    let far = 9_000_000_000_000_000_000_i64;
    let mut raw = place.raw().await;
    sqlx::query("UPDATE dlock_store SET last = ?1").bind(far).execute(&mut raw).await.unwrap();
    for drawn in 1..4 {
        let guard = client.mutex("x").lock().await.unwrap();
        assert_eq!(guard.token().unwrap().get(), far.unsigned_abs() + drawn);
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_dropped_at_any_point_leaves_the_connection_usable() {
    let place = Place::new();
    let backend = place.backend().await;
    for polls in 0..40 {
        let mut claim = backend.claim(request(Wait::Forever));
        {
            let mut attempt = claim.attempt();
            for _ in 0..polls {
                if timeout(Duration::ZERO, &mut attempt).await.is_ok() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        timeout(SOON, claim.release()).await.expect("the call hangs").unwrap();
        let mut next = backend.claim(request(Wait::Never));
        let attempt = timeout(SOON, next.attempt()).await.expect("the call hangs").unwrap();
        assert!(matches!(attempt, Attempt::Granted(_)), "after {polls} polls: {attempt:?}");
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_stays_locked_is_an_error_for_a_try_and_not_for_a_wait() {
    let place = Place::new();
    let backend = place.backend().await;
    let other = place.backend().await;
    let mut raw = place.raw().await;
    run(&mut raw, "BEGIN IMMEDIATE").await;
    let (mut claim, mut waiter) = (backend.claim(request(Wait::Never)), other.claim(request(Wait::Forever)));
    let (attempt, waits) = tokio::join!(claim.attempt(), waiter.attempt());
    let error = attempt.expect_err("another connection keeps the file locked");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(matches!(waits.unwrap(), Attempt::Busy { .. }), "a wait must not end because the file is busy");
    // The claim is not in the file. The client has recorded that, and does not wait for the file.
    timeout(SOON / 4, claim.release()).await.expect("the release waits for the file").unwrap();
    run(&mut raw, "COMMIT").await;
    assert!(matches!(claim.attempt().await.unwrap(), Attempt::Granted(_)));
    claim.release().await.unwrap();
    assert!(matches!(waiter.attempt().await.unwrap(), Attempt::Granted(_)));
    waiter.release().await.unwrap();
}

#[tokio::test]
async fn a_release_removes_the_claim_although_the_last_attempt_found_the_file_busy() {
    let place = Place::new();
    let backend = place.backend().await;
    let (held, waiting) = (request(Wait::Forever), request(Wait::Forever));
    let mut reading = held.clone();
    reading.kind = Kind::Read;
    let mut holder = backend.claim(held);
    assert!(matches!(holder.attempt().await.unwrap(), Attempt::Granted(_)));
    let mut waiter = backend.claim(waiting);
    assert!(matches!(waiter.attempt().await.unwrap(), Attempt::Busy { .. }));
    // A read claim with the id of the hold, which requests a downgrade.
    let mut reader = backend.claim(reading);
    let mut raw = place.raw().await;
    run(&mut raw, "BEGIN IMMEDIATE").await;
    for claim in [&mut waiter, &mut reader] {
        assert!(
            matches!(claim.attempt().await.unwrap(), Attempt::Busy { .. }),
            "another connection keeps the file locked"
        );
    }
    run(&mut raw, "COMMIT").await;
    for (claim, left) in [(waiter, 1), (reader, 0)] {
        let mut claim = claim;
        claim.release().await.unwrap();
        let claims =
            sqlx::query_scalar::<_, i64>("SELECT count(*) FROM dlock_queue").fetch_one(&mut raw).await;
        assert_eq!(claims.unwrap(), left, "a released claim is still in the file");
    }
}

#[tokio::test]
async fn a_wait_ends_with_an_error_when_the_file_can_no_longer_be_used() {
    let place = Place::new();
    let backend = place.backend().await;
    let (mut holder, mut waiter) =
        (backend.claim(request(Wait::Never)), backend.claim(request(Wait::Forever)));
    assert!(matches!(holder.attempt().await.unwrap(), Attempt::Granted(_)));
    assert!(matches!(waiter.attempt().await.unwrap(), Attempt::Busy { .. }));
    run(&mut place.raw().await, "DROP TABLE dlock_queue").await;
    let error = waiter.attempt().await.expect_err("there is no queue");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
}

/// Time for which one step of the user's own work blocks the runtime.
const BLOCKED_TIME: Duration = Duration::from_millis(800);

#[test]
fn a_busy_runtime_does_not_keep_the_file_locked() {
    let place = Place::new();
    let url = place.url();
    let busy = std::thread::spawn(move || {
        block_on(async {
            let mutex = connect(&url).await.unwrap().mutex("busy");
            for _ in 0..2 {
                let mut round = Box::pin(async { mutex.lock().await.unwrap().release().await.unwrap() });
                // The user's own work blocks the thread between any two steps of dlock.
                while timeout(Duration::ZERO, &mut round).await.is_err() {
                    block_thread();
                    tokio::task::yield_now().await;
                }
            }
        });
    });
    let longest = block_on(async {
        let mutex = place.client().await.mutex("other");
        let mut longest = Duration::ZERO;
        while !busy.is_finished() {
            let started_at = Instant::now();
            mutex.lock().await.unwrap().release().await.unwrap();
            longest = longest.max(started_at.elapsed());
        }
        longest
    });
    busy.join().unwrap();
    assert!(longest < BLOCKED_TIME, "a lock and a release took {longest:?}");
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

#[expect(clippy::disallowed_methods, reason = "blocks the runtime as a user may do")]
fn block_thread() {
    std::thread::sleep(BLOCKED_TIME);
}
