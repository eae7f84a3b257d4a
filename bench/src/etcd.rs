//! Locks on an etcd, beside etcd's own lock service as the client crate calls it, and beside Go's `concurrency.Mutex`.
//!
//! The server is the one that the tests start. From etcd 3.5 on it waits for no disk.

use std::{cell::Cell, error::Error, time::Duration};

use dlock::{Guard, Locks};
use dlock_conformance::{
    peer::{Contender, Peer, PeerKind, Program},
    stores::{
        Server,
        etcd::{Flavour, ask, start},
    },
};
use etcd_client::{Client, LockOptions};
use futures_util::future::try_join;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

use crate::{Effort, figures::Figures};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

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
    let go = Program::ETCD_GO.build().map(|built| built.start(running.url(), TTL));
    let mut contestants = vec![
        Contestant::Dlock(Box::new([ours(running.url()).await?, ours(running.url()).await?])),
        Contestant::Service(Box::new([service(server).await?, service(server).await?])),
    ];
    match &go {
        Ok(peer) => contestants.push(Contestant::Go(peer, peer.contender())),
        Err(unreachable) => println!("{}", unreachable.reason),
    }
    let (pairs, turns) = ((effort.pairs / 100) as usize, effort.turns.min(TURNS));
    let mut rows: Vec<_> = contestants.iter().map(|_| <[Figures; 4]>::default()).collect();
    // The first round, which does not count, opens what there is to open.
    for round in 0..=effort.rounds {
        // Of dlock, which comes first.
        let mut first = None;
        for (contestant, row) in contestants.iter().zip(&mut rows) {
            let name = format!("{}-{round}", contestant.name());
            let pair = Figures::micros(&contestant.pairs(&name, pairs).await?).quantile(0.5);
            let handoff = Figures::millis(&contestant.handoff(&name, turns).await?).quantile(0.5);
            let [of_pair, of_handoff] = *first.get_or_insert([pair, handoff]);
            if round > 0 {
                let figures = [pair, handoff, of_pair / pair, of_handoff / handoff];
                row.iter_mut().zip(figures).for_each(|(all, one)| all.add(one));
            }
        }
    }
    println!(
        "etcd, p50 of each round: acquire + release of a free lock, µs; hand-off of a lock held for 10 ms, ms; \
         requests for an acquisition and for a release (aim: 1 and 1)"
    );
    for (contestant, [pair, handoff, ..]) in contestants.iter().zip(&rows) {
        let name = format!("{}-counted", contestant.name());
        let [acquire, release] = contestant.requests(&name, server).await?;
        println!("  {:14} {pair}   {handoff}   {acquire} + {release}", contestant.name());
    }
    println!("  dlock's time as a share of theirs, by round: the pair; the hand-off (aim: at most 1)");
    for (contestant, [.., pair, handoff]) in contestants.iter().zip(&rows).skip(1) {
        println!("  {:14} {pair}   {handoff}", contestant.name());
    }
    Ok(())
}

async fn ours(url: &str) -> Outcome<Locks> {
    Ok(dlock::connect(&format!("{url}?session=30s")).await?)
}

/// A client of the lock service, with a lease that outlives the run.
async fn service(server: &Server) -> Outcome<(Client, i64)> {
    let mut client = Client::connect([server.address().to_string()], None).await?;
    let lease = client.lease_grant(3600, None).await?.id();
    Ok((client, lease))
}

/// How many requests the server has had from all clients.
async fn received(server: &Server) -> Outcome<f64> {
    let metrics = ask(server, "/metrics").await?;
    let received = metrics.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
    Ok(received.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

enum Contestant<'a> {
    Dlock(Box<[Locks; 2]>),
    Service(Box<[(Client, i64); 2]>),
    Go(&'a Peer, Contender),
}

/// A lock that is held, as its contestant has it.
enum Held {
    Dlock(Guard),
    Service(Box<Client>, Vec<u8>),
    Go,
}

impl Contestant<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Dlock(_) => "dlock",
            Self::Service(_) => "lock service",
            Self::Go(peer, _) => peer.name(),
        }
    }

    async fn acquire(&self, me: usize, name: &str) -> Outcome<Held> {
        Ok(match self {
            Self::Dlock(locks) => Held::Dlock(locks[me].mutex(name).lock().ttl(TTL).await?),
            Self::Service(clients) => {
                let (mut client, lease) = clients[me].clone();
                let key = client.lock(name, Some(LockOptions::new().with_lease(lease))).await?.key().to_vec();
                Held::Service(Box::new(client), key)
            }
            Self::Go(_, contender) => {
                let taken = contender.lock(PeerKind::Mutex, name, TTL).await?;
                taken.map(|_| Held::Go).ok_or("it is busy")?
            }
        })
    }

    async fn release(&self, name: &str, held: Held) -> Outcome {
        match (self, held) {
            (_, Held::Dlock(guard)) => guard.release().await?,
            (_, Held::Service(mut client, key)) => {
                client.unlock(key).await?;
            }
            (Self::Go(_, contender), Held::Go) => contender.unlock(PeerKind::Mutex, name).await?,
            (_, Held::Go) => unreachable!("only Go has such holds"),
        }
        Ok(())
    }

    /// How long each of so many pairs of lock and unlock takes, with nobody else there.
    async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>> {
        if let Self::Go(_, contender) = self {
            return Ok(contender.time(PeerKind::Mutex, name, pairs).await?);
        }
        let mut took = Vec::new();
        for _ in 0..pairs {
            let begun = Instant::now();
            self.release(name, self.acquire(0, name).await?).await?;
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
        let released = Cell::new(None::<Instant>);
        let part = async |me: usize| -> Outcome<Vec<Duration>> {
            let mut took = Vec::new();
            for _ in 0..turns {
                asks[me].acquire().await?.forget();
                let held = self.acquire(me, name).await?;
                took.extend(released.take().map(|released| released.elapsed()));
                asks[1 - me].add_permits(1);
                sleep(HOLD).await;
                released.set(Some(Instant::now()));
                self.release(name, held).await?;
            }
            Ok(took)
        };
        let (one, other) = try_join(part(0), part(1)).await?;
        Ok([one, other].concat())
    }

    /// How many requests the server gets for an acquisition and for a release: what most of twenty cost. Signs of life of all
    /// clients come in between now and then.
    async fn requests(&self, name: &str, server: &Server) -> Outcome<[f64; 2]> {
        let mut counts = [Figures::default(), Figures::default()];
        for _ in 0..20 {
            let before = received(server).await?;
            let held = self.acquire(0, name).await?;
            let between = received(server).await?;
            self.release(name, held).await?;
            let after = received(server).await?;
            counts[0].add(between - before);
            counts[1].add(after - between);
        }
        Ok(counts.map(|count| count.quantile(0.5)))
    }
}
