//! What the suite needs to know of a store under test.

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
    /// The store's name, also in `DLOCK_REQUIRE`.
    fn name(&self) -> &str;

    /// Connects a new client, as from another process.
    ///
    /// # Errors
    /// Fails the case.
    async fn connect(&self) -> Result<Store>;

    /// Connects a new client as [`connect`](Self::connect) does, with a way to kill it: from then on nothing of the client
    /// reaches the store, no heartbeat of its session either, and nothing is released. The cases about crashes then kill the
    /// client; where this is `None` they cut its calls.
    ///
    /// Default: through a proxy to the one server of [`network`](Self::network), `None` without one. A store whose claims
    /// live as long as their client's session ([`Info::session`](dlock_core::driver::Info::session)) must return a client
    /// here. If it has several servers, [`killable`] makes one.
    ///
    /// # Errors
    /// Fails the case.
    async fn connect_killable(&self) -> Option<Result<(Store, Kill)>> {
        let network = self.network()?;
        Some(killable(&[network.server()], |proxies| network.connect_to(proxies[0])).await)
    }

    /// Connects a new client of a composite store, as [`connect`](Self::connect) does, but with one member that misbehaves in
    /// this way, the same member for every client. `None` where the store has no members: its rows are then left out.
    ///
    /// # Errors
    /// Fails the case.
    async fn connect_with_member(&self, _habit: Habit) -> Option<Result<Store>> {
        None
    }

    /// How to put a [`Proxy`](crate::Proxy) between a client and its server, for the cases about the line between them. `None`
    /// where a client uses more than one server, or none: these cases are then left out.
    fn network(&self) -> Option<&dyn Network> {
        None
    }

    /// How time passes in the cases. Time may be skipped only if the store waits for nothing but tokio's timers.
    fn clock(&self) -> Clock {
        Clock::Real
    }

    /// The ttl of cases that do not care: long enough that a busy machine does not lose a lock.
    fn ttl(&self) -> Duration {
        Duration::from_secs(if self.clock() == Clock::Paused { 30 } else { 5 })
    }

    /// The ttl of cases that wait for one to end: the shortest that the store keeps well.
    fn short_ttl(&self) -> Duration {
        if self.clock() == Clock::Paused { self.ttl() } else { Duration::from_secs(1) }
    }

    /// Whether tokens go on growing when the store comes back without its data: whether the first token of a name is no
    /// smaller than the microseconds since 1970.
    fn tokens_outlive_data(&self) -> bool {
        true
    }

    /// Whether locks are granted in order of arrival however busy the machine is. Default `true`. A
    /// [`RedLock`](dlock_core::RedLock) on the wall's clock keeps the order only while its members answer in time: it returns
    /// `false`, and the cases that compare the order are left out.
    fn keeps_order(&self) -> bool {
        true
    }

    /// Reason why a waiter of this store sends requests while nothing changes, as in `the plain dialect polls`. The cases that
    /// count such requests are then ignored with this reason. Default `None`: a waiter waits for a notification.
    fn polls(&self) -> Option<&'static str> {
        None
    }

    /// How many bytes this process has allocated, if the test binary counts them, with a global allocator such as
    /// `cap::Cap`. The case that looks for leaks is left out without it, and runs alone with it.
    fn allocated(&self) -> Option<usize> {
        None
    }

    /// How many names the case that looks for leaks uses before it measures. Default 200. More where a client crate keeps the
    /// last so many names, and no more.
    fn warm_up(&self) -> usize {
        200
    }

    /// The longest that one case may take by the wall's clock. A case that takes longer fails, and the message says which
    /// step it waited in. Default 60 s: ten times what the longest case takes, for a machine that is busy. With a
    /// [paused clock](Clock::Paused) 30 s, since a case that waits for nothing takes milliseconds.
    fn limit(&self) -> Duration {
        Duration::from_secs(if self.clock() == Clock::Paused { 30 } else { 60 })
    }

    /// How many cases run at once, unless the command line says otherwise. Each may connect some ten clients. Default 32 on
    /// the wall's clock, where cases mostly wait, and else one for each core.
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

/// Why a store cannot be tested here. Its cases are ignored with this reason, or fail if `DLOCK_REQUIRE` names it.
#[derive(Clone, Debug)]
pub struct Unreachable {
    /// The store, as [`Fixture::name`] would say.
    pub name: String,
    /// What is missing, and how to provide it.
    pub reason: String,
}

impl Unreachable {
    /// The one trial that replaces the cases. It is ignored, with the reason in its name. If `DLOCK_REQUIRE` names the
    /// store, or says `all`, it fails.
    pub fn trial(self, cases: &str) -> Trial {
        let required = self.is_required();
        let Self { name, reason } = self;
        let failure = Failed::from(format!("{name} is required, but {reason}"));
        Trial::test(format!("{cases}: ignored, {reason}"), || Err(failure)).with_ignored_flag(!required)
    }

    /// Whether `DLOCK_REQUIRE` names the store, or says `all`: then its absence is a failure.
    ///
    /// # Panics
    /// If `DLOCK_REQUIRE` has a word that names nothing: a misspelt one would require nothing, and nobody would notice.
    pub fn is_required(&self) -> bool {
        let list = std::env::var("DLOCK_REQUIRE").unwrap_or_default();
        let unknown = unknown(&list, &self.name);
        assert!(unknown.is_none(), "{}", unknown.unwrap_or_default());
        names(&list, &self.name)
    }
}

/// Names that `DLOCK_REQUIRE` may contain, beside that of the store under test.
///
/// First those that need no server, then the servers of `testbed/images/official`, then the programs of `testbed/peers`. A
/// test of `dlock-testbed` compares the list with these two.
pub const REQUIRABLE: [&str; 19] = [
    "all",
    "sqlite",
    "redlock",
    "users",
    // Servers.
    "etcd",
    "mariadb",
    "mysql",
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
    "redis-py",
    "redisson",
    "redsync",
];

/// What to say about a word of the list that names nothing. `own` is the store that asks: it may be a third party's.
fn unknown(list: &str, own: &str) -> Option<String> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    let unknown = words.into_iter().find(|word| *word != own && !REQUIRABLE.contains(word))?;
    let names = REQUIRABLE.join(", ");
    Some(format!("DLOCK_REQUIRE names `{unknown}`, which no test needs; there are: {names}"))
}

/// Whether a list like `sqlite,redis` or `all` names a store.
fn names(list: &str, store: &str) -> bool {
    list.split(',').any(|word| word.trim() == store || word.trim() == "all")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_names_nothing_is_told_with_those_that_do() {
        assert_eq!(unknown("", "redis"), None);
        assert_eq!(unknown("sqlite, redis,folder", "folder"), None);
        let told = unknown("sqlite,zookeper", "redis").expect("it is misspelt");
        assert!(told.contains("`zookeper`") && told.contains("zookeeper"), "{told}");
    }

    #[test]
    fn a_store_is_required_by_its_name_or_with_all() {
        assert!(names("redis", "redis") && names("sqlite, redis", "redis") && names("all", "redis"));
        assert!(!names("", "redis") && !names("rediss", "redis") && !names("sqlite", "redis"));
    }
}
