//! Contestants and the measurements that they support, on any store.
//!
//! Each store lists its contestants, and [`Table`] measures them alternately.

mod dlock;
mod in_process;
mod peer;
mod table;

use std::{error::Error, time::Duration};

use async_trait::async_trait;
use dlock_testbed::peer::Contest;

pub(crate) use dlock::Dlock;
pub(crate) use in_process::{Client, InProcess};
pub(crate) use peer::{PeerContestant, start};
pub(crate) use table::{Row, Table};

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A contestant, which `M` measures.
pub(crate) struct Contestant<M: ?Sized = dyn Measure> {
    pub(crate) name: String,
    /// Contestants that do the same work, for example all that use one protocol. Each group has one
    /// limit.
    pub(crate) group: &'static str,
    pub(crate) waiting: Waiting,
    /// Whether this contestant is the limit of its group, to which the others are compared.
    pub(crate) is_limit: bool,
    /// The measurements, or the reason why this contestant cannot be measured.
    pub(crate) measurements: Result<Box<M>, String>,
}

/// Behaviour of a contestant while another client holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Fails, because it can only try.
    Unsupported,
    /// Requests the lock at intervals.
    Polls,
    /// Requests the lock again after a notification of the release.
    Notified,
    /// Requests the lock again after a notification. Waiters get the lock in order of arrival.
    InOrder,
}

/// The measurements of a contestant: its times and its requests.
#[async_trait(?Send)]
pub(crate) trait Measure {
    /// Measures `pairs` pairs of lock and release without contention. Returns the duration of each.
    async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>>;

    /// Measures hand-offs between two clients, each of which waits while the other holds the lock.
    ///
    /// Each client takes the lock `turns` times, and holds it for `hold`. Returns the time from
    /// each release to the grant of the other client.
    async fn handoff(&self, name: &str, turns: usize, hold: Duration) -> Outcome<Vec<Duration>>;

    /// Runs a contest. Returns the duration of each wait of each task.
    async fn contend(&self, name: &str, contest: &Contest) -> Outcome<Vec<Duration>>;

    /// Measures the increase of a counter by one acquisition and by one release of a free lock.
    ///
    /// Returns the medians of twenty pairs, because other clients may increase the counter
    /// occasionally.
    async fn count(&self, name: &str, counter: &dyn Counter) -> Outcome<[f64; 2]>;
}

/// A counter of a server, or of a proxy in front of it.
#[async_trait(?Send)]
pub(crate) trait Counter {
    async fn read(&self) -> Outcome<f64>;
}

impl Contestant {
    pub(crate) fn new(
        name: &str,
        group: &'static str,
        waiting: Waiting,
        measurements: Result<impl Measure + 'static, String>,
    ) -> Self {
        let measurements = measurements.map(|measurements| Box::new(measurements) as Box<dyn Measure>);
        Self { name: name.to_owned(), group, waiting, is_limit: false, measurements }
    }

    /// Makes this contestant the limit of its group.
    pub(crate) fn into_limit(self) -> Self {
        Self { is_limit: true, ..self }
    }
}
