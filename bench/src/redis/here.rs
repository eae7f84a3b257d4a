//! Contestants in this process, and how they are measured.

use std::{cell::Cell, time::Duration};

use async_trait::async_trait;
use dlock_conformance::peer::Contest;
use futures_util::future::try_join_all;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

use super::{Outcome, contestant::Measured};

/// A client with a connection of its own.
pub(super) trait Client {
    type Held;

    /// Waits for the lock without end.
    async fn lock(&self, name: &str) -> Outcome<Self::Held>;

    async fn unlock(&self, held: Self::Held) -> Outcome;
}

/// The clients of one contestant, as many as the largest contest has.
pub(super) struct Here<C>([C; 8]);

impl<C: Client> Here<C> {
    pub(super) async fn connect(client: impl AsyncFn() -> Outcome<C>) -> Outcome<Self> {
        let clients = try_join_all((0..8).map(|_| client())).await?;
        Ok(Self(clients.try_into().map_err(|_| "there are eight")?))
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
}
