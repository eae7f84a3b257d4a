//! MultiLock, which takes several locks of any kinds and stores as one.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::{join_all, select_all};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{DistributedLock, Guard, LockOptions, Member, guard::release_all, member::JointTry};
use crate::model::{Error, Kind, LockName, Result, Wait};

/// Several locks as one, of any names, kinds and stores. A call gets all of them or none, within
/// one wait limit.
///
/// **Acquisition.** The MultiLock first tries all members at the same time. If every member is
/// free, this takes the time of one round trip. If a member is busy, the MultiLock waits for that
/// member. During this wait it holds only members that precede the busy one in an order that all
/// MultiLocks share, which is by store and then by name. Two MultiLocks therefore never deadlock,
/// and no member is held unnecessarily.
///
/// **Joint requests.** If a store can grant several locks in one step
/// ([`Info::locks_per_step`](crate::driver::Info::locks_per_step)), as etcd, PostgreSQL and Redis
/// can, the exclusive members of one client share one request. A member with an
/// [`Owner`](crate::Owner) always has its own request.
///
/// **The guard** has a [token](Guard::tokens) for each member. It is lost when any member is lost.
/// The other members stay held until the guard is released.
///
/// **Options.** [`LockOptions::at_least`] of the call applies to every member. A store that cannot
/// keep a lock without its holder refuses it before any I/O. As a client's default the option
/// applies only to the members of that client. The default wait limit is the shortest of the
/// members' clients. All other defaults of a member are those of its own client.
///
/// **Duplicates.** A lock that is given twice counts once. The exclusive side wins, and the smaller
/// limit of two semaphores. A MultiLock therefore takes one permit of a semaphore.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// use dlock_core::{DistributedLock, DistributedLockExt, Kind, Locks, MultiLock};
/// use std::time::Duration;
/// let (stock, bank) = (Locks::memory(), Locks::memory());
/// let both = MultiLock::new([stock.of(Kind::Mutex, "item/7"), bank.of(Kind::Write, "account/42")])?;
/// let guard = both.lock_within(Duration::from_secs(5)).await?;
/// assert_eq!(guard.tokens().len(), 2);
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MultiLock {
    /// Members in the order that all MultiLocks share.
    members: Vec<Arc<dyn DistributedLock>>,
    /// Data for a joint request, for each member. `None` if the member must be tried separately.
    joinable: Vec<Option<Member>>,
    name: LockName,
}

/// Time between the timeout of the member that the MultiLock waits for and the timeout of the
/// MultiLock itself. The member's error has more detail, so the member's timeout comes first.
const TIMEOUT_GRACE: Duration = Duration::from_millis(20);

/// Maximum number of rounds that grant all members, but after which a member that was granted early
/// is lost already. Without this limit, an acquisition would never end in a store whose replies
/// take longer than the ttl.
const MAX_LOST_ROUNDS: u32 = 5;

/// The [store](DistributedLock::store) of every MultiLock.
const STORE: &str = "multilock";

impl MultiLock {
    /// Creates a MultiLock of `members`, in any order.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] in these cases:
    ///
    /// - There is no member.
    /// - A member is itself a MultiLock. Give its members instead, because the common order applies
    ///   to single locks.
    /// - A read lock and a permit of one name are among the members. They exclude each other.
    pub fn new(members: impl IntoIterator<Item = Arc<dyn DistributedLock>>) -> Result<Self> {
        let mut members: Vec<_> = members.into_iter().collect();
        let invalid = |reason: &str| Err(Error::InvalidConfig { reason: reason.to_owned() });
        if members.is_empty() {
            return invalid("a multilock needs at least one member");
        }
        if members.iter().any(|member| member.store() == STORE) {
            return invalid("a multilock cannot be a member of another: give the other one its members");
        }
        // The exclusive side of a read/write lock comes first, so that `dedup_by` keeps it.
        members.sort_by(|a, b| rank(a.as_ref()).cmp(&rank(b.as_ref())));
        let is_same =
            |a: &dyn DistributedLock, b: &dyn DistributedLock| (a.store(), a.name()) == (b.store(), b.name());
        for same_lock in members.chunk_by(|a, b| is_same(a.as_ref(), b.as_ref())) {
            let has = |kind| same_lock.iter().any(|member| member.kind() == kind);
            if same_lock[0].kind() == Kind::Permit && has(Kind::Read) {
                let name = same_lock[0].name();
                return invalid(&format!(
                    "a multilock cannot hold a permit and a read lock of `{name}`, which exclude each other: give it one of them"
                ));
            }
        }
        members.dedup_by(|a, b| is_same(a.as_ref(), b.as_ref()));
        let names: Vec<_> = members.iter().map(|member| member.name().as_str()).collect();
        let name = LockName::unchecked(names.join(" + "));
        let joinable = members.iter().map(|member| member.member()).collect();
        Ok(Self { members, joinable, name })
    }

