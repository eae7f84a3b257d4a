//! A job that several hosts start, and that runs once per period: `cargo run --bin
//! job_once_a_period`.

use std::{env, time::Duration};

use dlock::Locks;

/// Minimum time for which the lock stays taken. A little less than the period of a day, so that the
/// lock is free when the next period begins.
const TAKEN_FOR: Duration = Duration::from_secs(23 * 60 * 60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> dlock::Result<()> {
    let store = env::var("DLOCK_STORE").unwrap_or("memory:programs".to_owned());
    // Two clients represent two hosts. The clock of the second host is late, so it starts the job
    // after the first host has finished it.
    for host in ["one", "two"] {
        let locks = dlock::connect(&store).await?;
        report(host, &locks).await?;
        locks.close().await;
    }
    Ok(())
}

async fn report(host: &str, locks: &Locks) -> dlock::Result<()> {
    // The lock stays taken for this time even if the job ends earlier. The lock of a host that
    // crashes is free after the ttl.
    match locks.mutex("job/report").try_lock().at_least(TAKEN_FOR).await? {
        Some(guard) => {
            println!("host {host} sends the report");
            guard.release().await?;
        }
        None => println!("host {host} has nothing to do: the report is sent"),
    }
    Ok(())
}
