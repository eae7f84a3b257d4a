//! Interop tests of `mode=session` with `psql`, which takes advisory locks.
//!
//! `DLOCK_FLEET` is the number of acquisitions of each contender of a mixed fleet. The default is
//! 50.

use std::{process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{LockOptions, Locks, Registry};
use dlock_testbed::{
    border_trials,
    peer::{
        Border,
        PeerKind::{Mutex, Read, Write},
        Program, Side,
        cases::{
            a_lock_that_dlock_breaks_is_its_waiters, a_mixed_fleet_loses_nothing, each_wakes_the_other,
            readers_of_both_share_and_keep_writers_of_both_out, they_exclude_each_other,
        },
    },
    servers::postgres::{Flavour, Version, start},
};
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

/// Ttl of dlock's locks. A waiter that waits for longer was not woken.
const TTL: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(start(Version::V17, Flavour::Standalone));
    let store = server.as_ref().map(|server| (server.url(), Postgres { url: server.url().to_owned() }));
    let trials = match Border::new(Program::PSQL, store.map_err(Clone::clone), TTL) {
        Ok(border) => trials(&border),
        Err(unreachable) => vec![unreachable.trial(&Program::PSQL.name())],
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials(border: &Arc<Border<Postgres>>) -> Vec<Trial> {
    border_trials! { border;
        they_exclude_each_other(Mutex);
        readers_of_both_share_and_keep_writers_of_both_out();
        each_wakes_the_other(Mutex);
        each_wakes_the_other(Read);
        each_wakes_the_other(Write);
        a_lock_that_dlock_breaks_is_its_waiters(Mutex);
        a_mixed_fleet_loses_nothing(&[Mutex]);
        a_mixed_fleet_loses_nothing(&[Read, Write]);
    }
}

/// The side of dlock, on one server.
struct Postgres {
    url: String,
}

#[async_trait]
impl Side for Postgres {
    fn ttl(&self) -> Duration {
        TTL
    }

    async fn locks(&self) -> Locks {
        let registry = Registry::new().with(dlock_postgres::DRIVER);
        let url = format!("{}?mode=session&names=hashtext", self.url);
        let locks = registry.connect(&url).await.expect("the server is running");
        locks.with_defaults(LockOptions::new().ttl(TTL))
    }
}
