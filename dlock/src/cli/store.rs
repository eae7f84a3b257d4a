//! Which store, and the connection to it.

use std::{
    env,
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::timeout;

use super::{
    args::StoreArg,
    exit::{Failure, Outcome},
    output,
};
use crate::{Locks, Registry};

/// How long dlock waits at its end for releases to reach the store. The store forgets by itself what was not released.
const FAREWELL: Duration = Duration::from_secs(5);

/// Connects to the store that was asked for, or to the user's own.
pub(super) async fn connect(registry: &Registry, arg: &StoreArg) -> Outcome<Locks> {
    let url = match &arg.store {
        // The text is not shown, because it may hold a password.
        Some(url) => url
            .to_str()
            .ok_or_else(|| Failure::config("the store's URL is not UTF-8; see --store and DLOCK_STORE"))?,
        None => &own()?,
    };
    Ok(registry.connect(url).await?)
}

/// Waits until all released locks have left the store, but not for ever.
pub(super) async fn close(locks: &Locks) {
    if timeout(FAREWELL, locks.close()).await.is_err() {
        output::say("the store did not confirm the release in time; it frees the lock when its ttl ends");
    }
}

/// The file of a user who chose no store. Its directory is made if need be, and is for the user alone.
fn own() -> Outcome<String> {
    let absolute = |key| env::var_os(key).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    let place = state.ok_or_else(|| {
        Failure::config("no store: neither XDG_STATE_HOME nor HOME is set; set DLOCK_STORE, for example to `sqlite:/path/locks.db`")
    })?;
    let directory = place.join("dlock");
    DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(|error| {
        let shown = directory.display();
        Failure::config(format!(
            "cannot make the directory {shown} for the locks: {error}; set DLOCK_STORE to another store"
        ))
    })?;
    url(&directory.join("locks.db"))
}

/// The URL of the store in a file.
pub(super) fn url(file: &Path) -> Outcome<String> {
    let path = file.to_str().ok_or_else(|| {
        Failure::config(format!(
            "{} is not UTF-8, as a store's path must be; set DLOCK_STORE",
            file.display()
        ))
    })?;
    // Characters with a meaning in a URL must be escaped.
    Ok(format!("sqlite:{}", path.replace('%', "%25").replace('?', "%3F")))
}
