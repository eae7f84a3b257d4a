//! The description of a store under test.

use std::{num::NonZeroUsize, time::Duration};

use async_trait::async_trait;
use dlock_core::{Result, driver::Store};
use libtest_mimic::{Failed, Trial};

use crate::{
    Network, killable,
    wrap::{Habit, Kill},
};

/// A store under test.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// Returns the store's name, as in `DLOCK_REQUIRE`.
    fn name(&self) -> &str;

    /// Connects a new client, as from another process.
    ///
    /// # Errors
    /// Fails the case.
    async fn connect(&self) -> Result<Store>;

    /// Connects a new client as [`connect`](Self::connect) does, and returns a way to kill it. After
    /// the kill, no request of the client reaches the store, also no heartbeat of its session, and
    /// nothing is released. The cases about crashes kill the client. If this returns `None`, they
    /// cut the calls of the client instead.
    ///
    /// By default the client connects through a proxy to the server of [`network`](Self::network).
    /// Without a network the default is `None`. A store whose claims live as long as their client's
    /// session ([`Info::session`](dlock_core::driver::Info::session)) must return a client.
    /// [`killable`] makes one for a store with several servers.
    ///
    /// # Errors
    /// An error fails the case.
    async fn connect_killable(&self) -> Option<Result<(Store, Kill)>> {
        let network = self.network()?;
        Some(killable(&[network.server()], |proxies| network.connect_to(proxies[0])).await)
    }

    /// Connects a new client of a composite store, one of whose members has this habit. It is the
    /// same member for every client. Returns `None` if the store has no members, and the rows about
    /// members are then left out.
    ///
    /// # Errors
    /// An error fails the case.
    async fn connect_with_member(&self, _habit: Habit) -> Option<Result<Store>> {
        None
    }

    /// Returns the description of the network between client and server, with which the cases put a
    /// [`Proxy`](crate::Proxy) between them. Returns `None` for a store without a server or with
    /// several servers, and the cases about the network are then left out.
    fn network(&self) -> Option<&dyn Network> {
        None
    }

    /// Returns the clock of the cases. A paused clock is only possible if the store waits for nothing
    /// but tokio's timers.
    fn clock(&self) -> Clock {
        Clock::Real
    }

    /// Returns the ttl of cases that do not wait for its end. It must be long enough that a busy
    /// machine does not lose a lock. Default 5 s, or 30 s with a paused clock.
    fn ttl(&self) -> Duration {
        Duration::from_secs(if self.clock() == Clock::Paused { 30 } else { 5 })
    }

    /// Returns the ttl of cases that wait for its end: the shortest that the store keeps reliably.
    /// Default 1 s, or [`ttl`](Self::ttl) with a paused clock.
    fn short_ttl(&self) -> Duration {
        if self.clock() == Clock::Paused { self.ttl() } else { Duration::from_secs(1) }
    }

    /// Returns whether tokens continue to grow after the store has lost its data. This is the case if
    /// the first token of a name is at least the number of microseconds since 1970. Default `true`.
    fn tokens_outlive_data(&self) -> bool {
        true
    }

    /// Returns whether locks are granted in the order of arrival, however busy the machine is.
    /// Default `true`. A [`RedLock`](dlock_core::RedLock) with real time keeps the order only while
    /// its members reply in time. Its fixture returns `false`, and the cases that compare the order
    /// are left out.
    fn keeps_order(&self) -> bool {
        true
    }

    /// Returns the reason why a waiter of this store sends requests while nothing changes, such as
    /// `the plain dialect polls`. The cases that count such requests are then ignored with this
    /// reason. Default `None`: a waiter waits for a notification.
    fn polls(&self) -> Option<&'static str> {
        None
    }

    /// Returns the number of bytes that this process has allocated, if the test binary counts them
    /// with a global allocator such as `cap::Cap`. Otherwise the case that looks for leaks is left
    /// out. That case runs alone.
    fn allocated(&self) -> Option<usize> {
        None
    }

    /// Returns the number of names that the case about leaks uses before it measures. Default 200.
    /// More are needed if a client crate keeps a bounded number of recent names.
    fn warm_up(&self) -> usize {
        200
    }

    /// Returns the number of tasks of one client in the case about endurance, unless `DLOCK_TASKS`
    /// sets it. Default 100. A store with a connection for each waiter needs fewer.
    fn tasks(&self) -> usize {
        100
    }

    /// Returns the time limit of one case in real time. A case that takes longer fails, with a message
    /// that names the step in which it waited. Default 60 s, ten times the duration of the longest
    /// case, because a machine may be busy. With a [paused clock](Clock::Paused) the default is 30 s,
    /// because a case that waits for nothing takes milliseconds.
    fn limit(&self) -> Duration {
        Duration::from_secs(if self.clock() == Clock::Paused { 30 } else { 60 })
    }

    /// Returns the number of cases that run concurrently, unless the command line sets one. Each may
    /// connect about ten clients. Default 32 in real time, because the cases mostly wait. With a
    /// paused clock the default is the number of cores.
    fn at_once(&self) -> usize {
        match self.clock() {
            Clock::Real => 32,
            Clock::Paused => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        }
    }
}

