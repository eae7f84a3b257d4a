//! Times that a peer measures itself, for benchmarks. Measured by the test, they would include the
//! lines of text.

use std::{io, time::Duration};

use super::{Contender, PeerKind};

/// Maximum time of a measurement.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(300);

/// Several tasks or threads of a peer that contend for one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contest {
    /// Number of clients, each with its own connections.
    pub clients: usize,
    /// Number of tasks or threads. Task `i` uses client `i % clients`.
    pub tasks: usize,
    /// Number of acquisitions by each task. It requests the next one directly after each release.
    pub turns: usize,
    /// Length of each hold, in whole milliseconds.
    pub hold: Duration,
}

impl Contender {
    /// Measures pairs of lock and unlock without contention. Returns the duration of each pair.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and if the peer does not measure.
    pub async fn time(&self, kind: PeerKind, name: &str, pairs: usize) -> io::Result<Vec<Duration>> {
        self.durations(format!("time {kind} {name} {pairs}")).await
    }

    /// Measures hand-offs between two clients, each of which waits while the other holds the lock.
    ///
    /// Each client takes the lock `turns` times, and holds it for `hold`. Returns the time from
    /// each release to the grant of the other client.
    ///
    /// # Errors
    /// As [`time`](Self::time).
    pub async fn handoff(
        &self,
        kind: PeerKind,
        name: &str,
        turns: usize,
        hold: Duration,
    ) -> io::Result<Vec<Duration>> {
        self.durations(format!("handoff {kind} {name} {turns} {}", hold.as_millis())).await
    }

    /// Runs a contest. Returns the duration of each wait.
    ///
    /// # Errors
    /// As [`time`](Self::time).
    pub async fn contend(&self, kind: PeerKind, name: &str, contest: &Contest) -> io::Result<Vec<Duration>> {
        let Contest { clients, tasks, turns, hold } = contest;
        let hold = hold.as_millis();
        self.durations(format!("contend {kind} {name} {clients} {tasks} {turns} {hold}")).await
    }

    async fn durations(&self, request: String) -> io::Result<Vec<Duration>> {
        let reply = self.request(&request, MEASURE_TIMEOUT).await?;
        let durations = reply.strip_prefix("took").and_then(|nanos| {
            let nanos = nanos.split_whitespace().map(str::parse);
            nanos.map(|nanos| nanos.map(Duration::from_nanos).ok()).collect()
        });
        durations.ok_or_else(|| self.unexpected_reply(&request, &reply))
    }
}
