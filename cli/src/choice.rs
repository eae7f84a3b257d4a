//! Which store dlock uses, and why. Over the usual length, so that every way to choose one is in one file.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use clap::{ArgMatches, parser::ValueSource};
use dlock::{Locks, Registry, Result, Wait, config::Config, driver::StoreUrl};

use crate::exit::{Failure, Outcome};

/// The configuration for all users of the host.
pub(crate) const SYSTEM: &str = "/etc/dlock.toml";

/// The scheme of the store inside one process.
pub(crate) const MEMORY: &str = "memory";

/// The stores that a command may use: who chose one, and which there are.
pub(crate) struct Stores<'a> {
    pub(crate) registry: &'a Registry,
    choice: Choice,
    /// Which store was chosen, for an error.
    told: OnceLock<String>,
}

/// What was said about the store, and by what.
enum Choice {
    /// A URL, or the name of a store of the configuration.
    Store {
        text: OsString,
        by: &'static str,
        config: PathBuf,
    },
    Config {
        file: PathBuf,
        by: &'static str,
    },
    Nothing,
}

/// One store.
pub(crate) struct Chosen {
    place: Place,
    /// The store without secrets, and why it is this one.
    pub(crate) shown: String,
    pub(crate) why: String,
    lock: Option<String>,
}

enum Place {
    Url(String),
    /// The user's own file, which is made with its folder.
    Own(PathBuf),
    Named {
        config: Config,
        store: String,
    },
}

impl<'a> Stores<'a> {
    /// What the command line and the environment say.
    pub(crate) fn new(registry: &'a Registry, matches: &ArgMatches) -> Self {
        let choice = matches.subcommand().map_or(Choice::Nothing, |(_, of)| choice(of));
        Self { registry, choice, told: OnceLock::new() }
    }

    /// The store for a lock, or the one that no rule names.
    pub(crate) fn chosen(&self, lock: Option<&str>) -> Outcome<Chosen> {
        let chosen = self.find(lock)?;
        self.told.set(format!("the store is {}, {}", chosen.shown, chosen.why)).ok();
        match &chosen.place {
            Place::Url(url) => check(url)?,
            Place::Named { config, store } => {
                for url in config.urls(store) {
                    check(url)?;
                    if is_relative(url) {
                        return Err(Failure::config(format!(
                            "store `{store}` is a file with a relative path, which would be another file in each folder; write an absolute one"
                        )));
                    }
                }
            }
            Place::Own(_) => {}
        }
        Ok(chosen)
    }

    /// Which store it is, for an error that does not know it.
    pub(crate) fn which(&self) -> String {
        match (self.told.get(), &self.choice) {
            (Some(told), _) => told.clone(),
            (None, Choice::Store { by, .. } | Choice::Config { by, .. }) => {
                format!("the store is what {by} says")
            }
            (None, Choice::Nothing) => {
                format!("neither --store, DLOCK_STORE, --config, DLOCK_CONFIG nor {SYSTEM} names a store")
            }
        }
    }

    fn find(&self, lock: Option<&str>) -> Outcome<Chosen> {
        let (place, shown, why) = match &self.choice {
            Choice::Store { text, by, config } => match text.to_str() {
                // The text is not shown, because it may hold a password.
                None => {
                    return Err(Failure::config("the store's URL is not UTF-8; see --store and DLOCK_STORE"));
                }
                Some(name) if is_name(name) && is_there(config) => {
                    let why = format!("as {by} says, in {}", config.display());
                    named(config, Some(name), None, why)?
                }
                Some(url) => {
                    let shown = url.parse::<StoreUrl>().map_or("no URL".to_owned(), |url| format!("`{url}`"));
                    (Place::Url(url.to_owned()), shown, format!("as {by} says"))
                }
            },
            Choice::Config { file, by } => {
                named(file, None, lock, format!("in {}, as {by} says", file.display()))?
            }
            Choice::Nothing if is_there(Path::new(SYSTEM)) => {
                named(Path::new(SYSTEM), None, lock, format!("in {SYSTEM}, for all users of this host"))?
            }
            Choice::Nothing => {
                let file = own()?;
                let shown = format!("the user's own file `{}`", file.display());
                let why = format!(
                    "because neither --store, DLOCK_STORE, --config, DLOCK_CONFIG nor {SYSTEM} names one; other users have files of their own"
                );
                (Place::Own(file), shown, why)
            }
        };
        Ok(Chosen { place, shown, why, lock: lock.map(str::to_owned) })
    }
}

impl Chosen {
    /// Connects. Makes the folder of the user's own file if need be.
    pub(crate) async fn connect(&self, registry: &Registry) -> Result<Locks> {
        match (&self.place, &self.lock) {
            (Place::Url(url), _) => registry.connect(url).await,
            (Place::Own(file), _) => {
                make_folder(file)?;
                registry.connect(&url(file)?).await
            }
            (Place::Named { config, .. }, Some(lock)) => config.connect_for(registry, lock).await,
            (Place::Named { config, store }, None) => config.connect_store(registry, store).await,
        }
    }

    /// How long to wait, if the configuration says so.
    pub(crate) fn wait(&self) -> Option<Wait> {
        match (&self.place, &self.lock) {
            (Place::Named { config, .. }, Some(lock)) => config.wait_of(lock),
            _ => None,
        }
    }

    /// The URL, if it is one.
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

