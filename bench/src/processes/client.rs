//! The process of one client, which measures its lock when a line of its input requests it.
//!
//! After it has connected it prints `ready`. Each line of its input is a name and a number of pairs of
//! lock and release. The reply is `took` and the nanoseconds of each pair, or another text with the
//! reason of a failure. The process ends at the end of its input.

use std::{fmt, time::Duration};

use clap::ValueEnum;
use dlock::Kind;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{
    contest::{Client, Dlock, InProcess, Measure, Outcome},
    etcd, mysql, postgres, zookeeper,
};

/// First line of the output.
pub(super) const READY: &str = "ready";

/// First word of a reply with durations.
pub(super) const TOOK: &str = "took";

/// A lock that a process of this program can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientLock {
    /// dlock's mutex.
    Mutex,
    /// dlock's fair lock.
    Fair,
    /// etcd's lock service.
    EtcdService,
    /// The recipe of the ZooKeeper crate.
    ZookeeperRecipe,
    /// `GET_LOCK` of MariaDB.
    GetLock,
    /// `GET_LOCK`, with a durable token.
    GetLockAndCommit,
    /// `pg_advisory_lock`.
    AdvisoryLock,
    /// `pg_advisory_lock`, with a durable token.
    AdvisoryLockAndCommit,
    /// `PgAdvisoryLock` of sqlx.
    SqlxAdvisoryLock,
}

impl fmt::Display for ClientLock {
    /// Writes the name of the lock on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// Connects one client to a store, and replies to requests until the end of the input.
pub(crate) async fn serve(lock: ClientLock, url: &str) -> Outcome {
    match lock {
        ClientLock::Mutex => reply(async || Dlock::connect(url, Kind::Mutex).await).await,
        ClientLock::Fair => reply(async || Dlock::connect(url, Kind::Fair).await).await,
        ClientLock::EtcdService => reply(async || etcd::lock_service(url).await).await,
        ClientLock::ZookeeperRecipe => reply(async || zookeeper::recipe(url).await).await,
        ClientLock::GetLock => reply(async || mysql::get_lock(url).await).await,
        ClientLock::GetLockAndCommit => reply(async || mysql::get_lock_and_commit(url).await).await,
        ClientLock::AdvisoryLock => reply(async || postgres::advisory_lock(url).await).await,
        ClientLock::AdvisoryLockAndCommit => {
            reply(async || postgres::advisory_lock_and_commit(url).await).await
        }
        ClientLock::SqlxAdvisoryLock => reply(async || postgres::sqlx_advisory_lock(url).await).await,
    }
}

async fn reply<C: Client>(connect: impl AsyncFn() -> Outcome<C>) -> Outcome {
    let client = InProcess::connect(1, connect).await?;
    println!("{READY}");
    // The lines are read while the client renews its session.
    let mut requests = BufReader::new(tokio::io::stdin()).lines();
    while let Some(request) = requests.next_line().await? {
        let (name, pairs) = request.split_once(' ').ok_or("a request is a name and a number")?;
        match client.pairs(name, pairs.parse()?).await {
            Ok(durations) => println!("{}", took(&durations)),
            Err(error) => println!("{}", error.to_string().replace('\n', " ")),
        }
    }
    Ok(())
}

fn took(durations: &[Duration]) -> String {
    durations.iter().fold(TOOK.to_owned(), |reply, duration| format!("{reply} {}", duration.as_nanos()))
}
