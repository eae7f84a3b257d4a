//! From an exclusive hold to a read hold.

use dlock_core::{
    Error, Kind, LostReason, Owner, Token,
    driver::{Attempt, Grant},
};
use tokio::time::{Instant, sleep, timeout};

use super::script::{Call, Fail, GRANTED, Play, Refuse, S, Say, TTL, about};

/// A store in which a mutex can be turned into a read hold.
fn downgrading() -> Play {
    let mut play = Play::new();
    play.1 = play.1.downgrades(&[Kind::Mutex]);
    play
}

#[tokio::test(start_paused = true)]
async fn what_the_store_cannot_downgrade_is_refused_before_any_io() {
    let play = downgrading();
    let held = play.client().fair("x").lock().await.expect("granted");
    let refused = held.downgrade().await.expect_err("a mutex could be, a fair lock cannot");
    assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused:?}");
    let held = refused.into_guard();
    assert_eq!(play.count(Call::Attempt), 1, "the store was asked for the downgrade");
    held.release().await.expect("still held");
}

#[tokio::test(start_paused = true)]
async fn a_refused_downgrade_gives_the_guard_back() {
    let play = downgrading().attempt([Say(GRANTED), Refuse]);
    let client = play.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    let refused = held.downgrade().await.expect_err("the store refuses");
    assert!(start.elapsed() < S, "told after {:?}", start.elapsed());
    assert!(matches!(refused.error(), Error::Refused { .. }), "{refused:?}");
    let held = refused.into_guard();
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "the guard that was given back is not renewed");
    assert_eq!(play.count(Call::Attempt), 2, "the keeper asked again after the refusal");
    held.release().await.expect("still held");
    play.over(&client).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_reads_on_after_a_refused_downgrade_keeps_its_lock() {
    let play = downgrading().attempt([Say(GRANTED), Refuse]);
    let (client, me) = (play.client(), Owner::new());
    let outer = client.mutex("x").owned_by(&me).lock().await.expect("granted");
    let inner = client.rwlock("x").owned_by(&me).read().lock().await.expect("ours");
    drop(outer);
    sleep(TTL * 3).await;
    assert!(!inner.is_lost(), "nobody took the lock, and the guard says that it is lost");
    let again = client.mutex("x").owned_by(&me).lock().await.expect("still exclusive in the store");
    assert_eq!(again.hold_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_whose_store_is_away_is_tried_again_between_renewals() {
    let fails = [Fail; 20].into_iter().chain([Say(GRANTED)]);
    let play = downgrading().attempt([Say(GRANTED)].into_iter().chain(fails));
    let start = Instant::now();
    let held = play.client().mutex("x").lock().await.expect("granted");
    let reader = held.downgrade().await.expect("the store is back in the end");
    let times = play.times(Call::Renew, start);
    assert!(about(times[0], TTL / 3), "the first renewal did not come when it was due: {times:?}");
    assert!(!reader.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_whose_store_stays_away_does_not_starve_renewals() {
    let play = downgrading().attempt([Say(GRANTED), Fail]);
    let start = Instant::now();
    let held = play.client().mutex("x").lock().await.expect("granted");
    timeout(TTL * 3, held.downgrade()).await.expect_err("the store stays away");
    let times = play.times(Call::Renew, start);
    assert!(times.len() >= 8 && about(times[0], TTL / 3), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn of_an_owners_two_exclusive_guards_one_that_reads_changes_nothing_in_the_store() {
    let play = downgrading();
    let (client, me) = (play.client(), Owner::new());
    let lock = client.mutex("x").owned_by(&me);
    let (one, other) = (lock.lock().await.expect("granted"), lock.lock().await.expect("ours"));
    let reader = one.downgrade().await.expect("only this guard changes sides");
    assert_eq!(play.count(Call::Attempt), 1, "the store was asked while the other guard is exclusive");
    drop(other);
    sleep(S).await;
    assert_eq!(play.count(Call::Attempt), 2, "no guard is exclusive any more, and the store was not asked");
    assert!(!reader.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_does_not_change_the_end_of_a_lease() {
    let play = downgrading().attempt([Say(GRANTED)]);
    let held = play.client().mutex("x").lock().lease(TTL).await.expect("granted");
    let start = Instant::now();
    sleep(TTL / 2).await;
    let reader = held.downgrade().await.expect("the store can");
    assert!(reader.remaining() <= TTL / 2, "a downgrade prolongs no lease: {:?}", reader.remaining());
    assert_eq!(reader.lost().await, LostReason::Expired);
    assert!(about(start.elapsed(), TTL), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_that_is_granted_with_another_token_is_a_loss() {
    let granted = |token| Say(Attempt::Granted(Grant { token: Token::new(token), valid_for: TTL }));
    let play = downgrading().attempt([granted(1), granted(2)]);
    let held = play.client().mutex("x").lock().await.expect("granted");
    let told = held.downgrade().await.expect_err("somebody else may have had it in between");
    assert!(matches!(told.error(), Error::Lost { reason: LostReason::Taken, .. }), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_downgrade_shows_the_error_and_its_source() {
    let play = downgrading().attempt([Say(GRANTED), Refuse]);
    let held = play.client().mutex("x").lock().await.expect("granted");
    let refused = held.downgrade().await.expect_err("the store refuses");
    let source = std::error::Error::source(&refused).expect("the store's own error").to_string();
    assert_eq!((refused.to_string(), source), ("script refused".to_owned(), "not you".to_owned()));
    assert!(format!("{refused:?}").contains("Refused"), "{refused:?}");
}
