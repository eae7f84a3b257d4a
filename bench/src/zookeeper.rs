//! Locks on a ZooKeeper, beside Curator's `InterProcessMutex` and beside the recipe of the client crate that dlock uses.
//!
//! The server is the one that the tests start, which waits for no disk. All contestants have their locks below one node.

mod distant;

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
    contest::{self, Client, Contestant, Counter, Dlock, Here, Outcome, Table, There, Waits},
    figures::Figures,
};

/// How long a contender keeps the lock that another waits for.
const HOLD: Duration = Duration::from_millis(10);

/// The sessions of all contestants.
const SESSION: Duration = Duration::from_secs(20);

/// The node above the locks. Curator's peer is built with it.
const BASE: &str = "/it";

pub(crate) async fn bench(part: &str, effort: Effort) -> Outcome {
    if part == "zookeeper-distant" {
        return distant::bench(effort).await;
    }
    let running = match start(Flavour::Standalone).await {
        Ok(running) => running,
        Err(unreachable) => {
            println!("ZooKeeper: not measured, {}", unreachable.reason);
            return Ok(());
        }
    };
    let Some(server) = running.servers().first() else {
        println!("ZooKeeper: not measured, the server's address is not known");
        return Ok(());
    };
    let contestants = contestants(running.url()).await?;
    let raw = zookeeper_client::Client::connect(hosts(running.url())).await?;
    let rounds = |_: &Contestant| effort.rounds;
    let pairs = Table::measure(&contestants, "alone", rounds, async |_, measured, name| {
        keep(&raw, name).await?;
        Ok(Figures::micros(&measured.pairs(name, (effort.pairs / 100) as usize).await?))
    });
    let title = "ZooKeeper: acquire + release of a free lock (aim: ahead of both; the recipe's release is not awaited)";
    let pairs = pairs.await;
    pairs.print(title, "   p50 µs    p99 µs    × recipe", |row| pairs.times(row, 1));
    let handoff = Table::measure(&contestants, "handoff", rounds, async |_, measured, name| {
        keep(&raw, name).await?;
        Ok(Figures::millis(&measured.handoff(name, effort.turns, HOLD).await?))
    });
    let title = "ZooKeeper: hand-off from one client to another who waits, held 10 ms (aim: ahead of both)";
    let handoff = handoff.await;
    handoff.print(title, "   p50 ms    p99 ms    × recipe", |row| handoff.times(row, 2));
    let received = Received { server: server.address(), own: Cell::default() };
    let requests = Table::measure(
        &contestants,
        "requests",
        |_| 1,
        async |_, measured, name| {
            keep(&raw, name).await?;
            measured.counted(name, &received).await
        },
    );
    requests.await.print_counts("ZooKeeper: requests (aim: 2 + 1)");
    Ok(())
}

/// All in one group: they make the same nodes.
async fn contestants(url: &str) -> Outcome<Vec<Contestant>> {
    const NODES: &str = "nodes";
    let recipe = async || {
        let connector = zookeeper_client::Client::connector();
        Ok(Recipe(connector.with_session_timeout(SESSION).connect(hosts(url)).await?))
    };
    let recipe = Here::connect(2, recipe).await?;
    let dlock = Here::connect(2, async || Dlock::connect(&ours(url), Kind::Mutex).await).await?;
    let curator = There::of(&curator(url), PeerKind::Mutex);
    Ok(vec![
        Contestant::new("crate's recipe", NODES, Waits::InOrder, Ok(recipe)).limit(),
        Contestant::new("dlock", NODES, Waits::InOrder, Ok(dlock)),
        Contestant::new(&Program::CURATOR.name(), NODES, Waits::InOrder, curator),
    ])
}

fn curator(url: &str) -> Result<Rc<Peer>, String> {
    contest::start(Program::CURATOR, url, SESSION)
}

/// The URL for dlock.
fn ours(url: &str) -> String {
    format!("{url}{BASE}?session={}s", SESSION.as_secs())
}

fn hosts(url: &str) -> &str {
    url.trim_start_matches("zk://")
}

/// Makes a lock's directory, with a node in it that blocks nobody. So the server never removes the directory as empty.
async fn keep(raw: &zookeeper_client::Client, name: &str) -> Outcome {
    let directory = format!("{BASE}/{name}");
    raw.mkdir(&directory, &CreateMode::Container.with_acls(Acls::anyone_all())).await?;
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    raw.create(&format!("{directory}/zzz"), b"", &options).await?;
    Ok(())
}

/// The recipe of the client crate. It releases in the background, so its pair is an acquisition alone.
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

/// How many requests the server has had from all clients, heartbeats included.
struct Received {
    server: SocketAddr,
    /// The questions for the count, which the server counts too.
    own: Cell<f64>,
}

#[async_trait(?Send)]
impl Counter for Received {
    async fn read(&self) -> Outcome<f64> {
        // The crate's recipe sends the last request behind the back of its user.
        sleep(Duration::from_millis(20)).await;
        let told = word(self.server, "mntr").await?;
        let count = told.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
        let count: f64 = count.ok_or("the server counts no requests")?.trim().parse()?;
        let own = self.own.get();
        self.own.set(own + 1.0);
        Ok(count - own)
    }
}
