//! What a URL may say: `folder:/srv/locks?timeout=500ms`.

use std::{path::PathBuf, time::Duration};

use dlock::{Error, Result, driver::StoreUrl};

/// How long a step may take unless the URL says otherwise.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Where the store is.
#[derive(Clone, Debug)]
pub struct FolderConfig {
    /// The folder. It is made if it is not there.
    pub folder: PathBuf,
    /// The longest that one step may take. A claim with a short ttl takes less: see the README.
    pub timeout: Duration,
}

impl FolderConfig {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a host, a parameter that is not known, or a folder that is not named.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        // A misspelt parameter must not silently weaken a lock.
        url.allow(&["timeout"])?;
        let invalid = |reason| Err(Error::InvalidConfig { reason });
        if !url.hosts().is_empty() {
            return invalid(format!("`{url}` names a host; write `folder:/path`"));
        }
        if url.path().is_empty() {
            return invalid("no folder is named; write `folder:/path`".to_owned());
        }
        let timeout = match url.param("timeout") {
            None => TIMEOUT,
            Some(text) => match text.strip_suffix("ms").unwrap_or(text).parse() {
                Ok(millis) if millis > 0 => Duration::from_millis(millis),
                _ => {
                    return invalid(format!(
                        "`timeout={text}` is not a duration; write for example `timeout=500ms`"
                    ));
                }
            },
        };
        Ok(Self { folder: url.path().into(), timeout })
    }
}
