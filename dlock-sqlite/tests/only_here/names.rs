//! An unused name leaves nothing in the file.

use std::time::Duration;

use dlock_core::{
    Kind, LockName,
    driver::{Attempt, Backend, Request},
};
use sqlx::SqliteConnection;
use tokio::time::{Instant, sleep};

use super::Place;

async fn count(raw: &mut SqliteConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(raw).await.unwrap()
}

async fn claims(raw: &mut SqliteConnection) -> i64 {
    count(raw, "SELECT COUNT(*) FROM dlock_queue").await
}

#[tokio::test]
async fn ten_thousand_names_leave_nothing_in_the_file() {
    let place = Place::new();
    let (client, mut raw) = (place.client().await, place.raw().await);
    let mut pages = 0;
    for number in 0..10_000 {
        let kinds = client.info().kinds;
        let kind = kinds[number % kinds.len()];
        let guard = client.of(kind, format!("invoice/{number}")).lock(&Default::default()).await.unwrap();
        guard.release().await.unwrap();
        if number == 1000 {
            pages = count(&mut raw, "PRAGMA page_count").await;
        }
    }
    assert_eq!(claims(&mut raw).await, 0, "a released lock has left a claim");
    assert_eq!(
        count(&mut raw, "SELECT COUNT(*) FROM dlock_store").await,
        1,
        "the fence has grown with the names"
    );
    let after = count(&mut raw, "PRAGMA page_count").await;
    assert!(after <= pages, "the file has grown from {pages} to {after} pages with nine thousand names");
}

#[tokio::test]
async fn claims_that_were_never_released_are_removed_by_calls_for_other_names() {
    let place = Place::new();
    let (silent, busy, mut raw) = (place.backend().await, place.client().await, place.raw().await);
    for number in 0..100 {
        let name = LockName::new(format!("invoice/{number}")).unwrap();
        let mut claim = silent.claim(Request::new(name, Kind::Mutex, Duration::from_millis(10)));
        // The claim is dropped while it holds the lock, as when its runtime ends. Its process
        // continues.
        assert!(matches!(claim.attempt().await.unwrap(), Attempt::Granted(_)));
    }
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let before = claims(&mut raw).await;
        let guard = busy.mutex("another").lock().await.unwrap();
        guard.release().await.unwrap();
        let after = claims(&mut raw).await;
        assert!(
            before - after <= 16,
            "{before} claims before one call and {after} after it, but a call must not remove more than 16"
        );
        if after == 0 {
            break;
        }
        assert!(Instant::now() < end, "{after} claims of a silent client are left");
        sleep(Duration::from_millis(1)).await;
    }
    drop(silent);
}
