//! How a hold is renewed until it is released or lost.

use std::{future::poll_fn, task::Poll};

use dlock_core::{LostReason, Owner, driver::Renewal};
use tokio::time::{Instant, advance, sleep};

use super::script::{Call, Fail, GRANTED, Hang, Hints, Late, MS, Play, RENEWED, S, Say, TTL, about};

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_at_a_third_of_what_is_left() {
    let play = Play::new();
    let start = Instant::now();
    let held = play.hold().await;
    sleep(TTL + S).await;
    let times = play.times(Call::Renew, start);
    assert!(times.len() == 3, "not one renewal for each third of a ttl: {times:?}");
    assert!(times.iter().zip([10, 20, 30]).all(|(at, s)| about(*at, s * S)), "{times:?}");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_failing_renewal_is_tried_again_until_the_deadline_and_not_beyond() {
    let play = Play::new().renew([Fail]);
    let start = Instant::now();
    let held = play.hold().await;
    sleep(TTL - S).await;
    assert!(!held.is_lost(), "a failed renewal counted as a loss, and its outcome is unknown");
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(about(start.elapsed(), TTL), "lost after {:?}", start.elapsed());
    let times = play.times(Call::Renew, start);
    assert!(
        about(times[1], 10 * S + 20 * S / 3),
        "the second try does not come after a third of what is left: {times:?}"
    );
    let asked = times.len();
    assert!((5..100).contains(&asked), "asked {asked} times");
    sleep(TTL).await;
    assert_eq!(play.count(Call::Renew), asked, "the lost hold was renewed");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_succeeds_after_failures_keeps_the_lock() {
    let play = Play::new().renew([Fail, Fail, Fail, Say(RENEWED)]);
    let held = play.hold().await;
    sleep(TTL * 3).await;
    assert!(!held.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_says_lost_is_a_loss_at_once() {
    let play = Play::new().renew([Say(Renewal::Lost)]);
    let start = Instant::now();
    let held = play.hold().await;
    assert_eq!(held.lost().await, LostReason::Taken);
    assert!(about(start.elapsed(), TTL / 3), "told after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_valid_from_before_the_attempt_was_sent() {
    let play = Play::new().attempt([Late(12 * S, GRANTED)]);
    let held = play.hold().await;
    assert!(held.remaining() <= TTL - 12 * S, "{:?}", held.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_valid_from_before_it_was_sent() {
    let play = Play::new().renew([Late(6 * S, RENEWED), Hang]);
    let start = Instant::now();
    let held = play.hold().await;
    sleep(17 * S).await;
    // The renewal was sent at 10 s and answered at 16 s.
    assert!(about(held.remaining(), TTL - 7 * S), "{:?}", held.remaining());
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(about(start.elapsed(), 10 * S + TTL), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_does_not_delay_the_news_of_the_loss() {
    let play = Play::new().renew([Hang]);
    let start = Instant::now();
    let held = play.hold().await;
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(about(start.elapsed(), TTL), "told after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_comes_after_the_deadline_does_not_heal_the_loss() {
    let play = Play::new().renew([Late(TTL, RENEWED)]);
    let held = play.hold().await;
    sleep(TTL * 2).await;
    assert!(held.is_lost() && held.remaining().is_zero());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_read_after_the_deadline_does_not_move_it() {
    let play = Play::new().renew([Late(2 * S, RENEWED)]);
    let held = play.hold().await;
    sleep(TTL / 3 + S).await;
    // A stall: when the keeper runs again, both the answer and the end of the ttl are there.
    advance(TTL * 2 / 3).await;
    sleep(S).await;
    assert!(held.is_lost(), "somebody else may have had the lock meanwhile, and the guard does not say so");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_read_after_the_deadline_does_not_say_why_the_hold_was_lost() {
    let play = Play::new().renew([Late(2 * S, Renewal::Lost)]);
    let held = play.hold().await;
    sleep(TTL / 3 + S).await;
    advance(TTL * 2 / 3).await;
    assert_eq!(held.lost().await, LostReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_hint_makes_a_holder_ask_at_once() {
    let play = Play::new().renew([Say(Renewal::Lost)]).hints(Hints::Once(S));
    let start = Instant::now();
    let held = play.hold().await;
    assert_eq!(held.lost().await, LostReason::Taken);
    assert!(about(start.elapsed(), S), "told after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn hints_without_end_do_not_make_a_holder_hammer() {
    let play = Play::new().hints(Hints::Endless);
    let held = play.hold().await;
    sleep(S).await;
    let asked = play.count(Call::Renew);
    assert!(asked <= 60, "{asked} renewals in a second");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_is_renewed_until_its_end_and_then_lost() {
    let play = Play::new();
    let client = play.client();
    let start = Instant::now();
    let held = client.mutex("x").lock().max_hold(TTL * 3).await.expect("granted");
    sleep(TTL * 5 / 2).await;
    assert!(!held.is_lost(), "the hold was not renewed before the end of its longest hold");
    assert!(
        held.remaining() <= TTL / 2,
        "the validity goes beyond the end of the longest hold: {:?}",
        held.remaining()
    );
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(about(start.elapsed(), TTL * 3), "{:?}", start.elapsed());
    play.over(&client).await;
    let times = play.times(Call::Renew, start);
    assert!(
        times.len() <= 9 && times.iter().all(|at| *at < TTL * 3),
        "renewed when a renewal could not prolong the hold any more: {times:?}"
    );
    assert_eq!(play.count(Call::Release), 1, "nobody released the claim, and the store keeps it for longer");
}

#[tokio::test(start_paused = true)]
async fn a_lease_on_a_session_is_renewed_until_its_end() {
    let mut play = Play::new();
    play.1 = play.1.session(TTL, MS..=TTL * 1000);
    let start = Instant::now();
    let held = play.client().mutex("x").lock().ttl(TTL).lease(TTL * 4).await.expect("granted");
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "the session lives, and the lease is not over");
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(about(start.elapsed(), TTL * 4), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_owner_does_not_enter_a_hold_whose_time_is_over() {
    let play = Play::new().renew([Hang]);
    let (client, me) = (play.client(), Owner::new());
    let lock = client.mutex("x").owned_by(&me);
    let held = lock.lock().await.expect("granted");
    let other = lock.try_lock().await.expect("ours").expect("ours");
    // Neither the keeper nor a timer runs meanwhile, so neither has noticed the end.
    advance(TTL + S).await;
    let anew = lock.try_lock().await.expect("no error").expect("granted anew");
    assert_eq!(anew.hold_count(), 1, "the owner entered a hold that was lost");
    assert!(held.is_lost() && other.is_lost() && !anew.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_never_renewed_whatever_the_hints() {
    for hints in [Hints::Silent, Hints::Endless] {
        let play = Play::new().hints(hints);
        let held = play.client().mutex("x").lock().lease(TTL).await.expect("granted");
        assert_eq!(held.lost().await, LostReason::Expired);
        assert_eq!(play.count(Call::Renew), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn renew_every_says_how_often_a_hold_is_renewed() {
    let play = Play::new();
    let held = play.client().mutex("x").lock().renew_every(3 * S).await.expect("granted");
    sleep(TTL + S).await;
    assert_eq!(play.count(Call::Renew), 10);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_tried_again_before_the_deadline_even_if_renew_every_is_long() {
    let play = Play::new().renew([Fail, Say(RENEWED)]);
    let held = play.client().mutex("x").lock().renew_every(TTL / 2).await.expect("granted");
    sleep(TTL + S).await;
    assert!(!held.is_lost(), "half of the ttl was left to try again, and nobody did");
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_lost_at_the_first_look_after_its_time() {
    let play = Play::new();
    let held = play.hold().await;
    let lost = held.lost_signal();
    assert!(!held.is_lost());
    // The time passes without any other task running.
    let mut passing = Box::pin(advance(TTL));
    poll_fn(|context| Poll::Ready(passing.as_mut().poll(context).is_ready())).await;
    assert!(held.is_lost(), "the guard waits for the keeper to notice its end");
    assert!(lost.is_lost(), "the guard noticed the loss and did not tell the signal");
}

#[tokio::test(start_paused = true)]
async fn an_owner_does_not_enter_a_hold_that_was_taken_from_it() {
    let play = Play::new().renew([Say(Renewal::Lost)]);
    let (client, me) = (play.client(), Owner::new());
    let lock = client.mutex("x").owned_by(&me);
    let held = lock.lock().await.expect("granted");
    held.lost().await;
    let anew = lock.try_lock().await.expect("no error").expect("granted anew");
    assert_eq!(anew.hold_count(), 1, "the owner entered a hold that was lost");
}

#[tokio::test(start_paused = true)]
async fn an_owner_of_many_names_finds_those_that_it_holds() {
    let (client, me) = (Play::new().client(), Owner::new());
    let held = client.mutex("held").owned_by(&me).lock().await.expect("granted");
    for number in 0..200 {
        let other = client.mutex(format!("other/{number}")).owned_by(&me).lock().await.expect("granted");
        other.release().await.expect("held until now");
    }
    let again = client.mutex("held").owned_by(&me).lock().await.expect("ours");
    assert_eq!((held.hold_count(), again.hold_count()), (2, 2));
    assert_eq!(me, me.clone());
    assert_ne!(me, Owner::new());
}

#[tokio::test(start_paused = true)]
async fn a_guard_shows_its_lock_and_whether_it_is_lost() {
    let held = Play::new().hold().await;
    let shown = format!("{held:?}");
    assert!(shown.contains("\"x\"") && shown.contains("lost: None"), "{shown}");
    let asking = format!("{:?}", Play::new().client().mutex("x").lock());
    assert!(asking.contains("\"x\"") && asking.contains("Mutex"), "{asking}");
    let client = format!("{:?}", Play::new().client());
    assert!(client.contains("\"script\""), "the client does not show its store: {client}");
}
