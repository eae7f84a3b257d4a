//! Release of a hold, which is repeated until the store has confirmed it.

use dlock_core::{
    Error, LostReason,
    driver::{Release, Renewal},
};
use tokio::time::{Instant, sleep, timeout};

use super::script::{
    BUSY, Call, Fail, GRANTED, Late, LatePanic, MS, RENEWED, Refuse, S, Say, ScriptedStore, TTL, Unwritable,
    is_about,
};

#[tokio::test(start_paused = true)]
async fn a_renewal_is_not_dropped_in_flight_when_the_guard_is_dropped() {
    let store = ScriptedStore::new().renew([Late(2 * S, RENEWED)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    sleep(TTL / 3 + S).await;
    drop(held);
    store.close(&client).await;
    assert_eq!((store.count(Call::Renew), store.count(Call::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_renewal_that_returns_lost_reports_the_loss() {
    let store = ScriptedStore::new().renew([Late(2 * S, Renewal::Lost)]);
    let held = store.hold().await;
    sleep(TTL / 3 + S).await;
    let result = timeout(TTL, held.release()).await.expect("the release hangs");
    assert!(matches!(result, Err(Error::Lost { reason: LostReason::Deleted, .. })), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_renewal_that_outlasts_the_hold_is_not_confirmed() {
    let store = ScriptedStore::new().renew([Late(TTL, RENEWED)]);
    let held = store.hold().await;
    sleep(TTL / 3 + S).await;
    let lost = held.lost_signal();
    let result = timeout(TTL, held.release()).await.expect("the release hangs");
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(!lost.is_lost(), "the guard was released before its deadline, but a loss was reported");
}

#[tokio::test(start_paused = true)]
async fn a_drop_during_a_renewal_that_outlasts_the_hold_is_no_loss() {
    let store = ScriptedStore::new().renew([Late(TTL, RENEWED)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let lost = held.lost_signal();
    sleep(TTL / 3 + S).await;
    drop(held);
    store.close(&client).await;
    assert!(!lost.is_lost(), "the guard was released before its deadline, but a loss was reported");
    assert_eq!(store.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_renewal_that_panics_reports_the_loss() {
    let store = ScriptedStore::new().renew([LatePanic(2 * S)]);
    let held = store.hold().await;
    sleep(TTL / 3 + S).await;
    let result = timeout(TTL, held.release()).await.expect("the release hangs");
    assert!(matches!(result, Err(Error::Lost { reason: LostReason::Abandoned, .. })), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_is_not_dropped_in_flight_when_its_caller_leaves() {
    let store = ScriptedStore::new().release([Late(2 * S, Release::Done)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    timeout(S, held.release()).await.expect_err("no reply yet");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_until_it_is_confirmed_with_growing_pauses() {
    let store = ScriptedStore::new().release([Fail, Fail, Fail, Fail, Fail, Fail, Fail, Say(Release::Done)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    held.release().await.expect("confirmed in the end");
    let times = store.times(Call::Release, start);
    assert_eq!(times.len(), 8);
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[0] < 100 * MS, "the first pause is long: {pauses:?}");
    assert!(pauses.windows(2).all(|pair| pair[1] + 25 * MS >= pair[0]), "the pauses do not grow: {pauses:?}");
    assert!(pauses[6] >= S, "the pauses do not grow to a second: {pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= 1100 * MS), "the pauses grow beyond a second: {pauses:?}");
    store.close(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_no_claim_is_a_loss() {
    let store = ScriptedStore::new().release([Say(Release::Gone)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let lost = held.lost_signal();
    let result = held.release().await;
    assert!(matches!(result, Err(Error::Lost { reason: LostReason::Deleted, .. })), "{result:?}");
    assert!(lost.is_lost(), "the signal was not set");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_drop_that_finds_no_claim_sets_the_signal_of_the_loss() {
    let store = ScriptedStore::new().release([Say(Release::Gone)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let lost = held.lost_signal();
    drop(held);
    store.close(&client).await;
    assert!(lost.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_no_claim_after_a_failed_one_is_a_success() {
    let store = ScriptedStore::new().release([Fail, Say(Release::Gone)]);
    let held = store.hold().await;
    let lost = held.lost_signal();
    held.release().await.expect("the failed release may have deleted the claim");
    assert!(!lost.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_no_claim_after_the_deadline_is_a_success() {
    let store = ScriptedStore::new().release([Late(TTL, Release::Gone)]);
    let held = store.hold().await;
    let lost = held.lost_signal();
    held.release().await.expect("the store has deleted the claim by itself");
    assert!(!lost.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_release_is_abandoned_when_the_store_has_deleted_the_claim_by_itself() {
    let store = ScriptedStore::new().release([Fail]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    let result = held.release().await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(start.elapsed() <= TTL + 2 * S, "reported after {:?}", start.elapsed());
    store.close(&client).await;
    assert!(start.elapsed() <= TTL + 2 * S, "abandoned after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_refused_release_is_reported_at_once_and_repeated_a_second_later() {
    let store = ScriptedStore::new().release([Refuse, Refuse, Refuse, Say(Release::Done)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    let result = held.release().await;
    assert!(matches!(result, Err(Error::Refused { .. })), "{result:?}");
    assert!(start.elapsed() < S, "reported after {:?}", start.elapsed());
    store.close(&client).await;
    let times = store.times(Call::Release, start);
    assert_eq!(times.len(), 4, "not repeated until the store confirmed it: {times:?}");
    assert!(
        times.windows(2).all(|pair| pair[1] - pair[0] >= S),
        "repeated within a second of a refusal: {times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_release_is_repeated_before_the_store_deletes_the_claim_by_itself() {
    let store = ScriptedStore::new().release([Refuse, Say(Release::Done)]);
    let client = store.client();
    let held = client.mutex("x").lock().ttl(S).await.expect("granted");
    let start = Instant::now();
    held.release().await.expect_err("refused at first");
    store.close(&client).await;
    let times = store.times(Call::Release, start);
    assert!(
        times.len() == 2 && times[1] < S / 2,
        "not repeated before the end of the ttl, although the store may have been repaired: {times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_if_the_store_cannot_write_now() {
    let store = ScriptedStore::new().release([Unwritable, Say(Release::Done)]);
    let client = store.client();
    client.mutex("x").lock().await.expect("granted").release().await.expect("the second release succeeds");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 2);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_refused_delays_the_close_by_no_more_than_a_ttl() {
    let mut store = ScriptedStore::new().release([Refuse; 100]);
    store.1 = store.1.session(TTL, MS..=TTL * 1000);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    held.release().await.expect_err("the store refuses");
    let start = Instant::now();
    timeout(TTL * 2, client.close()).await.expect("the end of the session removes the claim");
    assert!(start.elapsed() <= TTL + 3 * S, "the close took {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_release_is_not_abandoned_while_a_session_may_keep_the_claim() {
    let mut store = ScriptedStore::new().release([Fail]);
    store.1 = store.1.session(TTL, MS..=TTL * 1000);
    let client = store.client();
    drop(client.mutex("x").lock().await.expect("granted"));
    sleep(TTL * 20).await;
    let releases = store.count(Call::Release);
    sleep(TTL).await;
    assert!(
        store.count(Call::Release) > releases,
        "the keeper gave up, although only the end of the session would delete the claim"
    );
    store.script().release = [Say(Release::Done)].into();
    store.close(&client).await;
}

#[tokio::test(start_paused = true)]
async fn the_release_of_a_refused_waiter_is_repeated_until_it_is_confirmed() {
    let store =
        ScriptedStore::new().attempt([Say(BUSY), Refuse]).release([Refuse, Refuse, Say(Release::Done)]);
    let client = store.client();
    let result = client.mutex("x").lock().await;
    assert!(matches!(result, Err(Error::Refused { .. })), "{result:?}");
    store.close(&client).await;
    assert_eq!(
        store.count(Call::Release),
        3,
        "the keeper gave up, so the claim stays in the queue for a ttl"
    );
}

#[tokio::test(start_paused = true)]
async fn run_returns_the_result_of_its_work_although_the_release_is_not_confirmed() {
    for release in [Fail, Refuse] {
        let store = ScriptedStore::new().release([release]);
        let result = store.client().mutex("x").run(async |_| 42).await;
        assert_eq!(result.ok(), Some(42), "{release:?}");
    }
    let store = ScriptedStore::new().release([Say(Release::Gone)]);
    let result = store.client().mutex("x").run(async |_| 42).await;
    assert!(
        matches!(result, Err(Error::Lost { .. })),
        "the loss during the work is not reported: {result:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_hold_is_also_released() {
    let store = ScriptedStore::new().renew([Fail]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    held.lost().await;
    drop(held);
    store.close(&client).await;
    assert_eq!(
        store.count(Call::Release),
        1,
        "the claim was not released, although the last renewal may have reached the store"
    );
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_released_if_its_caller_leaves_before_it_receives_the_guard() {
    let store = ScriptedStore::new().attempt([Late(S, GRANTED)]);
    let client = store.client();
    let mut acquiring = Box::pin(client.mutex("x").lock());
    timeout(S / 2, &mut acquiring).await.expect_err("no reply yet");
    sleep(S).await;
    assert_eq!(store.count(Call::Release), 0, "released although the caller can still receive the guard");
    drop(acquiring);
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_reply_arrives_after_the_deadline_is_not_confirmed() {
    let store = ScriptedStore::new().release([Late(TTL * 10, Release::Done)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let (start, lost) = (Instant::now(), held.lost_signal());
    let result = held.release().await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert!(is_about(start.elapsed(), TTL), "reported after {:?}", start.elapsed());
    assert!(!lost.is_lost(), "the guard was released before its deadline, but a loss was reported");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1, "another release was sent while one was in flight");
}
