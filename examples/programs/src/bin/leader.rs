//! A scheduler with a hot standby: `cargo run --bin leader`.

use std::{convert::Infallible, env, time::Duration};

use dlock::{Next, Observed, Term};
use tokio::time::sleep;

#[tokio::main(flavor = "current_thread")]
async fn main() -> dlock::Result<()> {
    let store = env::var("DLOCK_STORE").unwrap_or("memory:programs".to_owned());
    // Two clients represent two processes.
    tokio::try_join!(schedule("anna", &store), schedule("bert", &store))?;
    Ok(())
}

async fn schedule(name: &str, store: &str) -> dlock::Result<()> {
    let locks = dlock::connect(store).await?;
    let election = locks.election("scheduler");
    let mut observer = election.observe().await?;
    if let Observed::Unknown { .. } = observer.next().await {
        eprintln!("{name} cannot reach the store, and continues to try");
    }
    // Stands by until there is no leader. If the term is lost, `lead` drops the work, because
    // another candidate may lead then, and stands again.
    let candidate = election.candidate().label(name).margin(Duration::from_secs(5));
    candidate.lead(async |term: &Term| lead(name, term).await).await?;
    // The observer has a task of the client, which ends with the client.
    locks.close().await;
    Ok(())
}

async fn lead(name: &str, term: &Term) -> Result<Next, Infallible> {
    for step in 1..=3 {
        println!("{name} leads, step {step}, in term {:?}", term.number().map(u64::from));
        sleep(Duration::from_millis(50)).await;
    }
    // A real scheduler does not end. `Next::Resign` would let another candidate lead.
    Ok(Next::Done)
}
