//! Measurements of contestants that run in this process.

use std::{cell::Cell, time::Duration};

use async_trait::async_trait;
use dlock_testbed::peer::Contest;
use futures_util::future::try_join_all;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

use super::{Counter, Measure, Outcome};
use crate::figures::Figures;

/// Number of pairs of lock and release whose increase of a counter is measured.
const COUNTED_PAIRS: usize = 20;

/// A client with its own connection.
pub(crate) trait Client {
    /// The value that `unlock` needs.
    type Held;

    /// Waits for the lock without a limit.
    async fn lock(&self, name: &str) -> Outcome<Self::Held>;

    async fn unlock(&self, held: Self::Held) -> Outcome;
}

/// The clients of one contestant.
pub(crate) struct InProcess<C>(Vec<C>);

impl<C: Client> InProcess<C> {
    /// Connects `count` clients. A hand-off needs two, and a contest as many as it has.
    pub(crate) async fn connect(count: usize, client: impl AsyncFn() -> Outcome<C>) -> Outcome<Self> {
        Ok(Self(try_join_all((0..count).map(|_| client())).await?))
    }
}

#[async_trait(?Send)]
impl<C: Client> Measure for InProcess<C> {
    async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>> {
        let client = &self.0[0];
        let mut durations = Vec::with_capacity(pairs);
        for _ in 0..pairs {
            let started_at = Instant::now();
            client.unlock(client.lock(name).await?).await?;
            durations.push(started_at.elapsed());
        }
        Ok(durations)
    }

    async fn handoff(&self, name: &str, turns: usize, hold: Duration) -> Outcome<Vec<Duration>> {
        // A client may request the lock once the other client holds it.
        let may_request = [Semaphore::new(1), Semaphore::new(0)];
        let released_at = Cell::new(None::<Instant>);
        let play = async |client: usize| {
            let mut durations = Vec::new();
            for _ in 0..turns {
                may_request[client].acquire().await?.forget();
                let held = self.0[client].lock(name).await?;
                durations.extend(released_at.take().map(|at| at.elapsed()));
                may_request[1 - client].add_permits(1);
                sleep(hold).await;
                released_at.set(Some(Instant::now()));
                self.0[client].unlock(held).await?;
            }
            Outcome::Ok(durations)
        };
        let (first, second) = tokio::try_join!(play(0), play(1))?;
        Ok([first, second].concat())
    }

    async fn contend(&self, name: &str, contest: &Contest) -> Outcome<Vec<Duration>> {
        let Contest { clients, tasks, turns, hold } = *contest;
        let run_task = async |task: usize| {
            let client = &self.0[task % clients];
            let mut waits = Vec::new();
            for _ in 0..turns {
                let requested_at = Instant::now();
                let held = client.lock(name).await?;
                waits.push(requested_at.elapsed());
                sleep(hold).await;
                client.unlock(held).await?;
            }
            Outcome::Ok(waits)
        };
        Ok(try_join_all((0..tasks).map(run_task)).await?.concat())
    }

    async fn count(&self, name: &str, counter: &dyn Counter) -> Outcome<[f64; 2]> {
        let client = &self.0[0];
        count(counter, async || client.lock(name).await, async |held| client.unlock(held).await).await
    }
}

/// Measures the increase of a counter by each of several acquisitions and releases. Returns the
/// medians.
pub(super) async fn count<H>(
    counter: &dyn Counter,
    lock: impl AsyncFn() -> Outcome<H>,
    unlock: impl AsyncFn(H) -> Outcome,
) -> Outcome<[f64; 2]> {
    let mut increases = [Figures::default(), Figures::default()];
    for _ in 0..COUNTED_PAIRS {
        let before = counter.read().await?;
        let held = lock().await?;
        let between = counter.read().await?;
        unlock(held).await?;
        increases[0].add(between - before);
        increases[1].add(counter.read().await? - between);
    }
    Ok(increases.map(|increases| increases.quantile(0.5)))
}
