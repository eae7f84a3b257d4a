//! From a hold that is kept to one that goes on by itself. Over the usual length: one table's rows.

use std::time::Duration;

use dlock_core::{
    Error, Guard, GuardError, LostReason, Owner, Ticket,
    driver::{Release, Renewal},
};
use fastrand::Rng;
use futures_util::FutureExt;
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};

use super::script::{
    Call, Fail, Late, LatePanic, MS, Panic, Play, RENEWED, Refuse, Reply, S, Say, TTL, Unwritable, about,
};

/// For how long a hold is detached here: longer than its ttl.
const LONG: Duration = Duration::from_secs(TTL.as_secs() * 10);

/// How a detachment ended that found or made the hold lost.
#[track_caller]
fn lost(told: Result<Ticket, GuardError>) -> (Guard, LostReason) {
    let error = told.expect_err("the script does not let it succeed");
    let Error::Lost { reason, .. } = *error.error() else { panic!("not a loss: {error:?}") };
    let guard = error.into_guard();
    assert!(guard.is_lost(), "the guard does not know of the loss");
    (guard, reason)
}

#[tokio::test(start_paused = true)]
async fn what_the_store_cannot_keep_is_refused_before_any_io() {
    let play = Play::new();
    let refused = play.hold().await.detach(S).await.expect_err("the store cannot");
    assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused:?}");
    let held = refused.into_guard();
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "the guard that was given back is not renewed");
    let play = Play::detaching();
    let refused = play.hold().await.detach(TTL * 1000 + MS).await.expect_err("longer than the store can");
    assert!(matches!(refused.error(), Error::InvalidOptions { .. }), "{refused:?}");
    drop(refused);
    assert_eq!(play.count(Call::Detach), 0, "the store was asked");
}

