//! MultiLock: all of several locks, of any kinds and stores, as one. Over the usual length, so that the whole algorithm is in
//! one file.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::{join_all, select_all};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{DistributedLock, Guard, LockOptions, Member, guard::release_all, member::Tried};
use crate::model::{Error, Kind, LockName, Result, Wait};

/// Several locks as one: of any names, kinds and stores. A call gets all of them or none, with one deadline.
///
/// First it asks all members at once; on one connection that takes one round trip. The exclusive members of one client are
/// one request if the store can grant several locks in one step ([`Info::locks_per_step`](crate::driver::Info::locks_per_step)), as etcd
/// can; members with an [`Owner`](crate::Owner) are always asked one by one. If a member is busy, it waits for that one.
/// Meanwhile it holds only members that come before the busy one in an order that all MultiLocks share (store, then
/// name). So two MultiLocks never deadlock, and nothing is held that need not be.
///
/// Its guard has a [token](Guard::tokens) per member and is lost when any member is lost; the others stay held until
/// it is released. [`LockOptions::at_least`] of the call applies to every member, and a store that cannot keep a lock without
/// its holder refuses it before any I/O; as a client's default it applies to the members of that client only.
/// The same lock given twice counts once: the exclusive side wins, and of two semaphores the smaller limit. So
/// a MultiLock takes one permit of a semaphore.
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
    /// In the order that all MultiLocks share.
    members: Vec<Arc<dyn DistributedLock>>,
    /// For each member what is needed to ask for it together with others. `None` if it must be asked by itself.
    joinable: Vec<Option<Member>>,
    name: LockName,
}

/// The MultiLock's time-out comes this much later than that of the member that it waits for, because the member's error
/// says more.
const GRACE: Duration = Duration::from_millis(20);

/// How often to begin again if a member that was granted early was lost before the last one was granted. Without a limit
/// that would never end on stores whose answers take longer than the ttl.
const ROUNDS: u32 = 5;

/// What [`DistributedLock::store`] says of a MultiLock.
const STORE: &str = "multilock";

