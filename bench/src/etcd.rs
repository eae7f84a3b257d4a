//! Locks in etcd, beside etcd's lock service through the client crate, and Go's
//! `concurrency.Mutex`.
//!
//! The server is the one of the tests. From etcd 3.5 on it does not wait for the disk.

use std::time::Duration;

use async_trait::async_trait;
use dlock::Kind;
use dlock_testbed::{
    peer::{PeerKind, Program},
    servers::{
        Server,
        etcd::{Flavour, ask, start},
    },
};
use etcd_client::LockOptions;

use crate::{
    Effort,
    arguments::Part,
    contest::{self, Client, Contestant, Counter, Dlock, InProcess, Outcome, PeerContestant, Table, Waiting},
    figures::Figures,
    growth,
    processes::{self, ClientLock, Round},
    results::Results,
    targets,
};

/// Name of the contestant that is etcd's lock service.
const SERVICE: &str = "lock service";

/// Length of each hold in a hand-off.
const HOLD: Duration = Duration::from_millis(10);

/// Maximum number of acquisitions by each of the two clients of a hand-off, in a round. Each takes
/// the lock service and Go's Mutex a tenth of a second.
const MAX_TURNS: usize = 8;

/// Ttl of the locks of Go's Mutex.
const PEER_TTL: Duration = Duration::from_secs(20);

pub(crate) async fn bench(effort: Effort, results: &Results) -> Outcome {
    let running = match start(Flavour::Standalone).await {
        Ok(running) => running,
        Err(unreachable) => return results.part_missing(Part::Etcd, &unreachable.reason),
    };
    let Some(server) = running.servers().first() else {
        return results.part_missing(Part::Etcd, "the server's address is not known");
    };
    let contestants = contestants(running.url(), server).await?;
    let go = Program::ETCD_GO.name();
    let rivals = [SERVICE, &go];
    let rounds = |_: &Contestant| effort.rounds;
    let pairs = Table::measure(&contestants, "alone", rounds, async |_, contestant, name| {
        Ok(Figures::micros(&contestant.pairs(name, (effort.pairs / 100) as usize).await?))
    });
    let title = "etcd: lock + release of a free lock";
    let pairs = pairs.await;
    pairs.print(title, "   p50 µs    p99 µs    × lock service", |row| pairs.times(row, 1));
    pairs.record_ratio(results, &targets::ETCD_PAIR, "dlock", &rivals, |round| round.quantile(0.5))?;
    let handoff = Table::measure(&contestants, "handoff", rounds, async |_, contestant, name| {
        Ok(Figures::millis(&contestant.handoff(name, effort.turns.min(MAX_TURNS), HOLD).await?))
    });
    let title = "etcd: hand-off to a waiting client, held 10 ms";
    let handoff = handoff.await;
    handoff.print(title, "   p50 ms    p99 ms    × lock service", |row| handoff.times(row, 2));
    handoff.record_ratio(results, &targets::ETCD_HANDOFF, "dlock", &rivals, |round| round.quantile(0.5))?;
    let received = ReceivedRequests(server.clone());
    let requests = Table::measure(
        &contestants,
        "requests",
        |_| 1,
        async |_, contestant, name| contestant.count(name, &received).await,
    );
    let requests = requests.await;
    requests.print_counts("etcd: requests");
    requests.record_sum(results, &targets::ETCD_REQUESTS, "dlock")
}

/// Measures ten client processes.
pub(crate) async fn processes(effort: Effort, results: &Results) -> Outcome {
    let running = match start(Flavour::Standalone).await {
        Ok(running) => running,
        Err(unreachable) => return results.part_missing(Part::ProcessesEtcd, &unreachable.reason),
    };
    let url = running.url();
    let go = processes::start_peers(Program::ETCD_GO, url, PEER_TTL);
    let go_name = Program::ETCD_GO.name();
    let contestants = [
        processes::start_clients("dlock", Waiting::Notified, ClientLock::Mutex, &dlock_url(url)).await?,
        processes::start_clients(SERVICE, Waiting::Notified, ClientLock::EtcdService, url).await?,
        processes::peers(&go_name, Waiting::Notified, &go, PeerKind::Mutex),
    ];
    let peers = [SERVICE, &go_name];
    // The peers may need a hundred milliseconds for a hand-off.
    let table =
        processes::measure("etcd", &contestants, &peers, effort.turns, effort, processes::unprepared).await;
    table.record_rate_ratio(results, &targets::PROCESSES_ETCD_RATE, "dlock", &peers, Round::rate)?;
    table.record(results, &targets::PROCESSES_ETCD_WAIT, "dlock", |row| {
        row.rounds.iter().map(Round::p99).collect()
    })
}

/// Connects a client of the lock service.
pub(crate) async fn lock_service(url: &str) -> Outcome<impl Client + use<>> {
    LockService::connect(url.trim_start_matches("etcd://")).await
}

fn dlock_url(url: &str) -> String {
    format!("{url}?session=30s")
}

/// Returns the server for measurements of other modules, or the reason why there is none.
pub(crate) async fn store() -> Outcome<Result<growth::Store, String>> {
    let running = match start(Flavour::Standalone).await {
        Ok(running) => running,
        Err(unreachable) => return Ok(Err(unreachable.reason)),
    };
    let url = running.url().to_owned();
    let counter = running.servers().first().cloned().map(ReceivedRequests);
    let counter = counter.map(|counter| Box::new(counter) as Box<dyn Counter>);
    Ok(Ok(growth::Store::new(url, counter, running)))
}

/// Returns all contestants. They are one group, because they lock the same keys.
async fn contestants(url: &str, server: &Server) -> Outcome<Vec<Contestant>> {
    const KEYS: &str = "keys";
    let (dlock_url, address) = (dlock_url(url), server.address().to_string());
    let service = InProcess::connect(2, async || LockService::connect(&address).await).await?;
    let dlock = InProcess::connect(2, async || Dlock::connect(&dlock_url, Kind::Mutex).await).await?;
    let go = contest::start(Program::ETCD_GO, url, PEER_TTL);
    let go = PeerContestant::of(&go, PeerKind::Mutex);
    Ok(vec![
        Contestant::new(SERVICE, KEYS, Waiting::Notified, Ok(service)).into_limit(),
        Contestant::new("dlock", KEYS, Waiting::Notified, Ok(dlock)),
        Contestant::new(&Program::ETCD_GO.name(), KEYS, Waiting::Notified, go),
    ])
}

/// A client of etcd's lock service, with a lease that is longer than the benchmark.
struct LockService {
    client: etcd_client::Client,
    lease: i64,
}

impl LockService {
    async fn connect(address: &str) -> Outcome<Self> {
        let mut client = etcd_client::Client::connect([address], None).await?;
        let lease = client.lease_grant(3600, None).await?.id();
        Ok(Self { client, lease })
    }
}

impl Client for LockService {
    /// The key of the lock.
    type Held = Vec<u8>;

    async fn lock(&self, name: &str) -> Outcome<Vec<u8>> {
        let options = LockOptions::new().with_lease(self.lease);
        Ok(self.client.clone().lock(name, Some(options)).await?.key().to_vec())
    }

    async fn unlock(&self, held: Vec<u8>) -> Outcome {
        self.client.clone().unlock(held).await?;
        Ok(())
    }
}

/// Number of requests that the server has received from all clients, with keep-alives.
struct ReceivedRequests(Server);

#[async_trait(?Send)]
impl Counter for ReceivedRequests {
    async fn read(&self) -> Outcome<f64> {
        let metrics = ask(&self.0, "/metrics").await?;
        let received = metrics.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
        Ok(received.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }
}
