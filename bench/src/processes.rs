//! Ten client processes that contend for one name: their rate, and the fairness between them.
//!
//! dlock and the peers that are crates or statements run as [clients](client) of this program. Other
//! peers run ten times as the programs that they are. All processes of a contestant are connected
//! before its first round. Each process repeats lock and release without a pause and without a hold,
//! and measures itself, so that no time of a pipe counts.

mod client;
mod process;
mod round;

use std::{rc::Rc, time::Duration};

use dlock_testbed::peer::{Peer, PeerKind, Program};
use futures_util::future::try_join_all;
use tokio::{sync::Mutex, time::timeout};

use crate::{
    Effort,
    contest::{self, Contestant, Outcome, PeerContestant, Table, Waiting},
    figures::Figures,
};
pub(crate) use client::{ClientLock, serve};
use process::{ClientProcess, Process};
pub(crate) use round::Round;

/// Number of processes of each contestant.
const PROCESSES: usize = 10;

/// Maximum duration of a round.
const ROUND_LIMIT: Duration = Duration::from_secs(120);

/// Group of all contestants. They have no limit in common, and are compared with the fastest peer.
const GROUP: &str = "processes";

/// The processes of one contestant.
pub(crate) struct Processes(Vec<Process>);

impl Processes {
    /// Measures `pairs` pairs of lock and release by each process, all for one name at the same time.
    async fn contend(&self, name: &str, pairs: usize) -> Outcome<Round> {
        let names = [name; PROCESSES].map(str::to_owned);
        Ok(Round::of(&self.pairs(&names, pairs).await?))
    }

    /// Measures `pairs` pairs by each process, with one of the names each. Returns the duration of
    /// each pair of each process.
    async fn pairs(&self, names: &[String], pairs: usize) -> Outcome<Vec<Vec<Duration>>> {
        let all = self.0.iter().zip(names).map(|(process, name)| process.pairs(name, pairs));
        timeout(ROUND_LIMIT, try_join_all(all))
            .await
            .map_err(|_| format!("a round did not end within {ROUND_LIMIT:?}"))?
    }
}

/// For stores whose names need no preparation.
pub(crate) async fn unprepared(_name: &str) -> Outcome {
    Ok(())
}

/// Starts a lock of this program in ten processes.
pub(crate) async fn start_clients(
    name: &str,
    waiting: Waiting,
    lock: ClientLock,
    url: &str,
) -> Outcome<Contestant<Processes>> {
    let mut processes = Vec::new();
    // One after another, because the first client of dlock creates the tables of a database.
    for _ in 0..PROCESSES {
        let client = ClientProcess::start(lock, url).await?;
        processes.push(Process::Client(Box::new(Mutex::new(client))));
    }
    Ok(contestant(name, waiting, Ok(Processes(processes))))
}

/// Starts a peer ten times. `ttl` is the ttl of its locks.
pub(crate) fn start_peers(program: Program, url: &str, ttl: Duration) -> Result<Vec<Rc<Peer>>, String> {
    (0..PROCESSES).map(|_| contest::start(program, url, ttl)).collect()
}

/// Returns the locks of one kind of ten peers as a contestant.
pub(crate) fn peers(
    name: &str,
    waiting: Waiting,
    peers: &Result<Vec<Rc<Peer>>, String>,
    kind: PeerKind,
) -> Contestant<Processes> {
    let of_peer = |peer: &Rc<Peer>| PeerContestant::of(&Ok(Rc::clone(peer)), kind).map(Process::Peer);
    let processes = peers.as_ref().map_err(String::clone);
    let processes = processes.and_then(|peers| peers.iter().map(of_peer).collect::<Result<_, _>>());
    contestant(name, waiting, processes.map(Processes))
}

fn contestant(name: &str, waiting: Waiting, processes: Result<Processes, String>) -> Contestant<Processes> {
    Contestant {
        name: name.to_owned(),
        group: GROUP,
        waiting,
        is_limit: false,
        measurements: processes.map(Box::new),
    }
}

/// Measures all contestants, and prints their results beside those of the fastest of the peers. Each
/// process locks and releases `pairs` times in a round. `prepare` is called with each name before it
/// is used.
pub(crate) async fn measure<'a>(
    store: &str,
    contestants: &'a [Contestant<Processes>],
    peers: &[&str],
    pairs: usize,
    effort: Effort,
    prepare: impl AsyncFn(&str) -> Outcome,
) -> Table<'a, Round, Processes> {
    // Enough runs for a virtual machine to compile the code, with a name for each process.
    Table::measure(
        contestants,
        "warm",
        |_| 1,
        async |_, processes, name| {
            let names: Vec<_> = (0..PROCESSES).map(|process| format!("{name}-{process}")).collect();
            for name in &names {
                prepare(name).await?;
            }
            processes.pairs(&names, pairs).await
        },
    )
    .await;
    let table = Table::measure(
        contestants,
        "processes",
        |_| effort.rounds,
        async |_, processes, name| {
            prepare(name).await?;
            processes.contend(name, pairs).await
        },
    )
    .await;
    let title = format!(
        "{store}: {PROCESSES} processes, one name, {pairs} pairs of lock + release by each, without a hold"
    );
    let columns =
        "  a second    × fastest peer            least … greatest share    Jain    p99 × strict order";
    table.print(&title, columns, |row| {
        let of_rounds = |value: fn(&Round) -> f64| row.rounds.iter().map(value).collect::<Figures>();
        let median = |value| of_rounds(value).quantile(0.5);
        let ratio = table.relative_to_fastest(row, peers, Round::rate).to_string();
        let [least, greatest] = [median(Round::least_share), median(Round::greatest_share)];
        let (rate, jain, waits) = (median(Round::rate), median(Round::jain), of_rounds(Round::p99));
        format!("{rate:10.0} {ratio:28} {least:10.2} … {greatest:<12.2} {jain:5.2}  {waits}")
    });
    table
}
