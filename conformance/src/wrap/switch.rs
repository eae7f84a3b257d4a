//! A switch that cuts a client off from its store and reconnects it.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Contender, Error, LockName, LockState, Result,
    driver::{Attempt, Claim, Inspect, Release, Renewal, Resumption, Store},
};
use tokio::sync::watch;

use super::flaky::lost;

/// Ends a client as `kill -9` would end its process. Its session's heartbeat stops, and nothing is
/// released.
pub type Kill = Box<dyn Fn() + Send + Sync>;

/// Cuts a client off from its store and reconnects it, freezes it, or kills it. Clones are the same
/// switch.
#[derive(Clone)]
pub struct Switch {
    state: watch::Sender<State>,
    kill: Option<Arc<Kill>>,
}

/// State of the connection to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    /// Calls fail and do not reach the store.
    Down,
    /// Calls reach the store, but the replies are lost.
    OneWay,
    /// Calls hang until the state changes, as in a suspended process.
    Frozen,
    /// Like [`Down`](Self::Down), forever.
    Dead,
}

impl Default for Switch {
    fn default() -> Self {
        Self { state: watch::Sender::new(State::Up), kill: None }
    }
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Switch").field(&*self.state.borrow()).finish()
    }
}

impl Switch {
    /// Creates a switch that can also kill its client.
    pub fn with_kill(kill: Kill) -> Self {
        Self { kill: Some(Arc::new(kill)), ..Self::default() }
    }

    /// Changes the state. A killed client stays killed.
    fn set(&self, to: State) {
        self.state.send_if_modified(|state| {
            let alive = *state != State::Dead;
            *state = if alive { to } else { State::Dead };
            alive
        });
    }

    /// Kills the client. No request of the client reaches the store any more, not even its
    /// session's heartbeat. Its claims stay until the store deletes them, after their ttl or at the
    /// end of the session.
    pub fn kill(&self) {
        self.set(State::Dead);
        self.kill.iter().for_each(|kill| kill());
    }

    /// Returns whether the client was killed.
    pub fn is_killed(&self) -> bool {
        *self.state.borrow() == State::Dead
    }

    /// Reconnects the client. Calls reach the store and their replies arrive.
    pub fn connect(&self) {
        self.set(State::Up);
    }

    /// Makes calls fail without reaching the store. Holds are no longer renewed. If the store has
    /// sessions, the client's session stays alive.
    pub fn cut(&self) {
        self.set(State::Down);
    }

    /// Lets calls reach the store, but loses their replies.
    pub fn lose_answers(&self) {
        self.set(State::OneWay);
    }

    /// Makes calls hang. They are sent when the state changes again.
    pub fn freeze(&self) {
        self.set(State::Frozen);
    }

    /// Puts a store behind this switch, with its inspection. Hints still arrive.
    pub fn wrap(&self, store: Store) -> Store {
        let state = self.state.clone();
        let mut wrapped =
            super::wrap(store, move |claim, _| Box::new(Switched { claim, state: state.subscribe() }));
        wrapped.inspect = wrapped.inspect.map(|inspect| {
            Arc::new(SwitchedInspect { inspect, state: self.state.subscribe() }) as Arc<dyn Inspect>
        });
        wrapped
    }
}

#[derive(Debug)]
struct SwitchedInspect {
    inspect: Arc<dyn Inspect>,
    state: watch::Receiver<State>,
}

#[async_trait]
impl Inspect for SwitchedInspect {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        pass(&mut self.state.clone(), self.inspect.inspect(name)).await
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Contender>> {
        pass(&mut self.state.clone(), self.inspect.holder(name)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        pass(&mut self.state.clone(), self.inspect.list(prefix)).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        pass(&mut self.state.clone(), self.inspect.force_release(name)).await
    }
}

struct Switched {
    claim: Box<dyn Claim>,
    state: watch::Receiver<State>,
}

async fn pass<T>(state: &mut watch::Receiver<State>, reply: impl Future<Output = Result<T>>) -> Result<T> {
    let state = state.wait_for(|state| *state != State::Frozen).await.map_or(State::Up, |state| *state);
    match state {
        State::Down | State::Dead => Err(Error::Unavailable { store: "switched", source: "cut off".into() }),
        State::OneWay => {
            reply.await.ok();
            Err(lost())
        }
        State::Up | State::Frozen => reply.await,
    }
}

#[async_trait]
impl Claim for Switched {
    async fn attempt(&mut self) -> Result<Attempt> {
        pass(&mut self.state, self.claim.attempt()).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        pass(&mut self.state, self.claim.renew()).await
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        pass(&mut self.state, self.claim.detach(lasting, ticket)).await
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        pass(&mut self.state, self.claim.resume(ticket)).await
    }

    fn locator(&self) -> Option<Arc<str>> {
        self.claim.locator()
    }

    fn leave(&mut self) {
        self.claim.leave();
    }

    fn late_for(&self) -> Duration {
        self.claim.late_for()
    }

    async fn release(&mut self) -> Result<Release> {
        pass(&mut self.state, self.claim.release()).await
    }

    async fn changed(&mut self) {
        self.claim.changed().await;
    }
}
