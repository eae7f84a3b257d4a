//! The connection between a driver and its server, which is cut, silent, late, or closed at once. A
//! proxy injects these faults, so that the cases test the driver's own timeouts and reconnects.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    Error, Guard, Kind, LockName, Locks, Result,
    driver::{Attempt, Claim, Renewal, Request},
};
use futures_util::{FutureExt, future::join_all};
use tokio::time::{Instant, sleep};

use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "network" (Kind::Mutex) [Need::Network] {
            every_call_to_a_silent_server_ends_within_its_bound,
            connecting_to_a_silent_server_ends_with_an_error,
            a_holder_whose_connection_breaks_keeps_its_lock,
            a_connection_that_was_silent_costs_no_lock,
            no_client_is_granted_before_the_holder_on_a_silent_connection_is_lost,
            an_answer_that_comes_late_answers_no_later_call,
            a_request_that_arrives_late_keeps_others_out_for_no_longer_than_its_ttl,
            a_waiter_whose_connections_break_gets_its_turn,
            a_server_that_hangs_up_is_an_error_and_then_used_again,
            many_callers_do_not_storm_a_server_that_hangs_up,
        }
    }
}

/// Maximum time for connecting to a silent server.
const CONNECTING: Duration = Duration::from_secs(10);

/// Creates a request for a lock of its own.
fn request(arena: &Arena, what: &str) -> Request {
    let name = LockName::new(arena.name_with(what)).expect("the name is legal");
    Request::new(name, arena.kind(), arena.ttl())
}

/// Returns whether a call failed because it received no reply.
fn is_unanswered<T>(result: &Result<T>) -> bool {
    matches!(result, Err(error) if error.is_transient())
}

/// Each call must end within a third of the ttl, or within the driver's own bound. While one call
/// hangs, no other call is made for the claim. If a renewal hung longer, the hold would be lost
/// although the server may be reachable again.
pub(super) async fn every_call_to_a_silent_server_ends_within_its_bound(arena: Arc<Arena>) {
    let (store, proxy) = arena.store_behind_proxy().await;
    let claim = |what| store.backend.claim(request(&arena, what));
    let (mut new, mut renewed, mut released) = (claim("-new"), claim("-renewed"), claim("-released"));
    for held in [&mut renewed, &mut released] {
        let granted = held.attempt().await;
        assert!(
            matches!(granted, Ok(Attempt::Granted(_))),
            "a free lock was not granted, the attempt returned {granted:?}"
        );
    }
    proxy.stall();
    let bound = arena.call_bound();
    let (attempt, renew, release) = tokio::join!(
        arena.within(bound, "`attempt` outlives its bound on a silent server", new.attempt()),
        arena.within(bound, "`renew` outlives its bound on a silent server", renewed.renew()),
        arena.within(bound, "`release` outlives its bound on a silent server", released.release()),
    );
    // If the client has a session, its last heartbeat may still confirm the claim.
    let has_session = store.backend.info().session.is_some();
    let is_renewed = has_session && matches!(renew, Ok(Renewal::Renewed { .. }));
    assert!(
        is_unanswered(&attempt) && (is_unanswered(&renew) || is_renewed) && is_unanswered(&release),
        "the server sent nothing, but the calls returned {attempt:?}, {renew:?}, {release:?}"
    );
    proxy.pass();
    for claim in [&mut new, &mut renewed, &mut released] {
        arena
            .soon("the connection works again, but nothing is released", until_released(claim.as_mut()))
            .await;
    }
    // In a store with sessions an attempt that arrives late stays until the session ends.
    store.backend.close().await;
}

async fn until_released(claim: &mut dyn Claim) {
    while claim.release().await.is_err() {
        sleep(Duration::from_millis(50)).await;
    }
}

pub(super) async fn connecting_to_a_silent_server_ends_with_an_error(arena: Arc<Arena>) {
    let proxy = arena.proxy().await;
    proxy.stall();
    let connecting = arena.connect_through(&proxy);
    let result = arena.within(CONNECTING, "connecting to a silent server does not end", connecting).await;
    assert!(is_unanswered(&result), "the server sent nothing, but connecting returned {result:?}");
}