    /// Tries all members that are not held yet, at the same time. Adds the granted members before
    /// the first busy one to `held`, and releases those after it. Returns the index of the first
    /// busy member, or `None` if all members are held.
    ///
    /// A call that does not wait skips the second round of requests. Members before the busy one
    /// may then be missing from `held`, which the caller releases anyway.
    async fn try_missing(&self, held: &mut Vec<Guard>, options: &LockOptions) -> Result<Option<usize>> {
        let from = held.len();
        let mut granted = BTreeMap::new();
        let mut busy = None;
        loop {
            // A joint request with a busy member grants none, so the members before the busy one
            // are requested again.
            let end = busy.unwrap_or(self.members.len());
            let missing = (from..end).filter(|at| !granted.contains_key(at));
            let requests = self.requests(missing);
            if requests.is_empty() || (busy.is_some() && options.wait_limit() == Wait::Never) {
                break;
            }
            let mut failed = None;
            let results =
                join_all(requests.into_iter().map(|indices| self.try_request(indices, options))).await;
            for (at, result) in results.into_iter().flatten() {
                match result {
                    Ok(Some(guard)) => drop(granted.insert(at, guard)),
                    Ok(None) => busy = Some(busy.map_or(at, |first: usize| first.min(at))),
                    Err(error) => {
                        if failed.as_ref().is_none_or(|(first, _)| at < *first) {
                            failed = Some((at, error));
                        }
                    }
                }
            }
            // On an error the guards of other members are dropped, which releases them.
            match failed {
                Some((at, error)) if busy.is_none_or(|busy| at < busy) => return Err(error),
                _ => {}
            }
        }
        let surplus = busy.map_or_else(BTreeMap::new, |busy| granted.split_off(&busy));
        held.extend(granted.into_values());
        release_all(surplus.into_values().collect()).await.ok();
        Ok(busy)
    }

    /// Divides members among requests. Members that can be requested together share a request.
    fn requests(&self, members: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
        let mut requests: Vec<Vec<usize>> = Vec::new();
        for at in members {
            let joined = self.joinable[at].as_ref().and_then(|member| {
                requests.iter_mut().rfind(|request| {
                    let others: Option<Vec<_>> =
                        request.iter().map(|other| self.joinable[*other].as_ref()).collect();
                    others.is_some_and(|others| member.fits(&others))
                })
            });
            match joined {
                Some(request) => request.push(at),
                None => requests.push(vec![at]),
            }
        }
        requests
    }

    /// Tries the members with these indices in one request. Returns the results with their indices.
    /// If a member of a joint request is busy, its result is the only one.
    async fn try_request(
        &self,
        indices: Vec<usize>,
        options: &LockOptions,
    ) -> Vec<(usize, Result<Option<Guard>>)> {
        let joint: Vec<_> = indices.iter().filter_map(|at| self.joinable[*at].as_ref()).collect();
        if indices.len() == 1 || joint.len() < indices.len() {
            return join_all(
                indices.into_iter().map(async |at| (at, self.members[at].try_lock(options).await)),
            )
            .await;
        }
        match Member::try_all(&joint, options).await {
            Ok(JointTry::Busy(at)) => vec![(indices[at], Ok(None))],
            Ok(JointTry::Each(results)) => indices.into_iter().zip(results).collect(),
            Err(error) => vec![(indices[0], Err(error))],
        }
    }

    /// Acquires all members within the wait limit, even if a store hangs in a try or a release.
    /// Returns `None` if a call without a wait finds a member busy.
    async fn acquire(&self, options: &LockOptions) -> Result<Option<Guard>> {
        // The timers of the MultiLock run here, even if its clients have threads of their own.
        Handle::try_current().map_err(|_| Error::NoRuntime { name: self.name.clone() })?;
        self.check(options)?;
        let limit = match options.wait_limit() {
            Wait::For(limit) => limit,
            Wait::Never | Wait::Forever => return self.gather(options).await,
        };
        let timed_out = |_| Err(Error::Timeout { name: self.name.clone(), limit, source: None });
        timeout(limit.saturating_add(TIMEOUT_GRACE), self.gather(options)).await.unwrap_or_else(timed_out)
    }

