//! A lock as a member of a MultiLock: members of one client are tried in one request, if its store can do that.

use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::{Guard, LockOptions, acquire::Target};
use crate::{
    engine::{HoldRef, JointOutcome, Keeper, Outcome},
    model::{Kind, Result, Wait},
};

/// What a [`MultiLock`](crate::MultiLock) must know of a member to take it together with others of the same client, in one
/// request. See [`DistributedLock::member`](crate::DistributedLock::member).
#[derive(Clone, Debug)]
pub struct Member(Target);

/// What became of a try of several members.
pub(super) enum Tried<T> {
    /// The member at this place is busy. None is held.
    Busy(usize),
    /// The answer for each member.
    Each(Vec<Result<Option<T>>>),
}

impl Member {
    /// `None` for a lock that must be asked for by itself: its store can grant only one lock in one step, its kind may hold
    /// beside others, or it has an owner, who may hold it already.
    pub(super) fn of(target: &Target) -> Option<Self> {
        let waits_for_everybody = matches!(target.kind, Kind::Mutex | Kind::Fair | Kind::Write);
        let is_able = target.locks.info().locks_per_step > 1 && waits_for_everybody && target.owner.is_none();
        is_able.then(|| Self(target.clone()))
    }

    /// Whether a request for these members may ask for this one as well: it is of the same client, and its name is another.
    pub(super) fn fits(&self, members: &[&Self]) -> bool {
        let client = |member: &Self| member.0.locks.client().id;
        members.len() < self.0.locks.info().locks_per_step
            && members.iter().all(|member| client(member) == client(self) && member.0.name != self.0.name)
    }

    /// Tries to take all these members of one client in one request. [`LockOptions::at_least`] does not count: the MultiLock sees to
    /// that when it has all its members.
    ///
    /// # Errors
    /// Those of [`DistributedLock::try_lock`](crate::DistributedLock::try_lock) before any I/O. An error of the store is the
    /// answer for a member.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no trace.
    pub(super) async fn try_all(members: &[&Self], options: &LockOptions) -> Result<Tried<Guard>> {
        let Some(Self(Target { locks, .. })) = members.first() else { return Ok(Tried::Each(Vec::new())) };
        let on_thread = |member: &&Self| Target { locks: member.0.locks.as_on_thread(), ..member.0.clone() };
        let targets: Vec<_> = members.iter().map(on_thread).collect();
        let work = contest(targets, options.clone().wait(Wait::Never));
        Ok(match locks.on_thread(work).await? {
            Tried::Busy(at) => Tried::Busy(at),
            Tried::Each(answers) => {
                let guard = |stake: Option<HoldRef>| stake.map(|stake| Guard::of(stake, locks));
                Tried::Each(answers.into_iter().map(|answer| answer.map(guard)).collect())
            }
        })
    }
}

async fn contest(targets: Vec<Target>, options: LockOptions) -> Result<Tried<HoldRef>> {
    let keepers = targets.iter().map(|target| Ok(*target.check(options.clone())?.keeper(target, None)));
    let keepers = keepers.collect::<Result<_>>()?;
    let ended = || targets[0].locks.client().keeper_ended();
    let (reply, answer) = oneshot::channel();
    Keeper::start_together(keepers, reply);
    Ok(match answer.await.map_err(|_| ended())? {
        JointOutcome::Busy(at) => Tried::Busy(at),
        JointOutcome::Granted(stakes) => {
            Tried::Each(stakes.into_iter().map(|stake| Ok(Some(stake))).collect())
        }
        JointOutcome::Separate(answers) => {
            let told = |answer: Result<Outcome, _>| answer.unwrap_or_else(|_| Err(ended()));
            Tried::Each(join_all(answers).await.into_iter().map(told).collect())
        }
    })
}
