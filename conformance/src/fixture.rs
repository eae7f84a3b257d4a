//! What the suite needs to know of a store under test.

use std::time::Duration;

use async_trait::async_trait;
use dlock_core::{Result, Store};
use libtest_mimic::{Failed, Trial};

/// A store under test.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// What to call it: also the word that `DLOCK_REQUIRE` looks for.
    fn name(&self) -> &str;

    /// Connects a new client, as from another process.
    ///
    /// # Errors
    /// Fails the case.
    async fn connect(&self) -> Result<Store>;

    /// Whether time may be skipped: only where nothing but tokio's timers is waited for.
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
}

/// How time passes in the cases of a fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// As on the wall.
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
    /// What stands in the place of the cases: one trial that is ignored, with the reason in its name, or that fails if
    /// `DLOCK_REQUIRE` names the store, or says `all`.
    pub fn trial(self, cases: &str) -> Trial {
        let required = self.is_required();
        let Self { name, reason } = self;
        let failure = Failed::from(format!("{name} is required, but {reason}"));
        Trial::test(format!("{cases}: ignored, {reason}"), || Err(failure)).with_ignored_flag(!required)
    }

    /// Whether `DLOCK_REQUIRE` names the store, or says `all`: then its absence is a failure.
    pub fn is_required(&self) -> bool {
        names(&std::env::var("DLOCK_REQUIRE").unwrap_or_default(), &self.name)
    }
}

/// Whether a list like `sqlite,redis` or `all` names a store.
fn names(list: &str, store: &str) -> bool {
    list.split(',').any(|word| word.trim() == store || word.trim() == "all")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_required_by_its_name_or_with_all() {
        assert!(names("redis", "redis") && names("sqlite, redis", "redis") && names("all", "redis"));
        assert!(!names("", "redis") && !names("rediss", "redis") && !names("sqlite", "redis"));
    }
}
