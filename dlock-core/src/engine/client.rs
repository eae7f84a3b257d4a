//! What the keepers of one client share.

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::driver::Store;

/// A client, as its clones and their keepers share it.
pub(crate) struct Client {
    /// Tells clients of one process apart, for as long as it runs.
    pub(crate) id: u64,
    pub(crate) store: Store,
    /// Every keeper of this client.
    pub(crate) tasks: TaskTracker,
    pub(crate) closing: CancellationToken,
}
