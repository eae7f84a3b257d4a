//! An election of five `dlock lead` whose leaders are killed, suspended and cut off from the store.
//!
//! The command of each leader writes the number of its term into one file, a hundred times a
//! second. No number may be smaller than the one before it. A command therefore makes no step once
//! the command of a later term has begun. In addition, each command records the state of the
//! previous command when it begins. The permitted states depend on the end of the previous term:
//!
//! - **Cut off:** the previous command has ended. Half of the commands ignore TERM, so the margin
//!   must be long enough for KILL. The candidate reaches the store again when the next one leads.
//! - **Killed:** the previous command has ended, because the kernel kills it with its dlock. In an
//!   SQLite file the claim of a killed process is free at once. This may be shortly before the
//!   kernel has ended the command, as the README of the command says. On SQLite only the numbers are
//!   compared.
//! - **Suspended:** the previous command has ended or is suspended. STOP is sent to dlock and to
//!   its command. CONT is sent to dlock only, when the next candidate leads. dlock must then
//!   terminate the command before the command makes a step. If only dlock were suspended, or if
//!   CONT were sent to both, the command would run beside the next leader, which dlock cannot
//!   prevent. The same applies to a command that ignores TERM, so the leaders with such commands
//!   are not suspended.
//!
//! The previous command must also have ended if a leader loses its term without a fault, as on a
//! busy machine.

#[path = "failover/candidate.rs"]
mod candidate;
#[path = "failover/terms.rs"]
mod terms;

use std::{
    collections::HashMap,
    env,
    fs::{self, File},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use dlock_conformance::Proxy;
use rustix::process::Signal;
use serde_json::Value;

use crate::place::{Place, until};
use candidate::Candidate;
use terms::Terms;

/// Number of candidates.
const CANDIDATES: usize = 5;

/// Limit of the time without a leader, in addition to the time for which the store keeps the claim
/// of the previous one. On an idle machine an election takes a fraction of a second.
const ELECTION_LIMIT: Duration = Duration::from_secs(10);

/// A fault of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Stop,
    CutOff,
}

/// Times of a claim in a store.
#[derive(Clone, Copy)]
pub(crate) struct ClaimTimes {
    pub(crate) ttl: Duration,
    /// Maximum time for which the store keeps the claim of a candidate that has ended. This is the
    /// ttl, or the session.
    pub(crate) limit: Duration,
}

impl ClaimTimes {
    /// Times in a store without sessions.
    pub(crate) const WITHOUT_SESSION: Self =
        Self { ttl: Duration::from_secs(4), limit: Duration::from_secs(4) };
}

/// An election among five candidates, and its history.
pub(crate) struct Contest<'a> {
    place: &'a Place,
    /// URL of the store, not behind a link.
    store: String,
    candidates: Vec<Candidate<'a>>,
    times: ClaimTimes,
    terms: Terms,
    /// Sorts of faults, the next one first.
    faults: Vec<Fault>,
    /// Faults by the number of the term that each has ended, with the time until the command of the
    /// next leader began.
    ended: HashMap<u64, (Fault, Duration)>,
}

impl<'a> Contest<'a> {
    /// Starts five candidates that share a file, which cannot be cut off.
    pub(crate) fn on_file(place: &'a Place) -> Self {
        let store = format!("sqlite:{}", place.path("locks.db").display());
        let stores = (0..CANDIDATES).map(|_| (store.clone(), None)).collect();
        Self::new(place, store, stores, ClaimTimes::WITHOUT_SESSION, vec![Fault::Kill, Fault::Stop])
    }

    /// Starts five candidates, each with its own link to the server in the URL `store`.
    pub(crate) async fn on_server(
        place: &'a Place,
        server: SocketAddr,
        store: &str,
        times: ClaimTimes,
    ) -> Self {
        let mut stores = Vec::new();
        for _ in 0..CANDIDATES {
            let link = Proxy::to(server).await.unwrap();
            let behind_link = store.replace(&server.to_string(), &link.address().to_string());
            assert_ne!(behind_link, store, "the URL does not have the address of the server");
            stores.push((behind_link, Some(link)));
        }
        let faults = vec![Fault::Kill, Fault::Stop, Fault::CutOff];
        Self::new(place, store.to_owned(), stores, times, faults)
    }

    fn new(
        place: &'a Place,
        store: String,
        stores: Vec<(String, Option<Proxy>)>,
        times: ClaimTimes,
        faults: Vec<Fault>,
    ) -> Self {
        fs::write(place.path("previous"), "none\n").unwrap();
        let terms = Terms::in_new_file(&place.path("terms"));
        let candidates = stores.into_iter().enumerate();
        let candidates =
            candidates.map(|(at, (store, link))| Candidate::new(place, at, store, link, times.ttl));
        let candidates = candidates.collect();
        Self { place, store, candidates, times, terms, faults, ended: HashMap::new() }
    }

