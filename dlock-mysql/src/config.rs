//! The server, the database and the mode of a store, as a URL names them.

use std::{fmt, path::PathBuf, time::Duration};

use dlock_core::{
    Result,
    driver::{Address, Login, StoreUrl, Tls},
};

use crate::keys::Tables;

/// The address and the options of a store. Read from a URL by [`from_url`](Self::from_url).
#[derive(Clone, PartialEq, Eq)]
pub struct MysqlConfig {
    /// Host and port of each server. Empty if there is a socket.
    pub(crate) hosts: Vec<Address>,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) database: String,
    pub(crate) login: Login,
    pub(crate) tls: Option<Tls>,
    /// Whether connections are never encrypted, even if the server offers TLS.
    pub(crate) is_plain: bool,
    pub(crate) prefix: String,
    /// Time limit of a call.
    pub(crate) timeout: Duration,
    /// Maximum number of sessions that execute the calls of one client.
    pub(crate) connections: usize,
    /// Maximum number of sessions that wait for doorbells of other clients. With 0 all waiters
    /// poll.
    pub(crate) waits: usize,
    pub(crate) mode: Mode,
}

/// The way in which the server keeps the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In a queue in a table, for all kinds of locks.
    Queue,
    /// As named locks of the server, each owned by a session. They exclude programs that call
    /// `GET_LOCK`.
    Session(Names),
}

/// The rule by which a lock's name becomes a named lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// The name itself if both servers accept it, otherwise its beginning and a hash.
    Hashed,
    /// The name itself. A lock whose name the servers do not accept is refused.
    Exact,
}

/// Range of the time limit of a call. The server itself waits for a locked row for at least one
/// second.
const TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(24 * 3600);

const PARAMS: &[&str] = &[
    "prefix",
    "timeout",
    "connections",
    "waits",
    "doorbell",
    "mode",
    "names",
    "socket",
    "password_file",
    "tls",
    "ca",
    "cert",
    "key",
];

/// Maximum length of the prefix of a table's name. The server allows 64 characters for the whole
/// name.
const LONGEST_PREFIX: usize = 48;

impl MysqlConfig {
    /// Reads a URL: `mysql://user:password@host:port/database`, `mysql://host,host/database`, or
    /// `mysql:///database?socket=PATH`. `mariadb://` means the same. The README lists the
    /// parameters.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](dlock_core::Error::InvalidConfig) for a host, database or parameter
    /// that cannot be used.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        url.allow(PARAMS)?;
        let socket = url.param("socket").map(PathBuf::from);
        let hosts = url.addresses(3306)?;
        if hosts.is_empty() == socket.is_none() {
            return Err(url.invalid("names no server: write `//host/database`, or `///database?socket=PATH`"));
        }
        let database = url.path().trim_matches('/').to_owned();
        if database.is_empty() || database.contains(['/', '`', '\\']) || database.chars().count() > 64 {
            return Err(url.invalid("names no database: write `//host/database`"));
        }
        let prefix = url.param("prefix").unwrap_or("dlock_").to_owned();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if prefix.len() > LONGEST_PREFIX || !prefix.chars().all(is_word) {
            return Err(url.invalid(
                "has a `prefix` that cannot begin a table's name: use up to 48 letters, digits and `_`",
            ));
        }
        let tls = url.tls(None)?;
        if tls.is_some() && socket.is_some() {
            return Err(url.invalid("has `tls`, which a socket does not support: leave it out"));
        }
        let uses_doorbells = url.choice("doorbell", &[("on", true), ("off", false)])?;
        let names = url.choice("names", &[("hashed", Names::Hashed), ("exact", Names::Exact)])?;
        let mode = url.choice("mode", &[("queue", Mode::Queue), ("session", Mode::Session(names))])?;
        let queue_params = ["doorbell", "waits", "connections"];
        let foreign_params = if mode == Mode::Queue { &["names"][..] } else { &queue_params };
        if let Some(foreign) = foreign_params.iter().find(|key| url.param(key).is_some()) {
            return Err(url.invalid(format_args!("has `{foreign}`, which is for the other `mode`")));
        }
        let waits = url.number("waits", 1..=1000_usize)?.unwrap_or(16);
        Ok(Self {
            hosts,
            socket,
            database,
            login: url.login("password_file")?,
            tls,
            is_plain: url.param("tls") == Some("off"),
            prefix,
            timeout: url.duration("timeout", TIMEOUTS)?.unwrap_or(Duration::from_secs(3)),
            connections: url.number("connections", 1..=100_usize)?.unwrap_or(4),
            waits: if uses_doorbells { waits } else { 0 },
            mode,
        })
    }

    /// Returns the text that identifies the store. It contains no secret.
    pub(crate) fn identity(&self) -> String {
        let mut hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.sort_unstable();
        let socket = self.socket.as_ref().map(|socket| socket.display().to_string()).unwrap_or_default();
        let servers = format!("mysql://{}{socket}", hosts.join(","));
        match self.mode {
            Mode::Queue => format!("{servers}/{}[{}]", self.database, self.prefix),
            // Named locks belong to the server and not to a database.
            Mode::Session(_) => format!("{servers}[GET_LOCK]"),
        }
    }

    pub(crate) fn tables(&self) -> Tables {
        Tables::new(&self.prefix)
    }
}

