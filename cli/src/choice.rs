//! The choice of the store: by options, environment, configuration file or default.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use clap::{ArgMatches, parser::ValueSource};
use dlock::{Locks, Registry, Result, Wait, Who, config::Config, driver::StoreUrl};
use rustix::{
    fs::{CWD, Mode, OFlags, fchown, fstat, mkdirat, openat},
    io::Errno,
    process::{Gid, Uid, geteuid},
};

use crate::exit::{Failure, Outcome};

/// Configuration file for all users of the host.
pub(crate) const SYSTEM: &str = "/etc/dlock.toml";

/// URL scheme of the store inside one process, which is useless for the command.
pub(crate) const MEMORY: &str = "memory";

/// The registered stores, and the user's choice among them.
pub(crate) struct Stores<'a> {
    pub(crate) registry: &'a Registry,
    choice: Choice,
    /// Description of the chosen store, for errors.
    description: OnceLock<String>,
}

/// The user's choice of a store, and the option or variable that made it.
enum Choice {
    /// A URL, or the name of a store in the configuration.
    Store {
        text: OsString,
        source: &'static str,
        config: PathBuf,
    },
    Config {
        file: PathBuf,
        source: &'static str,
    },
    Nothing,
}

/// The chosen store, for one lock or for all.
pub(crate) struct Chosen {
    place: Place,
    /// The store without secrets.
    pub(crate) display: String,
    /// Reason for the choice of this store.
    pub(crate) reason: String,
    /// The lock, unless the configuration assigns it to another store than the chosen one.
    lock: Option<String>,
}

enum Place {
    Url(String),
    /// The user's own file, which is created with its folder.
    Own(PathBuf),
    Named {
        config: Config,
        store: String,
    },
}

/// Returns whether a text is the URL of a server, and not of a file.
pub(crate) fn is_server(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| scheme != "sqlite" && is_name(scheme))
}

impl<'a> Stores<'a> {
    /// Reads the choice from the command line and the environment.
    pub(crate) fn new(registry: &'a Registry, matches: &ArgMatches) -> Self {
        let choice = matches.subcommand().map_or(Choice::Nothing, |(_, arguments)| choice(arguments));
        Self { registry, choice, description: OnceLock::new() }
    }

    /// Returns the store of a lock, or the default store.
    ///
    /// # Errors
    /// If the configuration is invalid, or the store excludes no other process.
    pub(crate) fn chosen(&self, lock: Option<&str>) -> Outcome<Chosen> {
        let chosen = self.find(lock)?;
        self.description.set(format!("the store is {}, {}", chosen.display, chosen.reason)).ok();
        match &chosen.place {
            Place::Url(url) => check(url)?,
            Place::Named { config, store } => {
                for url in config.urls(store) {
                    check(url)?;
                    if is_relative(url) {
                        return Err(Failure::config(format!(
                            "store `{store}` has a relative path, which would be a different file in each folder; write an absolute path"
                        )));
                    }
                }
            }
            Place::Own(_) => {}
        }
        Ok(chosen)
    }

    /// Describes the store, for errors that do not name it.
    pub(crate) fn describe(&self) -> String {
        match (self.description.get(), &self.choice) {
            (Some(description), _) => description.clone(),
            (None, Choice::Store { source, .. } | Choice::Config { source, .. }) => {
                format!("the store is that of {source}")
            }
            (None, Choice::Nothing) => {
                format!("neither --store, DLOCK_STORE, --config, DLOCK_CONFIG nor {SYSTEM} names a store")
            }
        }
    }

