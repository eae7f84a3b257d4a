//! What SQLite's errors mean to the caller: the one place that decides.

use std::path::Path;

use dlock_core::{Error, Source};

/// In the words of the URL's scheme.
pub(crate) const STORE: &str = "sqlite";

/// Why a call failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("`{path}` {advice}")]
struct Trouble {
    path: String,
    advice: &'static str,
    source: sqlx::Error,
}

/// The error of a call on the file at `path`.
pub(crate) fn explain(path: &Path, source: sqlx::Error) -> Error {
    let verdict = verdict(&source);
    let (Verdict::Later(advice) | Verdict::Never(advice)) = verdict;
    let source = Box::new(Trouble { path: path.display().to_string(), advice, source });
    match verdict {
        Verdict::Later(_) => unavailable(source),
        Verdict::Never(_) => Error::Store { store: STORE, source },
    }
}

/// The file did not answer; asking again may help.
pub(crate) fn unavailable(source: impl Into<Source>) -> Error {
    Error::Unavailable { store: STORE, source: source.into() }
}

/// Whether asking again may help, and what to do.
enum Verdict {
    Later(&'static str),
    Never(&'static str),
}

fn verdict(error: &sqlx::Error) -> Verdict {
    let code = match error {
        sqlx::Error::Database(error) => error.code().and_then(|code| code.parse::<i32>().ok()),
        sqlx::Error::WorkerCrashed => return Verdict::Later("lost its worker thread; it is opened again"),
        _ => None,
    };
    // The low byte is the kind of failure, the rest its circumstances.
    match code.map(|code| code & 0xff) {
        Some(5 | 6 | 15) => Verdict::Later("is busy: another process has kept it locked for seconds"),
        Some(3 | 8 | 23) => Verdict::Never(
            "cannot be written: make the file, its `-wal` and `-shm` and its directory writable for this user",
        ),
        Some(10) => Verdict::Never("cannot be read or written: check its disk"),
        Some(11) => Verdict::Never("is damaged: stop who uses it and delete it; locks held in it are lost"),
        Some(13) => Verdict::Never("cannot grow: its disk is full"),
        Some(14) => {
            Verdict::Never("cannot be opened: check that its directory exists and is writable for this user")
        }
        Some(26) => Verdict::Never("is not an SQLite database: choose another path"),
        _ => Verdict::Never("failed"),
    }
}
