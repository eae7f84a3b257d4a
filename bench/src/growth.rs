//! Growth of one client, with 1 to 10 000 waiters for one name, and with 1 to 100 000 held locks.
//!
//! A series ends at the first size that the store does not reach in [`STEP_LIMIT`].

mod charts;
mod held;
mod waiters;

use std::{any::Any, path::Path, time::Duration};

use crate::{
    Effort,
    arguments::Part,
    contest::{Counter, Outcome},
    etcd, mysql, postgres, redis, zookeeper,
};

/// Maximum time in which the locks or waiters of one size are created.
const STEP_LIMIT: Duration = Duration::from_secs(20);

/// A store under measurement.
pub(crate) struct Store {
    url: String,
    /// Counter of the client's requests, if the store has requests.
    requests: Option<Box<dyn Counter>>,
    /// The server, which ends with this value.
    _server: Box<dyn Any>,
}

impl Store {
    pub(crate) fn new(url: String, requests: Option<Box<dyn Counter>>, server: impl Any) -> Self {
        Self { url, requests, _server: Box::new(server) }
    }

    /// Returns the number of requests so far, or NaN if the store has none.
    async fn count(&self) -> Outcome<f64> {
        match &self.requests {
            Some(counter) => counter.read().await,
            None => Ok(f64::NAN),
        }
    }
}

/// The measurement at one size.
struct Step {
    /// Number of waiters, or of held locks.
    size: usize,
    p50_ms: f64,
    p99_ms: f64,
    /// Number of requests for each hand-off, or for each pair of lock and release.
    requests: f64,
    /// Memory of the client for each waiter or held lock.
    bytes: f64,
}

pub(crate) async fn bench(part: Part, effort: Effort, charts: Option<&Path>) -> Outcome {
    let folder = tempfile::tempdir()?;
    let store = match part {
        Part::GrowthSqlite => {
            let url = format!("sqlite:{}", folder.path().join("locks.db").display());
            Ok(Store::new(url, None, ()))
        }
        Part::GrowthRedis => redis::store().await?,
        Part::GrowthEtcd => etcd::store().await?,
        Part::GrowthMysql => mysql::store().await?,
        Part::GrowthPostgres => postgres::store().await?,
        Part::GrowthZookeeper => zookeeper::store().await?,
        _ => Ok(Store::new("memory:".to_owned(), None, ())),
    };
    let store = match store {
        Ok(store) => store,
        Err(reason) => {
            println!("{part}: not measured, {reason}\n");
            return Ok(());
        }
    };
    println!("{part}: hand-offs of a fair lock between the waiters of one client");
    let waiters = waiters::measure(&store, effort.held / 10).await?;
    println!("\n{part}: lock + release of a free lock beside held locks of the same client");
    let held = held::measure(&store, effort.held, effort.held / 10).await?;
    println!();
    match charts {
        Some(folder) => charts::draw(&folder.join(format!("{part}.svg")), &waiters, &held),
        None => Ok(()),
    }
}

/// Returns 1, 10, 100 and so on, up to a greatest size.
fn sizes(greatest: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |size| Some(size * 10)).take_while(move |size| *size <= greatest)
}

fn print_header(sizes: &str) {
    println!("  {sizes:>8}     p50 ms     p99 ms   requests      bytes each");
}

fn print(step: &Step) {
    let Step { size, p50_ms, p99_ms, requests, bytes } = step;
    let [requests, bytes] = [(requests, 2), (bytes, 0)].map(|(value, decimals)| match value.is_nan() {
        true => "–".to_owned(),
        false => format!("{value:.decimals$}"),
    });
    println!("  {size:8} {p50_ms:10.3} {p99_ms:10.3} {requests:>10} {bytes:>15}");
}

fn print_end(reached: usize, wanted: usize) {
    println!("  {wanted:8} not measured: {reached} were reached in {STEP_LIMIT:?}");
}