    /// Injects faults into the leaders for the seconds in `DLOCK_LEAD_SECONDS`, and at least one of
    /// each sort. Then ends all candidates, and checks their terms and that nothing is left.
    pub(crate) fn run(mut self) {
        let seconds = env::var("DLOCK_LEAD_SECONDS")
            .map_or(12, |text| text.parse().expect("`DLOCK_LEAD_SECONDS` is a number"));
        let began = Instant::now();
        self.terms.until_leader_after(0);
        while began.elapsed() < Duration::from_secs(seconds)
            || self.faults.iter().any(|sort| self.count(*sort) == 0)
        {
            // Varies the time between the last renewal and the fault.
            thread::sleep(Duration::from_millis(300 + self.ended.len() as u64 * 370 % 1000));
            self.replace_leader();
        }
        let lasting = began.elapsed();
        self.end_all();
        self.report(lasting);
        self.check_states();
    }

    /// Injects one fault into the leader, waits for the next leader, and undoes the fault.
    fn replace_leader(&mut self) {
        let leader = self.terms.last();
        let candidate = self.candidates.iter_mut().find(|candidate| candidate.pid() == leader.dlock);
        let candidate = candidate.expect("the leader is a candidate");
        let is_possible = |fault: &Fault| *fault != Fault::Stop || !candidate.ignores_term;
        let sort = self.faults.iter().position(is_possible).expect("a leader can be killed");
        let fault = self.faults.remove(sort);
        self.faults.push(fault);
        let began = Instant::now();
        candidate.inject(fault, &leader, self.ended.len());
        self.terms.until_leader_after(leader.number);
        let vacant = began.elapsed();
        let limit = self.times.limit + ELECTION_LIMIT;
        assert!(vacant < limit, "no leader for {vacant:?} after {fault:?} of {leader:?}");
        self.ended.insert(leader.number, (fault, vacant));
        candidate.recover(fault);
    }

    /// Returns the number of faults of a sort.
    fn count(&self, sort: Fault) -> usize {
        self.ended.values().filter(|(fault, _)| *fault == sort).count()
    }

    /// Ends all candidates with TERM, and checks that nothing is left of them.
    fn end_all(&mut self) {
        let waiting = || {
            let state = self.place.run(["inspect", "--store", &self.store, "--json", "x"]).out;
            let state: Value = serde_json::from_str(&state).unwrap_or_default();
            state["queue"].as_array().map(Vec::len)
        };
        until("each candidate leads or waits", || waiting() == Some(CANDIDATES - 1));
        for candidate in &mut self.candidates {
            assert_eq!(candidate.status(), None, "candidate {} has ended by itself", candidate.number);
        }
        File::create(self.place.path("over")).unwrap();
        for candidate in &self.candidates {
            candidate.signal(Signal::TERM);
        }
        for candidate in &mut self.candidates {
            until("each candidate ends", || candidate.status().is_some());
            assert_eq!(candidate.status(), Some(143), "candidate {}", candidate.number);
        }
        until("no claim is left", || {
            self.place.run(["inspect", "--store", &self.store, "x"]).status == 1 && waiting() == Some(0)
        });
        until("no process is left", || processes_in(self.place) == 0);
        self.terms.read();
    }

    /// Checks the state of each command at the time at which the next one began.
    fn check_states(&self) {
        let is_on_file = !self.faults.contains(&Fault::CutOff);
        for pair in self.terms.all.windows(2) {
            let fault = self.ended.get(&pair[0].number).map(|(fault, _)| *fault);
            let is_permitted = match (fault, &*pair[1].previous) {
                // In state D the shell waits for a child that STOP has reached before its exec.
                (_, "ended" | "Z" | "X") | (Some(Fault::Stop), "T" | "D") => true,
                (Some(Fault::Kill), _) => is_on_file,
                _ => false,
            };
            assert!(is_permitted, "the command of {:?} ran beside {:?} after {fault:?}", pair[0], pair[1]);
        }
    }

    #[expect(clippy::print_stdout, reason = "prints the measurements")]
    fn report(&self, lasting: Duration) {
        let sorts = self.faults.iter().map(|sort| {
            let of_sort = self.ended.values().filter(|(fault, _)| fault == sort);
            let longest = of_sort.map(|(_, vacant)| *vacant).max().unwrap_or_default();
            format!("{sort:?}: {}, at most {longest:.1?} without a leader", self.count(*sort))
        });
        let (sorts, terms) = (sorts.collect::<Vec<_>>().join("; "), self.terms.all.len());
        println!("{lasting:.0?}: {terms} terms, claims end after {:?}; {sorts}", self.times.limit);
    }
}

/// Returns the number of processes whose working directory is that of the place.
fn processes_in(place: &Place) -> usize {
    let place = fs::canonicalize(place.path("")).unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == place))
        .count()
}