    fn find(&self, lock: Option<&str>) -> Outcome<Chosen> {
        let (place, display, reason) = match &self.choice {
            Choice::Store { text, source, config } => match text.to_str() {
                // The message omits the text, because it may contain a password.
                None => {
                    return Err(Failure::config("the store's URL is not UTF-8; see --store and DLOCK_STORE"));
                }
                Some(name) if is_name(name) && exists(config) => {
                    let reason = format!("as {source} says, in {}", config.display());
                    named(config, Some(name), None, reason)?
                }
                Some(url) => {
                    let display =
                        url.parse::<StoreUrl>().map_or("not a URL".to_owned(), |url| format!("`{url}`"));
                    (Place::Url(url.to_owned()), display, format!("as {source} says"))
                }
            },
            Choice::Config { file, source } => {
                named(file, None, lock, format!("in {}, as {source} says", file.display()))?
            }
            Choice::Nothing if exists(Path::new(SYSTEM)) => {
                named(Path::new(SYSTEM), None, lock, format!("in {SYSTEM}, for all users of this host"))?
            }
            Choice::Nothing => {
                let file = own_file()?;
                let display = format!("the user's own file `{}`", file.display());
                let reason = format!(
                    "because neither --store, DLOCK_STORE, --config, DLOCK_CONFIG nor {SYSTEM} names one; other users have files of their own"
                );
                (Place::Own(file), display, reason)
            }
        };
        // A rule of the configuration names a store and the options there, so it does not apply to
        // another store.
        let rule_applies = |lock: &&str| match &place {
            Place::Named { config, store } => config.store_of(lock) == store,
            Place::Url(_) | Place::Own(_) => true,
        };
        let lock = lock.filter(rule_applies).map(str::to_owned);
        Ok(Chosen { place, display, reason, lock })
    }
}

impl Chosen {
    /// Connects to the store. Creates the folder of the user's own file if it does not exist.
    pub(crate) async fn connect(&self, registry: &Registry) -> Result<Locks> {
        match (&self.place, &self.lock) {
            (Place::Url(url), _) => registry.connect(url).await,
            (Place::Own(file), _) => {
                create_folder(file)?;
                registry.connect(&url(file)?).await
            }
            (Place::Named { config, .. }, Some(lock)) => config.connect_for(registry, lock).await,
            (Place::Named { config, store }, None) => config.connect_store(registry, store).await,
        }
    }

    /// Returns the wait limit of the configuration, if it sets one.
    pub(crate) fn wait(&self) -> Option<Wait> {
        match (&self.place, &self.lock) {
            (Place::Named { config, .. }, Some(lock)) => config.wait_of(lock),
            (Place::Named { config, store }, None) => config.store_wait(store),
            _ => None,
        }
    }

    /// Returns the label of the claims, if the configuration or the store's URL sets one. The
    /// configuration has priority.
    pub(crate) fn who(&self) -> Option<Who> {
        let configured = match (&self.place, &self.lock) {
            (Place::Named { config, .. }, Some(lock)) => config.who_of(lock).cloned(),
            (Place::Named { config, store }, None) => config.store_who(store).cloned(),
            _ => None,
        };
        configured.or_else(|| self.url()?.param("who").map(Who::new)?.ok())
    }

    /// Returns the URL of the store, if it has one.
    pub(crate) fn url(&self) -> Option<StoreUrl> {
        match &self.place {
            Place::Url(url) => url.parse().ok(),
            Place::Own(_) => None,
            Place::Named { config, store } => match config.urls(store)[..] {
                [url] => url.parse().ok(),
                _ => None,
            },
        }
    }

    /// Returns whether the store is a file that does not exist yet. Only an acquisition creates it.
    pub(crate) fn is_missing(&self) -> bool {
        let is_missing = |file: &Path| matches!(file.try_exists(), Ok(false));
        match (&self.place, self.url()) {
            (Place::Own(file), _) => is_missing(file),
            // The driver reports invalid parts of a URL.
            (_, Some(url))
                if url.scheme() == "sqlite" && url.hosts().is_empty() && url.allow(&["who"]).is_ok() =>
            {
                let file = Path::new(url.path());
                // The driver reports a missing folder, in which no file can be created.
                let folder = file.parent().filter(|folder| *folder != Path::new(""));
                is_missing(file) && folder.is_none_or(Path::is_dir)
            }
            _ => false,
        }
    }
}