    /// Requests the members, and waits for a busy one, in rounds, until all members are held or a
    /// call without a wait finds one busy.
    async fn gather(&self, options: &LockOptions) -> Result<Option<Guard>> {
        let started_at = Instant::now();
        // A member that is released because another one is busy must not stay taken.
        let member_options = options.clone().at_least(Duration::ZERO);
        let mut held = Vec::with_capacity(self.members.len());
        let mut lost_rounds = 0;
        loop {
            if let Some(busy) = self.try_missing(&mut held, &member_options).await? {
                let mut wait_options = member_options.clone();
                match options.wait_limit() {
                    Wait::Never => {
                        release_all(held).await.ok();
                        return Ok(None);
                    }
                    Wait::For(limit) => {
                        wait_options = wait_options.wait(limit.saturating_sub(started_at.elapsed()));
                    }
                    Wait::Forever => {}
                }
                match self.wait_for(busy, &held, &wait_options).await {
                    Some(guard) => held.push(guard.map_err(|error| self.as_own_timeout(error, options))?),
                    // A held member was lost, so the wait for this one cannot succeed. Begin again.
                    None => drop(release_all(std::mem::take(&mut held)).await.ok()),
                }
                // The next round tries the members that are still missing.
                continue;
            }
            // A member that was granted early may be lost before the last one is granted.
            let Some(reason) = held.iter().find_map(Guard::loss) else {
                for (member, guard) in self.members.iter().zip(&held) {
                    // The defaults of the member's client count too. `check` has compared
                    // `at_least` with the capabilities of the member's store.
                    if let Some(min) = options.clone().or(&member.defaults()).get_at_least() {
                        guard.keep_taken_for(min);
                    }
                }
                return Ok(Some(Guard::all(self.name.clone(), held)));
            };
            lost_rounds += 1;
            if options.wait_limit() == Wait::Never || lost_rounds == MAX_LOST_ROUNDS {
                return Err(Error::Lost { name: self.name.clone(), reason });
            }
            release_all(std::mem::take(&mut held)).await.ok();
        }
    }

    /// Waits for the busy member. Returns `None` if a held member is lost first.
    async fn wait_for(&self, busy: usize, held: &[Guard], options: &LockOptions) -> Option<Result<Guard>> {
        let lost = async {
            match held.is_empty() {
                true => pending().await,
                false => drop(select_all(held.iter().map(|guard| Box::pin(guard.lost()))).await),
            }
        };
        tokio::select! {
            biased;
            () = lost => None,
            guard = self.members[busy].lock(options) => Some(guard),
        }
    }

    /// Replaces a member's timeout by the MultiLock's, with its name and the caller's wait limit.
    /// Returns other errors unchanged.
    fn as_own_timeout(&self, error: Error, options: &LockOptions) -> Error {
        match (error, options.wait_limit()) {
            (Error::Timeout { source, .. }, Wait::For(limit)) => {
                Error::Timeout { name: self.name.clone(), limit, source }
            }
            (error, _) => error,
        }
    }
}

/// Returns the sort key of the order that all MultiLocks share. Among handles of one lock, the
/// exclusive side comes first, and then the semaphore with the smallest limit.
fn rank(member: &dyn DistributedLock) -> (&str, &LockName, u8, u32) {
    let side = match member.kind() {
        Kind::Read => 2,
        Kind::Permit => 1,
        _ => 0,
    };
    (member.store(), member.name(), side, member.limit())
}

#[async_trait]
impl DistributedLock for MultiLock {
    fn name(&self) -> &LockName {
        &self.name
    }

    fn kind(&self) -> Kind {
        Kind::Mutex
    }

    fn store(&self) -> &str {
        STORE
    }

    /// Returns the shortest default wait limit of the members' clients, which applies to all
    /// members. All other defaults of a member are those of its own client.
    fn defaults(&self) -> LockOptions {
        let waits = self.members.iter().map(|member| member.defaults().wait_limit());
        let shortest = waits.min_by_key(|wait| match wait {
            Wait::Never => Duration::ZERO,
            Wait::For(limit) => *limit,
            Wait::Forever => Duration::MAX,
        });
        LockOptions::new().wait(shortest.unwrap_or_default())
    }

    fn check(&self, options: &LockOptions) -> Result<()> {
        self.members.iter().try_for_each(|member| member.check(options))
    }

    async fn lock(&self, options: &LockOptions) -> Result<Guard> {
        let guard = self.acquire(&options.clone().or(&self.defaults())).await?;
        let name = self.name.clone();
        guard.ok_or(Error::Timeout { name, limit: Duration::ZERO, source: None })
    }

    async fn try_lock(&self, options: &LockOptions) -> Result<Option<Guard>> {
        self.acquire(&options.clone().wait(Wait::Never)).await
    }
}

impl std::fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MultiLock").field(&self.name).finish()
    }
}
