//! Downgrade of an exclusive hold to a read hold.

use dlock_core::{
    Error, Kind, LostReason, Owner, Token,
    driver::{Attempt, Grant},
};
use tokio::time::{Instant, sleep, timeout};

use super::script::{Call, Fail, GRANTED, Refuse, S, Say, ScriptedStore, TTL, is_about};

/// Returns a store that can turn a mutex into a read hold.
fn downgrading() -> ScriptedStore {
    let mut store = ScriptedStore::new();
    store.1 = store.1.downgrades(&[Kind::Mutex]);
    store
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_that_the_store_does_not_support_is_refused_before_any_io() {
    let store = downgrading();
    let held = store.client().fair("x").lock().await.expect("granted");
    let refused = held.downgrade().await.expect_err("the store can downgrade only a mutex");
    assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused:?}");
    let held = refused.into_guard();
    assert_eq!(store.count(Call::Attempt), 1, "a request was sent");
    held.release().await.expect("still held");
}

#[tokio::test(start_paused = true)]
async fn a_refused_downgrade_gives_the_guard_back() {
    let store = downgrading().attempt([Say(GRANTED), Refuse]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    let refused = held.downgrade().await.expect_err("the store refuses");
    assert!(start.elapsed() < S, "reported after {:?}", start.elapsed());
    assert!(matches!(refused.error(), Error::Refused { .. }), "{refused:?}");
    let held = refused.into_guard();
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "the returned guard is not renewed");
    assert_eq!(store.count(Call::Attempt), 2, "the keeper repeated the request after the refusal");
    held.release().await.expect("still held");
    store.close(&client).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_continues_to_read_after_a_refused_downgrade_keeps_its_lock() {
    let store = downgrading().attempt([Say(GRANTED), Refuse]);
    let (client, me) = (store.client(), Owner::new());
    let outer = client.mutex("x").owned_by(&me).lock().await.expect("granted");
    let inner = client.rwlock("x").owned_by(&me).read().lock().await.expect("the same owner");
    drop(outer);
    sleep(TTL * 3).await;
    assert!(!inner.is_lost(), "the guard is lost although the store has kept the lock");
    let again = client.mutex("x").owned_by(&me).lock().await.expect("still exclusive in the store");
    assert_eq!(again.hold_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_is_repeated_between_renewals_while_the_store_is_unreachable() {
    let fails = [Fail; 20].into_iter().chain([Say(GRANTED)]);
    let store = downgrading().attempt([Say(GRANTED)].into_iter().chain(fails));
    let start = Instant::now();
    let held = store.client().mutex("x").lock().await.expect("granted");
    let reader = held.downgrade().await.expect("the store is reachable in the end");
    let times = store.times(Call::Renew, start);
    assert!(is_about(times[0], TTL / 3), "the first renewal did not come when it was due: {times:?}");
    assert!(!reader.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_in_an_unreachable_store_does_not_starve_renewals() {
    let store = downgrading().attempt([Say(GRANTED), Fail]);
    let start = Instant::now();
    let held = store.client().mutex("x").lock().await.expect("granted");
    timeout(TTL * 3, held.downgrade()).await.expect_err("the store stays unreachable");
    let times = store.times(Call::Renew, start);
    assert!(times.len() >= 8 && is_about(times[0], TTL / 3), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn the_downgrade_of_one_of_two_exclusive_guards_of_an_owner_sends_no_request() {
    let store = downgrading();
    let (client, me) = (store.client(), Owner::new());
    let lock = client.mutex("x").owned_by(&me);
    let (one, other) = (lock.lock().await.expect("granted"), lock.lock().await.expect("the same owner"));
    let reader = one.downgrade().await.expect("only this guard becomes shared");
    assert_eq!(store.count(Call::Attempt), 1, "a request was sent although the other guard is exclusive");
    drop(other);
    sleep(S).await;
    assert_eq!(store.count(Call::Attempt), 2, "no request was sent although no guard is exclusive any more");
    assert!(!reader.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_does_not_change_the_end_of_a_lease() {
    let store = downgrading().attempt([Say(GRANTED)]);
    let held = store.client().mutex("x").lock().lease(TTL).await.expect("granted");
    let start = Instant::now();
    sleep(TTL / 2).await;
    let reader = held.downgrade().await.expect("the store can");
    assert!(reader.remaining() <= TTL / 2, "the downgrade extended the lease: {:?}", reader.remaining());
    assert_eq!(reader.lost().await, LostReason::Expired);
    assert!(is_about(start.elapsed(), TTL), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_that_is_granted_with_another_token_is_a_loss() {
    let granted = |token| Say(Attempt::Granted(Grant { token: Token::new(token), valid_for: TTL }));
    let store = downgrading().attempt([granted(1), granted(2)]);
    let held = store.client().mutex("x").lock().await.expect("granted");
    let error = held.downgrade().await.expect_err("another client may have held it in between");
    assert!(matches!(error.error(), Error::Lost { reason: LostReason::Deleted, .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_downgrade_shows_the_error_and_its_source() {
    let store = downgrading().attempt([Say(GRANTED), Refuse]);
    let held = store.client().mutex("x").lock().await.expect("granted");
    let refused = held.downgrade().await.expect_err("the store refuses");
    let source = std::error::Error::source(&refused).expect("the store's own error").to_string();
    assert_eq!((refused.to_string(), source), ("script refused".to_owned(), "access denied".to_owned()));
    assert!(format!("{refused:?}").contains("Refused"), "{refused:?}");
}
