//! The path of the store's file, and its checks.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use dlock_core::{Error, Result, driver::StoreUrl};

use crate::{host, keys};

/// Maximum number of symbolic links in a row, as in the Linux kernel.
const MAX_LINKS: usize = 40;

/// The configuration of a store: the path of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteConfig {
    path: PathBuf,
}

impl SqliteConfig {
    /// Configures the store in this file, which is created if it does not exist. A relative path
    /// starts at the current directory of the process when the store is connected. All programs
    /// that share locks must name the same file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Configures the store in the file of a URL `sqlite:path` or `sqlite:///path`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the URL has a host or a parameter, or no path.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        url.allow(&[])?;
        if !url.hosts().is_empty() || url.user().is_some() || url.password().is_some() {
            return Err(url.invalid(
                "names a host, and SQLite has none: write `sqlite:relative.db` or `sqlite:///absolute.db`",
            ));
        }
        let config = Self::new(url.path());
        config.check_shape().map(|()| config)
    }

    /// Returns the path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the absolute path without links.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if there cannot be a store at the path.
    pub(crate) fn resolve(&self) -> Result<PathBuf> {
        self.check_shape()?;
        let given = self.path.display();
        let invalid = |problem: String| Error::InvalidConfig { reason: format!("`{given}` {problem}") };
        if self.path.is_dir() {
            return Err(invalid("is a directory; name a file in it, for example `locks.db`".to_owned()));
        }
        if self.path.exists() && !self.path.is_file() {
            return Err(invalid(
                "is not a file; name an ordinary file, or one that is to be created".to_owned(),
            ));
        }
        let name = self.path.file_name().ok_or_else(|| invalid("has no file name".to_owned()))?;
        let parent = self.path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let parent = parent.canonicalize().map_err(|error| {
            if error.kind() == ErrorKind::PermissionDenied {
                return invalid(
                    "cannot be reached by this user; to share a store, make it with `dlock init --group GROUP \
                     FOLDER/locks.db`"
                        .to_owned(),
                );
            }
            invalid(format!(
                "cannot be created in `{}`: {error}; create that directory first",
                parent.display()
            ))
        })?;
        let mut path = parent.join(name);
        // The links are followed here, because a link may lead to a file that does not exist yet,
        // and `canonicalize` refuses that.
        for _ in 0..MAX_LINKS {
            match path.read_link() {
                Ok(target) => path = path.with_file_name("").join(target),
                Err(_) => break,
            }
        }
        let path = canonical(&path).unwrap_or(path);
        let dir = path.parent().unwrap_or(&parent);
        match host::shared_file_system(dir) {
            Some(system) => Err(invalid(format!(
                "is on {system}, which other hosts may use too, and SQLite's locks work on one host only; put it on a \
                 disk of this host"
            ))),
            None => Ok(path),
        }
    }

    fn check_shape(&self) -> Result<()> {
        let path = self.path.to_str().unwrap_or_default();
        if path.is_empty() || path == ":memory:" {
            let reason =
                "a store in memory is not an SQLite file: write `memory:`, or name a file: `sqlite:locks.db`";
            return Err(Error::InvalidConfig { reason: reason.to_owned() });
        }
        keys::check_path(&self.path)
    }
}

/// Resolves the links in the path's folder. The file itself need not exist.
fn canonical(path: &Path) -> Option<PathBuf> {
    Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<SqliteConfig> {
        SqliteConfig::from_url(&url.parse().expect(url))
    }

    #[test]
    fn a_path_may_be_relative_absolute_and_escaped() {
        for (url, path) in [
            ("sqlite:locks.db", "locks.db"),
            ("sqlite:./a/locks.db", "./a/locks.db"),
            ("sqlite:/var/lib/locks.db", "/var/lib/locks.db"),
            ("sqlite:///var/lib/my%20locks.db", "/var/lib/my locks.db"),
        ] {
            assert_eq!(config(url).expect(url), SqliteConfig::new(path));
        }
    }

    #[test]
    fn a_url_without_a_file_is_refused_with_what_to_write() {
        for (url, words) in [
            ("sqlite://locks.db", "sqlite:///absolute.db"),
            ("sqlite://host/locks.db", "names a host"),
            ("sqlite:", "memory:"),
            ("sqlite::memory:", "memory:"),
            ("sqlite:a.db?mode=ro", "unknown parameter `mode`"),
            ("sqlite:a%00b", "control character"),
        ] {
            let error = config(url).expect_err(url).to_string();
            assert!(error.contains(words), "{url}: {error}");
        }
    }
}
