//! Locks on MariaDB, in both modes, beside `GET_LOCK` as a program calls it and beside the least that a lock of each mode costs.
//!
//! Each commit waits for the disk, unlike in the tests: so it is where nobody has changed the server's settings, and a lock costs its
//! commits there.

mod batches;
mod trips;

use std::{net::SocketAddr, time::Duration};

use async_trait::async_trait;
use dlock::Kind;
use dlock_testbed::servers::mysql::{Brand, Flavour, start};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Row as _,
    mysql::{MySqlConnectOptions, MySqlConnection},
};
use tokio::sync::Mutex;

use crate::{
    Effort,
    contest::{Contestant, Counter, Dlock, Here, Outcome, Table, Waits},
    figures::Figures,
};
use batches::{Batches, GET_LOCK, GET_LOCK_AND_COMMIT, INSERT_AND_DELETE};
use trips::Trips;

/// How long a contender keeps the lock that another waits for.
const HOLD: Duration = Duration::from_millis(10);

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
    let running = match start(Brand::Mariadb, Flavour::Durable).await {
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
    let pairs = (effort.pairs / 500) as usize;
    let all = contestants(place, server).await?;
    let alone = Table::measure(
        &all,
        "alone",
        |_| effort.rounds,
        async |_, measured, name| Ok(Figures::micros(&measured.pairs(name, pairs).await?)),
    );
    let alone = alone.await;
    let title = "MariaDB: acquire + release of a free lock (aim: 1.2 × the limit of each mode)";
    alone.print(title, "   p50 µs    p99 µs    × limit", |row| alone.times(row, 1));

    let can_wait = |who: &Contestant| if who.waits == Waits::Never { 0 } else { effort.rounds };
    let handoff = Table::measure(&all, "handoff", can_wait, async |_, measured, name| {
        Ok(Figures::millis(&measured.handoff(name, effort.turns, HOLD).await?))
    });
    let handoff = handoff.await;
    let title = "MariaDB: hand-off from one client to another who waits, held 10 ms (aim: 2 ms)";
    handoff.print(title, "   p50 ms    p99 ms    × limit", |row| handoff.times(row, 2));

    let trips = Trips::to(server)?;
    let passed_on = contestants(place, trips.address()).await?;
    let calls = Table::measure(
        &passed_on,
        "calls",
        |_| 1,
        async |_, measured, name| measured.counted(name, &trips).await,
    );
    calls.await.print_counts("MariaDB: round trips (aim: 1 + 1)");

    let commits = Commits::of(place.session_at(server).await?).await?;
    let each = Table::measure(
        &all,
        "commits",
        |_| 1,
        async |_, measured, name| {
            let before = commits.read().await?;
            measured.pairs(name, pairs).await?;
            Ok((commits.read().await? - before) / pairs as f64)
        },
    );
    let title = "MariaDB: transactions that changed something";
    each.await.print(title, "a pair", |row| format!("{:6.2}", row.rounds.iter().sum::<f64>()));
    println!();
    Ok(())
}

/// Two groups: dlock's modes, each with the least that its locks cost.
async fn contestants(place: Place<'_>, address: SocketAddr) -> Outcome<Vec<Contestant>> {
    const NAMED: &str = "named locks";
    const ROWS: &str = "rows";
    let batches = async |batches: [&'static str; 2]| {
        Here::connect(2, async || Ok(Batches::on(place.session_at(address).await?, batches))).await
    };
    let dlock = async |params| {
        let url = place.url_at(address, params);
        Here::connect(2, async || Dlock::connect(&url, Kind::Mutex).await).await
    };
    // dlock makes the tables, which the others use.
    let (queue, session) = (dlock("").await?, dlock("?mode=session").await?);
    let (commit, rows) = (batches(GET_LOCK_AND_COMMIT).await?, batches(INSERT_AND_DELETE).await?);
    Ok(vec![
        Contestant::new("GET_LOCK + one commit", NAMED, Waits::Woken, Ok(commit)).limit(),
        Contestant::new("dlock, session", NAMED, Waits::Woken, Ok(session)),
        Contestant::new("GET_LOCK", NAMED, Waits::Woken, Ok(batches(GET_LOCK).await?)),
        // It excludes nobody, and cannot wait.
        Contestant::new("INSERT, DELETE", ROWS, Waits::Never, Ok(rows)).limit(),
        Contestant::new("dlock, queue", ROWS, Waits::InOrder, Ok(queue)),
    ])
}

/// How many transactions the server has committed that have changed something.
struct Commits(Mutex<MySqlConnection>);

impl Commits {
    async fn of(mut session: MySqlConnection) -> Outcome<Self> {
        tell(&mut session, "SET GLOBAL innodb_monitor_enable = 'trx_rw_commits'").await?;
        Ok(Self(Mutex::new(session)))
    }
}

#[async_trait(?Send)]
impl Counter for Commits {
    async fn read(&self) -> Outcome<f64> {
        let count = "SELECT CAST(count AS DOUBLE) FROM information_schema.innodb_metrics WHERE name = 'trx_rw_commits'";
        Ok(sqlx::raw_sql(count).fetch_one(&mut *self.0.lock().await).await?.try_get_unchecked(0)?)
    }
}

/// Does a batch, and reads all its answers.
async fn tell(session: &mut MySqlConnection, batch: &str) -> Outcome {
    sqlx::raw_sql(AssertSqlSafe(batch)).execute(session).await?;
    Ok(())
}
