//! The option `at_least`. A release before the end of the time becomes a detachment for the rest of
//! it.

use std::time::Duration;

use dlock_core::{
    Error, LostReason,
    driver::{Release, Renewal},
};
use tokio::time::{Instant, sleep, timeout};

use super::script::{Call, Fail, GRANTED, Late, RENEWED, Refuse, S, Say, ScriptedStore, TTL, is_about};

#[tokio::test(start_paused = true)]
async fn at_least_is_refused_before_any_request_if_the_store_cannot_keep_a_lock() {
    let store = ScriptedStore::new();
    let refused = store.client().mutex("x").lock().at_least(S).await.expect_err("the store cannot");
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused:?}");
    assert_eq!(store.count(Call::Attempt), 0, "a request was sent");
}

#[tokio::test(start_paused = true)]
async fn an_early_release_detaches_the_hold_for_the_rest_of_the_time() {
    for drops in [false, true] {
        let store = ScriptedStore::detaching();
        let client = store.client();
        let held = client.mutex("x").lock().at_least(TTL * 2).await.expect("granted");
        sleep(5 * S).await;
        if drops {
            drop(held);
        } else {
            held.release().await.expect("held until now");
        }
        store.close(&client).await;
        let durations = store.script().detached_for.clone();
        assert!(durations.len() == 1 && is_about(durations[0], TTL * 2 - 5 * S), "{durations:?}");
        assert!(durations[0] >= TTL * 2 - 5 * S, "free before the end of the time: {durations:?}");
        assert_eq!(store.count(Call::Release), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_after_the_end_of_the_time_is_a_release() {
    let store = ScriptedStore::detaching();
    let client = store.client();
    let held = client.mutex("x").lock().at_least(TTL * 2).await.expect("granted");
    sleep(TTL * 2).await;
    held.release().await.expect("held until now");
    store.close(&client).await;
    assert_eq!((store.count(Call::Detach), store.count(Call::Release)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_detachment_in_place_of_the_release_is_repeated_until_it_is_confirmed() {
    let store = ScriptedStore::detaching().detach([Fail, Refuse, Fail, Say(RENEWED)]);
    let client = store.client();
    let held = client.mutex("x").lock().at_least(TTL * 2).await.expect("granted");
    let start = Instant::now();
    drop(held);
    store.close(&client).await;
    let durations = store.script().detached_for.clone();
    let times = store.times(Call::Detach, start);
    assert_eq!((durations.len(), store.count(Call::Release)), (4, 0));
    assert!(
        durations.iter().zip(&times).all(|(duration, at)| is_about(*duration + *at, TTL * 2)),
        "the time does not count from the grant: {durations:?} at {times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_released_if_its_time_ends_before_the_store_replies() {
    let store = ScriptedStore::detaching().detach([Fail]);
    let client = store.client();
    let held = client.mutex("x").lock().at_least(5 * S).await.expect("granted");
    let start = Instant::now();
    timeout(TTL, held.release()).await.expect("the release hangs").expect("released in the end");
    store.close(&client).await;
    let released = store.times(Call::Release, start);
    assert!(released.len() == 1 && (5 * S..7 * S).contains(&released[0]), "released at {released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_detachment_in_place_of_the_release_that_finds_no_claim_is_a_loss() {
    let store = ScriptedStore::detaching().detach([Say(Renewal::Lost)]);
    let client = store.client();
    let held = client.mutex("x").lock().at_least(TTL).await.expect("granted");
    let result = held.release().await;
    assert!(matches!(result, Err(Error::Lost { reason: LostReason::Deleted, .. })), "{result:?}");
    store.close(&client).await;
    assert_eq!(
        store.count(Call::Release),
        1,
        "the claim was not released, although members of a RedLock may have kept it"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_lost_is_released_at_once() {
    let store = ScriptedStore::detaching().renew([Say(Renewal::Lost)]);
    let client = store.client();
    let held = client.mutex("x").lock().at_least(TTL * 2).await.expect("granted");
    held.lost().await;
    drop(held);
    store.close(&client).await;
    assert_eq!(
        (store.count(Call::Detach), store.count(Call::Release)),
        (0, 1),
        "the lost hold was detached, but another client may hold the lock"
    );
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_no_caller_receives_does_not_stay_taken() {
    let store = ScriptedStore::detaching().attempt([Late(S, GRANTED)]);
    let client = store.client();
    let mut acquiring = Box::pin(client.mutex("x").lock().at_least(TTL * 2));
    timeout(S / 2, &mut acquiring).await.expect_err("no reply yet");
    sleep(S).await;
    drop(acquiring);
    store.close(&client).await;
    assert_eq!((store.count(Call::Detach), store.count(Call::Release)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_detachment_in_place_of_the_release_is_within_the_limits_of_the_store() {
    let mut store = ScriptedStore::detaching();
    store.1 = store.1.ttl(20 * S..=TTL * 2);
    for (held_for, least) in [(Duration::ZERO, TTL * 2), (TTL, TTL + S)] {
        let held = store.client().mutex("x").lock().at_least(least).await.expect("granted");
        sleep(held_for).await;
        held.release().await.expect("held until now");
    }
    let durations = store.script().detached_for.clone();
    assert!(durations.iter().all(|duration| (20 * S..=TTL * 2).contains(duration)), "{durations:?}");
}

#[tokio::test(start_paused = true)]
async fn an_explicit_detachment_replaces_the_time_of_at_least() {
    let store = ScriptedStore::detaching().detach([Say(RENEWED)]).release([Say(Release::Done)]);
    let client = store.client();
    let held = client.mutex("x").lock().at_least(TTL * 2).await.expect("granted");
    held.detach(S).await.expect("the script detaches it");
    store.close(&client).await;
    assert_eq!(store.script().detached_for, [S]);
}
