//! Cases for candidates of dlock and of a peer in one election, on any store.
//! [`border_trials!`](crate::border_trials) makes trials of them.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use dlock_core::{Candidate, Election, Error, Locks, Observed, Observer, Term, Token};
use futures_util::future::{join, join_all};
use parking_lot::Mutex;

use super::{
    Border, Contender, PeerKind, Side, Taken,
    cases::{LONG_WAIT, soon, took, unique},
};

/// Label of dlock's candidates.
const LABEL: &str = "10.0.0.7:9000";

/// Wait limit of a candidate that must not be elected. Longer than a program needs to start and to
/// stand, because some programs leave their candidate behind if they are interrupted before.
const SHORT_WAIT: Duration = Duration::from_secs(2);

fn candidate(election: &Election) -> Candidate {
    election.candidate().label(LABEL)
}

/// Returns the election of the name in dlock, with the default ttl of the client.
async fn election<S: Side>(border: &Border<S>) -> (Locks, String, Election) {
    let (locks, name) = (border.locks().await, unique());
    let election = locks.election(&name).ttl(border.side.ttl());
    (locks, name, election)
}

async fn elected(candidate: Candidate) -> Term {
    candidate.elect().await.expect("it is elected")
}

async fn until_led_by(observer: &mut Observer, label: &str) {
    let reported = async {
        loop {
            match observer.next().await {
                Observed::Leader(leader) if leader.label.as_deref() == Some(label) => return,
                _ => {}
            }
        }
    };
    soon(&format!("the leader `{label}` is never reported"), reported).await;
}

async fn is_busy(candidate: Candidate) -> bool {
    matches!(candidate.wait(SHORT_WAIT).elect().await, Err(Error::Timeout { .. }))
}

/// Checks that a leader of either side excludes candidates of the other, and that both sides report
/// its label.
pub async fn both_sides_know_the_one_leader_by_its_label<S: Side>(border: &Border<S>, kind: PeerKind) {
    let (locks, name, election) = election(border).await;
    let (other, rival) = (border.contender(kind), border.contender(kind));
    let mut observer = election.observe().await.expect("the store is reachable");
    assert_eq!(other.leader(kind, &name).await.expect("a reply"), None);

    let taken = took(other.try_lock(kind, &name).await);
    let seen = election.leader().await.expect("a reply").expect("the peer leads");
    assert_eq!((seen.label, seen.mine), (Some(other.label()), false));
    assert!(
        taken.token.is_none() || seen.term == taken.token,
        "{:?} is reported as {:?}",
        taken.token,
        seen.term
    );
    until_led_by(&mut observer, &other.label()).await;
    assert!(is_busy(candidate(&election)).await, "two candidates lead");
    other.unlock(kind, &name).await.expect("the contender leads");

    let term = elected(candidate(&election)).await;
    assert!(term.number() > taken.token, "term {:?} follows {taken:?}", term.number());
    assert_eq!(other.leader(kind, &name).await.expect("a reply").as_deref(), Some(LABEL));
    until_led_by(&mut observer, LABEL).await;
    assert_eq!(rival.lock(kind, &name, SHORT_WAIT).await.expect("a reply"), None, "two candidates lead");
    assert!(term.is_current());
    term.resign().await.expect("the term is current");
    soon("a candidate that has withdrawn leads", async {
        while other.leader(kind, &name).await.expect("a reply").is_some() {}
    })
    .await;
    locks.close().await;
}

/// Checks that a resignation on either side elects a waiting candidate of the other.
pub async fn a_resignation_elects_a_candidate_of_the_other_side<S: Side>(border: &Border<S>, kind: PeerKind) {
    let (locks, name, election) = election(border).await;
    let other = border.contender(kind);
    took(other.try_lock(kind, &name).await);
    let resign = async {
        border.side.until_somebody_waits(&locks, &name).await;
        other.unlock(kind, &name).await.expect("the contender leads");
    };
    let (term, ()) = soon("dlock was not woken", join(elected(candidate(&election)), resign)).await;
    let resign = async {
        border.side.until_somebody_waits(&locks, &name).await;
        term.resign().await.expect("the term is current");
    };
    let (taken, ()) = soon("the peer was not woken", join(other.lock(kind, &name, LONG_WAIT), resign)).await;
    took(taken);
    other.unlock(kind, &name).await.expect("the contender leads");
    locks.close().await;
}

/// Checks that a candidate of dlock is elected when the session of a killed leader ends.
pub async fn a_leader_that_was_killed_is_followed_by_a_candidate_of_dlock<S: Side>(
    border: &Border<S>,
    kind: PeerKind,
) {
    let (locks, name, election) = election(border).await;
    let peer = border.start(Duration::from_secs(4));
    took(peer.contender().try_lock(kind, &name).await);
    drop(peer);
    let term = tokio::time::timeout(LONG_WAIT, elected(candidate(&election))).await;
    term.expect("a dead leader leads for ever").resign().await.expect("the term is current");
    locks.close().await;
}

/// Terms of the candidates of both sides.
#[derive(Default)]
struct Terms {
    leaders: AtomicUsize,
    /// Terms in the order of their beginnings.
    numbers: Mutex<Vec<Token>>,
}

impl Terms {
    /// Leads for an instant, in which no other candidate may lead.
    async fn lead(&self, number: Option<Token>) {
        assert_eq!(self.leaders.fetch_add(1, SeqCst), 0, "two candidates lead at the same time");
        self.numbers.lock().extend(number);
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.leaders.fetch_sub(1, SeqCst);
    }
}

/// Checks an election in which three candidates of each side stand again and again. There must
/// never be two leaders, and the terms must grow.
pub async fn candidates_of_both_lead_one_after_the_other<S: Side>(border: &Border<S>, kind: PeerKind) {
    const CANDIDATES: usize = 3;
    const TERMS: usize = 5;
    let (locks, name, election) = election(border).await;
    let terms = Terms::default();
    let others: Vec<Contender> = (0..CANDIDATES).map(|_| border.contender(kind)).collect();
    let of_peer = join_all(others.iter().map(async |other| {
        for _ in 0..TERMS {
            let Taken { token } = took(other.lock(kind, &name, LONG_WAIT).await);
            terms.lead(token).await;
            other.unlock(kind, &name).await.expect("the contender leads");
        }
    }));
    let of_dlock = join_all((0..CANDIDATES).map(async |_| {
        for _ in 0..TERMS {
            let term = elected(candidate(&election)).await;
            terms.lead(term.number()).await;
            term.resign().await.expect("the term is current");
        }
    }));
    tokio::time::timeout(LONG_WAIT, join(of_peer, of_dlock)).await.expect("a candidate is never elected");
    let numbers = terms.numbers.into_inner();
    assert!(numbers.is_sorted_by(|a, b| a < b), "the terms do not grow: {numbers:?}");
    locks.close().await;
}
