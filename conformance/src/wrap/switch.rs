//! A client that can be cut off from its store, and connected again.

use async_trait::async_trait;
use dlock_core::{Attempt, Claim, Error, Release, Renewal, Result, Store};
use tokio::sync::watch;

use super::flaky::lost;

/// Cuts a client off from its store, and connects it again. Clones are the same switch.
#[derive(Clone, Debug)]
pub struct Switch(watch::Sender<Line>);

/// What the line to the store does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Up,
    /// Calls fail and do not reach the store.
    Down,
    /// Calls reach the store, the answers are lost.
    OneWay,
    /// Calls hang until the line is something else, as in a process that is stopped.
    Frozen,
}

impl Default for Switch {
    fn default() -> Self {
        Self(watch::Sender::new(Line::Up))
    }
}

impl Switch {
    /// From now on calls reach the store and are answered.
    pub fn connect(&self) {
        self.0.send_replace(Line::Up);
    }

    /// From now on calls fail without reaching the store: what was held is no longer renewed, as after a crash.
    pub fn cut(&self) {
        self.0.send_replace(Line::Down);
    }

    /// From now on the store acts, but the answers are lost.
    pub fn lose_answers(&self) {
        self.0.send_replace(Line::OneWay);
    }

    /// From now on calls hang, until the next change; then they are made.
    pub fn freeze(&self) {
        self.0.send_replace(Line::Frozen);
    }

    /// A store on this line. Hints come all the same.
    pub fn wrap(&self, store: Store) -> Store {
        let line = self.clone();
        super::wrap(store, move |claim, _| Box::new(Switched { claim, line: line.0.subscribe() }))
    }
}

struct Switched {
    claim: Box<dyn Claim>,
    line: watch::Receiver<Line>,
}

async fn pass<T>(line: &mut watch::Receiver<Line>, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let line = line.wait_for(|line| *line != Line::Frozen).await.map_or(Line::Up, |line| *line);
    match line {
        Line::Down => Err(Error::Unavailable { store: "switched", source: "cut off".into() }),
        Line::OneWay => {
            answer.await.ok();
            Err(lost())
        }
        Line::Up | Line::Frozen => answer.await,
    }
}

#[async_trait]
impl Claim for Switched {
    async fn attempt(&mut self) -> Result<Attempt> {
        pass(&mut self.line, self.claim.attempt()).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        pass(&mut self.line, self.claim.renew()).await
    }

    async fn release(&mut self) -> Result<Release> {
        pass(&mut self.line, self.claim.release()).await
    }

    async fn changed(&mut self) {
        self.claim.changed().await;
    }
}
