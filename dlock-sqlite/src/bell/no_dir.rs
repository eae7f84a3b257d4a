//! A store without a folder of doorbells.

use std::path::{Path, PathBuf};

use dlock_core::Result;

use crate::files::{self, StoreUsers};

/// An open folder of doorbells, which does not exist on this system.
#[derive(Debug)]
pub(crate) enum BellDir {}

impl BellDir {
    pub(crate) fn path_of(store: &Path) -> PathBuf {
        files::beside(store, "-bells")
    }

    pub(crate) fn open(_: &Path, _: &StoreUsers) -> Result<Option<Self>> {
        Ok(None)
    }
}
