//! A job that several hosts would start, and that runs once a period: `cargo run --bin job_once_a_period`.

use std::{env, time::Duration};

use dlock::Locks;

/// A little less than the period, so that the lock is free when the next period begins.
const LEAST: Duration = Duration::from_secs(23 * 60 * 60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> dlock::Result<()> {
    let store = env::var("DLOCK_STORE").unwrap_or("memory:programs".to_owned());
    // Two clients in the place of two hosts. The second one's clock is late by a second.
    for host in ["one", "two"] {
        let locks = dlock::connect(&store).await?;
        report(host, &locks).await?;
        locks.close().await;
    }
    Ok(())
}

async fn report(host: &str, locks: &Locks) -> dlock::Result<()> {
    // The lock stays taken for so long, also though the job ends sooner. A host that crashes frees it after the ttl.
    match locks.mutex("job/report").try_lock().at_least(LEAST).await? {
        Some(guard) => {
            println!("host {host} sends the report");
            guard.release().await?;
        }
        None => println!("host {host} has nothing to do: the report is sent"),
    }
    Ok(())
}
