//! Which server and database, how to reach them, and how locks are kept there.

use std::{fmt, path::PathBuf, time::Duration};

use dlock_core::{
    Result,
    driver::{Address, Login, StoreUrl, Tls},
};

use crate::keys::Tables;

/// Where the locks are: made of a URL, by [`from_url`](Self::from_url).
#[derive(Clone, PartialEq, Eq)]
pub struct MysqlConfig {
    /// Host and port of each server. Empty for a socket.
    pub(crate) hosts: Vec<Address>,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) database: String,
    pub(crate) login: Login,
    pub(crate) tls: Option<Tls>,
    /// With `tls=off` no connection is encrypted, whatever the server offers.
    pub(crate) is_plain: bool,
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) connections: usize,
    /// How many sessions may wait for doorbells of other clients. None where waiters poll.
    pub(crate) waits: usize,
    pub(crate) mode: Mode,
}

/// How locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In a queue in a table: all kinds.
    Queue,
    /// As named locks of the server, each held by a session: a mutex that other programs take with `GET_LOCK`.
    Session(Names),
}

/// Which named lock a lock's name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// The name itself where both servers take it; else its beginning and a hash.
    Hashed,
    /// The name itself, or the lock is refused.
    Exact,
}

/// The shortest and the longest time for a call. The server's own limit for a locked row is at least a second.
const TIMES: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);

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

/// The longest prefix of a table's name. The server allows 64 characters in all.
const LONGEST_PREFIX: usize = 48;

impl MysqlConfig {
    /// The store that a URL names: `mysql://user:password@host:port/database`, `mysql://host,host/database`, or
    /// `mysql:///database?socket=PATH`. `mariadb://` means the same. The README lists the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](dlock_core::Error::InvalidConfig) for a host, database or parameter that cannot be used.
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
            return Err(
                url.invalid("has a `prefix` that is no beginning of a table's name: letters, digits and `_`")
            );
        }
        let tls = url.tls(None)?;
        if tls.is_some() && socket.is_some() {
            return Err(url.invalid("has `tls`, which is not for sockets"));
        }
        let has_bells = url.choice("doorbell", &[("on", true), ("off", false)])?;
        let names = url.choice("names", &[("hashed", Names::Hashed), ("exact", Names::Exact)])?;
        let mode = url.choice("mode", &[("queue", Mode::Queue), ("session", Mode::Session(names))])?;
        let of_queue = ["doorbell", "waits", "connections"];
        let foreign = if mode == Mode::Queue { &["names"][..] } else { &of_queue };
        if let Some(foreign) = foreign.iter().find(|key| url.param(key).is_some()) {
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
            timeout: url.duration("timeout", TIMES)?.unwrap_or(Duration::from_secs(3)),
            connections: url.number("connections", 1..=100_usize)?.unwrap_or(4),
            waits: if has_bells { waits } else { 0 },
            mode,
        })
    }

    /// A text that tells this store from others. It has no secrets in it.
    pub(crate) fn identity(&self) -> String {
        let mut hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.sort_unstable();
        let socket = self.socket.as_ref().map(|socket| socket.display().to_string()).unwrap_or_default();
        let servers = format!("mysql://{}{socket}", hosts.join(","));
        match self.mode {
            Mode::Queue => format!("{servers}/{}[{}]", self.database, self.prefix),
            // Named locks are the server's, whatever the database.
            Mode::Session(_) => format!("{servers}[GET_LOCK]"),
        }
    }

    pub(crate) fn tables(&self) -> Tables {
        Tables::new(&self.prefix)
    }
}

impl fmt::Debug for MysqlConfig {
    /// Without the login.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlConfig").field(&self.identity()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<MysqlConfig> {
        MysqlConfig::from_url(&url.parse().expect(url))
    }

    #[test]
    fn a_url_may_be_short() {
        let config = config("mysql://localhost/app").unwrap();
        assert_eq!(config.hosts, [Address { host: "localhost".to_owned(), port: 3306 }]);
        assert_eq!((config.database.as_str(), config.prefix.as_str()), ("app", "dlock_"));
        assert_eq!((config.timeout, config.waits), (Duration::from_secs(3), 16));
    }

    #[test]
    fn both_schemes_name_the_same_store() {
        let [mysql, mariadb] =
            ["mysql", "mariadb"].map(|scheme| config(&format!("{scheme}://b,a:1/app")).unwrap());
        assert_eq!(mysql.identity(), mariadb.identity());
        assert_ne!(mysql.identity(), config("mysql://b,a:1/app?prefix=x").unwrap().identity());
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for (url, word) in [
            ("mysql://localhost", "database"),
            ("mysql:///app", "no server"),
            ("mysql://localhost/app?socket=/run/x", "no server"),
            ("mysql://localhost/app?prefix=a`b", "prefix"),
            ("mysql://localhost/app?waits=0", "waits"),
            ("mysql://localhost/app?mode=session&waits=3", "other `mode`"),
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
