//! Locks in MariaDB in both modes, beside `GET_LOCK`, and beside the least cost of a lock in each
//! mode.
//!
//! Each commit waits for the disk, unlike in the tests, because it does so in a server with default
//! settings. A lock costs its commits there.

mod batches;

use std::{net::SocketAddr, time::Duration};

use async_trait::async_trait;
use dlock::Kind;
use dlock_testbed::servers::{
    Running,
    mysql::{Brand, Flavour, start},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Row as _,
    mysql::{MySqlConnectOptions, MySqlConnection},
};
use tokio::sync::Mutex;

use crate::{
    Effort,
    arguments::Part,
    contest::{Contestant, Counter, Dlock, InProcess, Outcome, Table, Waiting},
    figures::Figures,
    growth,
    results::Results,
    round_trips::{self, Endpoint, RoundTrips},
    targets,
};
use batches::{Batches, GET_LOCK, GET_LOCK_AND_COMMIT, INSERT_AND_DELETE};

/// Length of each hold in a hand-off.
const HOLD: Duration = Duration::from_millis(10);

// Names of the limit and of dlock in each mode.
const NAMED_LIMIT: &str = "GET_LOCK + one commit";
const SESSION: &str = "dlock, session";
const ROWS_LIMIT: &str = "INSERT, DELETE";
const QUEUE: &str = "dlock, queue";

/// Opens a session without dlock.
async fn session_at(endpoint: Endpoint<'_>, address: SocketAddr) -> Outcome<MySqlConnection> {
    let url = endpoint.url_at(address, "?ssl-mode=DISABLED");
    Ok(url.parse::<MySqlConnectOptions>()?.disable_statement_logging().connect().await?)
}

pub(crate) async fn bench(effort: Effort, results: &Results) -> Outcome {
    let running = match start(Brand::Mariadb, Flavour::Durable).await {
        Ok(running) => running,
        Err(unreachable) => return results.part_missing(Part::Mysql, &unreachable.reason),
    };
    let endpoint = match Endpoint::of(&running) {
        Ok(endpoint) => endpoint,
        Err(reason) => return results.part_missing(Part::Mysql, &reason),
    };
    let server = endpoint.server;
    let pairs = (effort.pairs / 500) as usize;
    let all = contestants(endpoint, server).await?;
    let alone = Table::measure(
        &all,
        "alone",
        |_| effort.rounds,
        async |_, contestant, name| Ok(Figures::micros(&contestant.pairs(name, pairs).await?)),
    );
    let alone = alone.await;
    let title = "MariaDB: lock + release of a free lock";
    alone.print(title, "   p50 µs    p99 µs    × limit", |row| alone.times(row, 1));
    let p50 = |round: &Figures| round.quantile(0.5);
    alone.record_ratio(results, &targets::MYSQL_SESSION_PAIR, SESSION, &[NAMED_LIMIT], p50)?;
    alone.record_ratio(results, &targets::MYSQL_QUEUE_PAIR, QUEUE, &[ROWS_LIMIT], p50)?;

    let rounds =
        |contestant: &Contestant| if contestant.waiting == Waiting::Unsupported { 0 } else { effort.rounds };
    let handoff = Table::measure(&all, "handoff", rounds, async |_, contestant, name| {
        Ok(Figures::millis(&contestant.handoff(name, effort.turns, HOLD).await?))
    });
    let handoff = handoff.await;
    let title = "MariaDB: hand-off to a waiting client, held 10 ms";
    handoff.print(title, "   p50 ms    p99 ms    × limit", |row| handoff.times(row, 2));
    handoff
        .record(results, &targets::MYSQL_QUEUE_HANDOFF, QUEUE, |row| row.rounds.iter().map(p50).collect())?;

    let round_trips = RoundTrips::to(server, round_trips::mysql)?;
    let through_proxy = contestants(endpoint, round_trips.address()).await?;
    let commands = Table::measure(
        &through_proxy,
        "calls",
        |_| 1,
        async |_, contestant, name| contestant.count(name, &round_trips).await,
    );
    let commands = commands.await;
    commands.print_counts("MariaDB: round trips");
    commands.record_sum(results, &targets::MYSQL_SESSION_REQUESTS, SESSION)?;
    commands.record_sum(results, &targets::MYSQL_QUEUE_REQUESTS, QUEUE)?;

    let commits = Commits::of(session_at(endpoint, server).await?).await?;
    let commits_per_pair = Table::measure(
        &all,
        "commits",
        |_| 1,
        async |_, contestant, name| {
            let before = commits.read().await?;
            contestant.pairs(name, pairs).await?;
            Ok((commits.read().await? - before) / pairs as f64)
        },
    );
    let title = "MariaDB: transactions with changes";
    commits_per_pair
        .await
        .print(title, "per lock + release", |row| format!("{:6.2}", row.rounds.iter().sum::<f64>()));
    println!();
    Ok(())
}

