//! A switch that cuts a client off from its store, and connects it again.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Result,
    driver::{Attempt, Claim, Release, Renewal, Resumption, Store},
};
use tokio::sync::watch;

use super::flaky::lost;

/// Ends a client as `kill -9` would end its process: its heartbeat stops, and nothing is released.
pub type Kill = Box<dyn Fn() + Send + Sync>;

/// Cuts a client off from its store, and connects it again; or kills it. Clones are the same switch.
#[derive(Clone)]
pub struct Switch {
    line: watch::Sender<Link>,
    kill: Option<Arc<Kill>>,
}

/// What the line to the store does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    /// Calls fail and do not reach the store.
    Down,
    /// Calls reach the store, the answers are lost.
    OneWay,
    /// Calls hang until the line is something else, as in a process that is stopped.
    Frozen,
    /// For ever as when down.
    Dead,
}

impl Default for Switch {
    fn default() -> Self {
        Self { line: watch::Sender::new(Link::Up), kill: None }
    }
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Switch").field(&*self.line.borrow()).finish()
    }
}

impl Switch {
    /// A switch that can also kill its client.
    pub fn with_kill(kill: Kill) -> Self {
        Self { kill: Some(Arc::new(kill)), ..Self::default() }
    }

    /// Sets what the line does from now on. A dead client stays dead.
    fn set(&self, to: Link) {
        self.line.send_if_modified(|line| {
            let alive = *line != Link::Dead;
            *line = if alive { to } else { Link::Dead };
            alive
        });
    }

    /// Kills the client: nothing of it reaches the store any more, not even its session's heartbeat. What it held stays
    /// until the store forgets it, after its ttl or at the end of its session.
    pub fn kill(&self) {
        self.set(Link::Dead);
        self.kill.iter().for_each(|kill| kill());
    }

    /// Whether the client was killed.
    pub fn is_killed(&self) -> bool {
        *self.line.borrow() == Link::Dead
    }

    /// From now on calls reach the store and are answered.
    pub fn connect(&self) {
        self.set(Link::Up);
    }

    /// From now on calls fail without reaching the store: what was held is no longer renewed. The client's session, where the
    /// store has one, lives on.
    pub fn cut(&self) {
        self.set(Link::Down);
    }

    /// From now on the store acts, but the answers are lost.
    pub fn lose_answers(&self) {
        self.set(Link::OneWay);
    }

    /// From now on calls hang. They are made when the line changes again.
    pub fn freeze(&self) {
        self.set(Link::Frozen);
    }

    /// Puts a store behind this line. Hints still arrive.
    pub fn wrap(&self, store: Store) -> Store {
        let line = self.line.clone();
        super::wrap(store, move |claim, _| Box::new(Switched { claim, line: line.subscribe() }))
    }
}

struct Switched {
    claim: Box<dyn Claim>,
    line: watch::Receiver<Link>,
}

async fn pass<T>(line: &mut watch::Receiver<Link>, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let line = line.wait_for(|line| *line != Link::Frozen).await.map_or(Link::Up, |line| *line);
    match line {
        Link::Down | Link::Dead => Err(Error::Unavailable { store: "switched", source: "cut off".into() }),
        Link::OneWay => {
            answer.await.ok();
            Err(lost())
        }
        Link::Up | Link::Frozen => answer.await,
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

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        pass(&mut self.line, self.claim.detach(lasting, ticket)).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        pass(&mut self.line, self.claim.resume(ticket)).await
    }

    fn locator(&self) -> Option<Arc<str>> {
        self.claim.locator()
    }

    async fn release(&mut self) -> Result<Release> {
        pass(&mut self.line, self.claim.release()).await
    }

    async fn changed(&mut self) {
        self.claim.changed().await;
    }
}
