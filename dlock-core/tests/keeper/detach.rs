//! Detachment of a hold, which the store then keeps without its client.

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
    Call, Fail, Late, LatePanic, MS, Panic, RENEWED, Refuse, Reply, S, Say, ScriptedStore, TTL, Unwritable,
    is_about,
};

/// Duration of a detachment, longer than the ttl.
const LONG: Duration = Duration::from_secs(TTL.as_secs() * 10);

/// Returns the guard and the reason of a detachment that failed because the hold is lost.
#[track_caller]
fn lost(result: Result<Ticket, GuardError>) -> (Guard, LostReason) {
    let error = result.expect_err("the script does not let it succeed");
    let Error::Lost { reason, .. } = *error.error() else { panic!("not a loss: {error:?}") };
    let guard = error.into_guard();
    assert!(guard.is_lost(), "the guard is not lost");
    (guard, reason)
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_the_store_does_not_support_is_refused_before_any_io() {
    let store = ScriptedStore::new();
    let refused = store.hold().await.detach(S).await.expect_err("the store cannot");
    assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused:?}");
    let held = refused.into_guard();
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "the returned guard is not renewed");
    let store = ScriptedStore::detaching();
    let refused =
        store.hold().await.detach(TTL * 1000 + MS).await.expect_err("longer than the store supports");
    assert!(matches!(refused.error(), Error::InvalidOptions { .. }), "{refused:?}");
    drop(refused);
    assert_eq!(store.count(Call::Detach), 0, "a request was sent");
}

