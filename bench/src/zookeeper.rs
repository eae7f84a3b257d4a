//! Locks on a ZooKeeper, beside Curator's `InterProcessMutex` and beside the recipe of the client crate that dlock uses.
//!
//! The server is the one that the tests start, which waits for no disk. All contestants have their locks below one node.

mod distant;

use std::{cell::Cell, error::Error, net::SocketAddr, time::Duration};

use dlock::{Guard, Locks};
use dlock_conformance::{
    peer::{Contender, Peer, PeerKind, Program},
    stores::zookeeper::{Flavour, start, word},
};
use futures_util::future::try_join;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};
use zookeeper_client::{Acls, Client, CreateMode, LockClient, LockOptions, LockPrefix};

use crate::{Effort, figures::Figures};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

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
    let curator = curator(running.url());
    let contestants = contestants(running.url(), curator.as_ref()).await?;
    let raw = Client::connect(hosts(running.url())).await?;
    let (pairs, turns) = ((effort.pairs / 100) as usize, effort.turns);
    let mut rows: Vec<_> = contestants.iter().map(|_| [Figures::default(), Figures::default()]).collect();
    // The first round, which does not count, opens what there is to open.
    for round in 0..=effort.rounds {
        for (contestant, row) in contestants.iter().zip(&mut rows) {
            let name = format!("{}-{round}", contestant.name().replace(' ', "-"));
            keep(&raw, &name).await?;
            let pair = Figures::micros(&contestant.pairs(&name, pairs).await?).quantile(0.5);
            let handoff = Figures::micros(&contestant.handoff(&name, turns).await?).quantile(0.5);
            if round > 0 {
                row[0].add(pair);
                row[1].add(handoff);
            }
        }
    }
    println!(
        "ZooKeeper, p50 of each round, µs: acquire + release of a free lock; hand-off of a lock held for 10 ms; \
         requests for an acquisition and for a release (aim: 2 and 1)"
    );
    for (contestant, [pair, handoff]) in contestants.iter().zip(&rows) {
        let name = format!("{}-counted", contestant.name().replace(' ', "-"));
        keep(&raw, &name).await?;
        let [acquire, release] = contestant.requests(&name, server.address()).await?;
        println!("  {:15} {pair}   {handoff}   {acquire} + {release}", contestant.name());
    }
    println!("  The crate's recipe releases in the background, so its pair is an acquisition alone.\n");
    Ok(())
}

/// Curator, if it can be had. Says why it cannot.
fn curator(url: &str) -> Option<Peer> {
    match Program::CURATOR.build() {
        Ok(built) => Some(built.start(url, SESSION)),
        Err(unreachable) => {
            println!("{}", unreachable.reason);
            None
        }
    }
}

async fn contestants<'a>(url: &str, curator: Option<&'a Peer>) -> Outcome<Vec<Contestant<'a>>> {
    let theirs = async || Client::connector().with_session_timeout(SESSION).connect(hosts(url)).await;
    let mut contestants = vec![
        Contestant::Dlock(Box::new([ours(url).await?, ours(url).await?])),
        Contestant::Recipe(Box::new([theirs().await?, theirs().await?])),
    ];
    contestants.extend(curator.map(|peer| Contestant::Curator(peer, peer.contender())));
    Ok(contestants)
}

async fn ours(url: &str) -> Outcome<Locks> {
    Ok(dlock::connect(&format!("{url}{BASE}?session={}s", SESSION.as_secs())).await?)
}

fn hosts(url: &str) -> &str {
    url.trim_start_matches("zk://")
}

/// Makes a lock's directory, with a node in it that blocks nobody. So the server never removes the directory as empty.
async fn keep(raw: &Client, name: &str) -> Outcome {
    let directory = format!("{BASE}/{name}");
    raw.mkdir(&directory, &CreateMode::Container.with_acls(Acls::anyone_all())).await?;
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    raw.create(&format!("{directory}/zzz"), b"", &options).await?;
    Ok(())
}

enum Contestant<'a> {
    Dlock(Box<[Locks; 2]>),
    Recipe(Box<[Client; 2]>),
    Curator(&'a Peer, Contender),
}

/// A lock that is held, as its contestant has it.
enum Held<'a> {
    Dlock(Guard),
    Recipe(LockClient<'a>),
    Curator,
}

impl Contestant<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Dlock(_) => "dlock",
            Self::Recipe(_) => "crate's recipe",
            Self::Curator(peer, _) => peer.name(),
        }
    }

    async fn acquire(&self, me: usize, name: &str) -> Outcome<Held<'_>> {
        Ok(match self {
            Self::Dlock(locks) => Held::Dlock(locks[me].mutex(name).lock().await?),
            Self::Recipe(clients) => {
                let directory = format!("{BASE}/{name}");
                let prefix = LockPrefix::new_curator(&directory, "lock-")?;
                Held::Recipe(clients[me].lock(prefix, b"", LockOptions::new(Acls::anyone_all())).await?)
            }
            Self::Curator(_, contender) => {
                let taken = contender.lock(PeerKind::Mutex, name, SESSION).await?;
                taken.map(|_| Held::Curator).ok_or("it is busy")?
            }
        })
    }

    async fn release(&self, name: &str, held: Held<'_>) -> Outcome {
        match (self, held) {
            (_, Held::Dlock(guard)) => guard.release().await?,
            (_, Held::Recipe(lock)) => drop(lock),
            (Self::Curator(_, contender), Held::Curator) => contender.unlock(PeerKind::Mutex, name).await?,
            (_, Held::Curator) => unreachable!("only Curator has such holds"),
        }
        Ok(())
    }

    /// How long each of so many pairs of lock and unlock takes, with nobody else there.
    async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>> {
        if let Self::Curator(_, contender) = self {
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
        if let Self::Curator(_, contender) = self {
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

    /// How many requests the server gets for an acquisition and for a release: what most of twenty cost. Heartbeats of all
    /// clients come in between now and then.
    async fn requests(&self, name: &str, server: SocketAddr) -> Outcome<[f64; 2]> {
        let mut counts = [Figures::default(), Figures::default()];
        for _ in 0..20 {
            let before = received(server).await?;
            let held = self.acquire(0, name).await?;
            let between = received(server).await?;
            self.release(name, held).await?;
            let after = received(server).await?;
            // The question for the count is counted too.
            counts[0].add(between - before - 1.0);
            counts[1].add(after - between - 1.0);
        }
        Ok(counts.map(|count| count.quantile(0.5)))
    }
}

/// How many requests the server has had from all clients.
async fn received(server: SocketAddr) -> Outcome<f64> {
    // The crate's recipe sends the last request behind the back of its user.
    sleep(Duration::from_millis(20)).await;
    let told = word(server, "mntr").await?;
    let count = told.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
    Ok(count.ok_or("the server counts no requests")?.trim().parse()?)
}