pub(super) async fn a_holder_whose_connection_breaks_keeps_its_lock(arena: Arc<Arena>) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &a).await;
    proxy.cut();
    let end = Instant::now() + held.remaining();
    let renewed = || held.is_lost() || Instant::now() + held.remaining() > end + arena.ttl() / 10;
    arena.until("the lock was not renewed over a new connection", renewed).await;
    assert_eq!(held.lost().now_or_never(), None, "the lock was lost although only a connection broke");
    assert!(arena.is_busy(&b).await, "two claims hold the lock");
    held.release().await.expect("the lock is still held");
}

pub(super) async fn a_connection_that_was_silent_costs_no_lock(arena: Arc<Arena>) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    // Renews so frequently that one renewal falls into the silence, and may be given up before the
    // silence ends.
    let options = arena.options().renew_every(arena.ttl() / 10);
    let held = arena
        .soon("a free lock was not granted", arena.lock(&a).lock(&options))
        .await
        .expect("the lock is free");
    proxy.stall();
    let end = Instant::now() + held.remaining();
    sleep(arena.ttl() / 2).await;
    proxy.pass();
    let renewed = || held.is_lost() || Instant::now() + held.remaining() > end + arena.ttl() / 10;
    arena.until("the lock was not renewed when the connection worked again", renewed).await;
    assert_eq!(
        held.lost().now_or_never(),
        None,
        "the lock was lost, but the server was only silent for half of the ttl"
    );
    assert!(arena.is_busy(&b).await, "two claims hold the lock");
}

pub(super) async fn no_client_is_granted_before_the_holder_on_a_silent_connection_is_lost(arena: Arc<Arena>) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    let held = arena.lock(&a).lock(&arena.short()).await.expect("the lock is free");
    proxy.stall();
    let (next, limit) = (arena.take(&b, arena.kind()), arena.forgotten_after(&b, arena.short_ttl()));
    let next = arena.within(limit, "the claim of a silent client is never deleted", next).await;
    assert!(held.is_lost(), "two claims hold the lock");
    drop(next);
    proxy.pass();
}

pub(super) async fn an_answer_that_comes_late_answers_no_later_call(arena: Arc<Arena>) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    let [taken, free] = ["-taken", "-free"].map(|suffix| arena.name_with(suffix));
    // With a shorter ttl, a busy machine could lose the lock, and a try could then be granted
    // correctly.
    let held = b.mutex(&taken).lock().ttl(arena.long_ttl(&b)).await.expect("the lock is free");
    let tried = async |name: &str| a.mutex(name).try_lock().await;
    for round in 0..3 {
        for (late, then) in [(&free, &taken), (&taken, &free)] {
            proxy.hold_answers();
            let late_result = tried(late).await;
            assert!(
                is_unanswered(&late_result),
                "the reply was held back, but a try got {late_result:?}, which is what was meant for another call"
            );
            proxy.pass();
            // The reply that was held back arrives about now.
            if then == &taken {
                let result = arena
                    .soon("the connection works again, but the client does not use it", until_reply(&a, then))
                    .await;
                assert!(result.is_none(), "in round {round} a try received what was meant for another call");
            } else {
                // A claim that was granted without a caller must end first.
                let what = "a try of a free lock received what was meant for another call";
                arena.soon(what, until_granted(&a, then)).await;
            }
        }
    }
    held.release().await.expect("the lock is still held");
}