/// How time passes in the cases of a fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Real time.
    Real,
    /// Tokio's paused clock: sleeping costs nothing.
    Paused,
}

/// The reason why a store cannot be tested on this machine. Its cases are ignored with this reason.
/// They fail instead if `DLOCK_REQUIRE` names the store.
#[derive(Clone, Debug)]
pub struct Unreachable {
    /// Name of the store, as [`Fixture::name`] returns it.
    pub name: String,
    /// The missing program or server, and the way to provide it.
    pub reason: String,
}

impl Unreachable {
    /// Returns the trial that replaces the cases. It is ignored, with the reason in its name. It
    /// fails if `DLOCK_REQUIRE` contains the store's name or `all`.
    pub fn trial(self, cases: &str) -> Trial {
        let required = self.is_required();
        let Self { name, reason } = self;
        let failure = Failed::from(format!("{name} is required, but {reason}"));
        Trial::test(format!("{cases}: ignored, {reason}"), || Err(failure)).with_ignored_flag(!required)
    }

    /// Returns whether `DLOCK_REQUIRE` contains the store's name or `all`. A missing store is then a
    /// failure.
    ///
    /// # Panics
    /// If `DLOCK_REQUIRE` contains an unknown name. A misspelt name would otherwise require nothing
    /// and go unnoticed.
    pub fn is_required(&self) -> bool {
        let list = std::env::var("DLOCK_REQUIRE").unwrap_or_default();
        let unknown = unknown(&list, &self.name);
        assert!(unknown.is_none(), "{}", unknown.unwrap_or_default());
        names(&list, &self.name)
    }
}

/// Names that `DLOCK_REQUIRE` may contain, beside that of the store under test.
///
/// The list begins with the names that need no server. The servers of `testbed/images/official` and
/// the programs of `testbed/peers` follow, and a test of `dlock-testbed` compares the list with both.
pub const REQUIRABLE: [&str; 25] = [
    "all",
    "sqlite",
    "redlock",
    "users",
    // Servers.
    "etcd",
    "mariadb",
    "mysql",
    "pgbouncer",
    "postgres",
    "postgres14",
    "postgres16",
    "postgres18",
    "redis",
    "redis5",
    "redis6",
    "valkey",
    "zookeeper",
    // Programs.
    "curator",
    "etcd-go",
    "etcdctl",
    "kazoo",
    "psql",
    "redis-py",
    "redisson",
    "redsync",
];

/// Returns the error message for the first unknown name of the list. `own` is the name of the store
/// under test, which may belong to a third party.
fn unknown(list: &str, own: &str) -> Option<String> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    let unknown = words.into_iter().find(|word| *word != own && !REQUIRABLE.contains(word))?;
    let names = REQUIRABLE.join(", ");
    Some(format!("DLOCK_REQUIRE names `{unknown}`, which no test needs; there are: {names}"))
}

/// Returns whether a list such as `sqlite,redis` or `all` contains a store.
fn names(list: &str, store: &str) -> bool {
    list.split(',').any(|word| word.trim() == store || word.trim() == "all")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_reported_with_the_known_names() {
        assert_eq!(unknown("", "redis"), None);
        assert_eq!(unknown("sqlite, redis,folder", "folder"), None);
        let message = unknown("sqlite,zookeper", "redis").expect("it is misspelt");
        assert!(message.contains("`zookeper`") && message.contains("zookeeper"), "{message}");
    }

    #[test]
    fn a_store_is_required_by_its_name_or_with_all() {
        assert!(names("redis", "redis") && names("sqlite, redis", "redis") && names("all", "redis"));
        assert!(!names("", "redis") && !names("rediss", "redis") && !names("sqlite", "redis"));
    }
}
