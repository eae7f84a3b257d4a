//! Locks on a Redis, beside the limit and beside rivals. The limit is the least that the protocol allows, written by hand on the
//! same client crate. The rivals are rslock and rlock, and Redisson and redsync where they can be built.
//!
//! The server is that of `DLOCK_BENCH_REDIS_URL`, or a `redis-server` that this program starts on the second core. Run this program
//! on the first core (`taskset -c 0`), or the kernel's choice of cores decides more than any code.

mod asking;
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

use dlock::Locks;

use crate::{Effort, contest::Outcome};
use server::Server;

pub(crate) async fn bench(part: &str, effort: Effort) -> Outcome {
    if part == "redis-distant" {
        let Some(server) = Server::distant() else {
            println!("{part}: not measured, there is no DLOCK_BENCH_REDIS_DISTANT_URL");
            return Ok(());
        };
        return distant::away(&server, &contestants::all(&server).await?, effort).await;
    }
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
        "redis-crowd" => crowd::waiting(&server, effort).await,
        "redis-permits" => permits::beside_the_mutex(&server, effort).await,
        _ => {
            let contestants = contestants::all(&server).await?;
            pair::alone(&contestants, effort).await;
            pair::together(&contestants, effort).await;
            queue::handoff(&contestants, effort).await;
            queue::waits(&contestants, effort).await;
            asking::asking(&server, &contestants, effort).await
        }
    }
}

/// A client of dlock's.
async fn locks(server: &Server, params: &str) -> Outcome<Locks> {
    Ok(dlock::connect(&server.with(params)).await?)
}
