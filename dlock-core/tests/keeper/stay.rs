//! `at_least`: what is left of the time is a detachment in place of the release.

use std::time::Duration;

use dlock_core::{
    Error, LostReason,
    driver::{Release, Renewal},
};
use tokio::time::{Instant, sleep, timeout};

use super::script::{Call, Fail, GRANTED, Late, Play, RENEWED, Refuse, S, Say, TTL, about};

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_keep_a_lock_is_not_asked_for_it() {
    let play = Play::new();
    let refused = play.client().mutex("x").lock().at_least(S).await.expect_err("the store cannot");
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused:?}");
    assert_eq!(play.count(Call::Attempt), 0, "the store was asked for the lock");
}

#[tokio::test(start_paused = true)]
async fn what_is_released_early_is_detached_for_what_is_left() {
    for drops in [false, true] {
        let play = Play::detaching();
        let client = play.client();
        let held = client.mutex("x").lock().at_least(TTL * 2).await.expect("granted");
        sleep(5 * S).await;
        if drops {
            drop(held);
        } else {
            held.release().await.expect("held until now");
        }
        play.over(&client).await;
        let spans = play.script().spans.clone();
        assert!(spans.len() == 1 && about(spans[0], TTL * 2 - 5 * S), "{spans:?}");
        assert!(spans[0] >= TTL * 2 - 5 * S, "free before its time: {spans:?}");
        assert_eq!(play.count(Call::Release), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_released_after_its_time_is_released() {
    let play = Play::detaching();
    let client = play.client();
    let held = client.mutex("x").lock().at_least(TTL * 2).await.expect("granted");
    sleep(TTL * 2).await;
    held.release().await.expect("held until now");
    play.over(&client).await;
    assert_eq!((play.count(Call::Detach), play.count(Call::Release)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_detachment_in_place_of_the_release_is_repeated_until_it_is_confirmed() {
    let play = Play::detaching().detach([Fail, Refuse, Fail, Say(RENEWED)]);
    let client = play.client();
    let held = client.mutex("x").lock().at_least(TTL * 2).await.expect("granted");
    let start = Instant::now();
    drop(held);
    play.over(&client).await;
    let spans = play.script().spans.clone();
    let times = play.times(Call::Detach, start);
    assert_eq!((spans.len(), play.count(Call::Release)), (4, 0));
    assert!(
        spans.iter().zip(&times).all(|(span, at)| about(*span + *at, TTL * 2)),
        "the time counts from the grant: {spans:?} at {times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn if_its_time_is_over_before_the_store_answers_it_is_released() {
    let play = Play::detaching().detach([Fail]);
    let client = play.client();
    let held = client.mutex("x").lock().at_least(5 * S).await.expect("granted");
    let start = Instant::now();
    timeout(TTL, held.release()).await.expect("the release hangs").expect("released in the end");
    play.over(&client).await;
    let released = play.times(Call::Release, start);
    assert!(released.len() == 1 && (5 * S..7 * S).contains(&released[0]), "released at {released:?}");
}

#[tokio::test(start_paused = true)]
async fn a_detachment_in_place_of_the_release_that_finds_nothing_is_a_loss() {
    let play = Play::detaching().detach([Say(Renewal::Lost)]);
    let client = play.client();
    let held = client.mutex("x").lock().at_least(TTL).await.expect("granted");
    let told = held.release().await;
    assert!(matches!(told, Err(Error::Lost { reason: LostReason::Taken, .. })), "{told:?}");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1, "a few members of the store may have kept it");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_lost_is_released_at_once() {
    let play = Play::detaching().renew([Say(Renewal::Lost)]);
    let client = play.client();
    let held = client.mutex("x").lock().at_least(TTL * 2).await.expect("granted");
    held.lost().await;
    drop(held);
    play.over(&client).await;
    assert_eq!((play.count(Call::Detach), play.count(Call::Release)), (0, 1), "somebody else may have it");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_takes_does_not_stay() {
    let play = Play::detaching().attempt([Late(S, GRANTED)]);
    let client = play.client();
    let mut asked = Box::pin(client.mutex("x").lock().at_least(TTL * 2));
    timeout(S / 2, &mut asked).await.expect_err("not yet answered");
    sleep(S).await;
    drop(asked);
    play.over(&client).await;
    assert_eq!((play.count(Call::Detach), play.count(Call::Release)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_detachment_in_place_of_the_release_keeps_to_the_times_of_the_store() {
    let mut play = Play::detaching();
    play.1 = play.1.ttl(20 * S..=TTL * 2);
    for (held_for, least) in [(Duration::ZERO, TTL * 2), (TTL, TTL + S)] {
        let held = play.client().mutex("x").lock().at_least(least).await.expect("granted");
        sleep(held_for).await;
        held.release().await.expect("held until now");
    }
    let spans = play.script().spans.clone();
    assert!(spans.iter().all(|span| (20 * S..=TTL * 2).contains(span)), "{spans:?}");
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_detached_by_hand_lasts_as_long_as_it_was_told() {
    let play = Play::detaching().detach([Say(RENEWED)]).release([Say(Release::Done)]);
    let client = play.client();
    let held = client.mutex("x").lock().at_least(TTL * 2).await.expect("granted");
    held.detach(S).await.expect("the script detaches it");
    play.over(&client).await;
    assert_eq!(play.script().spans, [S]);
}
