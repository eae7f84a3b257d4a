//! The line between a driver and its server: cut, silent, late, or ending at once. A proxy disturbs the line, so that these
//! cases test the driver's own time-outs and reconnects. Over the usual length: the cases of one topic.

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
        "line" (Kind::Mutex) [Need::Network] {
            every_call_to_a_silent_server_ends_within_its_bound,
            connecting_to_a_silent_server_ends_with_an_error,
            a_holder_whose_connection_breaks_keeps_its_lock,
            a_line_that_was_silent_for_a_while_costs_no_lock,
            nobody_gets_in_before_the_holder_on_a_silent_line_is_lost,
            an_answer_that_comes_late_answers_no_later_call,
            a_request_that_arrives_late_keeps_others_out_for_no_longer_than_its_ttl,
            a_waiter_whose_connections_break_gets_its_turn,
            a_server_that_hangs_up_is_an_error_and_then_used_again,
            many_callers_do_not_storm_a_server_that_hangs_up,
        }
    }
}

/// The longest that connecting to a silent server may take.
const CONNECTING: Duration = Duration::from_secs(10);

/// A claim by hand, for a lock of its own.
fn request(arena: &Arena, what: &str) -> Request {
    let name = LockName::new(arena.name_with(what)).expect("a legal name");
    Request::new(name, arena.kind(), arena.ttl())
}

/// Whether a call failed because nobody answered.
fn is_unanswered<T>(answer: &Result<T>) -> bool {
    matches!(answer, Err(error) if error.is_transient())
}

/// Each call must end within a third of the ttl, or the driver's own bound. While one call hangs, no other is made for the
/// claim. So if a renewal hung longer, the hold would be lost although the server may be well again.
pub(super) async fn every_call_to_a_silent_server_ends_within_its_bound(arena: Arc<Arena>) {
    let (store, proxy) = arena.store_behind_proxy().await;
    let claim = |what| store.backend.claim(request(&arena, what));
    let (mut new, mut renewed, mut released) = (claim("-new"), claim("-renewed"), claim("-released"));
    for held in [&mut renewed, &mut released] {
        let granted = held.attempt().await;
        assert!(matches!(granted, Ok(Attempt::Granted(_))), "nobody holds it, and it is told {granted:?}");
    }
    proxy.stall();
    let bound = arena.call_bound();
    let (attempt, renew, release) = tokio::join!(
        arena.within(bound, "`attempt` outlives its bound on a silent server", new.attempt()),
        arena.within(bound, "`renew` outlives its bound on a silent server", renewed.renew()),
        arena.within(bound, "`release` outlives its bound on a silent server", released.release()),
    );
    // Where a client has a session, its last heartbeat may still answer for the claim.
    let has_session = store.backend.info().session.is_some();
    let is_renewed = has_session && matches!(renew, Ok(Renewal::Renewed { .. }));
    assert!(
        is_unanswered(&attempt) && (is_unanswered(&renew) || is_renewed) && is_unanswered(&release),
        "the server said nothing, and the calls were told {attempt:?}, {renew:?}, {release:?}"
    );
    proxy.pass();
    for claim in [&mut new, &mut renewed, &mut released] {
        arena.soon("the line is up again, but nothing is released", until_released(claim.as_mut())).await;
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
    let told = arena.within(CONNECTING, "connecting to a silent server does not end", connecting).await;
    assert!(is_unanswered(&told), "the server said nothing, and connecting ended with {told:?}");
}

pub(super) async fn a_holder_whose_connection_breaks_keeps_its_lock(arena: Arc<Arena>) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &a).await;
    proxy.cut();
    let end = Instant::now() + held.remaining();
    let renewed = || held.is_lost() || Instant::now() + held.remaining() > end + arena.ttl() / 10;
    arena.until("it was not renewed over a new connection", renewed).await;
    assert_eq!(held.lost().now_or_never(), None, "lost, though only a connection broke");
    assert!(arena.is_busy(&b).await, "two hold it");
    held.release().await.expect("held until now");
}

pub(super) async fn a_line_that_was_silent_for_a_while_costs_no_lock(arena: Arc<Arena>) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    // Renews so often that a renewal falls into the silence, and may be given up before the silence ends.
    let options = arena.options().renew_every(arena.ttl() / 10);
    let held = arena.soon("nobody holds it", arena.lock(&a).lock(&options)).await.expect("nobody holds it");
    proxy.stall();
    let end = Instant::now() + held.remaining();
    sleep(arena.ttl() / 2).await;
    proxy.pass();
    let renewed = || held.is_lost() || Instant::now() + held.remaining() > end + arena.ttl() / 10;
    arena.until("it was not renewed when the line was up again", renewed).await;
    assert_eq!(
        held.lost().now_or_never(),
        None,
        "lost, though the server was only silent for half of the ttl"
    );
    assert!(arena.is_busy(&b).await, "two hold it");
}

pub(super) async fn nobody_gets_in_before_the_holder_on_a_silent_line_is_lost(arena: Arc<Arena>) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    let held = arena.lock(&a).lock(&arena.short()).await.expect("nobody holds it");
    proxy.stall();
    let (next, limit) = (arena.take(&b, arena.kind()), arena.forgotten_after(&b, arena.short_ttl()));
    let next = arena.within(limit, "a silent claim is never forgotten", next).await;
    assert!(held.is_lost(), "two hold it");
    drop(next);
    proxy.pass();
}

