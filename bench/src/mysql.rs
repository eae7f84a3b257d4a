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
    contest::{Client, Contestant, Counter, Dlock, InProcess, Outcome, Table, Waiting},
    figures::Figures,
    growth,
    processes::{self, ClientLock, Round},
    results::Results,
    round_trips::{self, Endpoint, RoundTrips},
    targets,
};
use batches::{Batches, GET_LOCK, GET_LOCK_AND_COMMIT, INSERT_AND_DELETE};

/// Length of each hold in a hand-off.
const HOLD: Duration = Duration::from_millis(10);

// Names of the limit and of dlock in each mode, and of the lock without a token.
const NAMED_LIMIT: &str = "GET_LOCK + one commit";
const NAMED_LOCK: &str = "GET_LOCK";
const SESSION: &str = "dlock, session";
const ROWS_LIMIT: &str = "INSERT, DELETE";
const QUEUE: &str = "dlock, queue";

/// Opens a session without dlock.
async fn session_at(endpoint: Endpoint<'_>, address: SocketAddr) -> Outcome<MySqlConnection> {
    session_of(&endpoint.url_at(address, "")).await
}

async fn session_of(url: &str) -> Outcome<MySqlConnection> {
    let options: MySqlConnectOptions = format!("{url}?ssl-mode=DISABLED").parse()?;
    Ok(options.disable_statement_logging().connect().await?)
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

/// Measures ten client processes.
pub(crate) async fn processes(effort: Effort, results: &Results) -> Outcome {
    let running = match start(Brand::Mariadb, Flavour::Durable).await {
        Ok(running) => running,
        Err(unreachable) => return results.part_missing(Part::ProcessesMysql, &unreachable.reason),
    };
    let url = running.url();
    let session = format!("{url}?mode=session");
    let contestants = [
        processes::start_clients(QUEUE, Waiting::InOrder, ClientLock::Mutex, url).await?,
        processes::start_clients(SESSION, Waiting::Notified, ClientLock::Mutex, &session).await?,
        processes::start_clients(NAMED_LIMIT, Waiting::Notified, ClientLock::GetLockAndCommit, url).await?,
        processes::start_clients(NAMED_LOCK, Waiting::Notified, ClientLock::GetLock, url).await?,
    ];
    let peers = [NAMED_LOCK];
    let table =
        processes::measure("MariaDB", &contestants, &peers, effort.turns * 4, effort, processes::unprepared)
            .await;
    let rates =
        [(&targets::PROCESSES_MYSQL_SESSION_RATE, SESSION), (&targets::PROCESSES_MYSQL_QUEUE_RATE, QUEUE)];
    for (target, contestant) in rates {
        table.record_rate_ratio(results, target, contestant, &peers, Round::rate)?;
    }
    table.record(results, &targets::PROCESSES_MYSQL_WAIT, QUEUE, |row| {
        row.rounds.iter().map(Round::p99).collect()
    })
}

/// Connects a client of `GET_LOCK`.
pub(crate) async fn get_lock(url: &str) -> Outcome<impl Client + use<>> {
    Ok(Batches::on(session_of(url).await?, GET_LOCK))
}

/// Connects a client of `GET_LOCK` that draws a durable token with each lock.
pub(crate) async fn get_lock_and_commit(url: &str) -> Outcome<impl Client + use<>> {
    Ok(Batches::on(session_of(url).await?, GET_LOCK_AND_COMMIT))
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
        Contestant::new(NAMED_LOCK, NAMED, Waiting::Notified, Ok(batches(GET_LOCK).await?)),
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
