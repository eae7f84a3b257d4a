//! RedLock: a majority of independent stores as one backend.

mod claim;
mod inspect;
mod member;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio_util::task::TaskTracker;

use crate::{
    contract::{Backend, Claim, Info, Request, Store},
    model::{Error, Kind, Result},
};
use claim::RedLockClaim;

/// Several independent stores as one backend: a lock is held if a majority of them holds it. Survives the loss of a
/// minority.
///
/// All members are asked at once, each with a time-out of its own. The lock is held while a majority holds it; it is valid
/// for what the slowest of that majority promises, less a drift of 1 % of the ttl and 2 ms for clocks that run at different
/// speeds. While a majority holds without it, a member that fails does no harm. A member that comes back without its data
/// is noticed at the next renewal. It is then asked for a new grant, and counts for the majority again once that grant was
/// renewed.
///
/// A waiter stays in the queues of the members that have queues, and is woken by them. Several contenders may each hold
/// some members and none a majority. Each of them then releases its members after a random pause, and asks again.
///
/// **What is left of fairness.** No order is common to all members. [`fair`](crate::Locks::fair) and read/write locks are
/// granted in order of arrival while contenders arrive further apart than a round trip and no answer of a member is lost.
/// Otherwise several contenders may hold members at the same time, and one that came later may get the majority first.
///
/// **It has no semaphores.** Each member would keep the limit, but a majority of members would not: of three members that
/// each grant two permits, three holders can have two members each. In general `m` members with a majority of `q` let in up
/// to `m * limit / q` holders, which is the limit only for a limit of one. To keep a larger limit, a holder would need nearly
/// all members, and the loss of one member would stop it. So a permit is refused before any member is asked. Take one store
/// for a semaphore, or as many mutexes as there are permits.
///
/// **A detached hold** rests on the majority that keeps it. Its ticket tells which claim each member has, so that it can be
/// taken back there and nowhere else. A member that is away when the ticket is used to release the hold is asked again for
/// another ttl, and then keeps its claim until the time of the ticket is over. Two of three members are enough for the next
/// holder, but none of them may fail meanwhile. The same holds for a member that misses a detachment or a resumption: it
/// keeps its part under the id that it knows until that part's time is over, unless its release reaches it before.
///
/// The ids that the members show agree with [`Guard::id`](crate::Guard::id) in their first 30 characters. Each member sees
/// a different id, and a new one after each release, so that a late request never touches a later claim.
///
/// **It has no fencing token**, since no order of grants is common to all members. And it relies on the members to keep
/// their data: a member that forgets a lock (an asynchronous disk, a failover) and comes back at once can help a second
/// holder to a majority. Where that matters, use one store with a token; `docs/semantics.md` compares the two.
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
        let mut members: Vec<Store> = members.into_iter().collect();
        // A ticket names members by their place. So the place must not depend on the order in which a client lists them.
        members.sort_by(|a, b| a.backend.info().identity.cmp(&b.backend.info().identity));
        let members: Arc<[Store]> = members.into();
        let invalid = |reason| Err(Error::InvalidConfig { reason });
        if members.len() < 3 {
            return invalid(format!("a redlock needs at least three stores, not {}", members.len()));
        }
        let identities: Vec<_> =
            members.iter().map(|member| member.backend.info().identity.as_str()).collect();
        if let Some(twice) = identities.windows(2).find(|pair| pair[0] == pair[1]) {
            return invalid(format!("a redlock needs independent stores, and `{}` stands twice", twice[0]));
        }
        let infos = || members.iter().map(|member| member.backend.info());
        let kinds = KINDS.iter().copied().filter(|kind| infos().all(|info| info.kinds.contains(kind)));
        let kinds = common(&kinds.collect::<Vec<_>>());
        let least = infos().map(|info| *info.ttl.start()).max().unwrap_or_default();
        // With a shorter ttl, too little would be left after the drift is taken off.
        let least = least.max(Duration::from_millis(10));
        let most = infos().map(|info| *info.ttl.end()).min().unwrap_or_default();
        if kinds.is_empty() || least > most {
            return invalid("the members of a redlock have no kind of lock, or no ttl, in common".to_owned());
        }
        let shortest_lease = infos().map(|info| *info.leases.start()).max().unwrap_or_default();
        let longest_lease = infos().map(|info| *info.leases.end()).min().unwrap_or_default();
        let identity = format!("redlock:{}", identities.join(","));
        let info = Info::new("redlock", identity).kinds(kinds).alternatives(INSTEAD).ttl(least..=most);
        let info = info.detaches(infos().all(|info| info.detaches));
        // Each attempt asks every member once, so the tightest bound holds for all.
        let attempts = infos().map(|info| info.attempts_in_flight).min().unwrap_or(1);
        let info = info.attempts_in_flight(attempts);
        let info = match infos().filter_map(|info| info.session).max() {
            Some(session) => info.session(session, shortest_lease..=longest_lease),
            None => info,
        };
        Ok(Self { members, member_timeout: None, info: Arc::new(info), tasks: member::closed() })
    }

    /// How long one member may take for an answer before the lock goes on without it. Default: a tenth of the ttl, at least
    /// 50 ms and at most 2 s. The call to a late member goes on in the background, and its answer still counts.
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

    /// Waits for calls and releases that go on in the background, then closes the members. A release is repeated for a ttl
    /// at the longest, or on a member with sessions until the session ends.
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

/// The kinds that RedLock knows how to ask its members for.
const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

/// What to do instead of asking for a kind that no RedLock has.
const INSTEAD: &[(Kind, &str)] = &[(
    Kind::Permit,
    "a majority of members that each keep a limit lets in more holders than the limit, so take one store for a semaphore, \
     or as many mutexes as there are permits",
)];

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