/// Returns the server for measurements of other modules.
pub(crate) async fn store() -> Outcome<Result<growth::Store, String>> {
    round_trips::store(start(Brand::Mariadb, Flavour::Durable).await, round_trips::mysql)
}

/// Starts a server, and returns dlock in session and in queue mode as contestants beside those of
/// another store. They belong to these groups.
pub(crate) async fn dlock_beside(groups: [&'static str; 2]) -> Outcome<(Option<Running>, [Contestant; 2])> {
    let (names, params) = (["dlock in MariaDB, session", "dlock in MariaDB, queue"], ["?mode=session", ""]);
    let waiting = [Waiting::Notified, Waiting::InOrder];
    let contestant = |mode: usize, dlock| Contestant::new(names[mode], groups[mode], waiting[mode], dlock);
    Ok(match start(Brand::Mariadb, Flavour::Durable).await {
        Ok(server) => {
            let dlock = async |mode: usize| connect_dlock(&format!("{}{}", server.url(), params[mode])).await;
            let all = [contestant(0, Ok(dlock(0).await?)), contestant(1, Ok(dlock(1).await?))];
            (Some(server), all)
        }
        Err(missing) => (None, [0, 1].map(|mode| contestant(mode, Err(missing.reason.clone())))),
    })
}

async fn connect_dlock(url: &str) -> Outcome<InProcess<Dlock>> {
    InProcess::connect(2, async || Dlock::connect(url, Kind::Mutex).await).await
}

/// Returns the contestants, in one group for each mode. The limit of a group is the least cost of a
/// lock in that mode.
async fn contestants(endpoint: Endpoint<'_>, address: SocketAddr) -> Outcome<Vec<Contestant>> {
    const NAMED: &str = "named locks";
    const ROWS: &str = "rows";
    let batches = async |batches: [&'static str; 2]| {
        InProcess::connect(2, async || Ok(Batches::on(session_at(endpoint, address).await?, batches))).await
    };
    let dlock = async |params| connect_dlock(&endpoint.url_at(address, params)).await;
    // dlock connects first, because it creates the tables that the other contestants use.
    let (queue, session) = (dlock("").await?, dlock("?mode=session").await?);
    let (commit, rows) = (batches(GET_LOCK_AND_COMMIT).await?, batches(INSERT_AND_DELETE).await?);
    Ok(vec![
        Contestant::new(NAMED_LIMIT, NAMED, Waiting::Notified, Ok(commit)).into_limit(),
        Contestant::new(SESSION, NAMED, Waiting::Notified, Ok(session)),
        Contestant::new("GET_LOCK", NAMED, Waiting::Notified, Ok(batches(GET_LOCK).await?)),
        // The inserted row does not exclude other clients, and no client can wait for it.
        Contestant::new(ROWS_LIMIT, ROWS, Waiting::Unsupported, Ok(rows)).into_limit(),
        Contestant::new(QUEUE, ROWS, Waiting::InOrder, Ok(queue)),
    ])
}

/// Number of committed transactions with changes.
struct Commits(Mutex<MySqlConnection>);

impl Commits {
    async fn of(mut session: MySqlConnection) -> Outcome<Self> {
        execute(&mut session, "SET GLOBAL innodb_monitor_enable = 'trx_rw_commits'").await?;
        Ok(Self(Mutex::new(session)))
    }
}

#[async_trait(?Send)]
impl Counter for Commits {
    async fn read(&self) -> Outcome<f64> {
        let query = "SELECT CAST(count AS DOUBLE) FROM information_schema.innodb_metrics WHERE name = 'trx_rw_commits'";
        Ok(sqlx::raw_sql(query).fetch_one(&mut *self.0.lock().await).await?.try_get_unchecked(0)?)
    }
}

/// Executes a batch of statements, and discards its results.
async fn execute(session: &mut MySqlConnection, batch: &str) -> Outcome {
    sqlx::raw_sql(AssertSqlSafe(batch)).execute(session).await?;
    Ok(())
}
