//! What the keepers of one client share.

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::driver::Store;

/// The state of a client: its clones and all their keepers share one.
pub(crate) struct Client {
    /// Unique among the clients of this process.
    pub(crate) id: u64,
    pub(crate) store: Store,
    /// Every keeper of this client.
    pub(crate) tasks: TaskTracker,
    pub(crate) closing: CancellationToken,
}
