//! Contestants in this process, and how they are measured.

use std::{cell::Cell, time::Duration};

use async_trait::async_trait;
use dlock_testbed::peer::Contest;
use futures_util::future::try_join_all;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

use super::{Counter, Measured, Outcome};
use crate::figures::Figures;

/// A client with a connection of its own.
pub(crate) trait Client {
    type Held;

    /// Waits for the lock without end.
    async fn lock(&self, name: &str) -> Outcome<Self::Held>;

    async fn unlock(&self, held: Self::Held) -> Outcome;
}

/// The clients of one contestant.
pub(crate) struct Here<C>(Vec<C>);

impl<C: Client> Here<C> {
    /// Connects so many: two for a hand-off, and as many as a contest has.
    pub(crate) async fn connect(count: usize, client: impl AsyncFn() -> Outcome<C>) -> Outcome<Self> {
        Ok(Self(try_join_all((0..count).map(|_| client())).await?))
    }
}

#[async_trait(?Send)]
impl<C: Client> Measured for Here<C> {
    async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>> {
        let client = &self.0[0];
        let mut took = Vec::with_capacity(pairs);
        for _ in 0..pairs {
            let begun = Instant::now();
            client.unlock(client.lock(name).await?).await?;
            took.push(begun.elapsed());
        }
        Ok(took)
    }

    async fn handoff(&self, name: &str, turns: usize, hold: Duration) -> Outcome<Vec<Duration>> {
        // Whose turn it is to ask. It is a client's turn as soon as the other one has the lock.
        let asks = [Semaphore::new(1), Semaphore::new(0)];
        let released = Cell::new(None::<Instant>);
        let player = async |me: usize| {
            let mut took = Vec::new();
            for _ in 0..turns {
                asks[me].acquire().await?.forget();
                let held = self.0[me].lock(name).await?;
                took.extend(released.take().map(|at| at.elapsed()));
                asks[1 - me].add_permits(1);
                sleep(hold).await;
                released.set(Some(Instant::now()));
                self.0[me].unlock(held).await?;
            }
            Outcome::Ok(took)
        };
        let (one, other) = tokio::try_join!(player(0), player(1))?;
        Ok([one, other].concat())
    }

    async fn contend(&self, name: &str, contest: &Contest) -> Outcome<Vec<Duration>> {
        let Contest { clients, tasks, turns, hold } = *contest;
        let task = async |me: usize| {
            let client = &self.0[me % clients];
            let mut waits = Vec::new();
            for _ in 0..turns {
                let asked = Instant::now();
                let held = client.lock(name).await?;
                waits.push(asked.elapsed());
                sleep(hold).await;
                client.unlock(held).await?;
            }
            Outcome::Ok(waits)
        };
        Ok(try_join_all((0..tasks).map(task)).await?.concat())
    }

    async fn counted(&self, name: &str, counter: &dyn Counter) -> Outcome<[f64; 2]> {
        let client = &self.0[0];
        counted(counter, async || client.lock(name).await, async |held| client.unlock(held).await).await
    }
}

/// What most of twenty acquisitions and releases add to a counter.
pub(super) async fn counted<H>(
    counter: &dyn Counter,
    lock: impl AsyncFn() -> Outcome<H>,
    unlock: impl AsyncFn(H) -> Outcome,
) -> Outcome<[f64; 2]> {
    let mut added = [Figures::default(), Figures::default()];
    for _ in 0..20 {
        let before = counter.read().await?;
        let held = lock().await?;
        let between = counter.read().await?;
        unlock(held).await?;
        added[0].add(between - before);
        added[1].add(counter.read().await? - between);
    }
    Ok(added.map(|added| added.quantile(0.5)))
}