#[tokio::test(start_paused = true)]
async fn a_detached_hold_is_neither_renewed_nor_released() {
    let play = Play::detaching();
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let signal = held.lost_signal();
    let ticket = held.detach(LONG).await.expect("the script detaches it");
    assert_eq!([ticket.id()].as_slice(), play.script().tickets, "the ticket is for another claim");
    assert_ne!([ticket.id()].as_slice(), play.script().ids, "a late renewal would find the detached hold");
    let start = Instant::now();
    play.over(&client).await;
    assert_eq!(start.elapsed(), Duration::ZERO, "somebody keeps the hold still");
    sleep(TTL * 3).await;
    assert_eq!((play.count(Call::Renew), play.count(Call::Release)), (0, 0));
    assert_eq!(play.script().spans, [LONG]);
    assert!(!signal.is_lost(), "a hold that was detached is not lost");
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_finds_nothing_is_a_loss() {
    let play = Play::detaching().detach([Say(Renewal::Lost)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let (guard, reason) = lost(held.detach(LONG).await);
    assert_eq!(reason, LostReason::Taken);
    drop(guard);
    play.over(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_detachment_whose_store_is_away_is_repeated_between_renewals() {
    for reply in [Fail, Unwritable] {
        let play = Play::detaching().detach([reply]);
        let client = play.client();
        let held = client.mutex("x").lock().await.expect("granted");
        let signal = held.lost_signal();
        let start = Instant::now();
        let mut detaching = Box::pin(held.detach(LONG));
        timeout(TTL * 3, &mut detaching).await.expect_err("the store does not answer yet");
        assert!(!signal.is_lost(), "not renewed while its detachment fails");
        let renewals = play.count(Call::Renew) + play.count(Call::Resume);
        assert!(renewals >= 8, "{renewals} renewals in three ttls");
        let times = play.times(Call::Detach, start);
        assert!(times.len() <= 100, "the keeper hammers the store: {} calls", times.len());
        play.script().detach = [Say(RENEWED)].into();
        timeout(2 * S, detaching).await.expect("not repeated").expect("the script detaches it");
        play.over(&client).await;
        assert_eq!(play.count(Call::Release), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_detachment_gives_the_guard_back() {
    let play = Play::detaching().detach([Refuse, Say(RENEWED)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let refused = held.detach(LONG).await.expect_err("the store refuses");
    assert!(matches!(refused.error(), Error::Refused { .. }), "{refused:?}");
    let held = refused.into_guard();
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "the guard that was given back is not renewed");
    assert_eq!(play.count(Call::Detach), 1, "the keeper asked again after the refusal");
    held.detach(LONG).await.expect("the store does not refuse any more");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 0);
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_panics_is_a_loss_that_is_released() {
    for reply in [Panic, LatePanic(2 * S)] {
        let play = Play::detaching().detach([reply]);
        let client = play.client();
        let held = client.mutex("x").lock().await.expect("granted");
        let (_guard, reason) = lost(held.detach(LONG).await);
        assert_eq!(reason, LostReason::Abandoned);
        client.close().await;
        assert_eq!(play.count(Call::Release), 1, "it may be detached, and nobody released it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_outlasts_the_hold_is_a_loss_that_is_released() {
    let play = Play::detaching().detach([Late(TTL * 2, RENEWED)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    let (_guard, reason) = lost(held.detach(LONG).await);
    assert_eq!(reason, LostReason::Expired);
    assert!(about(start.elapsed(), TTL), "told after {:?}", start.elapsed());
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1, "the guard was told lost, and the hold goes on");
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_nobody_waits_for_any_more_is_released() {
    let play = Play::detaching().detach([Late(S, RENEWED)]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    timeout(S / 2, held.detach(LONG)).await.expect_err("not yet answered");
    play.over(&client).await;
    assert_eq!((play.count(Call::Detach), play.count(Call::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_is_dropped_between_two_steps_is_released() {
    for yields in 0..6 {
        let play = Play::detaching();
        let client = play.client();
        let held = client.mutex("x").lock().await.expect("granted");
        let mut detaching = Box::pin(held.detach(LONG));
        assert!((&mut detaching).now_or_never().is_none(), "the keeper has not been asked");
        for _ in 0..yields {
            yield_now().await;
        }
        drop(detaching);
        play.over(&client).await;
        assert_eq!(play.count(Call::Release), 1, "nobody has a ticket, after {yields} steps of the keeper");
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_does_not_enter_a_hold_that_is_being_detached() {
    for yields in 0..6 {
        let play = Play::detaching();
        let (client, me) = (play.client(), Owner::new());
        let lock = client.mutex("x").owned_by(&me);
        let mut detaching = Box::pin(lock.lock().await.expect("granted").detach(LONG));
        assert!((&mut detaching).now_or_never().is_none(), "the keeper has not been asked");
        for _ in 0..yields {
            yield_now().await;
        }
        let anew = lock.lock().await.expect("the script grants it");
        assert_eq!(
            (anew.hold_count(), play.count(Call::Attempt)),
            (1, 2),
            "entered a hold that its keeper leaves, after {yields} steps of the keeper"
        );
        detaching.await.expect("the script detaches it");
        sleep(TTL * 3).await;
        assert!(!anew.is_lost(), "nobody renews it");
        drop(anew);
        client.close().await;
        assert_eq!(play.count(Call::Release), 1, "the detached hold was released, or the other was not");
    }
}

#[tokio::test(start_paused = true)]
async fn a_detachment_without_an_answer_is_released_until_the_store_has_forgotten_it() {
    let play = Play::detaching().detach([Fail]).renew([Fail]).release([Fail]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    let (_guard, reason) = lost(held.detach(LONG).await);
    assert_eq!(reason, LostReason::Expired);
    play.over(&client).await;
    let detached = *play.times(Call::Detach, start).last().expect("asked for");
    let released = *play.times(Call::Release, start).last().expect("asked for");
    assert!(
        released + 2 * S >= detached + LONG,
        "the hold may go on until {:?}, and the last release was at {released:?}",
        detached + LONG
    );
    assert!(start.elapsed() <= detached + LONG + TTL + 2 * S, "not given up until {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_ends_a_detachment_without_an_answer() {
    let play = Play::detaching().detach([Refuse]).release([Fail]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let held = held.detach(LONG).await.expect_err("the store refuses").into_guard();
    sleep(TTL).await;
    let start = Instant::now();
    drop(held);
    play.over(&client).await;
    assert!(
        start.elapsed() <= TTL + 2 * S,
        "the store has a claim with the usual ttl again, and the release was repeated for {:?}",
        start.elapsed()
    );
}

/// A script by the dice: the store detaches, refuses, fails, is late or panics, and so do the other calls.
fn by_dice(dice: &mut Rng) -> Play {
    fn one<T>(dice: &mut Rng, mut replies: Vec<Reply<T>>) -> Reply<T> {
        replies.swap_remove(dice.usize(..replies.len()))
    }
    let times = dice.usize(1..6);
    let late = |dice: &mut Rng| MS * dice.u32(..TTL.as_millis() as u32 * 2);
    let detach: Vec<_> = (0..times)
        .map(|_| {
            let late = late(dice);
            let replies = [
                Say(RENEWED),
                Say(Renewal::Lost),
                Fail,
                Fail,
                Refuse,
                Panic,
                Late(late, RENEWED),
                LatePanic(late),
            ];
            one(dice, replies.into())
        })
        .collect();
    let renew: Vec<_> = (0..times)
        .map(|_| {
            let late = late(dice);
            one(dice, [Say(RENEWED), Fail, Late(late, RENEWED), Say(Renewal::Lost)].into())
        })
        .collect();
    let mut release = vec![Fail; dice.usize(..4)];
    release.push(Say(Release::Done));
    Play::detaching().detach(detach).renew(renew).release(release)
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_was_told_lost_never_leaves_a_detached_hold() {
    let (mut tickets, mut losses) = (0, 0);
    for seed in 0..400 {
        let mut dice = Rng::with_seed(seed);
        let play = by_dice(&mut dice);
        let client = play.client();
        let held = client.mutex("x").lock().await.expect("granted");
        sleep(MS * dice.u32(..TTL.as_millis() as u32)).await;
        let patience = MS * dice.u32(..TTL.as_millis() as u32 * 4);
        let told = timeout(patience, held.detach(LONG)).await;
        let has_ticket = matches!(told, Ok(Ok(_)));
        losses += u32::from(matches!(&told, Ok(Err(error)) if matches!(error.error(), Error::Lost { .. })));
        drop(told);
        client.close().await;
        let script = play.script();
        let last = |call| script.calls.iter().rposition(|(called, _)| *called == call);
        if has_ticket {
            tickets += 1;
            assert_eq!(last(Call::Release), None, "seed {seed}: a hold with a ticket was released");
        } else {
            assert!(
                last(Call::Release) > last(Call::Detach),
                "seed {seed}: the hold goes on, and nobody has its ticket: {:?}",
                script.calls
            );
        }
    }
    assert!(tickets > 50 && losses > 50, "the dice show too little: {tickets} tickets, {losses} losses");
}
