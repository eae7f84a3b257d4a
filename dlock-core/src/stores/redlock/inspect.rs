//! Inspection of a RedLock: the merged states of its members.

use async_trait::async_trait;
use futures_util::future::join_all;

use super::{RedLock, ids::is_same_claim};
use crate::{
    contract::{Contender, Inspect, LockState},
    model::{Error, LockName, Result},
};

#[async_trait]
impl Inspect for RedLock {
    /// Reports a contender as a holder if a majority of the members does, and otherwise as waiting.
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        let (states, _) = self.states(name).await?;
        Ok(self.merged(states))
    }

    /// # Errors
    /// Also if a contender would have a majority together with the members that have not replied.
    async fn holder(&self, name: &LockName) -> Result<Option<Contender>> {
        let (states, missing) = self.states(name).await?;
        let Some(mut merged) = self.merged(states.clone()) else { return Ok(None) };
        if !merged.holders.is_empty() {
            return Ok(Some(merged.holders.swap_remove(0)));
        }
        let may_hold = |contender: &Contender| {
            let votes = votes(&states, contender);
            votes > 0 && votes + missing >= self.quorum()
        };
        if merged.queue.iter().any(may_hold) {
            let count = self.members.len();
            let reason = format!("{missing} of {count} members did not answer, and one may know the holder");
            return Err(Error::Unavailable { store: "redlock", source: reason.into() });
        }
        Ok(None)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let results = join_all(self.inspectors().map(|member| member.list(prefix))).await;
        let mut states: Vec<_> = self.majority(results)?.into_iter().flatten().collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        let of_one_name = states.chunk_by(|a, b| a.name == b.name);
        Ok(of_one_name.filter_map(|states| self.merged(states.to_vec())).collect())
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        let results = join_all(self.inspectors().map(|member| member.force_release(name))).await;
        Ok(self.majority(results)?.into_iter().filter(|released| *released).count() > 0)
    }
}

impl RedLock {
    fn inspectors(&self) -> impl Iterator<Item = &dyn Inspect> {
        self.members.iter().filter_map(|member| member.inspect.as_deref())
    }

    /// Returns the states of a lock on the members that reply, and the number of other members.
    async fn states(&self, name: &LockName) -> Result<(Vec<LockState>, usize)> {
        let results = join_all(self.inspectors().map(|member| member.inspect(name))).await;
        let replies = self.majority(results)?;
        let missing = self.members.len() - replies.len();
        Ok((replies.into_iter().flatten().collect(), missing))
    }

    /// Returns the replies without an error, if they are a majority.
    fn majority<T>(&self, results: Vec<Result<T>>) -> Result<Vec<T>> {
        let (mut replies, mut first_error) = (Vec::with_capacity(results.len()), None);
        for result in results {
            match result {
                Ok(reply) => replies.push(reply),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        match first_error {
            Some(error) if replies.len() < self.quorum() => {
                Err(Error::Unavailable { store: "redlock", source: error.into() })
            }
            _ => Ok(replies),
        }
    }

    /// Merges the states of one lock on its members.
    fn merged(&self, states: Vec<LockState>) -> Option<LockState> {
        let name = states.first()?.name.clone();
        let contenders = states.iter().flat_map(|state| &state.holders);
        let contenders = contenders.chain(states.iter().flat_map(|state| &state.queue));
        let (mut holding, mut waiting): (Vec<Contender>, Vec<Contender>) = Default::default();
        for contender in contenders {
            let is_same = |other: &Contender| is_same_claim(&other.id, &contender.id);
            if holding.iter().chain(&waiting).any(is_same) {
                continue;
            }
            let votes = votes(&states, contender);
            // The tokens of single members do not order the grants of the RedLock.
            let contender = contender.clone().token(None);
            if votes >= self.quorum() { holding.push(contender) } else { waiting.push(contender) }
        }
        Some(LockState { name, holders: holding, queue: waiting })
    }
}

/// Returns the number of members on which a contender holds the lock.
fn votes(states: &[LockState], contender: &Contender) -> usize {
    let is_same = |holder: &Contender| is_same_claim(&holder.id, &contender.id);
    states.iter().filter(|state| state.holders.iter().any(is_same)).count()
}