/// Reads the choice from arguments and variables. The command line has priority over the
/// environment.
fn choice(matches: &ArgMatches) -> Choice {
    let value = |id: &str| {
        // Not all commands have the argument.
        let text = matches.try_get_one::<OsString>(id).ok()??;
        (!text.is_empty() || id == "store").then_some((text.clone(), matches.value_source(id)?))
    };
    let config = value("config");
    let file = || config.as_ref().map_or(PathBuf::from(SYSTEM), |(file, _)| PathBuf::from(file));
    let is_typed = |source: ValueSource| source == ValueSource::CommandLine;
    match (value("store"), &config) {
        (Some((text, value_source)), config)
            if is_typed(value_source)
                || is_name_of(&text)
                || !config.as_ref().is_some_and(|(_, source)| is_typed(*source)) =>
        {
            let source = if is_typed(value_source) { "--store" } else { "DLOCK_STORE" };
            Choice::Store { text, source, config: file() }
        }
        (_, Some((_, value_source))) => {
            let source = if is_typed(*value_source) { "--config" } else { "DLOCK_CONFIG" };
            Choice::Config { file: file(), source }
        }
        _ => Choice::Nothing,
    }
}

fn is_name_of(text: &OsStr) -> bool {
    text.to_str().is_some_and(is_name)
}

/// Returns whether a text may name a store of a configuration: it is neither a URL nor a path.
fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains([':', '/']) && !text.starts_with(['.', '~'])
}

/// Returns whether a file exists. An inaccessible file, and a link to a missing file, count as
/// existing, because they must not be ignored silently.
fn exists(file: &Path) -> bool {
    !file.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Reads a configuration. Returns the store with this name, the store of a lock, or the default
/// store, with its description and the completed reason.
fn named(
    file: &Path,
    name: Option<&str>,
    lock: Option<&str>,
    reason: String,
) -> Outcome<(Place, String, String)> {
    let config = Config::from_file(file)?;
    let store = match (name, lock) {
        (Some(name), _) => name,
        (None, Some(lock)) => config.store_of(lock),
        (None, None) => config.default_store(),
    };
    let unknown = || {
        let known = config.stores().collect::<Vec<_>>().join(", ");
        Failure::config(format!("there is no store `{store}` in {}; there are: {known}", file.display()))
    };
    let display = format!("`{}`", config.shown(store).ok_or_else(unknown)?);
    let reason = format!("store `{store}` {reason}");
    let store = store.to_owned();
    Ok((Place::Named { config, store }, display, reason))
}

/// Refuses `memory:`, which excludes no other process, and texts that only look like URLs.
pub(crate) fn check(url: &str) -> Outcome<()> {
    if url.split_once(':').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case(MEMORY)) {
        return Err(Failure::config(
            "`memory:` is a store inside one process, so two commands would not exclude each other; omit --store to \
             use the store of the host or the user, or name a store that processes share, for example `sqlite:/path/locks.db`",
        ));
    }
    advice(url).map_or(Ok(()), |advice| Err(Failure::config(advice)))
}

fn is_relative(url: &str) -> bool {
    url.parse::<StoreUrl>().is_ok_and(|url| url.scheme() == "sqlite" && Path::new(url.path()).is_relative())
}

/// Returns the correction of a text that a shell or another program would accept in place of a URL.
fn advice(url: &str) -> Option<&'static str> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let is_port = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    match scheme {
        _ if scheme.starts_with(['/', '.', '~']) => Some(
            "the store is a path, but must be a URL; write `sqlite:` before the path of a file, for example `sqlite:/path/locks.db`",
        ),
        _ if rest.starts_with('~') => {
            Some("the shell does not expand `~` inside a URL; write `sqlite:$HOME/…` in double quotes")
        }
        _ if is_port => Some(
            "the store is a host and a port, but must be a URL; write its scheme before it, for example `redis://HOST:PORT`",
        ),
        _ => None,
    }
}

/// Description of the default store of every user, for the manual pages.
pub(crate) const DEFAULT_OF_ANY_USER: &str =
    "the store that /etc/dlock.toml names, or else `$HOME/.local/state/dlock/locks.db`";

