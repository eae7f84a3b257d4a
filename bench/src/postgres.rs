//! Locks in PostgreSQL in both modes, beside advisory locks without dlock, dlock in MariaDB, and the least
//! cost of a lock in each mode.
//!
//! Each commit waits for the disk, unlike in the tests, because it does so in a server with default
//! settings.

mod contestants;

use std::{net::SocketAddr, time::Duration};

use dlock::Kind;
use dlock_conformance::Unreachable;
use dlock_testbed::servers::{
    self, Running,
    postgres::{Flavour, Version, start},
};
use futures_util::future::try_join_all;
use tokio::time::Instant;
use tokio_postgres::{Client as Session, NoTls};

use crate::{
    Effort,
    arguments::Part,
    contest::{Client, Contestant, Dlock, InProcess, Outcome, Table, Waiting},
    figures::Figures,
    growth, mysql,
    processes::{self, ClientLock, Round},
    results::Results,
    round_trips::{self, Endpoint, RoundTrips},
    targets,
};
use contestants::{
    AdvisoryLocks, Functions, LOCK, LOCK_AND_COMMIT, RefusedTries, Row, SelectOne, Sqlx, TAKEN,
};

/// Length of each hold in a hand-off.
const HOLD: Duration = Duration::from_millis(10);

// Groups of contestants, one for each mode.
const ADVISORY: &str = "advisory locks";
const ROWS: &str = "rows";

// Names of the contestants.
const ADVISORY_LIMIT: &str = "pg_advisory_lock + one commit";
const ADVISORY_LOCK: &str = "pg_advisory_lock";
const SQLX: &str = "sqlx PgAdvisoryLock";
const SESSION: &str = "dlock, session";
const ROWS_LIMIT: &str = "INSERT, DELETE";
const FUNCTIONS: &str = "the functions without dlock";
const QUEUE: &str = "dlock, queue";
const ROUND_TRIP: &str = "SELECT 1";
const REFUSED_TRY: &str = "dlock, a refused try";

