//! Tests with files and processes of a dlock without permits, and of a dlock that has permits but
//! cannot detach claims.

use std::time::Duration;

use tokio::time::timeout;

use super::{Place, SOON, run};

/// Creates the file of an older dlock, which has no permits and holds `x` as a mutex.
async fn create_without_permits(place: &Place) -> sqlx::SqliteConnection {
    // This file only provides the id of the current boot.
    let current = Place::new();
    current.client().await.close().await;
    let boot: String =
        sqlx::query_scalar("SELECT boot FROM dlock_store").fetch_one(&mut current.raw().await).await.unwrap();
    let mut raw = place.raw().await;
    run(&mut raw, "PRAGMA journal_mode = WAL").await;
    run(&mut raw, include_str!("before_permits.sql")).await;
    sqlx::query("UPDATE dlock_store SET boot = ?1").bind(boot).execute(&mut raw).await.unwrap();
    join(&mut raw).await;
    raw
}

/// Creates the file of an older dlock, which has permits, cannot detach claims and holds `x`.
async fn create_with_permits(place: &Place) -> sqlx::SqliteConnection {
    let mut raw = create_without_permits(place).await;
    run(&mut raw, include_str!("../../src/sql/add_slots.sql")).await;
    raw
}

/// Adds a claim to `x` as an older dlock does when it requests a mutex.
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
async fn a_permit_waits_for_a_mutex_of_a_dlock_without_permits() {
    let place = Place::new();
    let mut raw = create_without_permits(&place).await;
    let pool = place.client().await.semaphore("x", 4);
    assert!(pool.try_acquire().await.unwrap().is_none(), "the upgrade of the file has freed the mutex");
    run(&mut raw, "DELETE FROM dlock_queue").await;
    let held = [pool.acquire().await.unwrap(), pool.acquire().await.unwrap()];
    assert!(held.iter().all(|guard| !guard.is_lost()));
}

#[tokio::test]
async fn a_dlock_without_permits_treats_a_permit_ahead_as_a_mutex() {
    let place = Place::new();
    let mut raw = create_without_permits(&place).await;
    run(&mut raw, "DELETE FROM dlock_queue").await;
    let pool = place.client().await.semaphore("x", 4);
    let held = pool.acquire().await.unwrap();
    // The columns of the claims ahead that the older dlock reads.
    let ahead: Vec<(String, i64)> =
        sqlx::query_as("SELECT kind, shares FROM dlock_queue WHERE name = 'x' ORDER BY seq DESC")
            .fetch_all(&mut raw)
            .await
            .unwrap();
    assert_eq!(ahead, [("mutex".to_owned(), 0)]);
    // The older dlock then waits behind the permit, and other permits wait behind it.
    join(&mut raw).await;
    let mut waiter = Box::pin(pool.acquire().into_future());
    assert!(
        timeout(Duration::from_millis(100), &mut waiter).await.is_err(),
        "granted although a mutex waits ahead"
    );
    held.release().await.unwrap();
    assert!(
        timeout(Duration::from_millis(100), &mut waiter).await.is_err(),
        "granted although the mutex is held"
    );
    run(&mut raw, "DELETE FROM dlock_queue WHERE host = 'elsewhere'").await;
    // The older dlock does not ring, so the waiter has to attempt by itself.
    drop(timeout(SOON * 2, waiter).await.expect("not granted after the mutex was deleted").unwrap());
}

#[tokio::test]
async fn a_claim_of_an_older_dlock_is_reported_with_its_process() {
    for file in ["before permits", "with permits"] {
        let place = Place::new();
        let mut raw = if file == "with permits" {
            create_with_permits(&place).await
        } else {
            create_without_permits(&place).await
        };
        let client = place.client().await;
        assert!(
            client.mutex("x").try_lock().await.unwrap().is_none(),
            "{file}: granted while the lock is held"
        );
        let state = client.inspect("x").await.unwrap().expect("held");
        assert_eq!(state.holders[0].who.as_deref(), Some("pid 1 on elsewhere"), "{file}");
        run(&mut raw, "DELETE FROM dlock_queue").await;
        // The older dlock can still write into the file.
        let ticket = client.mutex("y").lock().await.unwrap().detach(SOON * 60).await.unwrap();
        join(&mut raw).await;
        assert!(
            client.mutex("x").try_lock().await.unwrap().is_none(),
            "{file}: granted while the lock is held"
        );
        client.release(&ticket).await.unwrap();
    }
}

/// An older dlock also removes the claims of a client whose FIFO has no reader.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_older_dlock_does_not_consider_the_client_of_a_detached_hold_dead() {
    let place = Place::new();
    let mut raw = create_with_permits(&place).await;
    run(&mut raw, "DELETE FROM dlock_queue").await;
    let client = place.client().await;
    let owner = "SELECT lower(hex(client)), expires FROM dlock_queue WHERE name = 'x'";
    let guard = client.mutex("x").lock().await.unwrap();
    let (before, _): (String, i64) = sqlx::query_as(owner).fetch_one(&mut raw).await.unwrap();
    assert!(place.bells().iter().any(|bell| bell.ends_with(&before)), "the holder has no doorbell");
    let ticket = guard.detach(SOON * 60).await.unwrap();
    let (after, expires): (String, i64) = sqlx::query_as(owner).fetch_one(&mut raw).await.unwrap();
    assert!(
        !place.bells().iter().any(|bell| bell.ends_with(&after)),
        "the detached hold has the doorbell {after}"
    );
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec;
    assert!(expires / 1_000_000_000 - now > 500, "an older dlock reads an earlier expiry");
    // So the older dlock waits, and is rung when the hold is released. Its claim is then the first.
    join(&mut raw).await;
    client.release(&ticket).await.unwrap();
    let state = client.inspect("x").await.unwrap().expect("held");
    assert_eq!((state.holders.len(), state.queue.len()), (1, 0));
    assert_eq!(state.holders[0].who.as_deref(), Some("pid 1 on elsewhere"));
}

#[tokio::test]
async fn several_clients_upgrade_a_file_at_once() {
    let place = Place::new();
    drop(create_without_permits(&place).await);
    let clients = tokio::join!(place.client(), place.client(), place.client());
    assert_eq!(clients.0.inspect("x").await.unwrap().expect("held").holders.len(), 1);
    assert!(
        clients.2.semaphore("x", 4).try_acquire().await.unwrap().is_none(),
        "granted while the lock is held as a mutex"
    );
}
