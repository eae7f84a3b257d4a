//! Resumption and release of a detached hold with its ticket.

use std::time::Duration;

use dlock_core::{
    Error, LostReason, Ticket, Token,
    driver::{Attempt, Grant, Release, Renewal},
};
use futures_util::FutureExt;
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};

use super::script::{
    Call, Fail, Late, LatePanic, MS, Panic, RENEWED, Refuse, S, Say, ScriptedStore, TTL, Unwritable, is_about,
};

/// Returns a ticket of this store.
async fn ticket(store: &ScriptedStore) -> Ticket {
    store.hold().await.detach(TTL * 10).await.expect("the script detaches it")
}

fn is_lost<T>(result: &dlock_core::Result<T>) -> bool {
    matches!(result, Err(Error::Lost { reason: LostReason::Deleted, .. }))
}

#[tokio::test(start_paused = true)]
async fn a_resumed_hold_has_a_new_id_and_is_renewed() {
    let token = Token::new(7);
    let store = ScriptedStore::detaching().attempt([Say(Attempt::Granted(Grant { token, valid_for: TTL }))]);
    let ticket = ticket(&store).await;
    let (client, start) = (store.client(), Instant::now());
    let held = client.resume(&ticket).await.expect("the script renews it");
    let ids = store.script().ids.clone();
    assert_eq!((held.token(), held.id(), held.name()), (token, Some(ids[1]), ticket.name()));
    assert!(
        ids.len() == 2 && !ids.contains(&ticket.id()) && ids[0] != ids[1],
        "an id is used twice: {ids:?}"
    );
    assert_eq!(store.script().tickets, [ticket.id(); 2], "another ticket was sent");
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "the resumed hold is not renewed");
    let (resumed, renewed) = (store.times(Call::Resume, start), store.times(Call::Renew, start));
    assert!(resumed.len() == 1 && is_about(resumed[0], Duration::ZERO), "{resumed:?}");
    assert!(is_about(renewed[0], TTL / 3), "{renewed:?}");
    held.release().await.expect("held until now");
    store.close(&client).await;
    assert_eq!((store.count(Call::Attempt), store.count(Call::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_until_a_dropped_resumption_has_returned_the_hold() {
    let store = ScriptedStore::detaching().renew([Late(S, RENEWED)]);
    let ticket = ticket(&store).await;
    let (client, start) = (store.client(), Instant::now());
    timeout(MS, client.resume(&ticket)).await.expect_err("the store has not replied");
    client.release(&ticket).await.expect("the script releases it");
    // The first detachment made the ticket.
    let (detached, released) = (store.times(Call::Detach, start), store.times(Call::Release, start));
    assert!(
        detached.len() == 2 && released.len() == 1 && released[0] >= detached[1] && is_about(detached[1], S),
        "the hold went back to the ticket after {detached:?}, and was released after {released:?}"
    );
    store.close(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_hold_cannot_be_resumed() {
    let store = ScriptedStore::detaching().renew([Say(Renewal::Lost)]);
    let ticket = ticket(&store).await;
    let client = store.client();
    let result = client.resume(&ticket).await;
    assert!(is_lost(&result), "{result:?}");
    store.close(&client).await;
    assert_eq!(
        (store.count(Call::Attempt), store.count(Call::Release)),
        (1, 1),
        "the claim was not released, although members of a RedLock may have handed it over"
    );
}

#[tokio::test(start_paused = true)]
async fn a_resumption_is_repeated_up_to_four_times_while_the_store_is_unreachable() {
    for (renew, requests, succeeds) in [
        (vec![Fail, Unwritable, Say(RENEWED)], 3, true),
        (vec![Panic, LatePanic(S), Say(RENEWED)], 3, true),
        (vec![Fail], 5, false),
        (vec![Panic], 5, false),
        (vec![Refuse], 1, false),
    ] {
        let store = ScriptedStore::detaching().renew(renew.clone());
        let ticket = ticket(&store).await;
        let client = store.client();
        let result = client.resume(&ticket).await;
        assert_eq!(
            (result.is_ok(), store.count(Call::Resume)),
            (succeeds, requests),
            "{renew:?}: {result:?}"
        );
        let is_unknown = !matches!(result, Err(Error::Lost { .. }));
        assert!(is_unknown, "an error of the store was reported as a loss: {renew:?}: {result:?}");
        assert_eq!(
            store.count(Call::Release),
            0,
            "the hold was released, so the ticket cannot be used again: {renew:?}"
        );
        drop(result);
        client.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_until_the_reply_is_not_part_of_the_hold() {
    let store = ScriptedStore::detaching().renew([Late(12 * S, RENEWED)]);
    let ticket = ticket(&store).await;
    let held = store.client().resume(&ticket).await.expect("in time");
    assert!(held.remaining() <= TTL - 12 * S, "{:?}", held.remaining());
    let store = ScriptedStore::detaching().renew([Late(TTL, RENEWED)]);
    let ticket = self::ticket(&store).await;
    let result = store.client().resume(&ticket).await;
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "the ttl had ended before the reply: {result:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_resume_is_dropped_goes_back_to_its_ticket() {
    for yields in 0..6 {
        let store = ScriptedStore::detaching();
        let ticket = ticket(&store).await;
        let client = store.client();
        let mut resuming = Box::pin(client.resume(&ticket));
        assert!((&mut resuming).now_or_never().is_none(), "completed before the keeper ran");
        for _ in 0..yields {
            yield_now().await;
        }
        drop(resuming);
        store.close(&client).await;
        let script = store.script();
        let resumed = script.calls.iter().filter(|(call, _)| *call == Call::Resume).count();
        assert!(script.calls.iter().all(|(call, _)| *call != Call::Release), "released after {yields} steps");
        // The first detachment made the ticket. The second one returns the hold to the ticket, for
        // the rest of the ticket's time.
        assert_eq!(
            script.detached_for.len(),
            1 + resumed,
            "not handed back after {yields} steps of the keeper"
        );
        assert!(script.tickets.iter().all(|id| *id == ticket.id()), "handed to another ticket");
        assert!(
            script.detached_for.iter().all(|duration| is_about(*duration, TTL * 10)),
            "shortened: {:?}",
            script.detached_for
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_may_have_been_resumed_goes_back_to_its_ticket() {
    for (renew, handed_back) in [(vec![Fail], true), (vec![LatePanic(S)], true), (vec![Refuse], false)] {
        let store = ScriptedStore::detaching().renew(renew.clone());
        let ticket = ticket(&store).await;
        let client = store.client();
        client.resume(&ticket).await.expect_err("the store does not reply");
        store.close(&client).await;
        let durations = store.script().detached_for.clone();
        let tickets = store.script().tickets.clone();
        assert_eq!(durations.len(), 1 + usize::from(handed_back), "{renew:?}: {durations:?}");
        assert!(tickets.iter().all(|id| *id == ticket.id()), "{renew:?}: handed to another ticket");
        assert_eq!(
            store.count(Call::Release),
            0,
            "{renew:?}: the hold was released, so the ticket cannot be used again"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_resumed_hold_is_lost_like_any_other_hold() {
    let store = ScriptedStore::detaching().renew([Say(RENEWED), Fail]);
    let ticket = ticket(&store).await;
    let (client, start) = (store.client(), Instant::now());
    let held = client.resume(&ticket).await.expect("the script renews it");
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(is_about(start.elapsed(), TTL), "lost after {:?}", start.elapsed());
    drop(held);
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_by_ticket_reports_the_same_results_as_a_release_of_a_guard() {
    for (release, requests, succeeds) in [
        (vec![Say(Release::Done)], 1, true),
        (vec![Fail, Say(Release::Done)], 2, true),
        // The first release may have deleted the claim.
        (vec![Fail, Say(Release::Gone)], 2, true),
        (vec![Panic, Say(Release::Gone)], 2, true),
        (vec![Say(Release::Gone)], 1, false),
        (vec![Fail], 5, false),
        (vec![Panic], 5, false),
        (vec![Refuse], 1, false),
    ] {
        let store = ScriptedStore::detaching().release(release.clone());
        let ticket = ticket(&store).await;
        let client = store.client();
        let result = client.release(&ticket).await;
        assert_eq!(
            (result.is_ok(), store.count(Call::Release)),
            (succeeds, requests),
            "{release:?}: {result:?}"
        );
        let is_deleted = matches!(release[0], Say(Release::Gone));
        assert_eq!(is_lost(&result), is_deleted, "{release:?}: {result:?}");
        client.close().await;
        assert_eq!((store.count(Call::Attempt), store.count(Call::Renew)), (1, 0), "{release:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_by_ticket_is_completed_without_its_caller() {
    let store = ScriptedStore::detaching().release([Late(S, Release::Done)]);
    let ticket = ticket(&store).await;
    let client = store.client();
    timeout(MS, client.release(&ticket)).await.expect_err("no reply yet");
    store.close(&client).await;
    assert_eq!(store.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_cannot_be_used_is_refused_before_any_io() {
    let good = ticket(&ScriptedStore::detaching()).await;
    let permit = good.to_string().replace(":mutex:", ":permit/2:").parse().expect("a ticket");
    let closed = ScriptedStore::detaching();
    let client = closed.client();
    client.close().await;
    for (client, ticket, case) in [
        (ScriptedStore::new().client(), &good, "a store without tickets"),
        (ScriptedStore::detaching().client(), &permit, "a kind that the store does not support"),
        (client, &good, "a closed client"),
    ] {
        for result in [client.resume(ticket).await.map(drop), client.release(ticket).await] {
            let is_refused = matches!(result, Err(Error::Unsupported { .. } | Error::Closed { .. }));
            assert!(is_refused, "{case}: {result:?}");
        }
    }
    assert_eq!(closed.script().calls.len(), 0, "a closed client sent a request");
}
