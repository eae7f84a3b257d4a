//! Notifications for the observers of a lock, who have no claim.

use async_trait::async_trait;

/// A subscription to the changes of one lock's holder, without a place in its queue.
///
/// It only accelerates observers. The engine inspects the lock at intervals too, so every hint may
/// be unfounded, late or missing.
#[async_trait]
pub trait Watch: Send + 'static {
    /// Waits for a hint that the holder of the lock may have changed.
    ///
    /// The first call subscribes, and returns when the subscription is active, so that the engine
    /// inspects the lock once more after that. A later call also returns when the subscription is
    /// active again after a break. A call may never return if the store refuses the subscription.
    ///
    /// # Cancel safety
    /// The engine drops the future at any await point, so the method must be cancel safe.
    async fn changed(&mut self);
}
