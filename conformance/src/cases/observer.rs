//! Observers report who leads, and never a leader that is known to have ended. They do not disturb the
//! candidates.

use std::{sync::Arc, time::Duration};

use dlock_core::{Election, Kind, Leader, Locks, Observed, Observer, Term, Token};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::election::{elect_soon, election};
use crate::{
    Arena, Clock,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "observer" (Kind::Mutex) [Need::Inspect] {
            it_reports_the_present_state_first_and_then_each_new_leader,
            it_reports_a_dead_leader_as_vacant_when_its_claim_has_ended,
            it_reports_unknown_while_the_store_is_unreachable,
            it_reports_terms_that_never_decrease,
            a_term_is_mine_for_its_own_client_and_until_its_deadline,
            it_takes_no_place_in_the_queue,
            it_ends_with_its_client,
            the_label_of_a_leader_is_reported,
        }
        "observer" (Kind::Mutex) [Need::Driver, Need::Inspect] { a_thousand_of_one_client_share_the_requests_of_one }
    }
}

/// Returns the longest time in which an observer reports a change.
fn interval(arena: &Arena) -> Duration {
    (arena.ttl() / 3).max(Duration::from_secs(1))
}

async fn observe(election: &Election) -> Observer {
    election.observe().await.expect("the store is reachable and can be inspected")
}

/// Waits until the observer reports the term with this label. Fails if it reports that the leader is
/// unknown.
async fn until_led_by(arena: &Arena, observer: &mut Observer, label: &str) -> Leader {
    let led = async {
        loop {
            match observer.next().await {
                Observed::Leader(leader) if leader.label.as_deref() == Some(label) => return leader,
                state @ Observed::Unknown { .. } => {
                    panic!("the store replies, but the observer reports {state:?}")
                }
                _ => {}
            }
        }
    };
    arena.within(interval(arena), &format!("the observer never reports `{label}`"), led).await
}

async fn until_vacant(observer: &mut Observer) -> Option<Token> {
    loop {
        match observer.next().await {
            Observed::Vacant { after } => return after,
            state @ Observed::Unknown { .. } => {
                panic!("the store replies, but the observer reports {state:?}")
            }
            Observed::Leader(_) => {}
        }
    }
}

async fn elect(arena: &Arena, client: &Locks, label: &str) -> Term {
    let candidate = election(arena, client).candidate().label(label);
    let term = arena.soon("a candidate without rivals is not elected", candidate.elect()).await;
    term.expect("a candidate without a limit is elected")
}

pub(super) async fn it_reports_the_present_state_first_and_then_each_new_leader(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let mut early = observe(&election(&arena, &b)).await;
    let first = arena.soon("the present state is never reported", early.next()).await;
    assert_eq!(first, Observed::Vacant { after: None });
    let term = elect(&arena, &a, "anna").await;
    let mut late = observe(&b.election(arena.name()).ttl(arena.long_ttl(&b))).await;
    let present = arena.soon("the present state is never reported", late.next()).await;
    assert!(
        matches!(&present, Observed::Leader(leader) if leader.who == "anna"),
        "there is a leader, not {present:?}"
    );
    let leader = until_led_by(&arena, &mut early, "anna").await;
    assert!(leader.term.is_none() || leader.term == term.number(), "{leader:?} has the term {term:?}");
    term.resign().await.expect("the term is current");
    let next = elect(&arena, &a, "bert").await;
    until_led_by(&arena, &mut early, "bert").await;
    next.resign().await.expect("the term is current");
    let after =
        arena.within(interval(&arena), "the vacancy is never reported", until_vacant(&mut early)).await;
    assert!(after.is_none() || after == leader.term || after > leader.term, "{after:?}");
}

pub(super) async fn it_reports_a_dead_leader_as_vacant_when_its_claim_has_ended(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let election_of = |client: &Locks| client.election(arena.name()).ttl(arena.short_ttl());
    let term = election_of(&a).candidate().label("anna").elect().await.expect("there is no rival");
    let mut observer = observe(&election_of(&b)).await;
    until_led_by(&arena, &mut observer, "anna").await;
    switch.kill();
    let killed_at = Instant::now();
    drop(term);
    let ttl = arena.forgotten_after(&b, arena.short_ttl());
    let is_vacant = until_vacant(&mut observer);
    arena.within(ttl + interval(&arena), "the observer reports a dead leader", is_vacant).await;
    if arena.clock() == Clock::Paused {
        let took = killed_at.elapsed();
        assert!(
            took <= ttl + Duration::from_secs(1),
            "a dead leader was reported for {took:?}, its ttl is {ttl:?}"
        );
    }
}

pub(super) async fn it_reports_unknown_while_the_store_is_unreachable(arena: Arc<Arena>) {
    let (a, (b, switch)) = (arena.client().await, arena.client_with_switch().await);
    let term = elect(&arena, &a, "anna").await;
    let mut observer = observe(&election(&arena, &b)).await;
    until_led_by(&arena, &mut observer, "anna").await;
    for fault in [crate::wrap::Switch::cut, crate::wrap::Switch::freeze] {
        fault(&switch);
        let limit = arena.ttl().max(Duration::from_secs(3));
        let state = arena.within(limit, "the observer relies on an old reply", observer.next()).await;
        assert!(
            matches!(state, Observed::Unknown { .. }),
            "the store is unreachable, but the observer reports {state:?}"
        );
        assert!(matches!(observer.present(), Observed::Unknown { .. }));
        switch.connect();
        let state = arena.within(arena.ttl(), "the observer never recovers", observer.next()).await;
        assert!(matches!(&state, Observed::Leader(leader) if leader.who == "anna"), "{state:?}");
    }
    assert!(term.is_current(), "an unreachable observer disturbs the leader");
    term.resign().await.expect("the term is current");
}

