//! Files and processes of a dlock that does not know permits, and of one that cannot detach claims either.

use std::time::Duration;

use tokio::time::timeout;

use super::{Place, SOON, run};

/// A file that such a dlock has made, and in which it holds `x` as a mutex.
async fn older(place: &Place) -> sqlx::SqliteConnection {
    // Made here only to learn how this boot is called.
    let here = Place::new();
    here.client().await.close().await;
    let boot: String =
        sqlx::query_scalar("SELECT boot FROM dlock_store").fetch_one(&mut here.raw().await).await.unwrap();
    let mut raw = place.raw().await;
    run(&mut raw, "PRAGMA journal_mode = WAL").await;
    run(&mut raw, include_str!("before_permits.sql")).await;
    sqlx::query("UPDATE dlock_store SET boot = ?1").bind(boot).execute(&mut raw).await.unwrap();
    join(&mut raw).await;
    raw
}

/// A file that was made by a dlock with permits, and in which it holds `x`. That dlock cannot detach claims.
async fn with_permits(place: &Place) -> sqlx::SqliteConnection {
    let mut raw = older(place).await;
    run(&mut raw, include_str!("../../src/sql/slots.sql")).await;
    raw
}

/// What such a dlock does when it asks for `x` as a mutex.
async fn join(raw: &mut sqlx::SqliteConnection) {
    run(
        raw,
        "UPDATE dlock_store SET last = last + 1;
         INSERT INTO dlock_queue (name, seq, claim, kind, shares, client, pid, host, since, expires)
         SELECT 'x', last, randomblob(16), 'mutex', 0, randomblob(16), 1, 'elsewhere', 0, 1 << 62 FROM dlock_store",
    )
    .await;
}

#[tokio::test]
async fn a_permit_waits_for_a_mutex_of_a_dlock_that_does_not_know_permits() {
    let place = Place::new();
    let mut raw = older(&place).await;
    let pool = place.client().await.semaphore("x", 4);
    assert!(pool.try_acquire().await.unwrap().is_none(), "the file is upgraded, and the mutex still held");
    run(&mut raw, "DELETE FROM dlock_queue").await;
    let held = [pool.acquire().await.unwrap(), pool.acquire().await.unwrap()];
    assert!(held.iter().all(|guard| !guard.is_lost()));
}

#[tokio::test]
async fn a_dlock_that_does_not_know_permits_takes_one_for_a_mutex_ahead() {
    let place = Place::new();
    let mut raw = older(&place).await;
    run(&mut raw, "DELETE FROM dlock_queue").await;
    let pool = place.client().await.semaphore("x", 4);
    let held = pool.acquire().await.unwrap();
    // What it reads of the claims ahead.
    let ahead: Vec<(String, i64)> =
        sqlx::query_as("SELECT kind, shares FROM dlock_queue WHERE name = 'x' ORDER BY seq DESC")
            .fetch_all(&mut raw)
            .await
            .unwrap();
    assert_eq!(ahead, [("mutex".to_owned(), 0)]);
    // It stands behind the permit then, and other permits behind it.
    join(&mut raw).await;
    let mut waiter = Box::pin(pool.acquire().into_future());
    assert!(timeout(Duration::from_millis(100), &mut waiter).await.is_err(), "a mutex is ahead");
    held.release().await.unwrap();
    assert!(timeout(Duration::from_millis(100), &mut waiter).await.is_err(), "the mutex is held");
    run(&mut raw, "DELETE FROM dlock_queue WHERE host = 'elsewhere'").await;
    // Nobody rings: the waiter asks again by itself.
    drop(timeout(SOON * 2, waiter).await.expect("the mutex is gone").unwrap());
}

#[tokio::test]
async fn a_claim_of_an_older_dlock_is_shown_by_its_process() {
    for file in ["before permits", "with permits"] {
        let place = Place::new();
        let mut raw = if file == "with permits" { with_permits(&place).await } else { older(&place).await };
        let client = place.client().await;
        assert!(client.mutex("x").try_lock().await.unwrap().is_none(), "{file}: it is held");
        let state = client.inspect("x").await.unwrap().expect("held");
        assert_eq!(state.holders[0].who.as_deref(), Some("pid 1 on elsewhere"), "{file}");
        run(&mut raw, "DELETE FROM dlock_queue").await;
        // Such a dlock still writes into the file.
        let ticket = client.mutex("y").lock().await.unwrap().detach(SOON * 60).await.unwrap();
        join(&mut raw).await;
        assert!(client.mutex("x").try_lock().await.unwrap().is_none(), "{file}: it is held");
        client.release(&ticket).await.unwrap();
    }
}

/// Such a dlock removes the claims of a client whose FIFO has no reader.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_older_dlock_does_not_find_a_detached_hold_dead() {
    let place = Place::new();
    let mut raw = with_permits(&place).await;
    run(&mut raw, "DELETE FROM dlock_queue").await;
    let client = place.client().await;
    let owner = "SELECT lower(hex(client)), expires FROM dlock_queue WHERE name = 'x'";
    let guard = client.mutex("x").lock().await.unwrap();
    let (before, _): (String, i64) = sqlx::query_as(owner).fetch_one(&mut raw).await.unwrap();
    assert!(place.bells().iter().any(|bell| bell.ends_with(&before)), "the holder has no doorbell");
    let ticket = guard.detach(SOON * 60).await.unwrap();
    let (after, expires): (String, i64) = sqlx::query_as(owner).fetch_one(&mut raw).await.unwrap();
    assert!(!place.bells().iter().any(|bell| bell.ends_with(&after)), "it has the doorbell {after}");
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec;
    assert!(expires / 1_000_000_000 - now > 500, "an older dlock sees its end");
    // So it waits, and is rung when the hold is released. Then its claim is first.
    join(&mut raw).await;
    client.release(&ticket).await.unwrap();
    let state = client.inspect("x").await.unwrap().expect("held");
    assert_eq!((state.holders.len(), state.queue.len()), (1, 0));
    assert_eq!(state.holders[0].who.as_deref(), Some("pid 1 on elsewhere"));
}

#[tokio::test]
async fn two_clients_upgrade_a_file_at_the_same_moment() {
    let place = Place::new();
    drop(older(&place).await);
    let clients = tokio::join!(place.client(), place.client(), place.client());
    assert_eq!(clients.0.inspect("x").await.unwrap().expect("held").holders.len(), 1);
    assert!(clients.2.semaphore("x", 4).try_acquire().await.unwrap().is_none(), "held as a mutex");
}
