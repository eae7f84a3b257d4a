//! Configuration from a URL, such as `folder:/srv/locks?timeout=500ms`.

use std::{path::PathBuf, time::Duration};

use dlock::{Error, Result, driver::StoreUrl};

/// Maximum duration of a call if the URL sets none. Long enough for a busy disk.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

/// The location of the store, and the timeout of its calls.
#[derive(Clone, Debug)]
pub struct FolderConfig {
    /// The folder. It is created if it does not exist.
    pub folder: PathBuf,
    /// Maximum duration of one call, from its start. Default in a URL: 2 s. A call of a claim also
    /// ends within a third of the claim's ttl.
    pub timeout: Duration,
}

impl FolderConfig {
    /// Returns the configuration of a URL.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a host, an unknown parameter, an invalid timeout or a missing
    /// folder.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        // A misspelled parameter must not silently weaken a lock.
        url.allow(&["timeout"])?;
        let invalid = |reason| Err(Error::InvalidConfig { reason });
        if !url.hosts().is_empty() {
            return invalid(format!("`{url}` names a host; write `folder:/path`"));
        }
        if url.path().is_empty() {
            return invalid("no folder is named; write `folder:/path`".to_owned());
        }
        let timeout = url.duration("timeout", Duration::from_millis(1)..)?.unwrap_or(DEFAULT_TIMEOUT);
        Ok(Self { folder: url.path().into(), timeout })
    }
}
