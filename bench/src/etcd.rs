//! Locks on an etcd, beside etcd's own lock service as the client crate calls it, and beside Go's `concurrency.Mutex`.
//!
//! The server is the one that the tests start, with a disk that it waits for.

use std::{error::Error, time::Duration};

use dlock::Locks;
use dlock_conformance::{
    peer::{Contender, Peer, PeerKind, Program},
    stores::etcd::{Flavour, ask, start},
};
use etcd_client::{Client, LockOptions};
use futures_util::future::try_join;
use tokio::{sync::Semaphore, time::Instant};

use crate::{Effort, figures::Figures};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// How long a contender keeps the lock that another waits for.
const HOLD: Duration = Duration::from_millis(10);

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
    let go = Program::ETCD_GO.build().map(|built| built.start(running.url(), TTL));
    let mut contestants = vec![
        Contestant::Dlock(Box::new([
            dlock::connect(running.url()).await?,
            dlock::connect(running.url()).await?,
        ])),
        Contestant::Service(Box::new([
            service(&server.address().to_string()).await?,
            service(&server.address().to_string()).await?,
        ])),
    ];
    match &go {
        Ok(peer) => contestants.push(Contestant::Go(peer, peer.contender())),
        Err(unreachable) => println!("{}", unreachable.reason),
    }
    let (pairs, turns) = ((effort.pairs / 500) as usize, effort.turns);
    let mut rows: Vec<_> = contestants.iter().map(|_| [Figures::default(), Figures::default()]).collect();
    // The first round, which does not count, opens what there is to open.
    for round in 0..=effort.rounds {
        for (contestant, row) in contestants.iter().zip(&mut rows) {
            let name = format!("{}-{round}", contestant.name());
            let pair = Figures::micros(&contestant.pairs(&name, pairs).await?).quantile(0.5);
            let handoff = Figures::millis(&contestant.handoff(&name, turns).await?).quantile(0.5);
            if round > 0 {
                row[0].add(pair);
                row[1].add(handoff);
            }
        }
    }
    println!(
        "etcd, p50 of each round: acquire + release of a free lock, µs; hand-off of a lock held for 10 ms, ms"
    );
    for (contestant, [pair, handoff]) in contestants.iter().zip(&rows) {
        println!("  {:14} {pair}   {handoff}", contestant.name());
    }
    let before = requests(&ask(server, "/metrics").await?);
    contestants[0].pairs("counted", pairs).await?;
    let made = requests(&ask(server, "/metrics").await?) - before;
    println!("  dlock: {:.2} requests for a pair   aim: 2", made / pairs as f64);
    Ok(())
}

/// How many requests the server has had.
fn requests(metrics: &str) -> f64 {
    let received = metrics.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
    received.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

enum Contestant<'a> {
    Dlock(Box<[Locks; 2]>),
    Service(Box<[(Client, i64); 2]>),
    Go(&'a Peer, Contender),
}

/// A client of the lock service, with a lease that outlives the run.
async fn service(address: &str) -> Outcome<(Client, i64)> {
    let mut client = Client::connect([address], None).await?;
    let lease = client.lease_grant(3600, None).await?.id();
    Ok((client, lease))
}

impl Contestant<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Dlock(_) => "dlock",
            Self::Service(_) => "lock service",
            Self::Go(peer, _) => peer.name(),
        }
    }

    /// How long each of so many pairs of lock and unlock takes, with nobody else there.
    async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>> {
        let mut took = Vec::new();
        if let Self::Go(_, contender) = self {
            return Ok(contender.time(PeerKind::Mutex, name, pairs).await?);
        }
        for _ in 0..pairs {
            let begun = Instant::now();
            self.turn(0, name, |_| async {}).await?;
            took.push(begun.elapsed());
        }
        Ok(took)
    }

    /// How long it takes from when one of two clients lets go until the other has it, who waited meanwhile.
    async fn handoff(&self, name: &str, turns: usize) -> Outcome<Vec<Duration>> {
        if let Self::Go(_, contender) = self {
            return Ok(contender.handoff(PeerKind::Mutex, name, turns, HOLD).await?);
        }
        // Whose turn it is to ask: as soon as the other one has the lock.
        let asks = [Semaphore::new(1), Semaphore::new(0)];
        let released = std::cell::Cell::new(None::<Instant>);
        let part = async |me: usize| -> Outcome<Vec<Duration>> {
            let mut took = Vec::new();
            for _ in 0..turns {
                asks[me].acquire().await?.forget();
                self.turn(me, name, |at| {
                    took.extend(released.take().map(|released| at - released));
                    asks[1 - me].add_permits(1);
                    async {
                        tokio::time::sleep(HOLD).await;
                        released.set(Some(Instant::now()));
                    }
                })
                .await?;
            }
            Ok(took)
        };
        let (one, other) = try_join(part(0), part(1)).await?;
        Ok([one, other].concat())
    }

    /// Takes the lock, does something when it is held, and lets go.
    async fn turn<F: Future<Output = ()>>(
        &self,
        me: usize,
        name: &str,
        held: impl FnOnce(Instant) -> F,
    ) -> Outcome {
        match self {
            Self::Dlock(locks) => {
                let guard = locks[me].mutex(name).lock().ttl(TTL).await?;
                held(Instant::now()).await;
                guard.release().await?;
            }
            Self::Service(clients) => {
                let (mut client, lease) = clients[me].clone();
                let key = client.lock(name, Some(LockOptions::new().with_lease(lease))).await?.key().to_vec();
                held(Instant::now()).await;
                client.unlock(key).await?;
            }
            Self::Go(..) => unreachable!("it measures itself"),
        }
        Ok(())
    }
}
