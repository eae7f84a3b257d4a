//! No folder of doorbells.

use std::path::{Path, PathBuf};

use dlock_core::Result;

use crate::files::{self, Circle};

/// An open folder of doorbells, of which there is none.
#[derive(Debug)]
pub(crate) enum Dir {}

impl Dir {
    pub(crate) fn path_of(store: &Path) -> PathBuf {
        files::beside(store, "-bells")
    }

    pub(crate) fn open(_: &Path, _: &Circle) -> Result<Option<Self>> {
        Ok(None)
    }
}
