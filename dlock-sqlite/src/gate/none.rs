//! A store without a gate. SQLite alone decides which process writes.

use std::{path::Path, sync::Arc};

use dlock_core::Result;
use tokio::time::Instant;

use crate::bell::BellDir;

/// A gate that does not exist.
#[derive(Clone, Debug)]
pub(crate) struct Gate;

/// The result of passing the gate.
pub(crate) enum Pass {
    #[expect(dead_code, reason = "only on other systems")]
    Locked(GateLock),
    /// SQLite alone decides.
    Ungated,
}

/// The gate's lock, which does not exist.
pub(crate) enum GateLock {}

impl Gate {
    pub(crate) fn new(_: Option<Arc<BellDir>>, _: &Path) -> Self {
        Self
    }

    pub(crate) fn exists(&self) -> bool {
        false
    }

    pub(crate) async fn pass(&self, _: Instant) -> Result<Pass> {
        Ok(Pass::Ungated)
    }
}
