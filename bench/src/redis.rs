//! Locks on a Redis: beside the least that the protocol allows, by hand on the same client crate, and beside rslock.
//!
//! The server is `DLOCK_BENCH_REDIS_URL`, or a `redis-server` of our own on the second core; run this on the first
//! (`taskset -c 0`), or the kernel's choice of cores decides more than any code.

mod crowd;
mod held;
mod limit;
mod pair;
mod queue;
mod server;
mod several;

use std::{error::Error, time::Duration};

use dlock::Locks;
use redis::aio::MultiplexedConnection;

use crate::Effort;
use server::Server;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

pub(crate) async fn bench(part: &str, effort: Effort) -> Outcome {
    let Some(server) = Server::start().await? else {
        println!("{part}: not measured, there is neither DLOCK_BENCH_REDIS_URL nor a redis-server");
        return Ok(());
    };
    match part {
        "redis-held" => held::many(&server, effort).await,
        "redis-several" => {
            several::multilock(&server, effort).await?;
            several::redlock(&server, effort).await
        }
        _ => {
            pair::alone(&server, effort).await?;
            pair::together(&server, effort).await?;
            queue::handoff(&server, effort).await?;
            queue::waits(&server, effort).await?;
            crowd::waiting(&server, effort).await
        }
    }
}

/// A client of dlock's.
async fn locks(server: &Server, params: &str) -> Outcome<Locks> {
    Ok(dlock::connect(&format!("{}?{params}", server.url())).await?)
}

/// A connection by hand.
async fn by_hand(server: &Server) -> Outcome<MultiplexedConnection> {
    Ok(redis::Client::open(server.url())?.get_multiplexed_async_connection().await?)
}

/// rslock, asking again as often and as long as its own example does: without end, every 50 to 100 ms.
fn rslock(server: &Server) -> rslock::LockManager {
    let mut manager = rslock::LockManager::new(vec![server.url().to_owned()]);
    manager.set_retry(u32::MAX, Duration::from_millis(100));
    manager
}
