//! Candidates lead one at a time, for the time of their work, and withdraw without a trace.

use std::{
    convert::Infallible,
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use dlock_core::{Election, Error, Kind, Locks, Next, Result, Term};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::cancel::{CUTS, cut_off};
use crate::{
    Arena, Clock,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "election" (Kind::Mutex) [] {
            no_candidate_is_elected_while_another_term_is_current,
            a_term_is_not_current_from_its_deadline_on,
            the_claim_is_released_after_the_work_has_ended,
            a_failure_of_the_work_resigns_and_the_candidate_stands_again_after_a_pause,
            a_leader_that_resigns_stands_again_until_it_is_done,
            a_candidate_leaves_nothing_wherever_it_is_dropped,
            a_candidate_that_gives_up_leaves_nothing,
            options_that_no_candidate_can_have_are_refused_before_any_io,
        }
        "election" (Kind::Mutex) [Need::Inspect] { a_loss_drops_the_work_and_the_candidate_stands_again }
        "election" (Kind::Mutex) [Need::Tokens] { each_term_has_a_greater_number_than_the_one_before }
        "election" (Kind::Fair) [Need::Order, Need::Inspect] { a_leader_that_resigns_stands_behind_the_others }
        "election" (Kind::Fair) [Need::Driver, Need::FreeWaiting] {
            a_resignation_among_a_hundred_candidates_costs_the_requests_of_one_hand_over,
        }
    }
}

/// Returns the election of the case, as `client` sees it.
pub(super) fn election(arena: &Arena, client: &Locks) -> Election {
    client.election(arena.name()).ttl(arena.ttl())
}

/// Starts a candidate for one term.
fn stand(arena: &Arena, client: &Locks) -> JoinHandle<Result<Term>> {
    let candidate = election(arena, client).candidate();
    arena.go(async move { candidate.elect().await })
}

/// Waits until a candidate of `client` is elected, which must be soon.
#[track_caller]
pub(super) fn elect_soon(arena: &Arena, client: &Locks, failure: &str) -> impl Future<Output = Term> {
    let candidate = election(arena, client).candidate();
    arena.soon(
        failure,
        async move { candidate.elect().await.expect("a candidate without a limit is elected") },
    )
}

/// Counts work that runs.
struct Work(Arc<AtomicUsize>);

