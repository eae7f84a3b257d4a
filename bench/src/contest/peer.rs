//! Contestants that are separate programs: the peers of the interop tests. They measure themselves.
//!
//! They inherit the allowed processor cores of this process.

use std::{cell::RefCell, rc::Rc, time::Duration};

use async_trait::async_trait;
use dlock_testbed::peer::{Contender, Contest, Peer, PeerKind, Program};

use super::{Counter, Measure, Outcome, in_process::count};

/// Wait limit of a peer, longer than any wait of a measurement.
const PEER_WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Starts a peer that is connected to one server, or to several with commas between the URLs. `ttl`
/// is the ttl of its locks.
pub(crate) fn start(program: Program, urls: &str, ttl: Duration) -> Result<Rc<Peer>, String> {
    let built = program.build().map_err(|unreachable| unreachable.reason)?;
    Ok(Rc::new(built.start(urls, ttl)))
}

/// The locks of one kind of a peer.
pub(crate) struct PeerContestant {
    peer: Rc<Peer>,
    kind: PeerKind,
    /// Contenders without a request in progress. They are reused, because each contender occupies a
    /// thread of the peer until the peer ends.
    idle: RefCell<Vec<Contender>>,
}

impl PeerContestant {
    pub(crate) fn of(peer: &Result<Rc<Peer>, String>, kind: PeerKind) -> Result<Self, String> {
        peer.clone().map(|peer| Self { peer, kind, idle: RefCell::default() })
    }

    fn contender(&self) -> Contender {
        self.idle.borrow_mut().pop().unwrap_or_else(|| self.peer.contender())
    }
}

#[async_trait(?Send)]
impl Measure for PeerContestant {
    async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>> {
        let contender = self.contender();
        let durations = contender.time(self.kind, name, pairs).await?;
        self.idle.borrow_mut().push(contender);
        Ok(durations)
    }

    async fn handoff(&self, name: &str, turns: usize, hold: Duration) -> Outcome<Vec<Duration>> {
        let contender = self.contender();
        let durations = contender.handoff(self.kind, name, turns, hold).await?;
        self.idle.borrow_mut().push(contender);
        Ok(durations)
    }

    async fn contend(&self, name: &str, contest: &Contest) -> Outcome<Vec<Duration>> {
        let contender = self.contender();
        let waits = contender.contend(self.kind, name, contest).await?;
        self.idle.borrow_mut().push(contender);
        Ok(waits)
    }

    async fn count(&self, name: &str, counter: &dyn Counter) -> Outcome<[f64; 2]> {
        let (kind, contender) = (self.kind, self.contender());
        let lock = async || {
            contender.lock(kind, name, PEER_WAIT_LIMIT).await?.ok_or_else(|| "the lock is busy".into())
        };
        let increases = count(counter, lock, async |_| Ok(contender.unlock(kind, name).await?)).await?;
        self.idle.borrow_mut().push(contender);
        Ok(increases)
    }
}
