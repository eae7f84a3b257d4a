//! Locks in Redis, beside the limit and other implementations.
//!
//! The limit is the least that the protocol allows, written without dlock on the same client crate.
//! The others are rslock and rlock, and Redisson and redsync if they can be built.
//!
//! `DLOCK_BENCH_REDIS_URL` names the server. Without it this program starts a `redis-server` on the
//! second core. Run this program on the first core (`taskset -c 0`). Otherwise the kernel's choice
//! of cores affects the results more than any code.

mod clients;
mod contestants;
mod crowd;
mod distant;
mod held;
mod limit;
mod pair;
mod permits;
mod queue;
mod server;
mod several;
mod waiter;

use dlock::Locks;

use crate::{Effort, contest::Outcome};
use server::Server;

pub(crate) async fn bench(part: &str, effort: Effort) -> Outcome {
    if part == "redis-distant" {
        let Some(server) = Server::distant() else {
            println!("{part}: not measured, DLOCK_BENCH_REDIS_DISTANT_URL is not set");
            return Ok(());
        };
        return distant::pairs(&server, &contestants::all(&server).await?, effort).await;
    }
    let Some(server) = Server::start().await? else {
        println!(
            "{part}: not measured, DLOCK_BENCH_REDIS_URL is not set, and no redis-server could be started"
        );
        return Ok(());
    };
    match part {
        "redis-held" => held::renewals(&server, effort).await,
        "redis-several" => {
            several::multilock(&server, effort).await?;
            several::redlock(&server, effort).await
        }
        "redis-crowd" => crowd::waiters(&server, effort).await,
        "redis-permits" => permits::beside_the_mutex(&server, effort).await,
        _ => {
            let contestants = contestants::all(&server).await?;
            pair::alone(&contestants, effort).await;
            pair::together(&contestants, effort).await;
            queue::handoff(&contestants, effort).await;
            queue::waits(&contestants, effort).await;
            waiter::commands(&server, &contestants, effort).await
        }
    }
}

/// Connects a client of dlock.
async fn connect(server: &Server, params: &str) -> Outcome<Locks> {
    Ok(dlock::connect(&server.url_with(params)).await?)
}
