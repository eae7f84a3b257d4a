//! Semaphores, which have several permits under one name.

use super::{
    Acquire, LockOptions, TryAcquire,
    handles::{Lock, kind},
};

/// A handle of a semaphore, whose limit is the number of its permits. Cheap to clone. The handle
/// itself holds nothing.
///
/// Each guard is one permit. Permits are granted in order of arrival. The permit of a crashed
/// holder is free after its ttl.
///
/// **The limit** is not kept in the store. Each claim, held or waiting, carries the limit of its
/// handle. A permit is granted when the number of claims ahead of it in the queue is less than the
/// smallest limit among itself and those claims. While programs change from a limit of 4 to 5, a
/// program with the limit 4 therefore never holds beside more than three other holders.
///
/// **Owners** are not supported. Two acquisitions hold two permits. A task that holds all permits
/// and acquires another one deadlocks with itself.
///
/// **Tokens** are distinct and grow from grant to grant, but they do not order holders that hold at
/// the same time. A resource that refuses smaller tokens would refuse all holders except the
/// newest.
///
/// **One name is one lock.** A permit is never held at the same time as another kind of lock of
/// that name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// let locks = dlock_core::Locks::memory();
/// let gpus = locks.semaphore("pool/gpu", 2);
/// let (first, second) = (gpus.acquire().await?, gpus.acquire().await?);
/// assert!(gpus.try_acquire().await?.is_none());
/// first.release().await?;
/// assert!(gpus.try_acquire().await?.is_some());
/// # drop(second);
/// # Ok(()) }
/// ```
pub type Semaphore = Lock<kind::Permit>;

impl Semaphore {
    /// Returns the maximum number of holders at one time.
    pub fn limit(&self) -> u32 {
        self.target.limit
    }

    /// Returns a future that waits for a permit. Set options on it, then await it. Nothing happens
    /// before its first poll. By default it waits without a limit, and the ttl is 30 s.
    ///
    /// # Errors
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock), and
    /// [`Error::InvalidOptions`](crate::Error::InvalidOptions) for a limit of zero.
    ///
    /// # Cancel safety
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.target.clone(), LockOptions::new())
    }

    /// Returns a future that tries once to take a permit. Its output is `None` if all permits are
    /// taken, or if another contender waits for one.
    ///
    /// # Errors
    /// As [`DistributedLock::try_lock`](crate::DistributedLock::try_lock), and
    /// [`Error::InvalidOptions`](crate::Error::InvalidOptions) for a limit of zero.
    ///
    /// # Cancel safety
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn try_acquire(&self) -> TryAcquire {
        TryAcquire::new(self.target.clone(), LockOptions::new())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use crate::{DistributedLock, DistributedLockExt, Error, Kind, Locks, LostReason, MultiLock, Wait};

    #[tokio::test(start_paused = true)]
    async fn a_limit_of_zero_is_refused() {
        let empty = Locks::memory().semaphore("pool", 0);
        for result in [empty.acquire().await.map(Some), empty.try_acquire().await] {
            let error = result.expect_err("a limit of 0 permits no holder");
            assert!(matches!(error, Error::InvalidOptions { .. }), "{error:?}");
            assert_eq!(error.to_string(), "semaphore `pool` has a limit of 0; it must be at least 1");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_options_of_a_permit_are_those_of_a_lock() {
        let pool = Locks::memory().semaphore("pool", 1);
        let (s, name_and_limit) = (Duration::from_secs, (pool.name().as_str(), pool.limit()));
        assert_eq!((name_and_limit, pool.kind()), (("pool", 1), Kind::Permit));
        let held = pool.acquire().lease(s(5)).await.expect("free");
        let error = pool.acquire().wait(s(1)).await.expect_err("held");
        assert_eq!(error.to_string(), "timed out after 1s waiting for lock `pool`");
        assert_eq!(held.lost().await, LostReason::Expired);
        let ran = pool
            .run(async |guard| (guard.token().is_some(), pool.acquire().wait(Wait::Never).await.is_err()))
            .await;
        assert_eq!(ran.expect("free again"), (true, true), "the permit is not held while the work runs");
        assert!(
            pool.try_acquire().await.expect("no error").is_some(),
            "the permit was not given back when the work was done"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_a_member_of_a_multilock() {
        let locks = Locks::memory();
        let members: [Arc<dyn DistributedLock>; 2] =
            [Arc::new(locks.semaphore("pool", 2)), Arc::new(locks.mutex("job"))];
        let both = MultiLock::new(members).expect("two members");
        let guard = both.lock_within(Duration::from_secs(1)).await.expect("free");
        assert_eq!(guard.tokens().len(), 2);
        let second = locks.semaphore("pool", 2).try_acquire().await.expect("no error");
        assert!(second.is_some(), "the multilock took both permits");
        let third = locks.semaphore("pool", 2).try_acquire().await.expect("no error");
        assert!(third.is_none(), "the multilock holds no permit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_semaphore_given_twice_to_a_multilock_counts_once_and_the_smaller_limit_wins() {
        let locks = Locks::memory();
        let members: [Arc<dyn DistributedLock>; 2] =
            [Arc::new(locks.semaphore("pool", 3)), Arc::new(locks.semaphore("pool", 1))];
        let both = MultiLock::new(members).expect("one member");
        let guard =
            both.lock_within(Duration::from_secs(1)).await.expect("the multilock does not wait for itself");
        assert_eq!(guard.tokens().len(), 1);
        assert!(
            locks.semaphore("pool", 3).try_acquire().await.expect("no error").is_none(),
            "another permit is held beside a permit with a limit of one"
        );
    }

    #[test]
    fn a_permit_and_a_reader_of_one_name_are_refused_as_members_of_a_multilock() {
        let locks = Locks::memory();
        let members: [Arc<dyn DistributedLock>; 2] =
            [Arc::new(locks.semaphore("x", 2)), Arc::new(locks.rwlock("x").read())];
        let error = MultiLock::new(members).expect_err("a permit and a reader exclude each other");
        assert!(error.to_string().contains("`x`"), "{error}");
    }
}
