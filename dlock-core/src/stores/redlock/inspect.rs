//! Looking into a RedLock: merges what its members show.

use async_trait::async_trait;
use futures_util::future::join_all;

use super::{RedLock, member::is_same_claim};
use crate::{
    contract::{Contender, Inspect, LockState},
    model::{Error, LockName, Result},
};

#[async_trait]
impl Inspect for RedLock {
    /// Shows a contender as a holder if a majority of the members does, and otherwise as waiting.
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        let answers = join_all(self.inspectors().map(|member| member.inspect(name))).await;
        let states = self.majority(answers)?;
        Ok(self.merged(states.into_iter().flatten().collect()))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let answers = join_all(self.inspectors().map(|member| member.list(prefix))).await;
        let mut states: Vec<_> = self.majority(answers)?.into_iter().flatten().collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        let of_one_name = states.chunk_by(|a, b| a.name == b.name);
        Ok(of_one_name.filter_map(|states| self.merged(states.to_vec())).collect())
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        let answers = join_all(self.inspectors().map(|member| member.force_release(name))).await;
        Ok(self.majority(answers)?.into_iter().filter(|released| *released).count() > 0)
    }
}

impl RedLock {
    fn inspectors(&self) -> impl Iterator<Item = &dyn Inspect> {
        self.members.iter().filter_map(|member| member.inspect.as_deref())
    }

    /// The good answers, if they are a majority.
    fn majority<T>(&self, answers: Vec<Result<T>>) -> Result<Vec<T>> {
        let (mut good, mut first) = (Vec::with_capacity(answers.len()), None);
        for answer in answers {
            match answer {
                Ok(answer) => good.push(answer),
                Err(error) => first = first.or(Some(error)),
            }
        }
        match first {
            Some(error) if good.len() < self.quorum() => {
                Err(Error::Unavailable { store: "redlock", source: error.into() })
            }
            _ => Ok(good),
        }
    }

    /// One lock, as its members see it.
    fn merged(&self, states: Vec<LockState>) -> Option<LockState> {
        let name = states.first()?.name.clone();
        let everybody = states.iter().flat_map(|state| &state.holders);
        let everybody = everybody.chain(states.iter().flat_map(|state| &state.queue));
        let (mut holding, mut waiting): (Vec<Contender>, Vec<Contender>) = Default::default();
        for contender in everybody {
            let is_it = |known: &Contender| is_same_claim(&known.id, &contender.id);
            if holding.iter().chain(&waiting).any(is_it) {
                continue;
            }
            let votes = states.iter().filter(|state| state.holders.iter().any(is_it)).count();
            // A member's token is no token of the whole.
            let contender = contender.clone().token(None);
            if votes >= self.quorum() { holding.push(contender) } else { waiting.push(contender) }
        }
        Some(LockState { name, holders: holding, queue: waiting })
    }
}