pub(super) async fn it_reports_terms_that_never_decrease(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let mut observer = observe(&election(&arena, &b)).await;
    let (mut last, mut reported) = (None, Vec::new());
    for label in ["1", "2", "3", "4"] {
        let term = elect(&arena, &a, label).await;
        let leader = until_led_by(&arena, &mut observer, label).await;
        assert!(leader.term >= last, "term {:?} follows term {last:?}", leader.term);
        last = leader.term;
        reported.push((leader.term, term.number()));
        term.resign().await.expect("the term is current");
    }
    for (observed, number) in reported {
        assert!(observed.is_none() || observed == number, "term {number:?} is reported as {observed:?}");
    }
}

pub(super) async fn a_term_is_mine_for_its_own_client_and_until_its_deadline(arena: Arc<Arena>) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let election_of = |client: &Locks| client.election(arena.name()).ttl(arena.short_ttl());
    // The claim outlives the deadline by the margin, so the observer still reports the leader then.
    let candidate = election_of(&a).candidate().label("anna").margin(arena.short_ttl() / 2);
    let term = candidate.elect().await.expect("there is no rival");
    let observed_by = |client: &Locks| client.election(arena.name()).ttl(arena.long_ttl(client));
    let (mut own, mut other) = (observe(&observed_by(&a)).await, observe(&observed_by(&b)).await);
    let seen = election_of(&a).leader().await.expect("the store is reachable").expect("there is a leader");
    assert!(seen.mine, "the leader is a term of this client: {seen:?}");
    assert!(until_led_by(&arena, &mut own, "anna").await.mine, "the leader is a term of this client");
    assert!(!until_led_by(&arena, &mut other, "anna").await.mine, "the leader is a term of another client");
    switch.freeze();
    // A renewal that was sent before the freeze may still move the deadline.
    arena.within(arena.short_ttl() * 2, "a frozen store renews the term", term.lost()).await;
    let present = own.present();
    assert!(!term.is_current(), "the deadline has passed, but the term is current");
    assert!(
        !matches!(&present, Observed::Leader(leader) if leader.mine),
        "the deadline has passed, but the observer reports {present:?}"
    );
    drop(term);
    switch.connect();
    let next = elect_soon(&arena, &a, "a lost term still leads").await;
    next.resign().await.expect("the term is current");
}

pub(super) async fn it_takes_no_place_in_the_queue(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let observers = join_all((0..10).map(|_| async { observe(&election(&arena, &b)).await })).await;
    arena.until_contenders(&a, 0).await;
    let term = elect_soon(&arena, &a, "an observer blocks the candidates").await;
    arena.until_contenders(&a, 1).await;
    drop(observers);
    assert!(term.is_current(), "the end of an observer ends the term");
    term.resign().await.expect("the term is current");
}

pub(super) async fn it_ends_with_its_client(arena: Arc<Arena>) {
    let a = arena.client().await;
    let mut observer = observe(&election(&arena, &a)).await;
    assert_eq!(observer.next().await, Observed::Vacant { after: None });
    arena.soon("an observer keeps its client open", a.close()).await;
    let state = arena.soon("the end of the client is never reported", observer.next()).await;
    assert!(matches!(state, Observed::Unknown { .. }), "{state:?}");
    election(&arena, &a).observe().await.expect_err("the client is closed");
}

pub(super) async fn the_label_of_a_leader_is_reported(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let election = election(&arena, &b);
    assert_eq!(election.leader().await.expect("the store is reachable"), None, "there is no leader");
    let term = elect(&arena, &a, "10.0.0.7:9000").await;
    let leader = election.leader().await.expect("the store is reachable").expect("there is a leader");
    assert_eq!((leader.who.as_str(), leader.label.as_deref()), ("10.0.0.7:9000", Some("10.0.0.7:9000")));
    let state = b.inspect(arena.name()).await.expect("the store is reachable").expect("there is a leader");
    assert_eq!(state.holders[0].who.as_deref(), Some("10.0.0.7:9000"));
    term.resign().await.expect("the term is current");
}

pub(super) async fn a_thousand_of_one_client_share_the_requests_of_one(arena: Arc<Arena>) {
    const OBSERVERS: usize = 1000;
    let (a, (b, requests)) = (arena.client().await, arena.client_with_count().await);
    let election = election(&arena, &b);
    let began = Instant::now();
    let mut observers = join_all((0..OBSERVERS).map(|_| observe(&election))).await;
    for observer in &mut observers {
        assert_eq!(observer.next().await, Observed::Vacant { after: None });
    }
    sleep(interval(&arena) * 3).await;
    let term = elect(&arena, &a, "anna").await;
    for observer in &mut observers {
        until_led_by(&arena, observer, "anna").await;
    }
    let intervals = began.elapsed().div_duration_f64(interval(&arena)) as usize;
    let inspections = requests.inspections();
    // Each hint may cause one more. A RedLock of five sends five when it subscribes, and five when
    // there is a new leader.
    assert!(
        inspections <= intervals + 20,
        "{OBSERVERS} observers have caused {inspections} inspections in {intervals} intervals"
    );
    term.resign().await.expect("the term is current");
}
