//! RedLock: a majority of independent stores as one backend.

mod claim;
mod inspect;
mod member;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio_util::task::TaskTracker;

use crate::driver::{Backend, Claim, Error, Info, Kind, Request, Result, Store};
use claim::RedLockClaim;

/// A majority of several independent stores as one: survives the loss of a minority of them.
///
/// All members are asked at once, each with a time-out of its own. The lock is held while a majority holds it;
/// it is valid for what the slowest of that majority promises, less a drift of 1 % of the ttl and 2 ms for clocks that run
/// at different speeds. A member that fails costs nothing while a majority stands without it. One that comes back empty is
/// asked for a new grant after the renewal that notices it, and its vote counts once that grant was renewed.
///
/// A waiter stays in the queues of the members that have queues, and is woken by them. Contenders may split the members
/// between them, so that none has a majority. Each then releases what it holds after a random pause, and asks again.
///
/// **What is left of fairness.** No order is common to all members. [`fair`](crate::Locks::fair) and read/write locks are
/// granted in order of arrival while contenders arrive further apart than a round trip and no answer of a member is lost.
/// Otherwise a waiter may be overtaken by those with whom it split the members.
///
/// On its members a claim has ids that agree with [`Guard::id`](crate::Guard::id) in their first 30 characters. Each member
/// sees another id, and a new one after a release, so that a late request never touches a later claim.
///
/// **It has no fencing token**, since no order of grants is common to all members, and it stands and falls with the
/// members' memory: one that forgets a lock (an asynchronous disk, a failover) and comes back at once can help a second holder to
/// a majority. Where that matters, use one store with a token; `docs/semantics.md` compares the two.
#[derive(Clone)]
pub struct RedLock {
    members: Arc<[Store]>,
    member_timeout: Option<Duration>,
    info: Arc<Info>,
    /// Calls to members that answer late, and claims that are being released in the background.
    tasks: TaskTracker,
}

impl RedLock {
    /// A majority of `members`: an odd number of stores that fail independently.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for fewer than three members, one that is given twice, or members that have no kind of
    /// lock in common.
    pub fn new(members: impl IntoIterator<Item = Store>) -> Result<Self> {
        let members: Arc<[Store]> = members.into_iter().collect();
        let invalid = |reason| Err(Error::InvalidConfig { reason });
        if members.len() < 3 {
            return invalid(format!("a redlock needs at least three stores, not {}", members.len()));
        }
        let mut identities: Vec<_> =
            members.iter().map(|member| member.backend.info().identity.as_str()).collect();
        identities.sort_unstable();
        if let Some(twice) = identities.windows(2).find(|pair| pair[0] == pair[1]) {
            return invalid(format!("a redlock needs independent stores, and `{}` stands twice", twice[0]));
        }
        let infos = || members.iter().map(|member| member.backend.info());
        let kinds = KINDS.iter().copied().filter(|kind| infos().all(|info| info.kinds.contains(kind)));
        let kinds = common(&kinds.collect::<Vec<_>>());
        let least = infos().map(|info| *info.ttl.start()).max().unwrap_or_default();
        // Below this the drift leaves nothing.
        let least = least.max(Duration::from_millis(10));
        let most = infos().map(|info| *info.ttl.end()).min().unwrap_or_default();
        if kinds.is_empty() || least > most {
            return invalid("the members of a redlock have no kind of lock, or no ttl, in common".to_owned());
        }
        let shortest_lease = infos().map(|info| *info.leases.start()).max().unwrap_or_default();
        let longest_lease = infos().map(|info| *info.leases.end()).min().unwrap_or_default();
        let identity = format!("redlock:{}", identities.join(","));
        let info = Info::new("redlock", identity).kinds(kinds).ttl(least..=most);
        let info = match infos().filter_map(|info| info.session).max() {
            Some(session) => info.session(session, shortest_lease..=longest_lease),
            None => info,
        };
        Ok(Self { members, member_timeout: None, info: Arc::new(info), tasks: member::closed() })
    }

    /// How long one member may take for an answer before the lock goes on without it. Default: a tenth of the ttl, at
    /// least 50 ms and at most 2 s. A member that is merely late is still heard afterwards.
    #[must_use]
    pub fn member_timeout(mut self, limit: Duration) -> Self {
        self.member_timeout = Some(limit);
        self
    }

    /// The store, to make [`Locks`](crate::Locks) of. It can be inspected where every member can.
    pub fn into_store(self) -> Store {
        let inspect = self.members.iter().all(|member| member.inspect.is_some());
        let store = Store::new(Arc::new(self.clone()));
        if inspect { store.with_inspect(Arc::new(self)) } else { store }
    }

    /// How many members are enough.
    fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }
}

#[async_trait]
impl Backend for RedLock {
    fn info(&self) -> &Info {
        &self.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(RedLockClaim::new(self, request))
    }

    /// Waits for the members' late answers, and for releases in the background: those are repeated for a ttl at the longest,
    /// or in a member with sessions until the session ends. Then closes the members.
    async fn close(&self) {
        self.tasks.wait().await;
        join_all(self.members.iter().map(|member| member.backend.close())).await;
    }
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedLock").field(&self.info.identity).finish()
    }
}

/// The kinds that it can ask its members for.
const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

/// The kinds that all members have, as [`Info`] wants them.
fn common(kinds: &[Kind]) -> &'static [Kind] {
    match kinds {
        [Kind::Mutex] => &[Kind::Mutex],
        [Kind::Mutex, Kind::Fair] => &[Kind::Mutex, Kind::Fair],
        [Kind::Mutex, Kind::Read, Kind::Write] => &[Kind::Mutex, Kind::Read, Kind::Write],
        [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write] => KINDS,
        [Kind::Read, Kind::Write] => &[Kind::Read, Kind::Write],
        [Kind::Fair] => &[Kind::Fair],
        _ => &[],
    }
}
