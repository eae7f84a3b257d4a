//! Requests that the store may execute after the end of their claim.

use std::time::Duration;

use dlock_core::{Error, Kind, driver::Renewal};
use tokio::time::{Instant, sleep, timeout};

use super::script::{
    BUSY, Call, Fail, GRANTED, Late, MS, RENEWED, Refuse, S, Say, ScriptedStore, TTL, is_about,
};

/// Time for which the store may execute requests that were given up.
const LATE: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn a_claim_is_released_once_more_when_the_store_refuses_its_late_requests() {
    let store = ScriptedStore::new().late_for(LATE);
    let (client, start) = (store.client(), Instant::now());
    let held = client.mutex("x").lock().await.expect("granted");
    held.release().await.expect("held until now");
    assert!(start.elapsed() < S, "the caller waited for {:?}", start.elapsed());
    store.close(&client).await;
    let released = store.times(Call::Release, start);
    assert!(released.len() == 2 && is_about(released[1], LATE), "{released:?}");
    let ids = store.script().ids.clone();
    assert!(ids.len() == 2 && ids[0] == ids[1], "{ids:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_late_requests_is_released_once() {
    let store = ScriptedStore::new().late_for(LATE);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    sleep(LATE * 2).await;
    held.release().await.expect("held until now");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_try_of_a_busy_lock_is_released_when_the_store_refuses_its_late_requests() {
    let store = ScriptedStore::new().attempt([Say(BUSY)]).late_for(LATE);
    let (client, start) = (store.client(), Instant::now());
    assert!(client.mutex("x").try_lock().await.expect("a reply").is_none());
    assert!(start.elapsed() < S, "the caller waited for {:?}", start.elapsed());
    store.close(&client).await;
    let released = store.times(Call::Release, start);
    assert!(released.len() == 1 && is_about(released[0], LATE), "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_attempt_of_a_detached_hold_is_released_and_the_ticket_is_not_used() {
    let store = ScriptedStore::detaching().late_for(LATE);
    let (client, start) = (store.client(), Instant::now());
    let held = client.mutex("x").lock().await.expect("granted");
    held.detach(TTL * 10).await.expect("detached");
    store.close(&client).await;
    assert_eq!(store.count(Call::Detach), 1, "the hold of a late attempt was handed to the ticket");
    let released = store.times(Call::Release, start);
    assert!(released.len() == 1 && is_about(released[0], LATE), "{released:?}");
}

/// A reader does not know the requests of the writer that it replaces.
#[tokio::test(start_paused = true)]
async fn a_late_attempt_of_a_downgraded_hold_is_released() {
    let mut store = ScriptedStore::new().late_for(LATE);
    store.1 = store.1.downgrades(&[Kind::Mutex]);
    let (client, start) = (store.client(), Instant::now());
    let held = client.mutex("x").lock().await.expect("granted");
    let held = held.downgrade().await.expect("granted again");
    store.script().late_until = None;
    held.release().await.expect("held until now");
    store.close(&client).await;
    let released = store.times(Call::Release, start);
    assert!(released.len() == 2 && is_about(released[1], LATE), "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_downgrade_may_have_been_executed_is_lost_by_a_refusal() {
    let mut store = ScriptedStore::new().attempt([Say(GRANTED), Fail, Refuse]);
    store.1 = store.1.downgrades(&[Kind::Mutex]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let failed = held.downgrade().await.expect_err("the store refuses");
    assert!(matches!(failed.error(), Error::Lost { .. }), "{failed:?}");
    drop(failed);
    store.close(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_downgrade_was_refused_after_it_was_sent_twice_is_lost() {
    let mut store = ScriptedStore::new().attempt([Say(GRANTED), Refuse]);
    store.1 = store.1.downgrades(&[Kind::Mutex]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let store = store.late_for(LATE);
    let failed = held.downgrade().await.expect_err("the store refuses");
    assert!(matches!(failed.error(), Error::Lost { .. }), "{failed:?}");
    drop(failed);
    store.close(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_resumption_is_handed_back_once_more() {
    let store = ScriptedStore::detaching().renew([Late(S, RENEWED)]).late_for(LATE);
    let (client, start) = (store.client(), Instant::now());
    let ticket = client.mutex("x").lock().await.expect("granted").detach(TTL * 10).await.expect("detached");
    // The keeper has sent the request when its caller leaves.
    assert!(timeout(MS, client.resume(&ticket)).await.is_err(), "the reply takes a second");
    store.close(&client).await;
    let detached = store.times(Call::Detach, start);
    assert!(detached.len() == 3 && is_about(detached[2], LATE), "{detached:?}");
    assert!(store.script().tickets.iter().all(|used| *used == ticket.id()), "another ticket was used");
}

#[tokio::test(start_paused = true)]
async fn a_resumption_that_was_refused_after_it_was_sent_twice_is_handed_back() {
    let store = ScriptedStore::detaching();
    let client = store.client();
    let ticket = client.mutex("x").lock().await.expect("granted").detach(TTL * 10).await.expect("detached");
    let store = store.renew([Refuse]).late_for(LATE);
    client.resume(&ticket).await.expect_err("the store refuses");
    store.close(&client).await;
    assert!(store.count(Call::Detach) > 1, "the hold is not handed back");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_finds_no_hold_is_not_released_before_its_late_resumption_is_refused() {
    let store = ScriptedStore::detaching();
    let client = store.client();
    let ticket = client.mutex("x").lock().await.expect("granted").detach(TTL * 10).await.expect("detached");
    let (store, start) = (store.renew([Say(Renewal::Lost)]).late_for(LATE), Instant::now());
    client.resume(&ticket).await.expect_err("the hold was deleted");
    store.close(&client).await;
    let released = store.times(Call::Release, start);
    assert!(released.iter().all(|at| *at >= LATE), "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_does_not_wait_for_the_whole_time_of_a_ticket_while_the_store_is_unreachable() {
    let store = ScriptedStore::detaching()
        .detach([Say(RENEWED), Say(RENEWED), Fail])
        .renew([Late(S, RENEWED)])
        .release([Fail])
        .late_for(LATE);
    let client = store.client();
    let ticket = client.mutex("x").lock().await.expect("granted").detach(TTL * 900).await.expect("detached");
    assert!(timeout(MS, client.resume(&ticket)).await.is_err(), "the reply takes a second");
    let start = Instant::now();
    store.close(&client).await;
    assert!(start.elapsed() < TTL * 4, "the client needs {:?} to close", start.elapsed());
}
