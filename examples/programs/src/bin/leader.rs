//! One leader among several candidates: `cargo run --bin leader`.

use std::{env, time::Duration};

use dlock::Guard;
use tokio::time::sleep;

#[tokio::main(flavor = "current_thread")]
async fn main() -> dlock::Result<()> {
    let store = env::var("DLOCK_STORE").unwrap_or("memory:programs".to_owned());
    // Two clients represent two processes.
    tokio::try_join!(stand_for_election("anna", &store), stand_for_election("bert", &store))?;
    Ok(())
}

async fn stand_for_election(name: &str, store: &str) -> dlock::Result<()> {
    let locks = dlock::connect(store).await?;
    loop {
        // Waits until there is no leader.
        let guard = locks.fair("leader").lock().await?;
        let done = tokio::select! {
            () = lead(name, &guard) => true,
            // `select!` has dropped the work of this leader, because another candidate may lead
            // now.
            reason = guard.lost() => {
                println!("{name} does not lead any more: {reason}");
                false
            }
        };
        if done {
            guard.release().await?;
            locks.close().await;
            return Ok(());
        }
    }
}

async fn lead(name: &str, guard: &Guard) {
    for step in 1..=3 {
        println!("{name} leads, step {step}, with token {:?}", guard.token().map(u64::from));
        sleep(Duration::from_millis(50)).await;
    }
}
