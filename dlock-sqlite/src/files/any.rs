//! The files of a store, where files have no owner, mode or links that this program could look at.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use dlock_core::{Error, Result};

/// The path with something behind its name.
pub(crate) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(end);
    path.into()
}

/// Who may write the store, which cannot be told here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Circle;

/// SQLite makes the file.
pub(crate) fn make(_: &Path) -> Result<()> {
    Ok(())
}

/// Refuses nothing.
pub(crate) fn check(_: &Path) -> Result<Circle> {
    Ok(Circle)
}

pub(crate) fn refusal(path: &Path, what: &str) -> Error {
    Error::InvalidConfig { reason: format!("`{}` {what}", path.display()) }
}
