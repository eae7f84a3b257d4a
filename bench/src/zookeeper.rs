//! Locks in ZooKeeper, beside Curator's `InterProcessMutex`, and the recipe of dlock's client
//! crate.
//!
//! The server is the one of the tests, which does not wait for the disk. All contestants have their
//! locks below one node.

pub(crate) mod distant;

use std::{cell::Cell, net::SocketAddr, rc::Rc, time::Duration};

use async_trait::async_trait;
use dlock::Kind;
use dlock_testbed::{
    peer::{Peer, PeerKind, Program},
    servers::zookeeper::{Flavour, start, word},
};
use tokio::time::sleep;
use zookeeper_client::{Acls, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

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

/// Length of each hold in a hand-off.
const HOLD: Duration = Duration::from_millis(10);

/// Name of the contestant that is the client crate's own lock.
const RECIPE: &str = "crate's recipe";

/// Session timeout of all contestants.
const SESSION: Duration = Duration::from_secs(20);

/// The node above the locks. Curator's peer has the same name in its source.
const BASE: &str = "/it";

/// Time in which the server receives requests that the recipe sends in the background.
const BACKGROUND_REQUEST_TIME: Duration = Duration::from_millis(20);

pub(crate) async fn bench(effort: Effort, results: &Results) -> Outcome {
    let running = match start(Flavour::Standalone).await {
        Ok(running) => running,
        Err(unreachable) => return results.part_missing(Part::Zookeeper, &unreachable.reason),
    };
    let Some(server) = running.servers().first() else {
        return results.part_missing(Part::Zookeeper, "the server's address is not known");
    };
    let contestants = contestants(running.url()).await?;
    let raw = zookeeper_client::Client::connect(hosts(running.url())).await?;
    let rounds = |_: &Contestant| effort.rounds;
    let pairs = Table::measure(&contestants, "alone", rounds, async |_, contestant, name| {
        keep_directory(&raw, name).await?;
        Ok(Figures::micros(&contestant.pairs(name, (effort.pairs / 100) as usize).await?))
    });
    let title = "ZooKeeper: lock + release of a free lock (the recipe's release is not awaited)";
    let pairs = pairs.await;
    pairs.print(title, "   p50 µs    p99 µs    × recipe", |row| pairs.times(row, 1));
    let p50 = |round: &Figures| round.quantile(0.5);
    let curator = Program::CURATOR.name();
    pairs.record_ratio(results, &targets::ZOOKEEPER_PAIR_CURATOR, "dlock", &[&curator], p50)?;
    pairs.record_ratio(results, &targets::ZOOKEEPER_PAIR_RECIPE, "dlock", &[RECIPE], p50)?;
    let handoff = Table::measure(&contestants, "handoff", rounds, async |_, contestant, name| {
        keep_directory(&raw, name).await?;
        Ok(Figures::millis(&contestant.handoff(name, effort.turns, HOLD).await?))
    });
    let title = "ZooKeeper: hand-off to a waiting client, held 10 ms";
    let handoff = handoff.await;
    handoff.print(title, "   p50 ms    p99 ms    × recipe", |row| handoff.times(row, 2));
    handoff.record_ratio(results, &targets::ZOOKEEPER_HANDOFF, "dlock", &[RECIPE], p50)?;
    let received = ReceivedRequests { server: server.address(), own_requests: Cell::default() };
    let requests = Table::measure(
        &contestants,
        "requests",
        |_| 1,
        async |_, contestant, name| {
            keep_directory(&raw, name).await?;
            contestant.count(name, &received).await
        },
    );
    let requests = requests.await;
    requests.print_counts("ZooKeeper: requests");
    requests.record_sum(results, &targets::ZOOKEEPER_REQUESTS, "dlock")
}

/// Measures ten client processes.
pub(crate) async fn processes(effort: Effort, results: &Results) -> Outcome {
    let running = match start(Flavour::Standalone).await {
        Ok(running) => running,
        Err(unreachable) => return results.part_missing(Part::ProcessesZookeeper, &unreachable.reason),
    };
    let url = running.url();
    let curator = processes::start_peers(Program::CURATOR, url, SESSION);
    let curator_name = Program::CURATOR.name();
    let contestants = [
        processes::start_clients("dlock", Waiting::InOrder, ClientLock::Mutex, &dlock_url(url)).await?,
        processes::start_clients(RECIPE, Waiting::InOrder, ClientLock::ZookeeperRecipe, url).await?,
        processes::peers(&curator_name, Waiting::InOrder, &curator, PeerKind::Mutex),
    ];
    let peers = [RECIPE, &curator_name];
    let raw = zookeeper_client::Client::connect(hosts(url)).await?;
    let prepare = async |name: &str| keep_directory(&raw, name).await;
    let table =
        processes::measure("ZooKeeper", &contestants, &peers, effort.turns * 4, effort, prepare).await;
    table.record_rate_ratio(results, &targets::PROCESSES_ZOOKEEPER_RATE, "dlock", &peers, Round::rate)?;
    table.record(results, &targets::PROCESSES_ZOOKEEPER_WAIT, "dlock", |row| {
        row.rounds.iter().map(Round::p99).collect()
    })
}

/// Connects a client with the recipe of its crate.
pub(crate) async fn recipe(url: &str) -> Outcome<impl Client + use<>> {
    let connector = zookeeper_client::Client::connector();
    Ok(Recipe(connector.with_session_timeout(SESSION).connect(hosts(url)).await?))
}

/// Returns the server for measurements of other modules, or the reason why there is none.
pub(crate) async fn store() -> Outcome<Result<growth::Store, String>> {
    let running = match start(Flavour::Standalone).await {
        Ok(running) => running,
        Err(unreachable) => return Ok(Err(unreachable.reason)),
    };
    let counter = running.servers().first().map(|server| {
        let counter = ReceivedRequests { server: server.address(), own_requests: Cell::default() };
        Box::new(counter) as Box<dyn Counter>
    });
    Ok(Ok(growth::Store::new(dlock_url(running.url()), counter, running)))
}

/// Returns all contestants. They are one group, because they create the same nodes.
async fn contestants(url: &str) -> Outcome<Vec<Contestant>> {
    const NODES: &str = "nodes";
    let recipe = InProcess::connect(2, async || recipe(url).await).await?;
    let dlock = InProcess::connect(2, async || Dlock::connect(&dlock_url(url), Kind::Mutex).await).await?;
    let curator = PeerContestant::of(&curator(url), PeerKind::Mutex);
    Ok(vec![
        Contestant::new(RECIPE, NODES, Waiting::InOrder, Ok(recipe)).into_limit(),
        Contestant::new("dlock", NODES, Waiting::InOrder, Ok(dlock)),
        Contestant::new(&Program::CURATOR.name(), NODES, Waiting::InOrder, curator),
    ])
}

fn curator(url: &str) -> Result<Rc<Peer>, String> {
    contest::start(Program::CURATOR, url, SESSION)
}

fn dlock_url(url: &str) -> String {
    format!("{url}{BASE}?session={}s", SESSION.as_secs())
}

fn hosts(url: &str) -> &str {
    url.trim_start_matches("zk://")
}

/// Creates a lock's directory with a node that blocks no contender, so that the server never
/// removes the directory as empty.
async fn keep_directory(raw: &zookeeper_client::Client, name: &str) -> Outcome {
    let directory = format!("{BASE}/{name}");
    raw.mkdir(&directory, &CreateMode::Container.with_acls(Acls::anyone_all())).await?;
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    raw.create(&format!("{directory}/zzz"), b"", &options).await?;
    Ok(())
}

/// The recipe of the client crate. It releases in the background, so a measured pair is only an
/// acquisition.
struct Recipe(zookeeper_client::Client);

impl Client for Recipe {
    type Held = OwnedLockClient;

    async fn lock(&self, name: &str) -> Outcome<OwnedLockClient> {
        let directory = format!("{BASE}/{name}");
        let prefix = LockPrefix::new_curator(&directory, "lock-")?;
        Ok(self.0.lock(prefix, b"", LockOptions::new(Acls::anyone_all())).await?.into_owned())
    }

    async fn unlock(&self, held: OwnedLockClient) -> Outcome {
        drop(held);
        Ok(())
    }
}

/// Number of requests that the server has received from all clients, with heartbeats.
struct ReceivedRequests {
    server: SocketAddr,
    /// Number of requests for the count itself, which the server also counts.
    own_requests: Cell<f64>,
}

#[async_trait(?Send)]
impl Counter for ReceivedRequests {
    async fn read(&self) -> Outcome<f64> {
        sleep(BACKGROUND_REQUEST_TIME).await;
        let metrics = word(self.server, "mntr").await?;
        let count = metrics.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
        let count: f64 = count.ok_or("the server counts no requests")?.trim().parse()?;
        let own_requests = self.own_requests.get();
        self.own_requests.set(own_requests + 1.0);
        Ok(count - own_requests)
    }
}
