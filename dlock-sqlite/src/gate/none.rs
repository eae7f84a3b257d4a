//! No gate: SQLite alone decides who writes.

use std::{path::Path, sync::Arc};

use dlock_core::Result;
use tokio::time::Instant;

use crate::bell::Dir;

/// The gate of one store, of which there is none.
#[derive(Clone, Debug)]
pub(crate) struct Gate;

/// What passing the gate gave.
pub(crate) enum Pass {
    #[expect(dead_code, reason = "given elsewhere")]
    Turn(Turn),
    /// SQLite alone decides.
    Ungated,
}

/// The turn to write.
pub(crate) enum Turn {}

impl Gate {
    pub(crate) fn new(_: Option<Arc<Dir>>, _: &Path) -> Self {
        Self
    }

    pub(crate) fn is_there(&self) -> bool {
        false
    }

    pub(crate) async fn pass(&self, _: Instant) -> Result<Pass> {
        Ok(Pass::Ungated)
    }
}
