//! Renewal of a hold until it is released or lost.

use std::{future::poll_fn, task::Poll};

use dlock_core::{
    LostReason, Owner,
    driver::{Renewal, pretend_suspend},
};
use futures_util::poll;
use tokio::time::{Instant, advance, sleep};

use super::script::{
    Call, Fail, GRANTED, Hang, Hints, Late, MS, RENEWED, S, Say, ScriptedStore, TTL, is_about,
};

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_after_a_third_of_the_remaining_time() {
    let store = ScriptedStore::new();
    let start = Instant::now();
    let held = store.hold().await;
    sleep(TTL + S).await;
    let times = store.times(Call::Renew, start);
    assert!(times.len() == 3, "not one renewal for each third of a ttl: {times:?}");
    assert!(times.iter().zip([10, 20, 30]).all(|(at, s)| is_about(*at, s * S)), "{times:?}");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_repeated_until_the_deadline_and_not_beyond() {
    let store = ScriptedStore::new().renew([Fail]);
    let start = Instant::now();
    let held = store.hold().await;
    sleep(TTL - S).await;
    assert!(!held.is_lost(), "a failed renewal was reported as a loss, but its outcome is unknown");
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(is_about(start.elapsed(), TTL), "lost after {:?}", start.elapsed());
    let times = store.times(Call::Renew, start);
    assert!(times[1] <= 10 * S + 100 * MS, "the second renewal did not come at once: {times:?}");
    let mut gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(
        gaps.all(|gap| gap <= S + 100 * MS),
        "the store could be reachable for more than a second without a renewal: {times:?}"
    );
    let renewals = times.len();
    assert!((5..100).contains(&renewals), "{renewals} renewals");
    sleep(TTL).await;
    assert_eq!(store.count(Call::Renew), renewals, "the lost hold was renewed");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_succeeds_after_failures_keeps_the_lock() {
    let store = ScriptedStore::new().renew([Fail, Fail, Fail, Say(RENEWED)]);
    let held = store.hold().await;
    sleep(TTL * 3).await;
    assert!(!held.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_returns_lost_is_a_loss_at_once() {
    let store = ScriptedStore::new().renew([Say(Renewal::Lost)]);
    let start = Instant::now();
    let held = store.hold().await;
    assert_eq!(held.lost().await, LostReason::Deleted);
    assert!(is_about(start.elapsed(), TTL / 3), "reported after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_valid_from_before_the_attempt_was_sent() {
    let store = ScriptedStore::new().attempt([Late(12 * S, GRANTED)]);
    let held = store.hold().await;
    assert!(held.remaining() <= TTL - 12 * S, "{:?}", held.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_valid_from_before_it_was_sent() {
    let store = ScriptedStore::new().renew([Late(6 * S, RENEWED), Hang]);
    let start = Instant::now();
    let held = store.hold().await;
    sleep(17 * S).await;
    // The renewal was sent at 10 s, and its reply arrived at 16 s.
    assert!(is_about(held.remaining(), TTL - 7 * S), "{:?}", held.remaining());
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(is_about(start.elapsed(), 10 * S + TTL), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_does_not_delay_the_report_of_the_loss() {
    let store = ScriptedStore::new().renew([Hang]);
    let start = Instant::now();
    let held = store.hold().await;
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(is_about(start.elapsed(), TTL), "reported after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_arrives_after_the_deadline_does_not_revoke_the_loss() {
    let store = ScriptedStore::new().renew([Late(TTL, RENEWED)]);
    let held = store.hold().await;
    sleep(TTL * 2).await;
    assert!(held.is_lost() && held.remaining().is_zero());
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_read_after_the_deadline_does_not_move_it() {
    let store = ScriptedStore::new().renew([Late(2 * S, RENEWED)]);
    let held = store.hold().await;
    sleep(TTL / 3 + S).await;
    // After a stall, the keeper finds both the reply and the end of the ttl.
    advance(TTL * 2 / 3).await;
    sleep(S).await;
    assert!(held.is_lost(), "another client may have held the lock since, but the guard is not lost");
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_read_after_the_deadline_does_not_change_the_reason_of_the_loss() {
    let store = ScriptedStore::new().renew([Late(2 * S, Renewal::Lost)]);
    let held = store.hold().await;
    sleep(TTL / 3 + S).await;
    advance(TTL * 2 / 3).await;
    assert_eq!(held.lost().await, LostReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_hint_makes_a_holder_renew_at_once() {
    let store = ScriptedStore::new().renew([Say(Renewal::Lost)]).hints(Hints::Once(S));
    let start = Instant::now();
    let held = store.hold().await;
    assert_eq!(held.lost().await, LostReason::Deleted);
    assert!(is_about(start.elapsed(), S), "reported after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn endless_hints_do_not_make_a_holder_flood_the_store() {
    let store = ScriptedStore::new().hints(Hints::Endless);
    let held = store.hold().await;
    sleep(S).await;
    let renewals = store.count(Call::Renew);
    assert!(renewals <= 60, "{renewals} renewals in a second");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_hold_with_max_hold_is_renewed_until_its_end_and_then_lost() {
    let store = ScriptedStore::new();
    let client = store.client();
    let start = Instant::now();
    let held = client.mutex("x").lock().max_hold(TTL * 3).await.expect("granted");
    sleep(TTL * 5 / 2).await;
    assert!(!held.is_lost(), "the hold was not renewed before the end of max_hold");
    assert!(
        held.remaining() <= TTL / 2,
        "the validity is longer than the rest of max_hold: {:?}",
        held.remaining()
    );
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(is_about(start.elapsed(), TTL * 3), "{:?}", start.elapsed());
    store.close(&client).await;
    let times = store.times(Call::Renew, start);
    assert!(
        times.len() <= 9 && times.iter().all(|at| *at < TTL * 3),
        "renewed although a renewal could not extend the hold any more: {times:?}"
    );
    assert_eq!(
        store.count(Call::Release),
        1,
        "the claim was not released, and the store keeps it for longer"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_on_a_session_is_renewed_until_its_end() {
    let mut store = ScriptedStore::new();
    store.1 = store.1.session(TTL, MS..=TTL * 1000);
    let start = Instant::now();
    let held = store.client().mutex("x").lock().ttl(TTL).lease(TTL * 4).await.expect("granted");
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "lost before the end of the session and of the lease");
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(is_about(start.elapsed(), TTL * 4), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_owner_does_not_re_enter_a_hold_after_its_deadline() {
    let store = ScriptedStore::new().renew([Hang]);
    let (client, me) = (store.client(), Owner::new());
    let lock = client.mutex("x").owned_by(&me);
    let held = lock.lock().await.expect("granted");
    let other = lock.try_lock().await.expect("no error").expect("the same owner");
    // Neither the keeper nor a timer runs during this time, so neither has detected the end.
    advance(TTL + S).await;
    let new = lock.try_lock().await.expect("no error").expect("granted again");
    assert_eq!(new.hold_count(), 1, "the owner re-entered a lost hold");
    assert!(held.is_lost() && other.is_lost() && !new.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_never_renewed_even_with_hints() {
    for hints in [Hints::Silent, Hints::Endless] {
        let store = ScriptedStore::new().hints(hints);
        let held = store.client().mutex("x").lock().lease(TTL).await.expect("granted");
        assert_eq!(held.lost().await, LostReason::Expired);
        assert_eq!(store.count(Call::Renew), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_with_its_connection_is_renewed_until_its_end_and_lost_at_a_hint() {
    let mut store = ScriptedStore::new();
    store.1 = store.1.ends_with_connection(true);
    let start = Instant::now();
    let held = store.client().mutex("x").lock().lease(TTL * 2).await.expect("granted");
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(is_about(start.elapsed(), TTL * 2), "the lease ended after {:?}", start.elapsed());
    assert!(store.count(Call::Renew) >= 3, "the lease was not renewed");
    // The claim of a crashed client ends no later than its lease.
    let mut store = ScriptedStore::new();
    store.1 = store.1.ends_with_connection(true);
    drop(store.client().mutex("x").lock().lease(TTL / 6).await.expect("granted"));
    assert_eq!(store.script().ttls, [TTL / 6]);
    let mut store = ScriptedStore::new().renew([Say(Renewal::Lost)]).hints(Hints::Once(S));
    store.1 = store.1.ends_with_connection(true);
    let start = Instant::now();
    let held = store.client().mutex("x").lock().lease(TTL * 2).await.expect("granted");
    assert_eq!(held.lost().await, LostReason::Deleted);
    assert!(is_about(start.elapsed(), S), "reported after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn renew_every_sets_the_interval_between_renewals() {
    let store = ScriptedStore::new();
    let held = store.client().mutex("x").lock().renew_every(3 * S).await.expect("granted");
    sleep(TTL + S).await;
    assert_eq!(store.count(Call::Renew), 10);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_repeated_before_the_deadline_even_if_renew_every_is_long() {
    let store = ScriptedStore::new().renew([Fail, Say(RENEWED)]);
    let held = store.client().mutex("x").lock().renew_every(TTL / 2).await.expect("granted");
    sleep(TTL + S).await;
    assert!(!held.is_lost(), "the renewal was not repeated in the remaining half of the ttl");
}

#[tokio::test(start_paused = true)]
async fn the_first_check_after_the_deadline_reports_the_loss() {
    let store = ScriptedStore::new();
    let held = store.hold().await;
    let lost = held.lost_signal();
    assert!(!held.is_lost());
    // The time passes without any other task running.
    let mut passing = Box::pin(advance(TTL));
    poll_fn(|context| Poll::Ready(passing.as_mut().poll(context).is_ready())).await;
    assert!(held.is_lost(), "the guard waits until its keeper detects the end");
    assert!(lost.is_lost(), "the guard detected the loss and did not set the signal");
}

/// The timers of tokio do not count the time of a suspend. The keeper compares the clocks before
/// its next request.
#[tokio::test(start_paused = true)]
async fn after_a_suspend_the_signal_of_the_loss_is_late_until_the_next_request_of_the_keeper() {
    let client = ScriptedStore::new().client();
    let lock = || client.mutex("x").lock();
    for (acquiring, latest) in
        [(lock(), TTL / 3), (lock().renew_every(3 * S), 3 * S), (lock().lease(TTL), TTL)]
    {
        let held = acquiring.await.expect("granted");
        let (signal, start) = (held.lost_signal(), Instant::now());
        pretend_suspend(TTL);
        signal.lost().await;
        assert!(is_about(start.elapsed(), latest), "after {:?} instead of {latest:?}", start.elapsed());
        assert_eq!(held.lost().await, LostReason::Expired);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_suspend_a_call_of_is_lost_wakes_all_callers_that_wait_for_the_loss() {
    let held = ScriptedStore::new().hold().await;
    let signal = held.lost_signal();
    let mut waiting = Box::pin(async { tokio::join!(held.lost(), signal.lost()) });
    assert!(poll!(&mut waiting).is_pending());
    pretend_suspend(TTL);
    let start = Instant::now();
    assert!(held.is_lost(), "the deadline has passed during the suspend");
    assert_eq!(waiting.await.0, LostReason::Expired);
    assert!(start.elapsed().is_zero(), "the callers waited for {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_owner_does_not_re_enter_a_hold_that_the_store_reported_lost() {
    let store = ScriptedStore::new().renew([Say(Renewal::Lost)]);
    let (client, me) = (store.client(), Owner::new());
    let lock = client.mutex("x").owned_by(&me);
    let held = lock.lock().await.expect("granted");
    held.lost().await;
    let new = lock.try_lock().await.expect("no error").expect("granted again");
    assert_eq!(new.hold_count(), 1, "the owner re-entered a lost hold");
}

#[tokio::test(start_paused = true)]
async fn an_owner_of_many_names_re_enters_the_names_that_it_holds() {
    let (client, me) = (ScriptedStore::new().client(), Owner::new());
    let held = client.mutex("held").owned_by(&me).lock().await.expect("granted");
    for number in 0..200 {
        let other = client.mutex(format!("other/{number}")).owned_by(&me).lock().await.expect("granted");
        other.release().await.expect("held until now");
    }
    let again = client.mutex("held").owned_by(&me).lock().await.expect("the same owner");
    assert_eq!((held.hold_count(), again.hold_count()), (2, 2));
    assert_eq!(me, me.clone());
    assert_ne!(me, Owner::new());
}

#[tokio::test(start_paused = true)]
async fn debug_output_has_the_name_the_loss_and_the_store() {
    let held = ScriptedStore::new().hold().await;
    let guard = format!("{held:?}");
    assert!(guard.contains("\"x\"") && guard.contains("lost: None"), "{guard}");
    let acquire = format!("{:?}", ScriptedStore::new().client().mutex("x").lock());
    assert!(acquire.contains("\"x\"") && acquire.contains("Mutex"), "{acquire}");
    let client = format!("{:?}", ScriptedStore::new().client());
    assert!(client.contains("\"script\""), "the client does not show its store: {client}");
}