impl MultiLock {
    /// All of `members`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if there is none, or if one is itself a MultiLock: its members must be in the common
    /// order, so give them singly. Also if a reader and a permit of one name are among them, which exclude each other.
    pub fn new(members: impl IntoIterator<Item = Arc<dyn DistributedLock>>) -> Result<Self> {
        let mut members: Vec<_> = members.into_iter().collect();
        let invalid = |reason: &str| Err(Error::InvalidConfig { reason: reason.to_owned() });
        if members.is_empty() {
            return invalid("a multilock needs at least one member");
        }
        if members.iter().any(|member| member.store() == STORE) {
            return invalid("a multilock cannot be a member of another: give the other one its members");
        }
        // The exclusive side of a pair comes first and stays.
        members.sort_by(|a, b| rank(a.as_ref()).cmp(&rank(b.as_ref())));
        let is_same =
            |a: &dyn DistributedLock, b: &dyn DistributedLock| (a.store(), a.name()) == (b.store(), b.name());
        for of_one in members.chunk_by(|a, b| is_same(a.as_ref(), b.as_ref())) {
            let has = |kind| of_one.iter().any(|member| member.kind() == kind);
            if of_one[0].kind() == Kind::Permit && has(Kind::Read) {
                let name = of_one[0].name();
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

    /// Tries all members that are not held yet, at once. Keeps those before the first busy one, and releases those behind it.
    /// Answers which is busy. A try may keep members behind a busy one; it releases them all anyway.
    async fn ask(&self, held: &mut Vec<Guard>, options: &LockOptions) -> Result<Option<usize>> {
        let from = held.len();
        let mut granted = BTreeMap::new();
        let mut busy = None;
        loop {
            // A store that finds one of several members busy says only which. Those before it are asked for again.
            let behind = busy.unwrap_or(self.members.len());
            let missing = (from..behind).filter(|at| !granted.contains_key(at));
            let requests = self.requests(missing);
            if requests.is_empty() || (busy.is_some() && options.wait_limit() == Wait::Never) {
                break;
            }
            let mut failed = None;
            let answers = join_all(requests.into_iter().map(|places| self.try_these(places, options))).await;
            for (at, answer) in answers.into_iter().flatten() {
                match answer {
                    Ok(Some(guard)) => drop(granted.insert(at, guard)),
                    Ok(None) => busy = Some(busy.map_or(at, |first: usize| first.min(at))),
                    Err(error) => {
                        if failed.as_ref().is_none_or(|(first, _)| at < *first) {
                            failed = Some((at, error));
                        }
                    }
                }
            }
            // The guards that other members gave are dropped, which releases them.
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

    /// Divides members among requests. Those that can be asked for together share one.
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

    /// Tries the members at these places in one request, and gives the answers with their places. If one is busy, that is the
    /// only answer.
    async fn try_these(
        &self,
        places: Vec<usize>,
        options: &LockOptions,
    ) -> Vec<(usize, Result<Option<Guard>>)> {
        let together: Vec<_> = places.iter().filter_map(|at| self.joinable[*at].as_ref()).collect();
        if places.len() == 1 || together.len() < places.len() {
            return join_all(
                places.into_iter().map(async |at| (at, self.members[at].try_lock(options).await)),
            )
            .await;
        }
        match Member::try_all(&together, options).await {
            Ok(Tried::Busy(at)) => vec![(places[at], Ok(None))],
            Ok(Tried::Each(answers)) => places.into_iter().zip(answers).collect(),
            Err(error) => vec![(places[0], Err(error))],
        }
    }

    /// Acquires within the wait, even if a member's store hangs in a try or a release.
    async fn acquire(&self, options: &LockOptions) -> Result<Option<Guard>> {
        // Its timers run here, though its members may live on threads of their own.
        Handle::try_current().map_err(|_| Error::NoRuntime { name: self.name.clone() })?;
        self.members.iter().try_for_each(|member| member.check(options))?;
        let waited = match options.wait_limit() {
            Wait::For(waited) => waited,
            Wait::Never | Wait::Forever => return self.gather(options).await,
        };
        let late = |_| Err(Error::Timeout { name: self.name.clone(), waited, source: None });
        timeout(waited.saturating_add(GRACE), self.gather(options)).await.unwrap_or_else(late)
    }

    async fn gather(&self, options: &LockOptions) -> Result<Option<Guard>> {
        let asked = Instant::now();
        // A member that is released because another is busy must not stay taken.
        let passing = options.clone().at_least(Duration::ZERO);
        let mut held = Vec::with_capacity(self.members.len());
        let mut lost_at_the_end = 0;
        loop {
            if let Some(busy) = self.ask(&mut held, &passing).await? {
                let mut waiting = passing.clone();
                match options.wait_limit() {
                    Wait::Never => {
                        release_all(held).await.ok();
                        return Ok(None);
                    }
                    Wait::For(limit) => {
                        waiting = waiting.wait(limit.saturating_sub(asked.elapsed()));
                    }
                    Wait::Forever => {}
                }
                match self.wait_for(busy, &held, &waiting).await {
                    Some(guard) => held.push(guard.map_err(|error| self.in_my_name(error, options))?),
                    // A member that was held is lost, so waiting for this one does not help any more: begin again.
                    None => drop(release_all(std::mem::take(&mut held)).await.ok()),
                }
                // Asks for those that are still missing, if any are.
                continue;
            }
            // A member that was granted early may be lost by the time that the last is granted.
            let Some(reason) = held.iter().find_map(Guard::loss) else {
                for (member, guard) in self.members.iter().zip(&held) {
                    // With the defaults of its own client, which `check` has compared with what its store can do.
                    if let Some(least) = options.clone().or(&member.defaults()).min_time_taken() {
                        guard.keep_taken_for(least);
                    }
                }
                return Ok(Some(Guard::all(self.name.clone(), held)));
            };
            lost_at_the_end += 1;
            if options.wait_limit() == Wait::Never || lost_at_the_end == ROUNDS {
                return Err(Error::Lost { name: self.name.clone(), reason });
            }
            release_all(std::mem::take(&mut held)).await.ok();
        }
    }

    /// Waits for the busy member. `None` if a member that is held is lost before.
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

    /// Turns a member's time-out into the MultiLock's, with the wait that the caller gave.
    fn in_my_name(&self, error: Error, options: &LockOptions) -> Error {
        match (error, options.wait_limit()) {
            (Error::Timeout { source, .. }, Wait::For(waited)) => {
                Error::Timeout { name: self.name.clone(), waited, source }
            }
            (error, _) => error,
        }
    }
}

/// The order that all MultiLocks share; of one lock the exclusive side first, then the smallest semaphore.
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

    /// The shortest wait that a member's client has by default, as the one wait for all members. All else each member takes
    /// from its own client.
    fn defaults(&self) -> LockOptions {
        let waits = self.members.iter().map(|member| member.defaults().wait_limit());
        let shortest = waits.min_by_key(|wait| match wait {
            Wait::Never => Duration::ZERO,
            Wait::For(limit) => *limit,
            Wait::Forever => Duration::MAX,
        });
        LockOptions::new().wait(shortest.unwrap_or_default())
    }

    async fn lock(&self, options: &LockOptions) -> Result<Guard> {
        let guard = self.acquire(&options.clone().or(&self.defaults())).await?;
        let name = self.name.clone();
        guard.ok_or(Error::Timeout { name, waited: Duration::ZERO, source: None })
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
