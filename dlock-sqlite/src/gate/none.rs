//! A store without a gate. SQLite alone decides which process writes.

use std::{path::Path, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::bell::BellDir;

/// A gate that does not exist.
pub(crate) struct Gate;

/// The gate's lock, which does not exist.
pub(crate) enum GateLock {}

impl Gate {
    pub(crate) fn new(_: Option<Arc<BellDir>>, _: &Path) -> Self {
        Self
    }

    pub(crate) async fn pass(&self, _: Instant) -> Option<GateLock> {
        None
    }

    pub(crate) async fn pause(&self, _: Duration) -> Option<GateLock> {
        None
    }
}
