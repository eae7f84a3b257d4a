//! Times that a peer measures itself, for benchmarks: measured from here, they would include the lines of text.

use std::{io, time::Duration};

use super::{Contender, PeerKind};

/// The longest that a measurement may take.
const MEASURED: Duration = Duration::from_secs(300);

/// Several who want one lock at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contest {
    /// How many clients they have, with connections of their own.
    pub clients: usize,
    /// How many they are: task or thread `i` uses client `i % clients`.
    pub tasks: usize,
    /// How often each takes the lock, and asks again as soon as it has let go.
    pub turns: usize,
    /// How long each holds it, in whole milliseconds.
    pub hold: Duration,
}

impl Contender {
    /// How long each of so many pairs of lock and unlock takes, with nobody else there.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and if the peer does not measure.
    pub async fn time(&self, kind: PeerKind, name: &str, pairs: usize) -> io::Result<Vec<Duration>> {
        self.took(format!("time {kind} {name} {pairs}")).await
    }

    /// Two clients take the lock in turn, each so often and holding it for so long, and each waits while the other
    /// holds it: how long it takes from when one lets go until the other has it.
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
        self.took(format!("handoff {kind} {name} {turns} {}", hold.as_millis())).await
    }

    /// How long each in a contest waits each time.
    ///
    /// # Errors
    /// As [`time`](Self::time).
    pub async fn contend(&self, kind: PeerKind, name: &str, contest: &Contest) -> io::Result<Vec<Duration>> {
        let Contest { clients, tasks, turns, hold } = contest;
        let hold = hold.as_millis();
        self.took(format!("contend {kind} {name} {clients} {tasks} {turns} {hold}")).await
    }

    async fn took(&self, asked: String) -> io::Result<Vec<Duration>> {
        let answer = self.ask(&asked, MEASURED).await?;
        let took = answer.strip_prefix("took").and_then(|nanos| {
            let nanos = nanos.split_whitespace().map(str::parse);
            nanos.map(|nanos| nanos.map(Duration::from_nanos).ok()).collect()
        });
        took.ok_or_else(|| self.strange(&asked, &answer))
    }
}
