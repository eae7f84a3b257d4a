//! The error of a run that happens once.

use std::{error::Error as StdError, fmt};

use crate::model::Error;

/// The error of [`Occurrence::run`](crate::Occurrence::run). `E` is the error of the work.
#[derive(Debug)]
#[non_exhaustive]
pub enum OnceError<E> {
    /// The work returned this error. The lock was released, and the occurrence is not marked.
    Work(E),
    /// The work did not run, or the lock was lost before the mark was created. This run leaves no mark.
    Lock(Error),
    /// The work has succeeded, but the store has not confirmed the mark, so the work may be
    /// repeated.
    Mark(Error),
}

impl<E: fmt::Display> fmt::Display for OnceError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => error.fmt(f),
            Self::Lock(error) => error.fmt(f),
            Self::Mark(_) => {
                f.write_str("the work has succeeded, but it is not marked as done and may be repeated")
            }
        }
    }
}

impl<E: StdError + 'static> StdError for OnceError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Work(error) => error.source(),
            Self::Lock(error) => error.source(),
            Self::Mark(error) => Some(error),
        }
    }
}