impl Work {
    fn begin(running: &Arc<AtomicUsize>) -> Self {
        running.fetch_add(1, SeqCst);
        Self(Arc::clone(running))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Ways in which the work of a leader ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Done,
    Fails,
    Panics,
    IsDropped,
}

pub(super) async fn no_candidate_is_elected_while_another_term_is_current(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let began = Instant::now();
    let short = a.election(arena.name()).ttl(arena.short_ttl());
    let term = short.candidate().elect().await.expect("there is no other candidate");
    assert!(term.is_current() || began.elapsed() >= arena.short_ttl(), "a new term is not current");
    switch.cut();
    let limit = arena.forgotten_after(&b, arena.short_ttl());
    let electing = election(&arena, &b).candidate().elect();
    let next = arena.within(limit, "a leader that is cut off leads for ever", electing).await;
    let next = next.expect("a candidate without a limit is elected");
    assert!(!term.is_current(), "two terms are current at the same time");
    assert!(next.is_current(), "a new term is not current");
    next.resign().await.expect("the term is current");
}

pub(super) async fn a_term_is_not_current_from_its_deadline_on(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    let election = a.election(arena.name()).ttl(arena.short_ttl());
    let term = election.candidate().elect().await.expect("there is no other candidate");
    switch.freeze();
    sleep(arena.short_ttl()).await;
    assert!(!term.is_current(), "the deadline has passed, but the term is current");
    arena.soon("the loss is never reported", term.lost()).await;
    assert_eq!(term.remaining(), Duration::ZERO);
}

pub(super) async fn the_claim_is_released_after_the_work_has_ended(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    for end in [End::Done, End::Fails, End::Panics, End::IsDropped] {
        let running = Arc::new(AtomicUsize::new(0));
        let finish = watch::Sender::new(false);
        let (began, mut begun) = mpsc::unbounded_channel();
        let leading = {
            let (candidate, running) = (election(&arena, &a).candidate(), Arc::clone(&running));
            let finished = finish.subscribe();
            let work = async move |_: &Term| {
                let (_work, mut finished) = (Work::begin(&running), finished.clone());
                began.send(()).ok();
                finished.wait_for(|finished| *finished).await.ok();
                match end {
                    End::Done => Ok(Next::Done),
                    End::Fails => Err("the work fails"),
                    End::Panics => resume_unwind(Box::new("the work panics")),
                    End::IsDropped => std::future::pending().await,
                }
            };
            arena.go(async move { candidate.lead(work).await })
        };
        arena.soon("the first candidate does not lead", begun.recv()).await;
        let rival = {
            let (candidate, running) = (election(&arena, &b).candidate(), Arc::clone(&running));
            arena.go(async move { (candidate.elect().await, running.load(SeqCst)) })
        };
        arena.until_contenders(&b, 2).await;
        // Long enough for a renewal, which must not end the term either.
        sleep(arena.ttl() / 2).await;
        assert!(!rival.is_finished(), "the claim was released while the work was running");
        finish.send_replace(true);
        if matches!(end, End::IsDropped) {
            leading.abort();
        }
        let elected = arena.soon("the end of the work does not end the term", rival).await;
        let (term, still_running) = elected.expect("the task does not panic");
        assert_eq!(still_running, 0, "the work was running when the next leader was elected: {end:?}");
        leading.abort();
        let term = term.expect("a candidate without a limit is elected");
        term.resign().await.expect("the term is current");
    }
}

pub(super) async fn a_failure_of_the_work_resigns_and_the_candidate_stands_again_after_a_pause(
    arena: Arc<Arena>,
) {
    const PAUSE: Duration = Duration::from_millis(100);
    let (a, b) = (arena.client().await, arena.client().await);
    let (began, mut begun) = mpsc::unbounded_channel();
    let candidate = election(&arena, &a).candidate().cooldown(PAUSE..arena.ttl());
    let mut runs = 0;
    let leading = candidate.lead(async move |_: &Term| {
        began.send(Instant::now()).ok();
        runs += 1;
        if runs < 3 { Err("the work fails") } else { Ok(Next::Done) }
    });
    arena.within(PAUSE * 6, "the candidate does not stand again", leading).await.expect("the work is done");
    let mut runs = Vec::new();
    begun.recv_many(&mut runs, 9).await;
    assert_eq!(runs.len(), 3);
    assert!(
        runs[1] - runs[0] >= PAUSE && runs[2] - runs[1] >= PAUSE * 2,
        "no pause after a failure: {runs:?}"
    );
    elect_soon(&arena, &b, "the candidate stands although it is done").await.resign().await.ok();
}

pub(super) async fn a_leader_that_resigns_stands_again_until_it_is_done(arena: Arc<Arena>) {
    let a = arena.client().await;
    let (led, mut leads) = mpsc::unbounded_channel();
    let candidate = election(&arena, &a).candidate().cooldown(Duration::from_millis(1)..arena.ttl());
    let mut terms = 0;
    let leading = candidate.lead(async move |term: &Term| {
        led.send(term.number()).ok();
        terms += 1;
        Ok::<_, Infallible>(if terms < 3 { Next::Resign } else { Next::Done })
    });
    arena.soon("the candidate does not stand again", leading).await.expect("the work is done");
    let mut numbers = Vec::new();
    leads.recv_many(&mut numbers, 9).await;
    assert!(numbers.len() == 3 && numbers.is_sorted(), "the terms are {numbers:?}");
}

pub(super) async fn a_leader_that_resigns_stands_behind_the_others(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let (leads, resign) = (watch::Sender::new(0), watch::Sender::new(false));
    let leading = {
        let candidate = election(&arena, &a).candidate().cooldown(Duration::from_millis(1)..arena.ttl());
        let (leads, mut resigns) = (leads.clone(), resign.subscribe());
        let work = async move |_: &Term| {
            leads.send_modify(|leads| *leads += 1);
            resigns.wait_for(|resigns| *resigns).await.ok();
            Ok::<_, Infallible>(if *leads.borrow() == 1 { Next::Resign } else { Next::Done })
        };
        arena.go(async move { candidate.lead(work).await })
    };
    let mut seen = leads.subscribe();
    arena.soon("the first candidate does not lead", seen.wait_for(|leads| *leads == 1)).await.ok();
    let next = stand(&arena, &b);
    arena.until_contenders(&b, 2).await;
    resign.send_replace(true);
    let next = arena.soon("a resignation elects no other candidate", next).await;
    let next = next.expect("the task does not panic").expect("a candidate without a limit is elected");
    arena.until_contenders(&b, 2).await;
    assert_eq!(*leads.borrow(), 1, "two candidates lead at the same time");
    next.resign().await.expect("the term is current");
    let done = arena.soon("the first candidate does not lead again", leading).await;
    done.expect("the task does not panic").expect("the work is done");
    assert_eq!(*leads.borrow(), 2);
}

pub(super) async fn a_loss_drops_the_work_and_the_candidate_stands_again(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let running = Arc::new(AtomicUsize::new(0));
    let (began, mut begun) = mpsc::unbounded_channel();
    let leading = {
        let (candidate, running) = (election(&arena, &a).candidate(), Arc::clone(&running));
        let work = async move |term: &Term| {
            let _work = Work::begin(&running);
            began.send((term.number(), running.load(SeqCst))).ok();
            std::future::pending::<Result<Next, Infallible>>().await
        };
        arena.go(async move { candidate.lead(work).await })
    };
    let first = arena.soon("the candidate does not lead", begun.recv()).await.expect("the candidate exists");
    assert!(b.force_release(arena.name()).await.expect("the store is reachable"), "there is no leader");
    let next = arena.within(arena.ttl(), "the candidate does not stand again", begun.recv()).await;
    let next = next.expect("the candidate exists");
    assert!(first.0 < next.0 || first.0.is_none(), "the term numbers are {first:?} and {next:?}");
    assert_eq!(next.1, 1, "the work of the lost term runs beside that of the next");
    leading.abort();
    elect_soon(&arena, &b, "the dropped leader still leads")
        .await
        .resign()
        .await
        .expect("the term is current");
    assert_eq!(running.load(SeqCst), 0, "the work was not dropped");
}

pub(super) async fn each_term_has_a_greater_number_than_the_one_before(arena: Arc<Arena>) {
    let clients = [arena.client().await, arena.client().await];
    let mut last = None;
    for client in clients.iter().cycle().take(6) {
        let term = elect_soon(&arena, client, "a resignation elects no candidate").await;
        assert!(term.number() > last, "term {:?} follows term {last:?}", term.number());
        assert_eq!(term.number(), term.token(), "the number of a term is not its token");
        last = term.number();
        term.resign().await.expect("the term is current");
    }
}

pub(super) async fn a_candidate_leaves_nothing_wherever_it_is_dropped(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let candidate = || a.election(arena.name()).ttl(arena.long_ttl(&a)).candidate();
    for cut in 0..CUTS {
        let failure = format!("a claim was left behind at cut {cut}");
        drop(cut_off(candidate().elect(), cut).await);
        let work = async |_: &Term| {
            sleep(Duration::from_millis(1)).await;
            Ok::<_, Infallible>(Next::Resign)
        };
        drop(cut_off(candidate().lead(work), cut).await);
        let term = elect_soon(&arena, &b, &failure).await;
        assert!(cut_off(candidate().elect(), cut).await.is_none(), "two candidates lead");
        term.resign().await.expect("the term is current");
    }
    elect_soon(&arena, &b, "a claim was left behind at the last cut").await.resign().await.ok();
}

pub(super) async fn a_candidate_that_gives_up_leaves_nothing(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let term = elect_soon(&arena, &a, "a free election elects no candidate").await;
    let candidate = || b.election(arena.name()).candidate().wait(Duration::from_millis(100));
    let error = candidate().elect().await.expect_err("there is a leader");
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    let error = candidate().lead(async |_: &Term| Ok::<_, Infallible>(Next::Done)).await;
    assert!(matches!(error, Err(Error::Timeout { .. })), "{error:?}");
    term.resign().await.expect("the term is current");
    elect_soon(&arena, &a, "a candidate that gave up still stands").await.resign().await.ok();
}

pub(super) async fn options_that_no_candidate_can_have_are_refused_before_any_io(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.cut();
    let s = Duration::from_secs;
    let candidate = || election(&arena, &a).candidate();
    let work = async |_: &Term| Ok::<_, Infallible>(Next::Done);
    for result in [
        candidate().label("two\nlines").lead(work).await,
        candidate().cooldown(s(0)..s(1)).lead(work).await,
        candidate().cooldown(s(2)..s(1)).lead(work).await,
        a.election(arena.name()).ttl(Duration::ZERO).candidate().lead(work).await,
    ] {
        assert!(matches!(result, Err(Error::InvalidOptions { .. })), "{result:?}");
    }
    let result = a.election("").candidate().elect().await;
    assert!(matches!(result, Err(Error::InvalidName { .. })), "{result:?}");
}

/// A hundred candidates wait, and each that is woken sends at least one request. A resignation needs
/// a release, and up to two attempts of the next leader.
pub(super) async fn a_resignation_among_a_hundred_candidates_costs_the_requests_of_one_hand_over(
    arena: Arc<Arena>,
) {
    const CANDIDATES: usize = 100;
    /// One hand-over, and some allowance for hints without a cause.
    const MOST: usize = 8;
    let (client, requests) = arena.client_with_count().await;
    if client.info().store == "redlock" && arena.clock() != Clock::Paused {
        // On a busy machine its candidates collide on single members, and then send more requests.
        return;
    }
    // No candidate sends a keep-alive during the case.
    let ttl = Duration::from_secs(3600).min(*client.info().ttl.end());
    let election = client.election(arena.name()).ttl(ttl);
    let mut term = election.candidate().elect().await.expect("there is no other candidate");
    let mut waiting: FuturesUnordered<_> = (0..CANDIDATES)
        .map(|_| {
            let candidate = election.candidate();
            arena.go(async move { candidate.elect().await })
        })
        .collect();
    arena.until_contenders(&client, 1 + CANDIDATES).await;
    let mut requests_of_hand_overs = Vec::new();
    for _ in 0..3 {
        arena.within(arena.ttl() * 2, "the candidates send requests all the time", quiet(&requests)).await;
        let before = requests.of_claims();
        term.resign().await.expect("the term is current");
        let next = arena.soon("a resignation elects no candidate", waiting.next()).await;
        let next = next.expect("candidates wait").expect("the task does not panic");
        term = next.expect("a candidate without a limit is elected");
        // All candidates that were woken have sent their requests by then.
        arena.within(arena.ttl() * 2, "the candidates send requests all the time", quiet(&requests)).await;
        requests_of_hand_overs.push(requests.of_claims() - before);
    }
    // The median, because a pause of the machine may delay a request into the next measurement.
    requests_of_hand_overs.sort_unstable();
    let sent = requests_of_hand_overs[1];
    assert!(
        sent <= MOST,
        "a resignation among {CANDIDATES} candidates has caused {sent} requests, the median of {requests_of_hand_overs:?}"
    );
    waiting.iter().for_each(JoinHandle::abort);
    term.resign().await.expect("the term is current");
}

/// Waits until no request for a claim was sent for half a second.
async fn quiet(requests: &crate::wrap::Requests) {
    loop {
        let before = requests.of_claims();
        sleep(Duration::from_millis(500)).await;
        if requests.of_claims() == before {
            return;
        }
    }
}
