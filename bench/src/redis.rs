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
mod processes;
mod queue;
mod server;
mod several;
mod waiter;

use std::rc::Rc;

use async_trait::async_trait;
use dlock::Locks;

use crate::{
    Effort,
    arguments::Part,
    contest::{Counter, Outcome},
    growth,
    results::Results,
};
use server::Server;

const NO_SERVER: &str = "DLOCK_BENCH_REDIS_URL is not set, and no redis-server could be started";

pub(crate) async fn bench(part: Part, effort: Effort, results: &Results) -> Outcome {
    if part == Part::RedisDistant {
        let Some(server) = Server::distant() else {
            return results.part_missing(part, "DLOCK_BENCH_REDIS_DISTANT_URL is not set");
        };
        return distant::pairs(&server, &contestants::all(&server).await?, effort, results).await;
    }
    let Some(server) = Server::start().await? else {
        return results.part_missing(part, NO_SERVER);
    };
    match part {
        Part::RedisHeld => held::renewals(&server, effort, results).await,
        Part::RedisSeveral => {
            several::multilock(&server, effort, results).await?;
            several::redlock(&server, effort, results).await
        }
        Part::RedisCrowd => crowd::waiters(&server, effort, results).await,
        Part::RedisPermits => permits::beside_the_mutex(&server, effort, results).await,
        Part::RedisWorkers => {
            pair::two_workers(&contestants::redisson_in_process(&server).await?, effort, results).await
        }
        _ => {
            let contestants = contestants::all(&server).await?;
            pair::alone(&contestants, effort, results).await?;
            pair::together(&contestants, effort, results).await?;
            queue::handoff(&contestants, effort, results).await?;
            queue::waits(&contestants, effort, results).await?;
            waiter::commands(&server, &contestants, effort, results).await
        }
    }
}

/// Measures ten client processes.
pub(crate) async fn processes(effort: Effort, results: &Results) -> Outcome {
    match Server::start().await? {
        Some(server) => processes::contend(&server, effort, results).await,
        None => results.part_missing(Part::ProcessesRedis, NO_SERVER),
    }
}

/// Returns the server for measurements of other modules, or the reason why there is none.
pub(crate) async fn store() -> Outcome<Result<growth::Store, String>> {
    let Some(server) = Server::start().await? else { return Ok(Err(NO_SERVER.to_owned())) };
    let server = Rc::new(server);
    let url = server.url_with("timeout=30s");
    Ok(Ok(growth::Store::new(url, Some(Box::new(Requests(Rc::clone(&server)))), server)))
}

/// Number of scripts and subscriptions that the server has received from all clients.
struct Requests(Rc<Server>);

#[async_trait(?Send)]
impl Counter for Requests {
    async fn read(&self) -> Outcome<f64> {
        Ok(self.0.commands().await? as f64)
    }
}

/// Connects a client of dlock.
async fn connect(server: &Server, params: &str) -> Outcome<Locks> {
    Ok(dlock::connect(&server.url_with(params)).await?)
}