pub(super) async fn an_answer_that_comes_late_answers_no_later_call(arena: Arc<Arena>) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    let [taken, free] = ["-taken", "-free"].map(|suffix| arena.name_with(suffix));
    // So long that it is not lost on a busy machine: a try would then be granted with right.
    let held = b.mutex(&taken).lock().ttl(arena.long_ttl(&b)).await.expect("nobody holds it");
    let tried = async |name: &str| a.mutex(name).try_lock().await;
    for round in 0..3 {
        for (late, then) in [(&free, &taken), (&taken, &free)] {
            proxy.hold_answers();
            let unheard = tried(late).await;
            assert!(
                is_unanswered(&unheard),
                "the answer was held back, and a try was told {unheard:?}, what was meant for another call"
            );
            proxy.pass();
            // The answer that was held back arrives about now.
            if then == &taken {
                let told = arena.soon("the line is up again, but it is not used", until_told(&a, then)).await;
                assert!(told.is_none(), "in round {round} a try was told what was meant for another call");
            } else {
                // Until the claim has left that was granted to nobody.
                let what = "a try of a free lock is told what was meant for another call";
                arena.soon(what, until_granted(&a, then)).await;
            }
        }
    }
    held.release().await.expect("held until now");
}

/// Repeats a try until the store answers, and returns the answer.
async fn until_told(client: &Locks, name: &str) -> Option<Guard> {
    loop {
        match client.mutex(name).try_lock().await {
            Ok(tried) => return tried,
            Err(error) => assert!(error.is_transient(), "it was told {error:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Tries until the lock is granted. An earlier call may have left a claim behind that must be released first.
async fn until_granted(client: &Locks, name: &str) {
    while until_told(client, name).await.is_none() {
        sleep(Duration::from_millis(50)).await;
    }
}

pub(super) async fn a_request_that_arrives_late_keeps_others_out_for_no_longer_than_its_ttl(
    arena: Arc<Arena>,
) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    proxy.hold_requests();
    let told = arena.lock(&a).try_lock(&arena.short()).await;
    assert!(is_unanswered(&told), "the request was held back, and the try was told {told:?}");
    proxy.pass();
    // Now it arrives, and may be granted to nobody.
    let next = arena.within(
        arena.short_ttl(),
        "granted to nobody, and never forgotten",
        arena.take(&b, arena.kind()),
    );
    drop(next.await);
}

pub(super) async fn a_waiter_whose_connections_break_gets_its_turn(arena: Arc<Arena>) {
    let ((a, proxy), b) = (arena.client_behind_proxy().await, arena.client().await);
    let held = arena.take_soon("nobody holds it", &b).await;
    let (lock, options) = (arena.lock(&a), arena.options());
    let waiter = arena.go(async move { lock.lock(&options).await });
    arena.until_contenders(&b, 2).await;
    proxy.cut();
    held.release().await.expect("held until now");
    let granted = arena.within(arena.ttl(), "it waits for ever", waiter).await.expect("no panic");
    drop(granted.expect("the line was up again at once"));
}

pub(super) async fn a_server_that_hangs_up_is_an_error_and_then_used_again(arena: Arc<Arena>) {
    let (a, proxy) = arena.client_behind_proxy().await;
    proxy.hang_up();
    let bound = arena.call_bound();
    let told = arena.within(bound, "a try hangs", arena.lock(&a).try_lock(&arena.options())).await;
    assert!(is_unanswered(&told), "neither busy nor free is known: {told:?}");
    // Longer than a call may take, so that one has failed by then.
    let wait = bound + Duration::from_secs(1);
    let options = arena.options().wait(wait);
    let told = arena.within(wait, "a bounded wait hangs", arena.lock(&a).lock(&options)).await;
    assert!(
        matches!(told, Err(Error::Timeout { source: Some(_), .. } | Error::Unavailable { .. })),
        "the server hangs up, and a bounded wait is told {told:?}"
    );
    proxy.pass();
    arena.soon("the server is there again, but it is not used", until_granted(&a, arena.name())).await;
}

/// How many calls of one client are repeated at the same time.
const CALLERS: usize = 40;
/// How often a client may connect: twice as often as one connection for calls and one for messages do with pauses of 200
/// ms.
const CONNECTIONS_A_SECOND: f64 = 20.0;

pub(super) async fn many_callers_do_not_storm_a_server_that_hangs_up(arena: Arc<Arena>) {
    let (a, proxy) = arena.client_behind_proxy().await;
    proxy.hang_up();
    let (before, began) = (proxy.connections(), Instant::now());
    let callers = (0..CALLERS).map(|number| {
        let lock = a.mutex(arena.name_with(&format!("-{number}")));
        arena.go(async move {
            while began.elapsed() < Duration::from_secs(2) {
                let told = lock.try_lock().await;
                assert!(is_unanswered(&told), "the server hangs up, and a try is told {told:?}");
                sleep(Duration::from_millis(5)).await;
            }
        })
    });
    for caller in join_all(callers.collect::<Vec<_>>()).await {
        caller.expect("no panic");
    }
    let (made, span) = (proxy.connections() - before, began.elapsed());
    let most = 10.0 + CONNECTIONS_A_SECOND * span.as_secs_f64();
    assert!(
        made as f64 <= most,
        "{CALLERS} callers of one client made {made} connections in {span:?} to a server that hangs up: \
         each call dials by itself, and without a pause"
    );
    proxy.pass();
    arena.soon("the server is there again, but it is not used", until_granted(&a, arena.name())).await;
}