    /// Whether it is a file that is not made yet. Only somebody who takes a lock makes it.
    pub(crate) fn is_unmade(&self) -> bool {
        let is_unmade = |file: &Path| matches!(file.try_exists(), Ok(false));
        match (&self.place, self.url()) {
            (Place::Own(file), _) => is_unmade(file),
            // What else a URL has in it is a mistake, which the driver tells.
            (_, Some(url))
                if url.scheme() == "sqlite" && url.hosts().is_empty() && url.allow(&["who"]).is_ok() =>
            {
                let file = Path::new(url.path());
                // Where no folder is, nobody can make a file: that is a mistake, and the driver tells it.
                let folder = file.parent().filter(|folder| *folder != Path::new(""));
                is_unmade(file) && folder.is_none_or(Path::is_dir)
            }
            _ => false,
        }
    }
}

/// What the arguments and the variables say. A command line goes before the environment.
fn choice(matches: &ArgMatches) -> Choice {
    let told = |id: &str| {
        // A command without a store does not know the argument.
        let text = matches.try_get_one::<OsString>(id).ok()??;
        (!text.is_empty() || id == "store").then_some((text.clone(), matches.value_source(id)?))
    };
    let config = told("config");
    let file = || config.as_ref().map_or(PathBuf::from(SYSTEM), |(file, _)| PathBuf::from(file));
    let is_typed = |source: ValueSource| source == ValueSource::CommandLine;
    match (told("store"), &config) {
        (Some((text, source)), config)
            if is_typed(source)
                || is_name_of(&text)
                || !config.as_ref().is_some_and(|(_, source)| is_typed(*source)) =>
        {
            let by = if is_typed(source) { "--store" } else { "DLOCK_STORE" };
            Choice::Store { text, by, config: file() }
        }
        (_, Some((_, source))) => {
            let by = if is_typed(*source) { "--config" } else { "DLOCK_CONFIG" };
            Choice::Config { file: file(), by }
        }
        _ => Choice::Nothing,
    }
}

fn is_name_of(text: &OsStr) -> bool {
    text.to_str().is_some_and(is_name)
}

/// Whether it may be the name of a store of a configuration: neither a URL nor a path.
fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains([':', '/']) && !text.starts_with(['.', '~'])
}

/// Whether there is a file. One that cannot be looked at is there: it must not be passed over in silence.
fn is_there(file: &Path) -> bool {
    file.try_exists().unwrap_or(true)
}

fn named(
    file: &Path,
    name: Option<&str>,
    lock: Option<&str>,
    why: String,
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
    let shown = format!("`{}`", config.shown(store).ok_or_else(unknown)?);
    let why = format!("store `{store}` {why}");
    // A store that is asked for by its name is not chosen by rules.
    let store = store.to_owned();
    Ok((Place::Named { config, store }, shown, why))
}

/// Refuses what excludes nobody, and what a shell or another program would understand.
fn check(url: &str) -> Outcome<()> {
    if url.split_once(':').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case(MEMORY)) {
        return Err(Failure::config(
            "`memory:` is a store inside one process, so two commands would not exclude each other; leave --store out \
             for the host's or the user's own, or give a store that processes share, for example `sqlite:/path/locks.db`",
        ));
    }
    advice(url).map_or(Ok(()), |advice| Err(Failure::config(advice)))
}

fn is_relative(url: &str) -> bool {
    url.parse::<StoreUrl>().is_ok_and(|url| url.scheme() == "sqlite" && Path::new(url.path()).is_relative())
}

/// What to write in place of a text that a shell, or another program, would understand.
fn advice(url: &str) -> Option<&'static str> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let is_port = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    match scheme {
        _ if scheme.starts_with(['/', '.', '~']) => Some(
            "the store is a path, and must be a URL: write `sqlite:` before the path of a file, for example `sqlite:/path/locks.db`",
        ),
        _ if rest.starts_with('~') => Some(
            "`~` means nothing inside of a URL, since no shell replaces it there; write `sqlite:$HOME/…` in double quotes",
        ),
        _ if is_port => Some(
            "the store is a host and a port, and must be a URL: write its scheme before it, for example `redis://HOST:PORT`",
        ),
        _ => None,
    }
}

/// The file of a user who chose no store.
fn own() -> Outcome<PathBuf> {
    let set = |key| env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    // As the standard for these folders says, a relative one does not count.
    let state = set("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let place = match (state, set("HOME")) {
        (Some(state), _) => state,
        (None, Some(home)) if home.is_absolute() => home.join(".local/state"),
        (None, home) => {
            let home = home.map_or("HOME is not set".to_owned(), |home| {
                format!("HOME is `{}`, which is no absolute path", home.display())
            });
            return Err(Failure::config(format!(
                "no store: {home}; set DLOCK_STORE, for a service for example to `sqlite:/var/lib/dlock/locks.db`, \
                 or name a store for all users of this host in {SYSTEM}"
            )));
        }
    };
    Ok(place.join("dlock/locks.db"))
}

/// The default for people: what `--help` names.
pub(crate) fn shown_default() -> String {
    match own() {
        _ if is_there(Path::new(SYSTEM)) => format!("what {SYSTEM} names"),
        Ok(file) => format!("`{}`", file.display()),
        Err(_) => "none, because there is no HOME".to_owned(),
    }
}

/// Makes the folder of the user's own file, for the user alone.
fn make_folder(file: &Path) -> Result<()> {
    let Some(folder) = file.parent() else { return Ok(()) };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        let shown = folder.display();
        dlock::Error::InvalidConfig {
            reason: format!(
                "cannot make the folder {shown} for the locks: {error}; set DLOCK_STORE to another store"
            ),
        }
    })
}

/// The URL of the store in a file.
pub(crate) fn url(file: &Path) -> Result<String> {
    let path = file.to_str().ok_or_else(|| dlock::Error::InvalidConfig {
        reason: format!("{} is not UTF-8, as a store's path must be; set DLOCK_STORE", file.display()),
    })?;
    // Characters with a meaning in a URL must be escaped.
    Ok(format!("sqlite:{}", path.replace('%', "%25").replace('?', "%3F")))
}
