//! RedLock: a majority of independent stores as one backend.

mod call;
mod claim;
mod connect;
mod hold;
mod ids;
mod inspect;
mod member;
mod resuming;
mod tally;
mod watch;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::{
    contract::{Backend, Claim, Info, Request, Store, Watch},
    model::{Error, Kind, LockName, Result},
};
use claim::{MAX_MEMBER_TIMEOUT, RedLockClaim};
pub use connect::connect_majority;

/// Several independent stores as one backend. A claim holds a lock if it holds the lock on a
/// majority of the stores. The lock survives the loss of a minority.
///
/// Each request goes to all members at once, with a separate timeout for each. A hold is valid for
/// the shortest time that a member of the majority grants, less a drift of 1 % of the ttl and 2 ms
/// for clocks that run at different speeds. A failed member does no harm while the others are a
/// majority. If a member returns without its data, the next renewal detects it. The member then
/// gets a new attempt, and counts for the majority again once its new grant was renewed. Until a
/// quorum of members with a vote has confirmed the hold after that detection, no newcomer counts in
/// the place of a silent member.
///
/// A waiter stays in the queues of the members that have queues, and they wake it. Several
/// contenders may each hold some members without a majority. Each of them then releases its members
/// after a random pause, and tries again.
///
/// A release returns soon after a majority has confirmed it, and [`close`](crate::Locks::close)
/// waits only for releases that no majority has confirmed. The release is repeated on the other
/// members while the runtime lives. If the program ends before, such a member frees its part after
/// the ttl.
///
/// **Fairness is limited.** No order is common to all members. [`fair`](crate::Locks::fair) and
/// read/write locks are granted in order of arrival if contenders arrive further apart than a round
/// trip and no reply of a member is lost. Otherwise several contenders may hold members at the same
/// time, and a later one may get the majority first.
///
/// **There are no semaphores.** Each member would keep the limit, but a majority of members would
/// not. Of three members that each grant two permits, three holders can have two members each. In
/// general, `m` members with a majority of `q` admit up to `m * limit / q` holders, which equals
/// the limit only for a limit of one. To keep a larger limit, a holder would need nearly all
/// members, and the loss of one member would stop it. A permit is therefore refused before any I/O.
/// Use one store for a semaphore, or as many mutexes as there are permits.
///
/// **A detached hold** is based on the majority that keeps it. Its ticket lists the members that
/// keep a part of it, so the hold can be resumed only on these members. If a member misses the
/// release by ticket, the release is repeated for another ttl. After that the member keeps its part
/// until the ticket's time ends. With three members, the next holder needs both others until then.
/// The same applies to a member that misses a detachment or a resumption. It keeps its part under
/// the old id until the time of that part ends, unless a release reaches the member earlier.
///
/// The ids that the members report agree with [`Guard::id`](crate::Guard::id) in their first 30
/// characters. Each member receives a different id, and a new one after each release, so that a
/// late request never affects a later claim.
///
/// **There is no fencing token**, because no order of grants is common to all members. RedLock also
/// relies on the members to keep their data. A member that forgets a lock (an asynchronous disk, a
/// failover) and restarts at once can give a second holder a majority. If that matters, use one
/// store with tokens; `docs/semantics.md` compares the two.
#[derive(Clone)]
pub struct RedLock {
    members: Arc<[Store]>,
    member_timeout: Option<Duration>,
    info: Arc<Info>,
    /// Releases in the background that `close` waits for. Each is a release on one member, and
    /// leaves the tracker with the first reply of that member.
    unanswered_releases: TaskTracker,
}

