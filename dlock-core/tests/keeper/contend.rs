//! The acquisition of a lock, from the first attempt to the grant.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    Error, Kind, LockOptions, Token,
    driver::{Attempt, Grant, Release},
};
use tokio::time::{Instant, timeout};

use super::script::{
    BUSY, Call, Fail, GRANTED, Hang, Hints, Late, MS, Refuse, S, Say, ScriptedStore, TTL, Unsent, is_about,
};

#[tokio::test(start_paused = true)]
async fn endless_hints_do_not_make_a_waiter_flood_the_store() {
    let store = ScriptedStore::new().attempt([Say(BUSY)]).hints(Hints::Endless);
    timeout(S, store.client().mutex("x").lock()).await.expect_err("it is busy");
    let attempts = store.count(Call::Attempt);
    assert!((50..300).contains(&attempts), "{attempts} attempts in a second");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_pauses_longer_after_each_unfounded_hint() {
    let store = ScriptedStore::new().attempt([Say(BUSY)]).hints(Hints::Endless);
    let start = Instant::now();
    timeout(S, store.client().mutex("x").lock()).await.expect_err("it is busy");
    let times = store.times(Call::Attempt, start);
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        pauses[..3].iter().all(Duration::is_zero),
        "a pause after one of the first three hints, which a hand-over may need: {pauses:?}"
    );
    for (pause, least) in pauses[3..7].iter().zip([1, 2, 4, 8]) {
        assert!((least * MS..=(least + 1) * MS).contains(pause), "a pause is not {least} ms: {pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_jitter_of_a_pause_is_at_most_a_quarter_of_it() {
    let busy = Say(Attempt::Busy { retry_in: 10 * MS });
    let store = ScriptedStore::new().attempt([busy; 50].into_iter().chain([Say(GRANTED)]));
    let start = Instant::now();
    drop(store.hold().await);
    let elapsed = start.elapsed();
    assert!(elapsed >= 500 * MS, "attempted sooner than `retry_in`: {elapsed:?}");
    assert!(elapsed <= 625 * MS, "attempted much later than `retry_in`: {elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_attempts_were_not_sent_is_not_released() {
    let store = ScriptedStore::new().attempt([Unsent]);
    let client = store.client();
    client.mutex("x").lock().await.expect_err("no attempt was sent");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 0, "after {} attempts", store.count(Call::Attempt));
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_released_if_one_of_its_attempts_was_sent() {
    let store = ScriptedStore::new().attempt([Unsent, Fail, Unsent]);
    let client = store.client();
    client.mutex("x").lock().await.expect_err("no attempt had a reply");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hint_makes_a_waiter_attempt_at_once() {
    let store = ScriptedStore::new().attempt([Say(BUSY), Say(GRANTED)]).hints(Hints::Once(S));
    let start = Instant::now();
    drop(store.hold().await);
    assert!(is_about(start.elapsed(), S), "granted after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn without_a_hint_a_waiter_attempts_after_the_time_that_the_store_requested() {
    let store = ScriptedStore::new().attempt([Say(Attempt::Busy { retry_in: 2 * S }), Say(GRANTED)]);
    let start = Instant::now();
    drop(store.hold().await);
    assert!(is_about(start.elapsed(), 2 * S), "the second attempt came after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_attempts_three_times_in_its_ttl_even_if_the_store_requests_fewer() {
    let store = ScriptedStore::new().attempt([Say(Attempt::Busy { retry_in: Duration::MAX })]);
    let start = Instant::now();
    timeout(TTL + S, store.client().mutex("x").lock()).await.expect_err("it is busy");
    let times = store.times(Call::Attempt, start);
    assert_eq!(
        times.len(),
        4,
        "not one attempt for each third of the ttl, which keeps a waiting claim: {times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_flood_a_store_that_requests_attempts_at_once() {
    let store = ScriptedStore::new().attempt([Say(Attempt::Busy { retry_in: Duration::ZERO })]);
    timeout(S, store.client().mutex("x").lock()).await.expect_err("it is busy");
    let attempts = store.count(Call::Attempt);
    assert!(attempts <= 1001, "{attempts} attempts in a second");
}

#[tokio::test(start_paused = true)]
async fn hints_do_not_make_a_waiter_flood_a_store_that_is_unreachable() {
    let store = ScriptedStore::new().attempt([Fail, Fail, Fail, Say(GRANTED)]).hints(Hints::Endless);
    let start = Instant::now();
    drop(store.hold().await);
    assert!(start.elapsed() >= S / 4, "attempts at {:?}", store.times(Call::Attempt, start));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_survives_four_failures_in_a_row() {
    let store = ScriptedStore::new().attempt([Fail, Fail, Fail, Fail, Say(GRANTED)]);
    drop(store.hold().await);
    assert_eq!(store.count(Call::Attempt), 5);
}

#[tokio::test(start_paused = true)]
async fn a_reply_between_failures_restarts_their_count() {
    let store = ScriptedStore::new().attempt([
        Fail,
        Fail,
        Fail,
        Fail,
        Say(BUSY),
        Fail,
        Fail,
        Fail,
        Fail,
        Say(GRANTED),
    ]);
    drop(store.hold().await);
}

#[tokio::test(start_paused = true)]
async fn after_five_failures_in_a_row_the_error_is_reported_and_the_claim_released() {
    let store = ScriptedStore::new().attempt([Fail]);
    let client = store.client();
    let result = client.mutex("x").lock().await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert_eq!(store.count(Call::Attempt), 5);
    store.close(&client).await;
    assert_eq!(
        store.count(Call::Release),
        1,
        "the claim was not released, but the store may have granted an attempt"
    );
}

#[tokio::test(start_paused = true)]
async fn a_queued_waiter_outlasts_an_outage_that_is_shorter_than_its_ttl() {
    let outage = [Fail; 12];
    let store = ScriptedStore::new().attempt([Say(BUSY)].into_iter().chain(outage).chain([Say(GRANTED)]));
    let start = Instant::now();
    drop(store.hold().await);
    let times = store.times(Call::Attempt, start);
    assert!(times[13] - times[1] < TTL, "the test needs an outage shorter than the ttl: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn a_queued_waiter_reports_an_outage_after_a_ttl_without_flooding_the_store() {
    let store = ScriptedStore::new().attempt([Say(BUSY), Fail]);
    let client = store.client();
    let start = Instant::now();
    let result = client.mutex("x").lock().await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    let times = store.times(Call::Attempt, start);
    let outage = *times.last().expect("attempted") - times[1];
    assert!((TTL..TTL + 2 * S).contains(&outage), "the waiter gave up after {outage:?}");
    let late = times.windows(2).filter(|pair| pair[0] > times[1] + 2 * S);
    let pauses: Vec<_> = late.map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.iter().all(|pause| *pause >= S), "more than one attempt in a second: {pauses:?}");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_queued_waiter_with_a_short_ttl_survives_four_failures() {
    let outage = [Say(BUSY), Fail, Fail, Fail, Fail, Say(GRANTED)];
    let store = ScriptedStore::new().attempt(outage);
    let client = store.client();
    drop(client.mutex("x").lock().ttl(30 * MS).await.expect("granted in the end"));
}

#[tokio::test(start_paused = true)]
async fn a_queued_waiter_does_not_wait_beyond_its_limit_in_an_outage() {
    let store = ScriptedStore::new().attempt([Say(Attempt::Busy { retry_in: MS }), Fail]);
    let start = Instant::now();
    let result = store.client().mutex("x").lock().wait(8 * S).await;
    assert!(matches!(result, Err(Error::Timeout { source: Some(_), .. })), "{result:?}");
    assert!(is_about(start.elapsed(), 8 * S), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn waiters_that_failed_together_do_not_retry_together() {
    let mut retry_times = Vec::new();
    for _ in 0..20 {
        let store = ScriptedStore::new().attempt([Fail, Say(GRANTED)]);
        let start = Instant::now();
        drop(store.hold().await);
        retry_times.push(store.times(Call::Attempt, start)[1]);
    }
    let (first, last) =
        (retry_times.iter().min().expect("retried"), retry_times.iter().max().expect("retried"));
    let spread = last.saturating_sub(*first);
    assert!(spread >= 5 * MS, "twenty waiters retried within {spread:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_refusal_the_error_is_reported_at_once_and_the_claim_released() {
    let store = ScriptedStore::new().attempt([Refuse]);
    let client = store.client();
    let result = client.mutex("x").lock().await;
    assert!(matches!(result, Err(Error::Refused { .. })), "{result:?}");
    assert_eq!(store.count(Call::Attempt), 1, "the keeper made another attempt after a refusal");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_try_is_reported_at_once() {
    let store = ScriptedStore::new().attempt([Fail]);
    let result = store.client().mutex("x").try_lock().await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    assert_eq!(store.count(Call::Attempt), 1);
}

#[tokio::test(start_paused = true)]
async fn a_limited_wait_ends_in_time_if_the_store_hangs() {
    let store = ScriptedStore::new().attempt([Hang]);
    let start = Instant::now();
    let result = store.client().mutex("x").lock().wait(3 * S).await;
    assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
    assert!(is_about(start.elapsed(), 3 * S), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_timeout_after_failures_has_the_last_failure_as_its_source() {
    let store = ScriptedStore::new().attempt([Fail, Say(BUSY)]);
    let result = store.client().mutex("x").lock().wait(3 * S).await;
    let Err(Error::Timeout { source: Some(source), .. }) = result else { panic!("{result:?}") };
    assert_eq!(source.to_string(), "script is not reachable");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_not_dropped_in_flight_when_its_caller_leaves() {
    let store = ScriptedStore::new().attempt([Late(2 * S, GRANTED)]);
    let client = store.client();
    timeout(S, client.mutex("x").lock()).await.expect_err("no reply yet");
    assert_eq!(store.count(Call::Release), 0, "released before the outcome of the attempt was known");
    store.close(&client).await;
    assert_eq!((store.count(Call::Attempt), store.count(Call::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_no_waiter_is_not_reported() {
    let store = ScriptedStore::new().attempt([Fail]).release([Say(Release::Gone)]);
    let client = store.client();
    let result = client.mutex("x").try_lock().await;
    assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_arrives_after_its_ttl_is_requested_again() {
    let store = ScriptedStore::new().attempt([Late(TTL + S, GRANTED), Say(GRANTED)]);
    let held = store.hold().await;
    assert!(!held.is_lost());
    assert_eq!(store.count(Call::Attempt), 2);
}

#[tokio::test(start_paused = true)]
async fn an_option_that_a_call_leaves_unset_is_the_clients_default() {
    use dlock_core::DistributedLockExt as _;
    let store = ScriptedStore::new();
    let client = store.client().with_defaults(LockOptions::new().ttl(TTL * 2).wait(S));
    let _held = client.mutex("x").lock_within(S).await.expect("granted");
    assert_eq!(store.script().ttls, [TTL * 2], "a call without a ttl did not use the client's default");
    let lock: Arc<dyn dlock_core::DistributedLock> = Arc::new(client.mutex("x"));
    store.script().attempt = [Say(BUSY)].into();
    let result = lock.lock(&LockOptions::new()).await;
    assert!(matches!(result, Err(Error::Timeout { limit, .. }) if limit == S), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_try_makes_one_attempt_and_no_release() {
    let store = ScriptedStore::new().attempt([Say(BUSY)]);
    let client = store.client();
    assert!(client.mutex("x").try_lock().await.expect("busy is no error").is_none());
    store.close(&client).await;
    assert_eq!((store.count(Call::Attempt), store.count(Call::Release)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_token_of_the_guard_is_that_of_the_grant() {
    let token = Token::new(42);
    let store = ScriptedStore::new().attempt([Say(Attempt::Granted(Grant { token, valid_for: TTL }))]);
    assert_eq!(store.hold().await.token(), token);
}

#[tokio::test(start_paused = true)]
async fn the_refusal_of_an_unsupported_kind_names_the_supported_kinds() {
    let mut store = ScriptedStore::new();
    store.1 = store.1.kinds(&[Kind::Mutex, Kind::Write]);
    let error = store.client().fair("x").lock().await.expect_err("the store has no fair lock").to_string();
    assert!(error.contains("fair") && error.contains("mutex, write"), "{error}");
    assert_eq!(store.count(Call::Attempt), 0);
}
