//! The signal of a loss, for tasks that have no guard.

use tokio_util::sync::CancellationToken;

/// Reports the loss of a lock to a task that has no guard. Created by
/// [`Guard::lost_signal`](super::Guard::lost_signal). Clones are the same signal. A normal release
/// does not set it.
///
/// The signal is set when the keeper detects the loss, or when a call of a guard's method detects
/// it. After a pause of the process it may therefore be late. Only
/// [`Guard::is_lost`](super::Guard::is_lost) compares the clocks itself.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// let guard = dlock_core::Locks::memory().mutex("nightly").lock().await?;
/// let signal = guard.lost_signal();
/// let worker = tokio::spawn(async move {
///     tokio::select! {
///         () = signal.lost() => "stopped",
///         () = async { /* the work */ } => "done",
///     }
/// });
/// # assert_eq!(worker.await.unwrap(), "done");
/// # guard.release().await }
/// ```
#[derive(Clone, Debug)]
pub struct LostSignal(CancellationToken);

impl LostSignal {
    pub(super) fn of(lost: &CancellationToken) -> Self {
        Self(lost.child_token())
    }

    /// Returns whether the signal is set. Does not compare the clocks.
    pub fn is_lost(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the signal is set. Never returns if the lock is released first.
    ///
    /// # Cancel safety
    /// Safe. Dropping the future changes nothing.
    pub async fn lost(&self) {
        self.0.cancelled().await;
    }
}
