//! Contestants that are programs of their own: the peers of the interop tests. They measure themselves.
//!
//! They run on the cores that this process may use.

use std::{cell::RefCell, rc::Rc, time::Duration};

use async_trait::async_trait;
use dlock_testbed::peer::{Contender, Contest, Peer, PeerKind, Program};

use super::{Counter, Measured, Outcome, here::counted};

/// Longer than anybody waits here.
const LONG: Duration = Duration::from_secs(60);

/// Starts a peer that is connected to a server, or to several with commas between. Its locks have this ttl.
pub(crate) fn start(program: Program, urls: &str, ttl: Duration) -> Result<Rc<Peer>, String> {
    let built = program.build().map_err(|unreachable| unreachable.reason)?;
    Ok(Rc::new(built.start(urls, ttl)))
}

pub(crate) struct There {
    peer: Rc<Peer>,
    kind: PeerKind,
    /// The contenders that have nothing to do now. Each does one thing at a time, and keeps a thread of the peer for ever.
    idle: RefCell<Vec<Contender>>,
}

impl There {
    pub(crate) fn of(peer: &Result<Rc<Peer>, String>, kind: PeerKind) -> Result<Self, String> {
        peer.clone().map(|peer| Self { peer, kind, idle: RefCell::default() })
    }

    fn contender(&self) -> Contender {
        self.idle.borrow_mut().pop().unwrap_or_else(|| self.peer.contender())
    }
}

#[async_trait(?Send)]
impl Measured for There {
    async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>> {
        let contender = self.contender();
        let took = contender.time(self.kind, name, pairs).await?;
        self.idle.borrow_mut().push(contender);
        Ok(took)
    }

    async fn handoff(&self, name: &str, turns: usize, hold: Duration) -> Outcome<Vec<Duration>> {
        let contender = self.contender();
        let took = contender.handoff(self.kind, name, turns, hold).await?;
        self.idle.borrow_mut().push(contender);
        Ok(took)
    }

    async fn contend(&self, name: &str, contest: &Contest) -> Outcome<Vec<Duration>> {
        let contender = self.contender();
        let waits = contender.contend(self.kind, name, contest).await?;
        self.idle.borrow_mut().push(contender);
        Ok(waits)
    }

    async fn counted(&self, name: &str, counter: &dyn Counter) -> Outcome<[f64; 2]> {
        let (kind, contender) = (self.kind, self.contender());
        let lock = async || contender.lock(kind, name, LONG).await?.ok_or_else(|| "it is busy".into());
        let added = counted(counter, lock, async |_| Ok(contender.unlock(kind, name).await?)).await?;
        self.idle.borrow_mut().push(contender);
        Ok(added)
    }
}
