//! A contest: who is measured, and how, on any store.
//!
//! A store names its contestants, and [`Table`] measures them in turn.

mod dlock;
mod here;
mod table;
mod there;

use std::{error::Error, time::Duration};

use async_trait::async_trait;
use dlock_testbed::peer::Contest;

pub(crate) use dlock::Dlock;
pub(crate) use here::{Client, Here};
pub(crate) use table::Table;
pub(crate) use there::{There, start};

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

pub(crate) struct Contestant {
    pub(crate) name: String,
    /// Those who do the same, such as all that speak one protocol. Each group has a limit.
    pub(crate) group: &'static str,
    pub(crate) waits: Waits,
    /// Whether this is the limit, to which the others of its group are compared.
    pub(crate) is_limit: bool,
    /// How to measure it, or why it cannot be measured.
    pub(crate) measured: Result<Box<dyn Measured>, String>,
}

/// What a contestant does while another holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It can only try.
    Never,
    /// Asks again and again.
    Polls,
    /// Asks again when a message tells of the release.
    Woken,
    /// The same, and waiters get the lock in the order of arrival.
    InOrder,
}

/// Measures how long a contestant takes, and what it asks.
#[async_trait(?Send)]
pub(crate) trait Measured {
    /// The time of each of so many pairs of acquire and release, while nobody else wants the lock.
    async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>>;

    /// The time from each release until the other client has the lock. Two clients take turns: each waits while the other
    /// holds the lock.
    async fn handoff(&self, name: &str, turns: usize, hold: Duration) -> Outcome<Vec<Duration>>;

    /// The time of each wait of each task in a contest.
    async fn contend(&self, name: &str, contest: &Contest) -> Outcome<Vec<Duration>>;

    /// What an acquisition and a release of a free lock add to a counter, each: what most of twenty add. Somebody else may add to it
    /// now and then.
    async fn counted(&self, name: &str, counter: &dyn Counter) -> Outcome<[f64; 2]>;
}

/// Something that a server, or the way to it, counts.
#[async_trait(?Send)]
pub(crate) trait Counter {
    async fn read(&self) -> Outcome<f64>;
}

impl Contestant {
    pub(crate) fn new(
        name: &str,
        group: &'static str,
        waits: Waits,
        measured: Result<impl Measured + 'static, String>,
    ) -> Self {
        let measured = measured.map(|measured| Box::new(measured) as Box<dyn Measured>);
        Self { name: name.to_owned(), group, waits, is_limit: false, measured }
    }

    pub(crate) fn limit(self) -> Self {
        Self { is_limit: true, ..self }
    }
}
