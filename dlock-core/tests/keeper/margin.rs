//! The margin between the deadline of a guard and the earliest grant to another client.

use std::time::Duration;

use dlock_core::{Error, LostReason, driver::Renewal};
use tokio::time::{Instant, sleep};

use super::script::{Call, Fail, GRANTED, Hang, Late, Panic, RENEWED, S, Say, ScriptedStore, TTL, is_about};

const MARGIN: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn a_guard_is_lost_by_the_margin_before_the_store_may_grant_the_lock_again() {
    let store = ScriptedStore::new().renew([Fail]);
    let start = Instant::now();
    let held = store.client().mutex("x").lock().margin(MARGIN).await.expect("granted");
    assert!(is_about(held.remaining(), TTL - MARGIN), "{:?}", held.remaining());
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(is_about(start.elapsed(), TTL - MARGIN), "lost after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_extends_a_hold_to_the_margin_before_the_end_of_the_grant() {
    let store = ScriptedStore::new().renew([Late(2 * S, RENEWED), Fail]);
    let start = Instant::now();
    let held = store.client().mutex("x").lock().margin(MARGIN).await.expect("granted");
    assert_eq!(held.lost().await, LostReason::Expired);
    // A third of the twenty seconds until the deadline passes before the renewal is sent.
    let lost_at = (TTL - MARGIN) / 3 + TTL - MARGIN;
    assert!(is_about(start.elapsed(), lost_at), "lost after {:?}", start.elapsed());
    assert_eq!(store.script().ttls, [TTL], "the store got another ttl");
}

#[tokio::test(start_paused = true)]
async fn an_expired_hold_is_released_when_its_guard_is_dropped() {
    let store = ScriptedStore::new().renew([Fail]);
    let (client, start) = (store.client(), Instant::now());
    let held = client.mutex("x").lock().margin(MARGIN).await.expect("granted");
    held.lost().await;
    // The work stops.
    sleep(4 * S).await;
    assert_eq!(store.count(Call::Release), 0, "the next holder was admitted while the work still ran");
    drop(held);
    store.close(&client).await;
    let releases = store.times(Call::Release, start);
    assert!(releases.len() == 1 && is_about(releases[0], TTL - MARGIN + 4 * S), "{releases:?}");
}

#[tokio::test(start_paused = true)]
async fn an_expired_hold_is_released_at_the_end_of_its_margin_at_the_latest() {
    let store = ScriptedStore::new().renew([Fail]);
    let (client, start) = (store.client(), Instant::now());
    let held = client.mutex("x").lock().margin(MARGIN).await.expect("granted");
    sleep(TTL + S).await;
    let releases = store.times(Call::Release, start);
    assert!(releases.len() == 1 && is_about(releases[0], TTL), "{releases:?}");
    drop(held);
    store.close(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_the_store_reports_has_no_margin() {
    let store = ScriptedStore::new().renew([Say(Renewal::Lost)]);
    let (client, start) = (store.client(), Instant::now());
    let held = client.mutex("x").lock().margin(MARGIN).await.expect("granted");
    assert_eq!(held.lost().await, LostReason::Deleted);
    let lost_at = (TTL - MARGIN) / 3;
    assert!(is_about(start.elapsed(), lost_at), "lost after {:?}", start.elapsed());
    sleep(S).await;
    let releases = store.times(Call::Release, start);
    assert!(releases.len() == 1 && is_about(releases[0], lost_at), "{releases:?}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_driver_leaves_its_holder_the_margin() {
    let store = ScriptedStore::new().renew([Panic]);
    let (client, start) = (store.client(), Instant::now());
    let held = client.mutex("x").lock().margin(MARGIN).await.expect("granted");
    assert_eq!(held.lost().await, LostReason::Abandoned);
    sleep(4 * S).await;
    assert_eq!(store.count(Call::Release), 0, "the next holder was admitted while the work still ran");
    drop(held);
    client.close().await;
    let releases = store.times(Call::Release, start);
    assert!(releases.len() == 1 && is_about(releases[0], (TTL - MARGIN) / 3 + 4 * S), "{releases:?}");
}

#[tokio::test(start_paused = true)]
async fn leases_and_max_hold_end_by_the_margin_earlier() {
    for with_lease in [true, false] {
        let store = ScriptedStore::new();
        let (client, start) = (store.client(), Instant::now());
        let lock = client.mutex("x").lock().margin(MARGIN);
        let lock = if with_lease { lock.lease(TTL) } else { lock.max_hold(TTL * 3) };
        let end = if with_lease { TTL } else { TTL * 3 };
        let held = lock.await.expect("granted");
        assert_eq!(held.lost().await, LostReason::Expired);
        assert!(is_about(start.elapsed(), end - MARGIN), "lost after {:?}", start.elapsed());
        sleep(TTL).await;
        let releases = store.times(Call::Release, start);
        assert!(releases.len() == 1 && is_about(releases[0], end), "{releases:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_of_which_only_the_margin_is_left_is_not_delivered() {
    let store = ScriptedStore::new().attempt([Late(TTL - MARGIN + S, GRANTED)]);
    let error = store.client().mutex("x").try_lock().margin(MARGIN).await.expect_err("too late");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let text = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(text.contains("granted for 30s, of which 10s are its margin"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_release_within_the_margin_waits_for_its_confirmation_until_the_end_of_the_grant() {
    let store = ScriptedStore::new().renew([Fail]).release([Hang]);
    let start = Instant::now();
    let held = store.client().mutex("x").lock().margin(MARGIN).await.expect("granted");
    sleep(TTL - MARGIN - S).await;
    let error = held.release().await.expect_err("the store never confirms the release");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(is_about(start.elapsed(), TTL), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_detached_for_less_than_its_margin() {
    let store = ScriptedStore::detaching();
    let held = store.client().mutex("x").lock().margin(MARGIN).await.expect("granted");
    held.detach(S).await.expect("the margin concerns running work only");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_was_taken_over_by_ticket_has_the_margin_of_its_new_client() {
    let store = ScriptedStore::detaching();
    let held = store.client().mutex("x").lock().await.expect("granted");
    let ticket = held.detach(TTL).await.expect("the script detaches");
    let client = store.client().with_defaults(dlock_core::LockOptions::new().margin(MARGIN));
    let held = client.resume(&ticket).await.expect("the script resumes");
    assert!(is_about(held.remaining(), TTL - MARGIN), "{:?}", held.remaining());
}