impl fmt::Debug for MysqlConfig {
    /// Shows no login.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlConfig").field(&self.identity()).finish()
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<MysqlConfig> {
        MysqlConfig::from_url(&url.parse().expect(url))
    }

    #[test]
    fn a_short_url_gets_the_defaults() {
        let config = config("mysql://localhost/app").unwrap();
        assert_eq!(config.hosts, [Address { host: "localhost".to_owned(), port: 3306 }]);
        assert_eq!((config.database.as_str(), config.prefix.as_str()), ("app", "dlock_"));
        assert_eq!((config.timeout, config.connections, config.waits), (Duration::from_secs(3), 4, 16));
    }

    #[test]
    fn both_schemes_name_the_same_store() {
        let [mysql, mariadb] =
            ["mysql", "mariadb"].map(|scheme| config(&format!("{scheme}://b,a:1/app")).unwrap());
        assert_eq!(mysql.identity(), mariadb.identity());
        assert_ne!(mysql.identity(), config("mysql://b,a:1/app?prefix=x").unwrap().identity());
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused() {
        for (url, word) in [
            ("mysql://localhost", "database"),
            ("mysql:///app", "no server"),
            ("mysql://localhost/app?socket=/run/x", "no server"),
            ("mysql://localhost/app?prefix=a`b", "prefix"),
            ("mysql://localhost/app?timeout=0s", "from 1ms to 1d"),
            ("mysql://localhost/app?timeout=25h", "from 1ms to 1d"),
            ("mysql://localhost/app?connections=0", "connections"),
            ("mysql://localhost/app?connections=101", "connections"),
            ("mysql://localhost/app?waits=0", "waits"),
            ("mysql://localhost/app?waits=1001", "waits"),
            ("mysql://localhost/app?mode=session&waits=3", "other `mode`"),
            ("mysql://localhost/app?mode=session&connections=3", "other `mode`"),
            ("mysql://localhost/app?mode=session&doorbell=off", "other `mode`"),
            ("mysql://localhost/app?names=exact", "other `mode`"),
            ("mysql://localhost/app?doorbell=perhaps", "doorbell"),
            ("mysql://localhost/app?wait=3s", "unknown parameter"),
            ("mysql://localhost/app?ca=x", "tls"),
        ] {
            let error = config(url).expect_err(url).to_string();
            assert!(error.contains(word), "{url}: {error}");
        }
    }

    #[test]
    fn debug_shows_no_password() {
        let config = config("mysql://app:s3cret@localhost/app").unwrap();
        let shown = format!("{config:?}");
        assert!(!shown.contains("s3cret") && shown.contains("localhost"), "{shown}");
    }
}