impl RedLock {
    /// Creates a RedLock of three or more stores that fail independently. Take an odd number,
    /// because one member more tolerates no further failure.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for fewer than three members, for a member that is given twice, and
    /// for members that have no kind of lock, or no ttl, in common.
    pub fn new(members: impl IntoIterator<Item = Store>) -> Result<Self> {
        let mut members: Vec<Store> = members.into_iter().collect();
        // A ticket refers to members by index, so the index must not depend on the order in which a
        // client lists them.
        members.sort_by(|a, b| a.backend.info().identity.cmp(&b.backend.info().identity));
        let members: Arc<[Store]> = members.into();
        let invalid = |reason| Err(Error::InvalidConfig { reason });
        if members.len() < 3 {
            return invalid(format!("a redlock needs at least three stores, not {}", members.len()));
        }
        let identities: Vec<_> =
            members.iter().map(|member| member.backend.info().identity.as_str()).collect();
        if let Some(twice) = identities.windows(2).find(|pair| pair[0] == pair[1]) {
            return invalid(format!("a redlock needs independent stores, and `{}` is given twice", twice[0]));
        }
        let infos = || members.iter().map(|member| member.backend.info());
        let kinds = KINDS.iter().copied().filter(|kind| infos().all(|info| info.kinds.contains(kind)));
        let kinds = static_kinds(&kinds.collect::<Vec<_>>());
        let min_ttl = infos().map(|info| *info.ttl.start()).max().unwrap_or_default();
        // With a shorter ttl, the drift would leave too little time.
        let min_ttl = min_ttl.max(Duration::from_millis(10));
        let max_ttl = infos().map(|info| *info.ttl.end()).min().unwrap_or_default();
        if kinds.is_empty() || min_ttl > max_ttl {
            return invalid("the members of a redlock have no kind of lock, or no ttl, in common".to_owned());
        }
        let shortest_lease = infos().map(|info| *info.leases.start()).max().unwrap_or_default();
        let longest_lease = infos().map(|info| *info.leases.end()).min().unwrap_or_default();
        let identity = format!("redlock:{}", identities.join(","));
        let info =
            Info::new("redlock", identity).kinds(kinds).alternatives(ALTERNATIVES).ttl(min_ttl..=max_ttl);
        let info = info.detaches(infos().all(|info| info.detaches));
        // Each attempt sends every member one request, so the tightest bound applies to all.
        let attempts = infos().map(|info| info.attempts_in_flight).min().unwrap_or(1);
        let repeats = infos().map(|info| info.repeats_in_flight).min().unwrap_or(1);
        let releases = infos().map(|info| info.releases_in_flight).min().unwrap_or(1);
        let info = info.attempts_in_flight(attempts).repeats_in_flight(repeats).releases_in_flight(releases);
        let info = match infos().filter_map(|info| info.session).max() {
            Some(session) => info.session(session, shortest_lease..=longest_lease),
            None => info,
        };
        let unanswered_releases = member::closed_tracker();
        Ok(Self { members, member_timeout: None, info: Arc::new(info), unanswered_releases })
    }

    /// Sets the time after which the lock continues without the reply of a member. Default: a tenth
    /// of the ttl, at least 50 ms and at most 2 s. The call to the slow member continues in the
    /// background, and its reply still counts.
    #[must_use]
    pub fn member_timeout(mut self, limit: Duration) -> Self {
        self.member_timeout = Some(limit);
        self
    }

    /// Returns the store for [`Locks`](crate::Locks). The store can be inspected if every member
    /// can.
    pub fn into_store(self) -> Store {
        let inspect = self.members.iter().all(|member| member.inspect.is_some());
        let store = Store::new(Arc::new(self.clone()));
        if inspect { store.with_inspect(Arc::new(self)) } else { store }
    }

    /// Returns the number of members that are a majority.
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

    fn watch(&self, name: &LockName) -> Option<Box<dyn Watch>> {
        watch::of_members(&self.members, name)
    }

    /// Waits for the first reply to each release in the background, for at most two seconds, and
    /// then closes the members. When the engine calls this, a majority has confirmed the release of
    /// every claim. A release that a member of the minority has not confirmed is repeated while the
    /// runtime lives, but a member that is down must not delay the end of a program.
    async fn close(&self) {
        timeout(MAX_MEMBER_TIMEOUT, self.unanswered_releases.wait()).await.ok();
        join_all(self.members.iter().map(|member| member.backend.close())).await;
    }
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedLock").field(&self.info.identity).finish()
    }
}

/// The kinds that RedLock supports if its members do.
const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

/// Alternatives to the kinds that no RedLock supports, for the error text.
const ALTERNATIVES: &[(Kind, &str)] = &[(
    Kind::Permit,
    "a majority of members that each keep a limit lets in more holders than the limit, so take one store for a semaphore, \
     or as many mutexes as there are permits",
)];

/// Returns the constant list of these kinds, which [`Info`] requires.
fn static_kinds(kinds: &[Kind]) -> &'static [Kind] {
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
