//! The signal of a loss, for tasks that have no guard.

use tokio_util::sync::CancellationToken;

/// Tells a task that has no guard when the lock is lost: [`Guard::lost_signal`](super::Guard::lost_signal). Clones are the
/// same signal. A normal release never sends it.
///
/// The signal comes when the keeper notices the loss, or when somebody asks the guard. Only
/// [`Guard::is_lost`](super::Guard::is_lost) compares the clocks itself, so only it is right at once after a pause.
#[derive(Clone, Debug)]
pub struct LostSignal(CancellationToken);

impl LostSignal {
    pub(super) fn of(lost: &CancellationToken) -> Self {
        Self(lost.child_token())
    }

    /// Whether the signal has come.
    pub fn is_lost(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Ends when the signal comes; never, if the lock is released before.
    ///
    /// # Cancel safety
    /// Safe: dropping the future changes nothing.
    pub async fn lost(&self) {
        self.0.cancelled().await;
    }
}
