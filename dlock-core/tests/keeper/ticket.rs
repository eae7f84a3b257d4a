//! Taking a detached hold back, and releasing it.

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
    Call, Fail, Late, LatePanic, MS, Panic, Play, RENEWED, Refuse, S, Say, TTL, Unwritable, about,
};

/// A ticket of this store.
async fn ticket(play: &Play) -> Ticket {
    play.hold().await.detach(TTL * 10).await.expect("the script detaches it")
}

fn is_lost<T>(told: &dlock_core::Result<T>) -> bool {
    matches!(told, Err(Error::Lost { reason: LostReason::Taken, .. }))
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_taken_over_from_its_ticket_under_a_new_id_and_renewed_from_then_on() {
    let token = Token::new(7);
    let play = Play::detaching().attempt([Say(Attempt::Granted(Grant { token, valid_for: TTL }))]);
    let ticket = ticket(&play).await;
    let (client, start) = (play.client(), Instant::now());
    let held = client.resume(&ticket).await.expect("the script renews it");
    let ids = play.script().ids.clone();
    assert_eq!((held.token(), held.id(), held.name()), (token, Some(ids[1]), ticket.name()));
    assert!(
        ids.len() == 2 && !ids.contains(&ticket.id()) && ids[0] != ids[1],
        "an id is used twice: {ids:?}"
    );
    assert_eq!(play.script().tickets, [ticket.id(); 2], "asked for another hold");
    sleep(TTL * 3).await;
    assert!(!held.is_lost(), "nobody renews it");
    let (resumed, renewed) = (play.times(Call::Resume, start), play.times(Call::Renew, start));
    assert!(resumed.len() == 1 && about(resumed[0], Duration::ZERO), "{resumed:?}");
    assert!(about(renewed[0], TTL / 3), "{renewed:?}");
    held.release().await.expect("held until now");
    play.over(&client).await;
    assert_eq!((play.count(Call::Attempt), play.count(Call::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_cannot_be_taken_back() {
    let play = Play::detaching().renew([Say(Renewal::Lost)]);
    let ticket = ticket(&play).await;
    let client = play.client();
    let told = client.resume(&ticket).await;
    assert!(is_lost(&told), "{told:?}");
    play.over(&client).await;
    assert_eq!(
        (play.count(Call::Attempt), play.count(Call::Release)),
        (1, 1),
        "a few members of the store may have handed it over"
    );
}

#[tokio::test(start_paused = true)]
async fn taking_back_is_repeated_a_few_times_while_the_store_is_away() {
    for (renew, asked, back) in [
        (vec![Fail, Unwritable, Say(RENEWED)], 3, true),
        (vec![Panic, LatePanic(S), Say(RENEWED)], 3, true),
        (vec![Fail], 5, false),
        (vec![Panic], 5, false),
        (vec![Refuse], 1, false),
    ] {
        let play = Play::detaching().renew(renew.clone());
        let ticket = ticket(&play).await;
        let client = play.client();
        let told = client.resume(&ticket).await;
        assert_eq!((told.is_ok(), play.count(Call::Resume)), (back, asked), "{renew:?}: {told:?}");
        let is_unknown = !matches!(told, Err(Error::Lost { .. }));
        assert!(is_unknown, "an error of the store is no loss: {renew:?}: {told:?}");
        assert_eq!(play.count(Call::Release), 0, "the ticket could be used again: {renew:?}");
        drop(told);
        client.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_that_the_answer_took_is_not_time_held() {
    let play = Play::detaching().renew([Late(12 * S, RENEWED)]);
    let ticket = ticket(&play).await;
    let held = play.client().resume(&ticket).await.expect("in time");
    assert!(held.remaining() <= TTL - 12 * S, "{:?}", held.remaining());
    let play = Play::detaching().renew([Late(TTL, RENEWED)]);
    let ticket = self::ticket(&play).await;
    let told = play.client().resume(&ticket).await;
    assert!(matches!(told, Err(Error::Unavailable { .. })), "its time is over, and it is held: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_whose_taker_gives_up_goes_back_to_its_ticket() {
    for yields in 0..6 {
        let play = Play::detaching();
        let ticket = ticket(&play).await;
        let client = play.client();
        let mut resuming = Box::pin(client.resume(&ticket));
        assert!((&mut resuming).now_or_never().is_none(), "the keeper has not been asked");
        for _ in 0..yields {
            yield_now().await;
        }
        drop(resuming);
        play.over(&client).await;
        let script = play.script();
        let resumed = script.calls.iter().filter(|(call, _)| *call == Call::Resume).count();
        assert!(script.calls.iter().all(|(call, _)| *call != Call::Release), "released after {yields} steps");
        // The first detachment made the ticket. The second gives the hold back, for what was left of its time.
        assert_eq!(script.spans.len(), 1 + resumed, "not handed back after {yields} steps of the keeper");
        assert!(script.tickets.iter().all(|id| *id == ticket.id()), "handed to another ticket");
        assert!(script.spans.iter().all(|span| about(*span, TTL * 10)), "shortened: {:?}", script.spans);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_may_have_been_taken_over_goes_back_to_its_ticket() {
    for (renew, handed_back) in [(vec![Fail], true), (vec![LatePanic(S)], true), (vec![Refuse], false)] {
        let play = Play::detaching().renew(renew.clone());
        let ticket = ticket(&play).await;
        let client = play.client();
        client.resume(&ticket).await.expect_err("the store does not answer");
        play.over(&client).await;
        let spans = play.script().spans.clone();
        let tickets = play.script().tickets.clone();
        assert_eq!(spans.len(), 1 + usize::from(handed_back), "{renew:?}: {spans:?}");
        assert!(tickets.iter().all(|id| *id == ticket.id()), "{renew:?}: handed to another ticket");
        assert_eq!(play.count(Call::Release), 0, "{renew:?}: the ticket is worth nothing now");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_resumed_guard_loses_is_lost_like_any_hold() {
    let play = Play::detaching().renew([Say(RENEWED), Fail]);
    let ticket = ticket(&play).await;
    let (client, start) = (play.client(), Instant::now());
    let held = client.resume(&ticket).await.expect("the script renews it");
    assert_eq!(held.lost().await, LostReason::Expired);
    assert!(about(start.elapsed(), TTL), "lost after {:?}", start.elapsed());
    drop(held);
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_releases_as_a_guard_does() {
    for (release, asked, done) in [
        (vec![Say(Release::Done)], 1, true),
        (vec![Fail, Say(Release::Done)], 2, true),
        // The first release may have removed it.
        (vec![Fail, Say(Release::Gone)], 2, true),
        (vec![Panic, Say(Release::Gone)], 2, true),
        (vec![Say(Release::Gone)], 1, false),
        (vec![Fail], 5, false),
        (vec![Panic], 5, false),
        (vec![Refuse], 1, false),
    ] {
        let play = Play::detaching().release(release.clone());
        let ticket = ticket(&play).await;
        let client = play.client();
        let told = client.release(&ticket).await;
        assert_eq!((told.is_ok(), play.count(Call::Release)), (done, asked), "{release:?}: {told:?}");
        let is_gone = matches!(release[0], Say(Release::Gone));
        assert_eq!(is_lost(&told), is_gone, "{release:?}: {told:?}");
        client.close().await;
        assert_eq!((play.count(Call::Attempt), play.count(Call::Renew)), (1, 0), "{release:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_by_ticket_goes_on_without_its_caller() {
    let play = Play::detaching().release([Late(S, Release::Done)]);
    let ticket = ticket(&play).await;
    let client = play.client();
    timeout(MS, client.release(&ticket)).await.expect_err("not yet answered");
    play.over(&client).await;
    assert_eq!(play.count(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_cannot_be_used_is_refused_before_any_io() {
    let good = ticket(&Play::detaching()).await;
    let permit = good.to_string().replace(":mutex:", ":permit/2:").parse().expect("a ticket");
    let closed = Play::detaching();
    let client = closed.client();
    client.close().await;
    for (client, ticket, what) in [
        (Play::new().client(), &good, "a store that has no tickets"),
        (Play::detaching().client(), &permit, "a kind that the store does not have"),
        (client, &good, "a client that is closed"),
    ] {
        let told = [client.resume(ticket).await.map(drop), client.release(ticket).await];
        for told in told {
            let is_right = matches!(told, Err(Error::Unsupported { .. } | Error::Closed { .. }));
            assert!(is_right, "{what}: {told:?}");
        }
    }
    assert_eq!(closed.script().calls.len(), 0, "a client that is closed asked its store");
}