/// Opens a session without dlock.
#[expect(clippy::disallowed_methods, reason = "the client crate needs a task for each connection")]
async fn session_of(url: &str) -> Outcome<Session> {
    let (session, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(session)
}

async fn session_at(endpoint: Endpoint<'_>, address: SocketAddr) -> Outcome<Session> {
    session_of(&endpoint.url_at(address, "")).await
}

pub(crate) async fn bench(effort: Effort, results: &Results) -> Outcome {
    let running = match server().await {
        Ok(running) => running,
        Err(unreachable) => return results.part_missing(Part::Postgres, &unreachable.reason),
    };
    let endpoint = match Endpoint::of(&running) {
        Ok(endpoint) => endpoint,
        Err(reason) => return results.part_missing(Part::Postgres, &reason),
    };
    let server = endpoint.server;
    let pairs = (effort.pairs / 500) as usize;
    let mut all = contestants(endpoint, server).await?;
    let (_mariadb, in_mariadb) = mysql::dlock_beside([ADVISORY, ROWS]).await?;
    all.extend(in_mariadb);
    alone(&all, effort, pairs, results).await?;
    together(&all, effort, pairs, results).await?;
    handoff(&all, effort, results).await?;
    refused_try(endpoint, effort, pairs, results).await?;

    let round_trips = RoundTrips::to(server, round_trips::postgres)?;
    let through_proxy = contestants(endpoint, round_trips.address()).await?;
    let requests = Table::measure(
        &through_proxy,
        "calls",
        |_| 1,
        async |_, contestant, name| contestant.count(name, &round_trips).await,
    );
    let requests = requests.await;
    requests.print_counts("PostgreSQL: round trips");
    requests.record_sum(results, &targets::POSTGRES_SESSION_REQUESTS, SESSION)?;
    requests.record_sum(results, &targets::POSTGRES_QUEUE_REQUESTS, QUEUE)?;
    println!();
    Ok(())
}

fn p50(round: &Figures) -> f64 {
    round.quantile(0.5)
}

async fn alone(all: &[Contestant], effort: Effort, pairs: usize, results: &Results) -> Outcome {
    let table = Table::measure(
        all,
        "alone",
        |_| effort.rounds,
        async |_, contestant, name| Ok(Figures::micros(&contestant.pairs(name, pairs).await?)),
    );
    let table = table.await;
    let title = "PostgreSQL: lock + release of a free lock";
    table.print(title, "   p50 µs    p99 µs    × limit", |row| table.times(row, 1));
    table.record_ratio(results, &targets::POSTGRES_SESSION_PAIR, SESSION, &[ADVISORY_LIMIT], p50)?;
    table.record_ratio(results, &targets::POSTGRES_QUEUE_PAIR, QUEUE, &[ROWS_LIMIT], p50)?;
    table.record_ratio(results, &targets::POSTGRES_FUNCTIONS, QUEUE, &[FUNCTIONS], p50)
}

/// Measures 64 tasks of one client. The other contestants have one session, which their tasks would
/// wait for.
async fn together(all: &[Contestant], effort: Effort, pairs: usize, results: &Results) -> Outcome {
    const TASKS: usize = 64;
    let rounds = |contestant: &Contestant| match contestant.name.as_str() {
        FUNCTIONS | QUEUE => effort.rounds,
        _ => 0,
    };
    let table = Table::measure(all, "together", rounds, async |_, contestant, name| {
        let names: Vec<_> = (0..TASKS).map(|task| format!("{name}-{task}")).collect();
        let started_at = Instant::now();
        try_join_all(names.iter().map(|name| contestant.pairs(name, pairs / 4))).await?;
        Ok((TASKS * (pairs / 4)) as f64 / started_at.elapsed().as_secs_f64())
    });
    let table = table.await;
    let title = format!("PostgreSQL: lock + release by {TASKS} tasks of one client, a name each");
    table.print(&title, "  a second", |row| {
        let rates: Figures = row.rounds.iter().copied().collect();
        format!("{:10.0}", rates.quantile(0.5))
    });
    table.record_ratio(results, &targets::POSTGRES_TASKS, QUEUE, &[FUNCTIONS], |rate| *rate)
}

/// Measures hand-offs, and beside them a release and an attempt without a waiter.
async fn handoff(all: &[Contestant], effort: Effort, results: &Results) -> Outcome {
    let rounds = |contestant: &Contestant| match (contestant.waiting, contestant.name.as_str()) {
        (Waiting::Unsupported, FUNCTIONS) => effort.rounds,
        (Waiting::Unsupported, _) => 0,
        _ => effort.rounds,
    };
    let table = Table::measure(all, "handoff", rounds, async |contestant, measurements, name| {
        let times = if contestant.waiting == Waiting::Unsupported {
            measurements.pairs(name, effort.turns).await?
        } else {
            measurements.handoff(name, effort.turns, HOLD).await?
        };
        Ok(Figures::millis(&times))
    });
    let table = table.await;
    let title = "PostgreSQL: hand-off to a waiting client, held 10 ms; the functions have no waiter";
    table.print(title, "   p50 ms    p99 ms    × limit", |row| table.times(row, 2));
    table.record_ratio(results, &targets::POSTGRES_SESSION_HANDOFF, SESSION, &[ADVISORY_LIMIT], p50)?;
    table.record_ratio(results, &targets::POSTGRES_QUEUE_HANDOFF, QUEUE, &[FUNCTIONS], p50)
}

async fn refused_try(endpoint: Endpoint<'_>, effort: Effort, pairs: usize, results: &Results) -> Outcome {
    let (server, group) = (endpoint.server, "tries");
    let holder = dlock::connect(endpoint.url).await?;
    let held = holder.mutex(TAKEN).lock().await?;
    let round_trip =
        InProcess::connect(1, async || SelectOne::on(session_at(endpoint, server).await?).await).await?;
    let tries = InProcess::connect(1, async || Ok(RefusedTries(dlock::connect(endpoint.url).await?))).await?;
    let all = [
        Contestant::new(ROUND_TRIP, group, Waiting::Unsupported, Ok(round_trip)).into_limit(),
        Contestant::new(REFUSED_TRY, group, Waiting::Unsupported, Ok(tries)),
    ];
    let table = Table::measure(
        &all,
        "tries",
        |_| effort.rounds,
        async |_, contestant, name| Ok(Figures::micros(&contestant.pairs(name, pairs).await?)),
    );
    let table = table.await;
    table.print("PostgreSQL: a try of a lock that is held", "   p50 µs    p99 µs    × limit", |row| {
        table.times(row, 1)
    });
    table.record_ratio(results, &targets::POSTGRES_REFUSED_TRY, REFUSED_TRY, &[ROUND_TRIP], p50)?;
    Ok(held.release().await?)
}

/// Starts a server whose commits wait for the disk.
async fn server() -> Result<Running, Unreachable> {
    servers::request("postgres");
    start(Version::V17, Flavour::Durable).await
}

/// Measures ten client processes.
pub(crate) async fn processes(effort: Effort, results: &Results) -> Outcome {
    let running = match server().await {
        Ok(running) => running,
        Err(unreachable) => return results.part_missing(Part::ProcessesPostgres, &unreachable.reason),
    };
    let url = running.url();
    let session = format!("{url}?mode=session");
    let queue = processes::start_clients(QUEUE, Waiting::InOrder, ClientLock::Mutex, url).await?;
    add_fence(&session_of(url).await?).await?;
    let contestants = [
        queue,
        processes::start_clients(SESSION, Waiting::InOrder, ClientLock::Mutex, &session).await?,
        processes::start_clients(ADVISORY_LIMIT, Waiting::InOrder, ClientLock::AdvisoryLockAndCommit, url)
            .await?,
        processes::start_clients(ADVISORY_LOCK, Waiting::InOrder, ClientLock::AdvisoryLock, url).await?,
        processes::start_clients(SQLX, Waiting::InOrder, ClientLock::SqlxAdvisoryLock, url).await?,
    ];
    let peers = [ADVISORY_LOCK, SQLX];
    let table = processes::measure(
        "PostgreSQL",
        &contestants,
        &peers,
        effort.turns * 4,
        effort,
        processes::unprepared,
    )
    .await;
    let rates = [
        (&targets::PROCESSES_POSTGRES_SESSION_RATE, SESSION),
        (&targets::PROCESSES_POSTGRES_QUEUE_RATE, QUEUE),
    ];
    for (target, contestant) in rates {
        table.record_rate_ratio(results, target, contestant, &peers, Round::rate)?;
    }
    table.record(results, &targets::PROCESSES_POSTGRES_WAIT, QUEUE, |row| {
        row.rounds.iter().map(Round::p99).collect()
    })
}

/// Connects a client of `pg_advisory_lock`.
pub(crate) async fn advisory_lock(url: &str) -> Outcome<impl Client + use<>> {
    Ok(AdvisoryLocks::on(session_of(url).await?, LOCK))
}

/// Connects a client of `pg_advisory_lock` that draws a durable token with each lock.
pub(crate) async fn advisory_lock_and_commit(url: &str) -> Outcome<impl Client + use<>> {
    Ok(AdvisoryLocks::on(session_of(url).await?, LOCK_AND_COMMIT))
}

/// Connects a client of sqlx's `PgAdvisoryLock`.
pub(crate) async fn sqlx_advisory_lock(url: &str) -> Outcome<impl Client + use<>> {
    Sqlx::connect(&format!("{url}?sslmode=disable")).await
}

/// Adds the row from which the tokens of [`LOCK_AND_COMMIT`] are drawn. dlock creates its table.
async fn add_fence(session: &Session) -> Outcome {
    let fence = "INSERT INTO dlock.fence VALUES (7, 0) ON CONFLICT DO NOTHING";
    Ok(session.batch_execute(fence).await?)
}

/// Returns the server for measurements of other modules.
pub(crate) async fn store() -> Outcome<Result<growth::Store, String>> {
    round_trips::store(server().await, round_trips::postgres)
}

/// Returns the contestants, in one group for each mode. The limit of a group is the least cost of a
/// lock in that mode.
async fn contestants(endpoint: Endpoint<'_>, address: SocketAddr) -> Outcome<Vec<Contestant>> {
    /// Number of sessions of a client of dlock.
    const SESSIONS: usize = 4;
    let advisory = async |lock| {
        InProcess::connect(2, async || Ok(AdvisoryLocks::on(session_at(endpoint, address).await?, lock)))
            .await
    };
    let dlock = async |params| {
        let url = endpoint.url_at(address, params);
        InProcess::connect(2, async || Dlock::connect(&url, Kind::Mutex).await).await
    };
    // dlock connects first, because it creates the tables that the other contestants use.
    let (queue, session) = (dlock("").await?, dlock("?mode=session").await?);
    let (commit, plain) = (advisory(LOCK_AND_COMMIT).await?, advisory(LOCK).await?);
    add_fence(&session_at(endpoint, address).await?).await?;
    let url = endpoint.url_at(address, "?sslmode=disable");
    let sqlx = InProcess::connect(2, async || Sqlx::connect(&url).await).await?;
    let row = InProcess::connect(1, async || Row::on(session_at(endpoint, address).await?).await).await?;
    let functions = InProcess::connect(1, async || {
        Functions::on(try_join_all((0..SESSIONS).map(|_| session_at(endpoint, address))).await?).await
    });
    Ok(vec![
        Contestant::new(ADVISORY_LIMIT, ADVISORY, Waiting::InOrder, Ok(commit)).into_limit(),
        Contestant::new(SESSION, ADVISORY, Waiting::InOrder, Ok(session)),
        Contestant::new(ADVISORY_LOCK, ADVISORY, Waiting::InOrder, Ok(plain)),
        Contestant::new(SQLX, ADVISORY, Waiting::InOrder, Ok(sqlx)),
        Contestant::new(ROWS_LIMIT, ROWS, Waiting::Unsupported, Ok(row)).into_limit(),
        Contestant::new(FUNCTIONS, ROWS, Waiting::Unsupported, Ok(functions.await?)),
        Contestant::new(QUEUE, ROWS, Waiting::InOrder, Ok(queue)),
    ])
}
