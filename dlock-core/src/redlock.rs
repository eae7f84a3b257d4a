//! RedLock: a majority of independent stores as one backend.

mod claim;
mod inspect;
mod member;

use std::{fmt, sync::Arc, time::Duration};

use crate::{Backend, Claim, Error, Info, Kind, Request, Result, Store};
use claim::RedLockClaim;

/// A majority of several independent stores as one: survives the loss of a minority of them.
///
/// All members are asked at once, each with a time-out of its own. The lock is held while a majority holds it;
/// it is valid for what the slowest of that majority promises, less a drift of 1 % of the ttl and 2 ms for clocks that run
/// at different speeds. A member that fails, restarts or comes back costs nothing while a majority stands, and is
/// taken up again at the next renewal.
///
/// A waiter stays in the queues of the members that have queues, and is woken by them. Contenders that split the
/// members between them, so that none has a majority, let go after a random pause and ask again.
///
/// **It has no fencing token**, since no order of grants is common to all members, and it stands and falls with the
/// members' memory: one that forgets a lock (an asynchronous disk, a failover) and comes back at once can help a second holder to
/// a majority. Where that matters, use one store with a token; `docs/semantics.md` compares the two.
#[derive(Clone)]
pub struct RedLock {
    members: Arc<[Store]>,
    member_timeout: Option<Duration>,
    info: Arc<Info>,
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
        let kinds = Kind::ALL.iter().copied().filter(|kind| infos().all(|info| info.kinds.contains(kind)));
        let kinds = common(&kinds.collect::<Vec<_>>());
        let least = infos().map(|info| *info.ttl.start()).max().unwrap_or_default();
        let most = infos().map(|info| *info.ttl.end()).min().unwrap_or_default();
        if kinds.is_empty() || least > most {
            return invalid("the members of a redlock have no kind of lock, or no ttl, in common".to_owned());
        }
        let info = Info {
            store: "redlock",
            identity: format!("redlock:{}", identities.join(",")),
            kinds,
            tokens: false,
            downgrades: false,
            // Below this the drift leaves nothing.
            ttl: least.max(Duration::from_millis(10))..=most,
        };
        Ok(Self { members, member_timeout: None, info: Arc::new(info) })
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

impl Backend for RedLock {
    fn info(&self) -> &Info {
        &self.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(RedLockClaim::new(self, request))
    }
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedLock").field(&self.info.identity).finish()
    }
}

/// The kinds that all members have, as [`Info`] wants them.
fn common(kinds: &[Kind]) -> &'static [Kind] {
    match kinds {
        [Kind::Mutex] => &[Kind::Mutex],
        [Kind::Mutex, Kind::Fair] => &[Kind::Mutex, Kind::Fair],
        [Kind::Mutex, Kind::Read, Kind::Write] => &[Kind::Mutex, Kind::Read, Kind::Write],
        [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write] => Kind::ALL,
        [Kind::Read, Kind::Write] => &[Kind::Read, Kind::Write],
        [Kind::Fair] => &[Kind::Fair],
        _ => &[],
    }
}
