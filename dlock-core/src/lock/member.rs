//! A lock as a member of a MultiLock. Members of one client are tried in one request, if the store
//! supports that.

use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::{Guard, LockOptions, acquire::Target};
use crate::{
    engine::{HoldRef, JointOutcome, Keeper, Outcome},
    model::{Kind, Result, Wait},
};

/// The data with which a [`MultiLock`](crate::MultiLock) requests a member together with other
/// members of the same client. See [`DistributedLock::member`](crate::DistributedLock::member).
#[derive(Clone, Debug)]
pub struct Member(Target);

/// Result of a joint try of several members.
pub(super) enum JointTry<T> {
    /// The member with this index is busy. No member is held.
    Busy(usize),
    /// The result of each member, in order.
    Each(Vec<Result<Option<T>>>),
}

impl Member {
    /// Returns the member of a lock. `None` if the lock must be tried separately, because its store
    /// can grant only one lock in one step, its kind does not exclude all others, or it has an
    /// owner, which may hold the lock already.
    pub(super) fn of(target: &Target) -> Option<Self> {
        let excludes_all = matches!(target.kind, Kind::Mutex | Kind::Fair | Kind::Write);
        let can_join = target.locks.info().locks_per_step > 1 && excludes_all && target.owner.is_none();
        can_join.then(|| Self(target.clone()))
    }

    /// Returns whether a request for these members has room for this one. It must be of the same
    /// client, and its name must differ.
    pub(super) fn fits(&self, members: &[&Self]) -> bool {
        let client = |member: &Self| member.0.locks.client().id;
        members.len() < self.0.locks.info().locks_per_step
            && members.iter().all(|member| client(member) == client(self) && member.0.name != self.0.name)
    }

    /// Tries to take all these members of one client in one request. Ignores
    /// [`LockOptions::at_least`], which the MultiLock applies once it has all its members.
    ///
    /// # Errors
    /// The errors that [`DistributedLock::try_lock`](crate::DistributedLock::try_lock) returns
    /// before any I/O. An error of the store is the result of a member.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no hold, no queue position and no renewal.
    pub(super) async fn try_all(members: &[&Self], options: &LockOptions) -> Result<JointTry<Guard>> {
        let Some(Self(Target { locks, .. })) = members.first() else { return Ok(JointTry::Each(Vec::new())) };
        let on_thread =
            |member: &&Self| Target { locks: member.0.locks.without_thread(), ..member.0.clone() };
        let targets: Vec<_> = members.iter().map(on_thread).collect();
        let work = run_keepers(targets, options.clone().wait(Wait::Never));
        Ok(match locks.on_thread(work).await? {
            JointTry::Busy(at) => JointTry::Busy(at),
            JointTry::Each(results) => {
                let guard = |hold_ref: Option<HoldRef>| hold_ref.map(|hold_ref| Guard::of(hold_ref, locks));
                JointTry::Each(results.into_iter().map(|result| result.map(guard)).collect())
            }
        })
    }
}

async fn run_keepers(targets: Vec<Target>, options: LockOptions) -> Result<JointTry<HoldRef>> {
    let keepers = targets.iter().map(|target| Ok(*target.check(options.clone())?.keeper(target, None)));
    let keepers = keepers.collect::<Result<_>>()?;
    let ended = || targets[0].locks.client().keeper_ended();
    let (reply, outcome) = oneshot::channel();
    Keeper::start_together(keepers, reply);
    Ok(match outcome.await.map_err(|_| ended())? {
        JointOutcome::Busy(at) => JointTry::Busy(at),
        JointOutcome::Granted(hold_refs) => {
            JointTry::Each(hold_refs.into_iter().map(|hold_ref| Ok(Some(hold_ref))).collect())
        }
        JointOutcome::Separate(receivers) => {
            let result = |received: Result<Outcome, _>| received.unwrap_or_else(|_| Err(ended()));
            JointTry::Each(join_all(receivers).await.into_iter().map(result).collect())
        }
    })
}
