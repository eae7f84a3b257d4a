//! The files of a store, on systems where dlock cannot check owners, modes and links.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use dlock_core::{Error, Result};

/// Returns the path with `suffix` appended to its name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(suffix);
    path.into()
}

/// The users who may write the store, which are unknown on this system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreUsers;

/// Does nothing, because SQLite creates the file.
pub(crate) fn make(_: &Path) -> Result<()> {
    Ok(())
}

/// Accepts every file.
pub(crate) fn check(_: &Path) -> Result<StoreUsers> {
    Ok(StoreUsers)
}

pub(crate) fn refusal(path: &Path, problem: &str) -> Error {
    Error::InvalidConfig { reason: format!("`{}` {problem}", path.display()) }
}
