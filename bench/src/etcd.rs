//! Locks on an etcd, beside etcd's own lock service as the client crate calls it, and beside Go's `concurrency.Mutex`.
//!
//! The server is the one that the tests start. From etcd 3.5 on it waits for no disk.

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
    contest::{self, Client, Contestant, Counter, Dlock, Here, Outcome, Table, There, Waits},
    figures::Figures,
};

/// How long a contender keeps the lock that another waits for.
const HOLD: Duration = Duration::from_millis(10);

/// How often each of two contenders takes the lock of the other, in a round. Both rivals need a tenth of a second for it.
const TURNS: usize = 8;

const TTL: Duration = Duration::from_secs(20);

pub(crate) async fn bench(effort: Effort) -> Outcome {
    let running = match start(Flavour::Standalone).await {
        Ok(running) => running,
        Err(unreachable) => {
            println!("etcd: not measured, {}", unreachable.reason);
            return Ok(());
        }
    };
    let Some(server) = running.servers().first() else {
        println!("etcd: not measured, the server's address is not known");
        return Ok(());
    };
    let contestants = contestants(running.url(), server).await?;
    let rounds = |_: &Contestant| effort.rounds;
    let pairs = Table::measure(&contestants, "alone", rounds, async |_, measured, name| {
        Ok(Figures::micros(&measured.pairs(name, (effort.pairs / 100) as usize).await?))
    });
    let title = "etcd: acquire + release of a free lock (aim: ahead of both)";
    let pairs = pairs.await;
    pairs.print(title, "   p50 µs    p99 µs    × lock service", |row| pairs.times(row, 1));
    let handoff = Table::measure(&contestants, "handoff", rounds, async |_, measured, name| {
        Ok(Figures::millis(&measured.handoff(name, effort.turns.min(TURNS), HOLD).await?))
    });
    let title = "etcd: hand-off from one client to another who waits, held 10 ms (aim: ahead of both)";
    let handoff = handoff.await;
    handoff.print(title, "   p50 ms    p99 ms    × lock service", |row| handoff.times(row, 2));
    let received = Received(server.clone());
    let requests = Table::measure(
        &contestants,
        "requests",
        |_| 1,
        async |_, measured, name| measured.counted(name, &received).await,
    );
    requests.await.print_counts("etcd: requests (aim: 1 + 1)");
    Ok(())
}

/// All in one group: they lock the same keys.
async fn contestants(url: &str, server: &Server) -> Outcome<Vec<Contestant>> {
    const KEYS: &str = "keys";
    let (url_30s, address) = (format!("{url}?session=30s"), server.address().to_string());
    let service = Here::connect(2, async || Service::connect(&address).await).await?;
    let dlock = Here::connect(2, async || Dlock::connect(&url_30s, Kind::Mutex).await).await?;
    let go = contest::start(Program::ETCD_GO, url, TTL);
    Ok(vec![
        Contestant::new("lock service", KEYS, Waits::Woken, Ok(service)).limit(),
        Contestant::new("dlock", KEYS, Waits::Woken, Ok(dlock)),
        Contestant::new(&Program::ETCD_GO.name(), KEYS, Waits::Woken, There::of(&go, PeerKind::Mutex)),
    ])
}

/// A client of the lock service, with a lease that outlives the run.
struct Service {
    client: etcd_client::Client,
    lease: i64,
}

impl Service {
    async fn connect(address: &str) -> Outcome<Self> {
        let mut client = etcd_client::Client::connect([address], None).await?;
        let lease = client.lease_grant(3600, None).await?.id();
        Ok(Self { client, lease })
    }
}

impl Client for Service {
    /// The key.
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

/// How many requests the server has had from all clients, signs of life included.
struct Received(Server);

#[async_trait(?Send)]
impl Counter for Received {
    async fn read(&self) -> Outcome<f64> {
        let metrics = ask(&self.0, "/metrics").await?;
        let received = metrics.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
        Ok(received.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }
}
