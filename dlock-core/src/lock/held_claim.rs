//! The claims of a guard, for drivers that verify a hold inside a transaction of the user.

use std::{fmt, time::Duration};

use super::Guard;
use crate::{
    engine::Hold,
    model::{ClaimId, Error, LockName, LostReason, Result, Token},
};

/// A claim that a guard holds, as its driver knows it.
pub struct HeldClaim<'g>(&'g Hold);

/// Returns the claims of a guard: one, or one for each member of a
/// [`MultiLock`](crate::MultiLock). The members may be in different stores.
///
/// # Errors
/// [`Error::Lost`] if one of the locks is lost. Does no I/O.
pub fn held_claims(guard: &Guard) -> Result<Vec<HeldClaim<'_>>> {
    let holds = guard.holds();
    match holds.iter().find(|hold| hold.loss().is_some()) {
        Some(lost) => Err(lost.lost_error()),
        None => Ok(holds.into_iter().map(|hold| HeldClaim(hold)).collect()),
    }
}

impl<'g> HeldClaim<'g> {
    /// Returns the name of the lock.
    pub fn name(&self) -> &'g LockName {
        &self.0.name
    }

    /// Returns the id under which the store has the claim.
    pub fn id(&self) -> ClaimId {
        self.0.id
    }

    /// Returns the fencing token of the hold.
    pub fn token(&self) -> Option<Token> {
        self.0.token
    }

    /// Returns the name of the store that granted the claim, as in [`Info`](crate::driver::Info).
    pub fn store(&self) -> &'static str {
        self.0.store
    }

    /// Returns the [data of the driver](crate::driver::Info::driver_data) that granted the claim.
    /// `None` if the claim was granted by another driver.
    pub fn driver_data<T: 'static>(&self) -> Option<&'g T> {
        self.0.driver_data.as_ref()?.downcast_ref()
    }

    /// Returns the time since the reply with the grant arrived. The store granted the claim before
    /// that.
    pub fn held_for(&self) -> Duration {
        self.0.granted_at.elapsed()
    }

    /// Returns the error of a claim that the store does not keep any more. The guard is not
    /// changed, and learns of the loss from its keeper.
    pub fn lost_error(&self) -> Error {
        Error::Lost { name: self.0.name.clone(), reason: LostReason::Deleted }
    }
}

impl fmt::Debug for HeldClaim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldClaim").field("name", self.name()).field("id", &self.id()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Kind, Locks, MultiLock,
        contract::{Backend, Claim, Info, Request, Store},
        lock::{DistributedLock, LockOptions},
        stores::memory::MemoryBackend,
    };

    /// A memory store whose driver has data.
    #[derive(Debug)]
    struct WithData(MemoryBackend, Info);

    impl Backend for WithData {
        fn info(&self) -> &Info {
            &self.1
        }

        fn claim(&self, request: Request) -> Box<dyn Claim> {
            self.0.claim(request)
        }
    }

    #[tokio::test]
    async fn a_driver_finds_its_data_and_the_claims_of_each_member_in_a_guard() {
        let memory = MemoryBackend::new();
        let info = memory.info().clone().driver_data("here");
        let locks = Locks::new(Store::new(std::sync::Arc::new(WithData(memory, info))));
        let other = Locks::memory();
        let both = [locks.of(Kind::Mutex, "a"), other.of(Kind::Mutex, "b")];
        let guard = MultiLock::new(both).unwrap().lock(&LockOptions::default()).await.unwrap();
        let claims = held_claims(&guard).unwrap();
        // A MultiLock orders its members by their stores, whose identities are random here.
        let found: std::collections::BTreeMap<_, _> = claims
            .iter()
            .map(|claim| (claim.name().as_str(), claim.driver_data::<&str>().copied()))
            .collect();
        assert_eq!(found, [("a", Some("here")), ("b", None)].into());
        assert!(claims.iter().all(|claim| claim.driver_data::<u32>().is_none()), "the data has another type");
        let tokens: Vec<_> = guard.tokens().into_iter().map(|(_, token)| Some(token)).collect();
        assert_eq!(claims.iter().map(HeldClaim::token).collect::<Vec<_>>(), tokens);
    }

    #[cfg(feature = "test-util")]
    #[tokio::test(start_paused = true)]
    async fn a_lost_guard_has_no_claims() {
        crate::driver::pretend_clock();
        let lease = Duration::from_secs(1);
        let guard = Locks::memory().mutex("x").lock().lease(lease).await.unwrap();
        let claims = held_claims(&guard).unwrap();
        assert_eq!(claims[0].id(), guard.id().unwrap());
        tokio::time::advance(lease / 2).await;
        assert_eq!(claims[0].held_for(), lease / 2);
        tokio::time::advance(lease).await;
        assert!(matches!(held_claims(&guard), Err(Error::Lost { .. })));
    }
}