/// Repeats a try until the store replies, and returns the reply.
async fn until_reply(client: &Locks, name: &str) -> Option<Guard> {
    loop {
        match client.mutex(name).try_lock().await {
            Ok(tried) => return tried,
            Err(error) => assert!(error.is_transient(), "the try failed with {error:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Tries until the lock is granted. An earlier call may have left a claim that must be released
/// first.
async fn until_granted(client: &Locks, name: &str) {
    while until_reply(client, name).await.is_none() {
        sleep(Duration::from_millis(50)).await;
    }
}

pub(super) async fn a_request_that_arrives_late_keeps_others_out_for_no_longer_than_its_ttl(
    arena: Arc<Arena>,
) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    proxy.hold_requests();
    let result = arena.lock(&a).try_lock(&arena.short()).await;
    assert!(is_unanswered(&result), "the request was held back, but the try returned {result:?}");
    proxy.pass();
    // The request arrives now, and may be granted without a caller.
    let next = arena.within(
        arena.short_ttl(),
        "a claim granted without a caller is never deleted",
        arena.take(&b, arena.kind()),
    );
    drop(next.await);
}

pub(super) async fn a_waiter_whose_connections_break_gets_its_turn(arena: Arc<Arena>) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    let held = arena.take_soon("a free lock was not granted", &b).await;
    let (lock, options) = (arena.lock(&a), arena.options());
    let waiter = arena.go(async move { lock.lock(&options).await });
    arena.until_contenders(&b, 2).await;
    proxy.cut();
    held.release().await.expect("the lock is still held");
    let granted = arena
        .within(arena.ttl(), "the waiter is never granted", waiter)
        .await
        .expect("the task does not panic");
    drop(granted.expect("the connection worked again at once"));
}

pub(super) async fn a_server_that_hangs_up_is_an_error_and_then_used_again(arena: Arc<Arena>) {
    let (a, proxy) = arena.client_behind_proxy().await;
    proxy.hang_up();
    let bound = arena.call_bound();
    let result =
        arena.within(bound, "a try does not return", arena.lock(&a).try_lock(&arena.options())).await;
    assert!(is_unanswered(&result), "the state of the lock is unknown, but the call returned {result:?}");
    // Longer than the bound of a call, so that one call has failed by then.
    let wait = bound + Duration::from_secs(1);
    let options = arena.options().wait(wait);
    let result = arena.within(wait, "a limited wait does not end", arena.lock(&a).lock(&options)).await;
    assert!(
        matches!(result, Err(Error::Timeout { source: Some(_), .. } | Error::Unavailable { .. })),
        "the server hangs up, but a limited wait returned {result:?}"
    );
    proxy.pass();
    arena
        .soon(
            "the server is reachable again, but the client does not use it",
            until_granted(&a, arena.name()),
        )
        .await;
}

/// Number of calls of one client that are repeated at the same time.
const CALLERS: usize = 40;
/// Maximum rate of new connections of a client. Twice the rate of one connection for calls and one
/// for messages with pauses of 200 ms.
const CONNECTIONS_A_SECOND: f64 = 20.0;

pub(super) async fn many_callers_do_not_storm_a_server_that_hangs_up(arena: Arc<Arena>) {
    let (a, proxy) = arena.client_behind_proxy().await;
    proxy.hang_up();
    let (before, began) = (proxy.connections(), Instant::now());
    let callers = (0..CALLERS).map(|number| {
        let lock = a.mutex(arena.name_with(&format!("-{number}")));
        arena.go(async move {
            while began.elapsed() < Duration::from_secs(2) {
                let result = lock.try_lock().await;
                assert!(is_unanswered(&result), "the server hangs up, but a try returned {result:?}");
                sleep(Duration::from_millis(5)).await;
            }
        })
    });
    for caller in join_all(callers.collect::<Vec<_>>()).await {
        caller.expect("the task does not panic");
    }
    let (made, span) = (proxy.connections() - before, began.elapsed());
    let limit = 10.0 + CONNECTIONS_A_SECOND * span.as_secs_f64();
    assert!(
        made as f64 <= limit,
        "{CALLERS} callers of one client made {made} connections in {span:?} to a server that hangs up: \
         each call dials by itself, and without a pause"
    );
    proxy.pass();
    arena
        .soon(
            "the server is reachable again, but the client does not use it",
            until_granted(&a, arena.name()),
        )
        .await;
}
