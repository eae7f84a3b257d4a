//! Which file the store is in, and whether a store can be there.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use dlock_core::{Error, Result, driver::StoreUrl};

use crate::{host, keys};

/// The most symbolic links that a path may lead through, as in the Linux kernel.
const LINKS: usize = 40;

/// The file that holds the locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteConfig {
    path: PathBuf,
}

impl SqliteConfig {
    /// The store in this file, which is created if there is none. A relative path counts from the directory that is
    /// current when it is connected. Everybody who is to share the locks must name the same file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The file that `sqlite:path` or `sqlite:///path` names.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a host, a parameter, or no path.
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

    /// The path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that a store can be at the path, and makes the path absolute.
    pub(crate) fn resolve(&self) -> Result<PathBuf> {
        self.check_shape()?;
        let shown = self.path.display();
        let invalid = |what: String| Error::InvalidConfig { reason: format!("`{shown}` {what}") };
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
        // Followed by hand: a link may lead to a file that is not made yet, and `canonicalize` refuses that.
        for _ in 0..LINKS {
            match path.read_link() {
                Ok(target) => path = path.with_file_name("").join(target),
                Err(_) => break,
            }
        }
        let path = canonical(&path).unwrap_or(path);
        let dir = path.parent().unwrap_or(&parent);
        match host::foreign_file_system(dir) {
            Some(system) => Err(invalid(format!(
                "is on {system}, which other hosts may see too, and SQLite's locks are good on one host only; \
                 put it on a disk of this host"
            ))),
            None => Ok(path),
        }
    }

    fn check_shape(&self) -> Result<()> {
        let path = self.path.to_str().unwrap_or_default();
        if path.is_empty() || path == ":memory:" {
            let reason =
                "a store in memory is no SQLite file: write `memory:`, or name a file: `sqlite:locks.db`";
            return Err(Error::InvalidConfig { reason: reason.to_owned() });
        }
        keys::check_path(&self.path)
    }
}

/// The path with the links in its folder resolved. The file itself need not be there.
fn canonical(path: &Path) -> Option<PathBuf> {
    Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
}

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
    fn what_names_no_file_is_refused_with_what_to_write() {
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
