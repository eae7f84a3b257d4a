//! From the first attempt to the grant.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    Error, Kind, LockOptions, Token,
    driver::{Attempt, Grant, Release},
};
use tokio::time::{Instant, timeout};

use super::script::{BUSY, Call, Fail, GRANTED, Hang, Hints, Late, MS, Play, Refuse, S, Say, TTL, about};

#[tokio::test(start_paused = true)]
async fn hints_without_end_do_not_make_a_waiter_hammer() {
    let play = Play::new().attempt([Say(BUSY)]).hints(Hints::Endless);
    timeout(S, play.client().mutex("x").lock()).await.expect_err("it is busy");
    let asked = play.count(Call::Attempt);
    assert!((50..300).contains(&asked), "{asked} attempts in a second");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_pauses_longer_after_each_hint_that_did_not_pay() {
    let play = Play::new().attempt([Say(BUSY)]).hints(Hints::Endless);
    let start = Instant::now();
    timeout(S, play.client().mutex("x").lock()).await.expect_err("it is busy");
    let times = play.times(Call::Attempt, start);
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        pauses[..3].iter().all(Duration::is_zero),
        "a pause after one of the first three hints, and a hand-off needs one or two: {pauses:?}"
    );
    for (pause, least) in pauses[3..7].iter().zip([1, 2, 4, 8]) {
        assert!((least * MS..=(least + 1) * MS).contains(pause), "not {least} ms: {pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_jitter_of_a_pause_is_small_beside_the_pause() {
    let busy = Say(Attempt::Busy { retry_in: 10 * MS });
    let play = Play::new().attempt([busy; 50].into_iter().chain([Say(GRANTED)]));
    let start = Instant::now();
    drop(play.hold().await);
    let spent = start.elapsed();
    assert!(spent >= 500 * MS, "asked sooner than the store said: {spent:?}");
    assert!(spent <= 625 * MS, "asked much later than the store said: {spent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hint_makes_a_waiter_ask_at_once() {
    let play = Play::new().attempt([Say(BUSY), Say(GRANTED)]).hints(Hints::Once(S));
    let start = Instant::now();
    drop(play.hold().await);
    assert!(about(start.elapsed(), S), "granted after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn without_a_hint_a_waiter_asks_when_the_store_said() {
    let play = Play::new().attempt([Say(Attempt::Busy { retry_in: 2 * S }), Say(GRANTED)]);
    let start = Instant::now();
    drop(play.hold().await);
    assert!(about(start.elapsed(), 2 * S), "asked again after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_asks_three_times_in_its_ttl_whatever_the_store_said() {
    let play = Play::new().attempt([Say(Attempt::Busy { retry_in: Duration::MAX })]);
    let start = Instant::now();
    timeout(TTL + S, play.client().mutex("x").lock()).await.expect_err("it is busy");
    let times = play.times(Call::Attempt, start);
    assert_eq!(
        times.len(),
        4,
        "a waiting claim is kept alive by an attempt every third of its ttl: {times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_its_waiters_ask_at_once_is_not_hammered() {
    let play = Play::new().attempt([Say(Attempt::Busy { retry_in: Duration::ZERO })]);
    timeout(S, play.client().mutex("x").lock()).await.expect_err("it is busy");
    let asked = play.count(Call::Attempt);
    assert!(asked <= 1001, "{asked} attempts in a second");
}

#[tokio::test(start_paused = true)]
async fn hints_do_not_make_a_waiter_hammer_a_store_that_is_down() {
    let play = Play::new().attempt([Fail, Fail, Fail, Say(GRANTED)]).hints(Hints::Endless);
    let start = Instant::now();
    drop(play.hold().await);
    assert!(start.elapsed() >= S / 4, "asked {:?}", play.times(Call::Attempt, start));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_survives_four_failures_in_a_row() {
    let play = Play::new().attempt([Fail, Fail, Fail, Fail, Say(GRANTED)]);
    drop(play.hold().await);
    assert_eq!(play.count(Call::Attempt), 5);
}

#[tokio::test(start_paused = true)]
async fn an_answer_between_failures_begins_a_new_row() {
    let play = Play::new().attempt([Fail, Fail, Fail, Fail, Say(BUSY), Fail, Fail, Fail, Fail, Say(GRANTED)]);
    drop(play.hold().await);
}

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_are_reported_and_released() {
    let play = Play::new().attempt([Fail]);
    let client = play.client();
    let told = client.mutex("x").lock().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    assert_eq!(play.count(Call::Attempt), 5);
    play.over(&client).await;
    assert_eq!(
        play.count(Call::Release),
        1,
        "the store may have granted one of the attempts, and nobody released it"
    );
}

#[tokio::test(start_paused = true)]
async fn a_queued_waiter_outlasts_an_outage_that_is_shorter_than_its_ttl() {
    let outage = [Fail; 12];
    let play = Play::new().attempt([Say(BUSY)].into_iter().chain(outage).chain([Say(GRANTED)]));
    let start = Instant::now();
    drop(play.hold().await);
    let times = play.times(Call::Attempt, start);
    assert!(times[13] - times[1] < TTL, "the outage was meant to be short: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn a_queued_waiter_hears_of_an_outage_after_a_ttl_and_has_not_hammered() {
    let play = Play::new().attempt([Say(BUSY), Fail]);
    let client = play.client();
    let start = Instant::now();
    let told = client.mutex("x").lock().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    let times = play.times(Call::Attempt, start);
    let silent = *times.last().expect("asked") - times[1];
    assert!((TTL..TTL + 2 * S).contains(&silent), "it gave up after {silent:?}");
    let late = times.windows(2).filter(|pair| pair[0] > times[1] + 2 * S);
    let pauses: Vec<_> = late.map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.iter().all(|pause| *pause >= S), "it asks more than once a second: {pauses:?}");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_queued_waiter_with_a_short_ttl_survives_four_failures() {
    let outage = [Say(BUSY), Fail, Fail, Fail, Fail, Say(GRANTED)];
    let play = Play::new().attempt(outage);
    let client = play.client();
    drop(client.mutex("x").lock().ttl(30 * MS).await.expect("granted in the end"));
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_keep_a_queued_waiter_longer_than_its_wait() {
    let play = Play::new().attempt([Say(Attempt::Busy { retry_in: MS }), Fail]);
    let start = Instant::now();
    let told = play.client().mutex("x").lock().wait(8 * S).await;
    assert!(matches!(told, Err(Error::Timeout { source: Some(_), .. })), "{told:?}");
    assert!(about(start.elapsed(), 8 * S), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn waiters_that_failed_together_do_not_come_back_in_step() {
    let mut seconds = Vec::new();
    for _ in 0..20 {
        let play = Play::new().attempt([Fail, Say(GRANTED)]);
        let start = Instant::now();
        drop(play.hold().await);
        seconds.push(play.times(Call::Attempt, start)[1]);
    }
    let spread = seconds.iter().max().expect("asked").saturating_sub(*seconds.iter().min().expect("asked"));
    assert!(spread >= 5 * MS, "twenty waiters came back within {spread:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_reported_at_once_and_released() {
    let play = Play::new().attempt([Refuse]);
    let client = play.client();
    let told = client.mutex("x").lock().await;
    assert!(matches!(told, Err(Error::Refused { .. })), "{told:?}");
    assert_eq!(play.count(Call::Attempt), 1, "the keeper asked again after a refusal");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_try_is_reported_at_once() {
    let play = Play::new().attempt([Fail]);
    let told = play.client().mutex("x").try_lock().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    assert_eq!(play.count(Call::Attempt), 1);
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_ends_in_time_when_the_store_hangs() {
    let play = Play::new().attempt([Hang]);
    let start = Instant::now();
    let told = play.client().mutex("x").lock().wait(3 * S).await;
    assert!(matches!(told, Err(Error::Timeout { .. })), "{told:?}");
    assert!(about(start.elapsed(), 3 * S), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_that_met_failures_names_the_last_one() {
    let play = Play::new().attempt([Fail, Say(BUSY)]);
    let told = play.client().mutex("x").lock().wait(3 * S).await;
    let Err(Error::Timeout { source: Some(source), .. }) = told else { panic!("{told:?}") };
    assert_eq!(source.to_string(), "script is not reachable");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_not_dropped_in_flight_when_its_caller_leaves() {
    let play = Play::new().attempt([Late(2 * S, GRANTED)]);
    let client = play.client();
    timeout(S, client.mutex("x").lock()).await.expect_err("not yet answered");
    assert_eq!(play.count(Call::Release), 0, "released before the outcome of the attempt was known");
    play.over(&client).await;
    assert_eq!((play.count(Call::Attempt), play.count(Call::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_no_trace_is_no_loss() {
    let play = Play::new().attempt([Fail]).release([Say(Release::Gone)]);
    let client = play.client();
    let told = client.mutex("x").try_lock().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_arrives_after_its_ttl_is_asked_for_again() {
    let play = Play::new().attempt([Late(TTL + S, GRANTED), Say(GRANTED)]);
    let held = play.hold().await;
    assert!(!held.is_lost());
    assert_eq!(play.count(Call::Attempt), 2);
}

#[tokio::test(start_paused = true)]
async fn an_option_that_a_call_leaves_unset_is_the_clients_default() {
    use dlock_core::DistributedLockExt as _;
    let play = Play::new();
    let client = play.client().with_defaults(LockOptions::new().ttl(TTL * 2).wait(S));
    let _held = client.mutex("x").lock_within(S).await.expect("granted");
    assert_eq!(
        play.script().ttls,
        [TTL * 2],
        "the call left the ttl unset, and the client's default was not used"
    );
    let lock: Arc<dyn dlock_core::DistributedLock> = Arc::new(client.mutex("x"));
    play.script().attempt = [Say(BUSY)].into();
    let told = lock.lock(&LockOptions::new()).await;
    assert!(matches!(told, Err(Error::Timeout { waited, .. }) if waited == S), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_try_asks_once_and_releases_nothing() {
    let play = Play::new().attempt([Say(BUSY)]);
    let client = play.client();
    assert!(client.mutex("x").try_lock().await.expect("busy is no error").is_none());
    play.over(&client).await;
    assert_eq!((play.count(Call::Attempt), play.count(Call::Release)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_token_of_the_guard_is_that_of_the_grant() {
    let token = Token::new(42);
    let play = Play::new().attempt([Say(Attempt::Granted(Grant { token, valid_for: TTL }))]);
    assert_eq!(play.hold().await.token(), token);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_store_lacks_is_refused_with_those_it_has() {
    let mut play = Play::new();
    play.1 = play.1.kinds(&[Kind::Mutex, Kind::Write]);
    let told = play.client().fair("x").lock().await.expect_err("the store has no fair lock").to_string();
    assert!(told.contains("fair") && told.contains("mutex, write"), "{told}");
    assert_eq!(play.count(Call::Attempt), 0);
}
