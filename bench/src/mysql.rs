//! Locks on MariaDB, in both modes, beside `GET_LOCK` as a program calls it and beside the least that a lock of each mode costs.
//!
//! The server is the one that the tests start, which waits for no disk. A disk would add its time to each commit.

mod contestant;
mod trips;

use std::{error::Error, net::SocketAddr};

use dlock_conformance::stores::mysql::{Brand, Flavour, start};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Row as _,
    mysql::{MySqlConnectOptions, MySqlConnection},
};

use crate::{Effort, figures::Figures};
use contestant::{CONTESTANTS, Contestant};
use trips::Trips;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Where a server is, and how a client reaches it.
#[derive(Clone, Copy)]
struct Place<'a> {
    url: &'a str,
    server: SocketAddr,
}

impl Place<'_> {
    /// The URL of dlock's store, reached at this address.
    fn url_at(&self, address: SocketAddr, params: &str) -> String {
        format!("{}{params}", self.url.replace(&self.server.to_string(), &address.to_string()))
    }

    /// A session that is not dlock's.
    async fn session_at(&self, address: SocketAddr) -> Outcome<MySqlConnection> {
        let url = self.url_at(address, "?ssl-mode=DISABLED");
        Ok(url.parse::<MySqlConnectOptions>()?.disable_statement_logging().connect().await?)
    }
}

pub(crate) async fn bench(effort: Effort) -> Outcome {
    let running = match start(Brand::Mariadb, Flavour::Standalone).await {
        Ok(running) => running,
        Err(unreachable) => {
            println!("MariaDB: not measured, {}", unreachable.reason);
            return Ok(());
        }
    };
    let Some(server) = running.servers().first().map(|server| server.address()) else {
        println!("MariaDB: not measured, the server's address is not known");
        return Ok(());
    };
    let place = Place { url: running.url(), server };
    let (mut contestants, mut rows) = (Vec::new(), Vec::new());
    for way in CONTESTANTS {
        contestants.push(Contestant::connect(way, place, server).await?);
        rows.push([Figures::default(), Figures::default()]);
    }
    let (pairs, turns) = ((effort.pairs / 500) as usize, effort.turns);
    // The first round, which does not count, opens what there is to open.
    for round in 0..=effort.rounds {
        for (contestant, row) in contestants.iter().zip(&mut rows) {
            let name = format!("{}/{round}", contestant.name());
            let pair = Figures::micros(&contestant.pairs(&name, pairs).await?).quantile(0.5);
            if round > 0 {
                row[0].add(pair);
            }
            if contestant.can_wait() {
                let handoff = Figures::millis(&contestant.handoff(&name, turns).await?).quantile(0.5);
                if round > 0 {
                    row[1].add(handoff);
                }
            }
        }
    }
    println!(
        "MariaDB, p50 of each round: acquire + release of a free lock, µs; hand-off of a lock held for 10 ms, ms; \
         round trips for an acquisition and for a release (aim: 1 + 1); commits for a grant"
    );
    let mut session = place.session_at(server).await?;
    tell(&mut session, "SET GLOBAL innodb_monitor_enable = 'trx_rw_commits'").await?;
    for (contestant, [pair, handoff]) in contestants.iter().zip(&rows) {
        let before = commits(&mut session).await?;
        contestant.pairs("counted", pairs).await?;
        let commits = (commits(&mut session).await? - before) / pairs as f64;
        let [acquire, release] = round_trips(contestant, place).await?;
        let name = contestant.name();
        let handoff = if contestant.can_wait() { handoff.to_string() } else { "cannot wait".to_owned() };
        println!("  {name:22} {pair}   {handoff}   {acquire} + {release}   {commits:.2}");
    }
    for (one, other, aim) in [(1, 3, 1.2), (0, 4, 1.2)] {
        let ratio: Figures = rows[one][0].values().zip(rows[other][0].values()).map(|(a, b)| a / b).collect();
        println!(
            "  pair of {} / {}: {ratio}   aim: {aim}",
            contestants[one].name(),
            contestants[other].name()
        );
    }
    println!();
    Ok(())
}

/// How many calls an acquisition and a release cost: what most of twenty cost.
async fn round_trips(contestant: &Contestant, place: Place<'_>) -> Outcome<[f64; 2]> {
    let trips = Trips::to(place.server)?;
    let client = Contestant::connect(contestant.way, place, trips.address()).await?;
    let mut counts = [Figures::default(), Figures::default()];
    for _ in 0..20 {
        let before = trips.count();
        let held = client.acquire(0, "counted").await?;
        let between = trips.count();
        client.release(0, "counted", held).await?;
        counts[0].add((between - before) as f64);
        counts[1].add((trips.count() - between) as f64);
    }
    Ok(counts.map(|count| count.quantile(0.5)))
}

/// How many transactions the server has committed that have changed something.
async fn commits(session: &mut MySqlConnection) -> Outcome<f64> {
    let count =
        "SELECT CAST(count AS DOUBLE) FROM information_schema.innodb_metrics WHERE name = 'trx_rw_commits'";
    Ok(sqlx::raw_sql(count).fetch_one(session).await?.try_get_unchecked(0)?)
}

/// Does a batch, and reads all its answers.
async fn tell(session: &mut MySqlConnection, batch: &str) -> Outcome {
    sqlx::raw_sql(AssertSqlSafe(batch)).execute(session).await?;
    Ok(())
}