/// Returns the default store of a user, a file in the state folder.
fn own_file() -> Outcome<PathBuf> {
    let set = |key| env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG standard says to ignore relative paths.
    let state = set("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let state_dir = match (state, set("HOME")) {
        (Some(state), _) => state,
        (None, Some(home_dir)) if home_dir.is_absolute() => home_dir.join(".local/state"),
        (None, home_dir) => {
            let problem = home_dir.map_or("HOME is not set".to_owned(), |home_dir| {
                format!("HOME is `{}`, which is not an absolute path", home_dir.display())
            });
            return Err(Failure::config(format!(
                "no store: {problem}; set DLOCK_STORE, for a service for example to `sqlite:/var/lib/dlock/locks.db`, \
                 or name a store for all users of this host in {SYSTEM}"
            )));
        }
    };
    Ok(state_dir.join("dlock/locks.db"))
}

/// Describes the default store for `--help`.
pub(crate) fn describe_default() -> String {
    match own_file() {
        _ if exists(Path::new(SYSTEM)) => format!("the store of {SYSTEM}"),
        Ok(file) => format!("`{}`", file.display()),
        Err(_) => "none, because HOME is not set".to_owned(),
    }
}

/// Creates the folder of the user's own file, with access for the user only.
fn create_folder(file: &Path) -> Result<()> {
    match file.parent() {
        Some(folder) if !folder.is_dir() => create_all(folder).map_err(|error| {
            let folder = folder.display();
            dlock::Error::InvalidConfig {
                reason: format!(
                    "cannot create the folder {folder} for the locks: {error}; set DLOCK_STORE to another store"
                ),
            }
        }),
        _ => Ok(()),
    }
}

/// Owner of files whose owner has no number in this container's user namespace.
const UNMAPPED_USER: u32 = 65_534;

/// Creates a folder and the missing folders around it.
///
/// If root runs with the HOME of a user, the new folders belong to that user, who could not use the
/// store otherwise. Each step begins at an open folder, because the user may replace folders by links
/// to other places at the same time.
fn create_all(folder: &Path) -> io::Result<()> {
    let open = |at: BorrowedFd<'_>, path: &Path, links: OFlags| {
        openat(at, path, OFlags::DIRECTORY | OFlags::CLOEXEC | links, Mode::empty())
    };
    let (mut existing, mut missing) = (folder, Vec::new());
    let mut around = loop {
        match (open(CWD, existing, OFlags::empty()), existing.parent(), existing.file_name()) {
            (Err(Errno::NOENT), Some(parent), Some(name)) => {
                missing.push(Path::new(name));
                existing = parent;
            }
            (found, ..) => break found?,
        }
    };
    for name in missing.into_iter().rev() {
        let created = mkdirat(&around, name, Mode::RWXU);
        around = match created {
            Err(Errno::EXIST) => open(around.as_fd(), name, OFlags::empty())?,
            Err(error) => return Err(error.into()),
            Ok(()) => {
                let created = open(around.as_fd(), name, OFlags::NOFOLLOW)?;
                let owner = fstat(&around)?;
                if geteuid().is_root() && owner.st_uid != UNMAPPED_USER {
                    // In a container root may lack the right. It can use the store nevertheless.
                    let (user, group) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
                    fchown(&created, Some(user), Some(group)).ok();
                }
                created
            }
        };
    }
    Ok(())
}

/// Returns the URL of the store in a file.
pub(crate) fn url(file: &Path) -> Result<String> {
    let path = file.to_str().ok_or_else(|| dlock::Error::InvalidConfig {
        reason: format!("{} is not UTF-8, as a store's path must be; set DLOCK_STORE", file.display()),
    })?;
    // Characters with a meaning in a URL must be escaped.
    Ok(format!("sqlite:{}", path.replace('%', "%25").replace('?', "%3F")))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_missing_configuration_is_not_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let [link, missing] = ["link", "missing"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink(&missing, &link).unwrap();
        assert!(exists(&link) && !exists(&missing));
    }
}
