//! How a hold is released, and released again until the store has confirmed it.

use dlock_core::{
    Error, LostReason,
    driver::{Release, Renewal},
};
use tokio::time::{Instant, sleep, timeout};

use super::script::{
    BUSY, Call, Fail, GRANTED, Late, LatePanic, MS, Play, RENEWED, Refuse, S, Say, TTL, Unwritable, about,
};

#[tokio::test(start_paused = true)]
async fn a_renewal_is_not_dropped_in_flight_when_the_guard_leaves() {
    let play = Play::new().renew([Late(2 * S, RENEWED)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    sleep(TTL / 3 + S).await;
    drop(held);
    play.over(&client).await;
    assert_eq!((play.count(Call::Renew), play.count(Call::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_renewal_that_says_lost_ends_with_the_loss() {
    let play = Play::new().renew([Late(2 * S, Renewal::Lost)]);
    let held = play.hold().await;
    sleep(TTL / 3 + S).await;
    let told = timeout(TTL, held.release()).await.expect("the release hangs");
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Taken, .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_renewal_that_outlasts_the_hold_is_not_confirmed() {
    let play = Play::new().renew([Late(TTL, RENEWED)]);
    let held = play.hold().await;
    sleep(TTL / 3 + S).await;
    let lost = held.lost_signal();
    let told = timeout(TTL, held.release()).await.expect("the release hangs");
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    assert!(!lost.is_lost(), "the guard was released before its deadline, so nothing was lost");
}

#[tokio::test(start_paused = true)]
async fn a_drop_during_a_renewal_that_outlasts_the_hold_is_no_loss() {
    let play = Play::new().renew([Late(TTL, RENEWED)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let lost = held.lost_signal();
    sleep(TTL / 3 + S).await;
    drop(held);
    play.over(&client).await;
    assert!(!lost.is_lost(), "the guard was released before its deadline, so nothing was lost");
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_during_a_renewal_that_panics_ends_with_the_loss() {
    let play = Play::new().renew([LatePanic(2 * S)]);
    let held = play.hold().await;
    sleep(TTL / 3 + S).await;
    let told = timeout(TTL, held.release()).await.expect("the release hangs");
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Abandoned, .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_is_not_dropped_in_flight_when_its_caller_leaves() {
    let play = Play::new().release([Late(2 * S, Release::Done)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    timeout(S, held.release()).await.expect_err("not yet answered");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_until_it_is_confirmed_with_growing_pauses() {
    let play = Play::new().release([Fail, Fail, Fail, Fail, Fail, Fail, Fail, Say(Release::Done)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    held.release().await.expect("confirmed in the end");
    let times = play.times(Call::Release, start);
    assert_eq!(times.len(), 8);
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[0] < 100 * MS, "the first pause is long: {pauses:?}");
    assert!(pauses.windows(2).all(|pair| pair[1] + 25 * MS >= pair[0]), "the pauses do not grow: {pauses:?}");
    assert!(pauses[6] >= S, "the pauses do not grow to a second: {pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= 1100 * MS), "the pauses grow beyond a second: {pauses:?}");
    play.over(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_nothing_is_a_loss() {
    let play = Play::new().release([Say(Release::Gone)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let lost = held.lost_signal();
    let told = held.release().await;
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Taken, .. })), "{told:?}");
    assert!(lost.is_lost(), "the signal was not told of the loss");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_drop_that_finds_nothing_tells_those_who_watch_the_lock() {
    let play = Play::new().release([Say(Release::Gone)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let lost = held.lost_signal();
    drop(held);
    play.over(&client).await;
    assert!(lost.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_nothing_after_one_that_failed_is_a_normal_end() {
    let play = Play::new().release([Fail, Say(Release::Gone)]);
    let held = play.hold().await;
    let lost = held.lost_signal();
    held.release().await.expect("the release that failed may have removed the claim");
    assert!(!lost.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_nothing_after_the_deadline_is_a_normal_end() {
    let play = Play::new().release([Late(TTL, Release::Gone)]);
    let held = play.hold().await;
    let lost = held.lost_signal();
    held.release().await.expect("the store has forgotten the claim by itself");
    assert!(!lost.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_release_is_given_up_when_the_store_has_forgotten_the_claim() {
    let play = Play::new().release([Fail]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    let told = held.release().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    assert!(start.elapsed() <= TTL + 2 * S, "told after {:?}", start.elapsed());
    play.over(&client).await;
    assert!(start.elapsed() <= TTL + 2 * S, "given up after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_refused_release_is_told_at_once_and_repeated_a_second_later() {
    let play = Play::new().release([Refuse, Refuse, Refuse, Say(Release::Done)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    let told = held.release().await;
    assert!(matches!(told, Err(Error::Refused { .. })), "{told:?}");
    assert!(start.elapsed() < S, "told after {:?}", start.elapsed());
    play.over(&client).await;
    let times = play.times(Call::Release, start);
    assert_eq!(times.len(), 4, "not repeated until the store confirmed it: {times:?}");
    assert!(
        times.windows(2).all(|pair| pair[1] - pair[0] >= S),
        "repeated within a second of a refusal: {times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_release_is_repeated_before_the_store_forgets_the_claim() {
    let play = Play::new().release([Refuse, Say(Release::Done)]);
    let client = play.client();
    let held = client.mutex("x").lock().ttl(S).await.expect("granted");
    let start = Instant::now();
    held.release().await.expect_err("refused at first");
    play.over(&client).await;
    let times = play.times(Call::Release, start);
    assert!(
        times.len() == 2 && times[1] < S / 2,
        "not repeated before the ttl was over, and somebody may have repaired the store: {times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_write_for_now_is_asked_again_to_release() {
    let play = Play::new().release([Unwritable, Say(Release::Done)]);
    let client = play.client();
    client.mutex("x").lock().await.expect("granted").release().await.expect("the second time");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 2);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_not_given_up_while_a_session_may_keep_the_claim() {
    let mut play = Play::new().release([Fail]);
    play.1 = play.1.session(TTL, MS..=TTL * 1000);
    let client = play.client();
    drop(client.mutex("x").lock().await.expect("granted"));
    sleep(TTL * 20).await;
    let asked = play.count(Call::Release);
    sleep(TTL).await;
    assert!(
        play.count(Call::Release) > asked,
        "the keeper gave up, and only the end of the session would remove the claim"
    );
    play.script().release = [Say(Release::Done)].into();
    play.over(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_waiter_is_released_until_it_is_gone() {
    let play = Play::new().attempt([Say(BUSY), Refuse]).release([Refuse, Refuse, Say(Release::Done)]);
    let client = play.client();
    let told = client.mutex("x").lock().await;
    assert!(matches!(told, Err(Error::Refused { .. })), "{told:?}");
    play.over(&client).await;
    assert_eq!(
        play.count(Call::Release),
        3,
        "the keeper gave up, and the claim stays in the queue for a ttl"
    );
}

#[tokio::test(start_paused = true)]
async fn work_that_was_done_is_a_result_though_its_release_is_not_confirmed() {
    for release in [Fail, Refuse] {
        let play = Play::new().release([release]);
        let told = play.client().mutex("x").run(async |_| 42).await;
        assert_eq!(told.ok(), Some(42), "{release:?}");
    }
    let play = Play::new().release([Say(Release::Gone)]);
    let told = play.client().mutex("x").run(async |_| 42).await;
    assert!(matches!(told, Err(Error::Lost { .. })), "the lock was lost during the work: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_hold_is_released_all_the_same() {
    let play = Play::new().renew([Fail]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    held.lost().await;
    drop(held);
    play.over(&client).await;
    assert_eq!(
        play.count(Call::Release),
        1,
        "the last renewal may have reached the store, and nobody released the claim"
    );
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_released_if_its_caller_leaves_before_taking_the_guard() {
    let play = Play::new().attempt([Late(S, GRANTED)]);
    let client = play.client();
    let mut asked = Box::pin(client.mutex("x").lock());
    timeout(S / 2, &mut asked).await.expect_err("not yet answered");
    sleep(S).await;
    assert_eq!(play.count(Call::Release), 0, "released while the caller can still take the guard");
    drop(asked);
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_outlasts_the_hold_is_not_confirmed() {
    let play = Play::new().release([Late(TTL * 10, Release::Done)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let (start, lost) = (Instant::now(), held.lost_signal());
    let told = held.release().await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    assert!(about(start.elapsed(), TTL), "told after {:?}", start.elapsed());
    assert!(!lost.is_lost(), "the guard was released before its deadline, so nothing was lost");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1, "the release in flight was dropped, and another one sent");
}