#[tokio::test(start_paused = true)]
async fn a_detached_hold_is_neither_renewed_nor_released() {
    let store = ScriptedStore::detaching();
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let signal = held.lost_signal();
    let ticket = held.detach(LONG).await.expect("the script detaches it");
    assert_eq!([ticket.id()].as_slice(), store.script().tickets, "the ticket is for another claim");
    assert_ne!(
        [ticket.id()].as_slice(),
        store.script().ids,
        "the detached hold has the id of the claim, so a late renewal would find it"
    );
    let start = Instant::now();
    store.close(&client).await;
    assert_eq!(start.elapsed(), Duration::ZERO, "a keeper still keeps the hold");
    sleep(TTL * 3).await;
    assert_eq!((store.count(Call::Renew), store.count(Call::Release)), (0, 0));
    assert_eq!(store.script().detached_for, [LONG]);
    assert!(!signal.is_lost(), "the detachment was reported as a loss");
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_finds_no_claim_is_a_loss() {
    let store = ScriptedStore::detaching().detach([Say(Renewal::Lost)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let (guard, reason) = lost(held.detach(LONG).await);
    assert_eq!(reason, LostReason::Deleted);
    drop(guard);
    store.close(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_detachment_is_repeated_between_renewals_while_the_store_is_unreachable() {
    for reply in [Fail, Unwritable] {
        let store = ScriptedStore::detaching().detach([reply]);
        let client = store.client();
        let held = client.mutex("x").lock().await.expect("granted");
        let signal = held.lost_signal();
        let start = Instant::now();
        let mut detaching = Box::pin(held.detach(LONG));
        timeout(TTL * 3, &mut detaching).await.expect_err("the store does not reply yet");
        assert!(!signal.is_lost(), "the hold was not renewed while its detachment failed");
        let renewals = store.count(Call::Renew) + store.count(Call::Resume);
        assert!(renewals >= 8, "{renewals} renewals in three ttls");
        let times = store.times(Call::Detach, start);
        assert!(times.len() <= 100, "the keeper floods the store: {} calls", times.len());
        store.script().detach = [Say(RENEWED)].into();
        timeout(2 * S, detaching).await.expect("not repeated").expect("the script detaches it");
        store.close(&client).await;
        assert_eq!(store.count(Call::Release), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_detachment_gives_the_guard_back() {
    let store = ScriptedStore::detaching().detach([Refuse, Say(RENEWED)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let refused = held.detach(LONG).await.expect_err("the store refuses");
    assert!(matches!(refused.error(), Error::Refused { .. }), "{refused:?}");
    let held = refused.into_guard();
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "the returned guard is not renewed");
    assert_eq!(store.count(Call::Detach), 1, "the keeper repeated the request after the refusal");
    held.detach(LONG).await.expect("the store detaches it");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 0);
}

/// The store may have detached the hold before it refused, so the hold may be shorter until it is
/// renewed.
#[tokio::test(start_paused = true)]
async fn a_refused_detachment_for_a_short_time_does_not_shorten_the_hold() {
    let store = ScriptedStore::detaching().detach([Refuse]);
    let held = store.hold().await;
    let refused = held.detach(TTL / 100).await.expect_err("the store refuses");
    let held = refused.into_guard();
    assert!(held.remaining() > TTL / 2, "only {:?} are left", held.remaining());
    sleep(TTL * 3).await;
    held.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_panics_is_a_loss_that_is_released() {
    for reply in [Panic, LatePanic(2 * S)] {
        let store = ScriptedStore::detaching().detach([reply]);
        let client = store.client();
        let held = client.mutex("x").lock().await.expect("granted");
        let (_guard, reason) = lost(held.detach(LONG).await);
        assert_eq!(reason, LostReason::Abandoned);
        client.close().await;
        assert_eq!(store.count(Call::Release), 1, "the hold may be detached, but was not released");
    }
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_outlasts_the_hold_is_a_loss_that_is_released() {
    let store = ScriptedStore::detaching().detach([Late(TTL * 2, RENEWED)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    let (_guard, reason) = lost(held.detach(LONG).await);
    assert_eq!(reason, LostReason::Expired);
    assert!(is_about(start.elapsed(), TTL), "reported after {:?}", start.elapsed());
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1, "the loss was reported, but the hold was not released");
}

#[tokio::test(start_paused = true)]
async fn a_detachment_whose_caller_has_left_is_released() {
    let store = ScriptedStore::detaching().detach([Late(S, RENEWED)]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    timeout(S / 2, held.detach(LONG)).await.expect_err("no reply yet");
    store.close(&client).await;
    assert_eq!((store.count(Call::Detach), store.count(Call::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_is_dropped_between_two_steps_is_released() {
    for yields in 0..6 {
        let store = ScriptedStore::detaching();
        let client = store.client();
        let held = client.mutex("x").lock().await.expect("granted");
        let mut detaching = Box::pin(held.detach(LONG));
        assert!((&mut detaching).now_or_never().is_none(), "completed before the keeper ran");
        for _ in 0..yields {
            yield_now().await;
        }
        drop(detaching);
        store.close(&client).await;
        assert_eq!(
            store.count(Call::Release),
            1,
            "a hold without a ticket was not released, after {yields} steps of the keeper"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_does_not_re_enter_a_hold_that_is_being_detached() {
    for yields in 0..6 {
        let store = ScriptedStore::detaching();
        let (client, me) = (store.client(), Owner::new());
        let lock = client.mutex("x").owned_by(&me);
        let mut detaching = Box::pin(lock.lock().await.expect("granted").detach(LONG));
        assert!((&mut detaching).now_or_never().is_none(), "completed before the keeper ran");
        for _ in 0..yields {
            yield_now().await;
        }
        let new = lock.lock().await.expect("the script grants it");
        assert_eq!(
            (new.hold_count(), store.count(Call::Attempt)),
            (1, 2),
            "the owner re-entered the hold, after {yields} steps of the keeper"
        );
        detaching.await.expect("the script detaches it");
        sleep(TTL * 3).await;
        assert!(!new.is_lost(), "the new hold is not renewed");
        drop(new);
        client.close().await;
        assert_eq!(store.count(Call::Release), 1, "not exactly the new hold was released");
    }
}

#[tokio::test(start_paused = true)]
async fn a_detachment_without_a_reply_is_released_until_the_store_has_deleted_it() {
    let store = ScriptedStore::detaching().detach([Fail]).renew([Fail]).release([Fail]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let start = Instant::now();
    let (_guard, reason) = lost(held.detach(LONG).await);
    assert_eq!(reason, LostReason::Expired);
    store.close(&client).await;
    let detached = *store.times(Call::Detach, start).last().expect("requested");
    let released = *store.times(Call::Release, start).last().expect("requested");
    assert!(
        released + 2 * S >= detached + LONG,
        "the hold may last until {:?}, but the last release was at {released:?}",
        detached + LONG
    );
    assert!(
        start.elapsed() <= detached + LONG + TTL + 2 * S,
        "the release was repeated until {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_renewal_ends_a_detachment_without_a_reply() {
    let store = ScriptedStore::detaching().detach([Refuse]).release([Fail]);
    let client = store.client();
    let held = client.mutex("x").lock().await.expect("granted");
    let held = held.detach(LONG).await.expect_err("the store refuses").into_guard();
    sleep(TTL).await;
    let start = Instant::now();
    drop(held);
    store.close(&client).await;
    assert!(
        start.elapsed() <= TTL + 2 * S,
        "the claim has its usual ttl again, but the release was repeated for {:?}",
        start.elapsed()
    );
}

/// Returns a store with random replies. Each call succeeds, is refused, fails, is late or panics.
fn random_store(random: &mut Rng) -> ScriptedStore {
    fn pick<T>(random: &mut Rng, mut replies: Vec<Reply<T>>) -> Reply<T> {
        replies.swap_remove(random.usize(..replies.len()))
    }
    let times = random.usize(1..6);
    let late = |random: &mut Rng| MS * random.u32(..TTL.as_millis() as u32 * 2);
    let detach: Vec<_> = (0..times)
        .map(|_| {
            let late = late(random);
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
            pick(random, replies.into())
        })
        .collect();
    let renew: Vec<_> = (0..times)
        .map(|_| {
            let late = late(random);
            pick(random, [Say(RENEWED), Fail, Late(late, RENEWED), Say(Renewal::Lost)].into())
        })
        .collect();
    let mut release = vec![Fail; random.usize(..4)];
    release.push(Say(Release::Done));
    ScriptedStore::detaching().detach(detach).renew(renew).release(release)
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_was_reported_lost_never_leaves_a_detached_hold() {
    let (mut tickets, mut losses) = (0, 0);
    for seed in 0..400 {
        let mut random = Rng::with_seed(seed);
        let store = random_store(&mut random);
        let client = store.client();
        let held = client.mutex("x").lock().await.expect("granted");
        sleep(MS * random.u32(..TTL.as_millis() as u32)).await;
        let drop_after = MS * random.u32(..TTL.as_millis() as u32 * 4);
        let result = timeout(drop_after, held.detach(LONG)).await;
        let has_ticket = matches!(result, Ok(Ok(_)));
        losses += u32::from(matches!(&result, Ok(Err(error)) if matches!(error.error(), Error::Lost { .. })));
        drop(result);
        client.close().await;
        let script = store.script();
        let last = |call| script.calls.iter().rposition(|(called, _)| *called == call);
        if has_ticket {
            tickets += 1;
            assert_eq!(last(Call::Release), None, "seed {seed}: a hold with a ticket was released");
        } else {
            assert!(
                last(Call::Release) > last(Call::Detach),
                "seed {seed}: a detached hold without a ticket was not released: {:?}",
                script.calls
            );
        }
    }
    assert!(tickets > 50 && losses > 50, "too few cases: {tickets} tickets, {losses} losses");
}
