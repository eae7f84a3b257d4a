//! The servers, the database and the schema of a store, as a URL names them.

mod passfile;

use std::{fmt, path::PathBuf, time::Duration};

use dlock_core::{
    Result,
    driver::{Address, Login, StoreUrl, Tls},
};
use passfile::{Passfile, Wanted};

/// The address and the options of a store. Read from a URL by [`from_url`](Self::from_url).
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresConfig {
    /// Host and port of each server. Empty if there is a socket.
    pub(crate) hosts: Vec<Address>,
    /// Folder of the server's Unix socket.
    pub(crate) socket: Option<PathBuf>,
    pub(crate) database: String,
    login: Login,
    /// File with the password of a URL without one.
    passfile: Option<Passfile>,
    pub(crate) tls: Option<Tls>,
    pub(crate) schema: String,
    /// Time limit of a call.
    pub(crate) timeout: Duration,
    /// Maximum number of sessions that execute the calls of one client.
    pub(crate) connections: usize,
    /// Whether waiters are woken by `NOTIFY`. Otherwise they poll.
    pub(crate) has_notifications: bool,
    /// Whether sessions prepare statements. Otherwise each call contains its statement.
    pub(crate) prepares_statements: bool,
    pub(crate) mode: Mode,
}

/// The way in which the server keeps the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In a queue in a table, for all kinds of locks.
    Queue,
    /// As session-level advisory locks, each owned by a session. They exclude programs that call
    /// `pg_advisory_lock` with the same key.
    Session(KeyRule),
}

/// The rule by which a lock's name becomes the key of an advisory lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRule {
    /// `PostgresAdvisoryLockKey` of the .NET library `DistributedLock`, which hashes names that are no
    /// keys.
    Dotnet,
    /// The Ruby gem `with_advisory_lock`, without a prefix.
    Ruby,
    /// `PgAdvisoryLock::new` of the Rust crate `sqlx`.
    Sqlx,
    /// `advisory` of the Python package `django-pglock`.
    Pglock,
    /// The server's function `hashtext`.
    Hashtext,
    /// The name is a number of 64 bits, or two numbers of 32 bits.
    Number,
}

/// The values of `names`. The first is the default.
const KEY_RULES: &[(&str, KeyRule)] = &[
    ("dotnet", KeyRule::Dotnet),
    ("ruby", KeyRule::Ruby),
    ("sqlx", KeyRule::Sqlx),
    ("pglock", KeyRule::Pglock),
    ("hashtext", KeyRule::Hashtext),
    ("number", KeyRule::Number),
];

const ON_OR_OFF: &[(&str, bool)] = &[("on", true), ("off", false)];

/// Range of the time limit of a call.
const TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(24 * 3600);

const PARAMS: &[&str] = &[
    "schema",
    "timeout",
    "connections",
    "notify",
    "prepare",
    "mode",
    "names",
    "socket",
    "password_file",
    "passfile",
    "tls",
    "ca",
    "cert",
    "key",
];

/// Port of the server, also in the name of its Unix socket.
const DEFAULT_PORT: u16 = 5432;

/// Maximum length of a schema's name. The server cuts longer names.
const LONGEST_SCHEMA: usize = 63;

impl PostgresConfig {
    /// Reads a URL: `postgres://user:password@host:port/database`, `postgres://host,host/database`,
    /// or `postgres:///database?socket=FOLDER`. `postgresql://` means the same. The README lists the
    /// parameters.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](dlock_core::Error::InvalidConfig) for a host, database or parameter
    /// that cannot be used.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        url.allow(PARAMS)?;
        let socket = url.param("socket").map(PathBuf::from);
        let hosts = url.addresses(DEFAULT_PORT)?;
        if hosts.is_empty() == socket.is_none() {
            return Err(
                url.invalid("names no server: write `//host/database`, or `///database?socket=FOLDER`")
            );
        }
        if socket.as_ref().is_some_and(|folder| !folder.is_absolute()) {
            return Err(url.invalid("has a `socket` that is no absolute path of a folder"));
        }
        let database = url.path().trim_matches('/').to_owned();
        if database.is_empty() || database.contains(['/', '\0']) {
            return Err(url.invalid("names no database: write `//host/database`"));
        }
        let schema = url.param("schema").unwrap_or("dlock").to_owned();
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.is_empty() || schema.len() > LONGEST_SCHEMA || !schema.chars().all(is_word) {
            return Err(url.invalid(
                "has a `schema` that cannot be used: use up to 63 lower-case letters, digits and `_`",
            ));
        }
        let tls = url.tls(None)?;
        if tls.is_some() && socket.is_some() {
            return Err(url.invalid("has `tls`, which a socket does not support: leave it out"));
        }
        let login = url.login_with_optional_password("password_file")?;
        if url.param("passfile").is_some() && !login.lacks_password() {
            return Err(url.invalid("has a `passfile`, which is for a user without a password"));
        }
        let key_rule = url.choice("names", KEY_RULES)?;
        let mode = url.choice("mode", &[("queue", Mode::Queue), ("session", Mode::Session(key_rule))])?;
        let foreign_params: &[_] =
            if mode == Mode::Queue { &["names"] } else { &["notify", "connections", "prepare"] };
        if let Some(foreign) = foreign_params.iter().find(|key| url.param(key).is_some()) {
            return Err(url.invalid(format_args!("has `{foreign}`, which is for the other `mode`")));
        }
        Ok(Self {
            hosts,
            socket,
            database,
            login,
            passfile: Passfile::new(url.param("passfile")),
            tls,
            schema,
            timeout: url.duration("timeout", TIMEOUTS)?.unwrap_or(Duration::from_secs(3)),
            connections: url.number("connections", 1..=100_usize)?.unwrap_or(4),
            has_notifications: url.choice("notify", ON_OR_OFF)?,
            prepares_statements: url.choice("prepare", ON_OR_OFF)?,
            mode,
        })
    }

    /// Returns the user for a login.
    pub(crate) fn user(&self) -> Option<&str> {
        self.login.user.as_deref()
    }

    /// Returns the password for a login on one of the hosts, or on the socket. Reads the file that has
    /// it. `None` if no password is known.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`](dlock_core::Error::InvalidConfig) for a file that cannot be used.
    pub(crate) fn password(&self, host: Option<&Address>) -> Result<Option<String>> {
        if let Some(password) = &self.login.password {
            return password.read().map(Some);
        }
        let (Some(user), Some(passfile)) = (self.user(), &self.passfile) else { return Ok(None) };
        let folder = self.socket.as_ref().map(|folder| folder.to_string_lossy()).unwrap_or_default();
        let on_socket = [&*folder, "localhost"];
        let (hosts, port) = match host {
            Some(Address { host, port }) => (&[host.as_str()][..], *port),
            None => (&on_socket[..], DEFAULT_PORT),
        };
        passfile.password(&Wanted { hosts, port, database: &self.database, user })
    }

    /// Returns the text that identifies the store. It contains no secret.
    pub(crate) fn identity(&self) -> String {
        let mut hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.sort_unstable();
        let socket = self.socket.as_ref().map(|socket| socket.display().to_string()).unwrap_or_default();
        let database = format!("postgres://{}{socket}/{}", hosts.join(","), self.database);
        match self.mode {
            Mode::Queue => format!("{database}[{}]", self.schema),
            // A name is another lock by another rule.
            Mode::Session(key_rule) => {
                let rule =
                    KEY_RULES.iter().find(|(_, known)| *known == key_rule).map_or("", |(name, _)| name);
                format!("{database}[pg_advisory_lock, {rule}]")
            }
        }
    }
}

impl fmt::Debug for PostgresConfig {
    /// Shows no login.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresConfig").field(&self.identity()).finish()
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<PostgresConfig> {
        PostgresConfig::from_url(&url.parse().expect(url))
    }

    #[test]
    fn a_short_url_gets_the_defaults() {
        let config = config("postgres://localhost/app").unwrap();
        assert_eq!(config.hosts, [Address { host: "localhost".to_owned(), port: DEFAULT_PORT }]);
        assert_eq!((config.database.as_str(), config.schema.as_str()), ("app", "dlock"));
        assert_eq!((config.timeout, config.connections), (Duration::from_secs(3), 4));
        assert!(config.has_notifications && config.prepares_statements && config.tls.is_none());
        assert_eq!(config.mode, Mode::Queue);
    }

    #[test]
    fn both_schemes_and_any_order_of_hosts_name_the_same_store() {
        let [short, long] =
            ["postgres://b,a:1/app", "postgresql://a:1,b/app"].map(|url| config(url).unwrap());
        assert_eq!(short.identity(), long.identity());
        assert_ne!(short.identity(), config("postgres://b,a:1/app?schema=x").unwrap().identity());
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused() {
        for (url, word) in [
            ("postgres://localhost", "database"),
            ("postgres:///app", "no server"),
            ("postgres://localhost/app?socket=/run/x", "no server"),
            ("postgres:///app?socket=run/x", "absolute"),
            ("postgres://localhost/app?schema=a\"b", "schema"),
            ("postgres://localhost/app?schema=App", "schema"),
            (&format!("postgres://localhost/app?schema={}", "a".repeat(64)), "schema"),
            ("postgres://localhost/app?timeout=0s", "from 1ms to 1d"),
            ("postgres://localhost/app?timeout=25h", "from 1ms to 1d"),
            ("postgres://localhost/app?connections=0", "connections"),
            ("postgres://localhost/app?names=sqlx", "other `mode`"),
            ("postgres://localhost/app?mode=session&notify=off", "other `mode`"),
            ("postgres://localhost/app?mode=session&prepare=off", "other `mode`"),
            ("postgres://localhost/app?mode=session&connections=2", "other `mode`"),
            ("postgres://localhost/app?mode=session&names=crc32", "names"),
            ("postgres://localhost/app?notify=perhaps", "notify"),
            ("postgres://localhost/app?wait=3s", "unknown parameter"),
            ("postgres://localhost/app?passfile=/x", "user without a password"),
            ("postgres://app:secret@localhost/app?passfile=/x", "user without a password"),
            ("postgres://app:secret@localhost/app?password_file=/x", "both a password"),
            ("postgres://localhost/app?ca=x", "tls"),
            ("postgres:///app?socket=/run/x&tls=on", "tls"),
        ] {
            let error = config(url).expect_err(url).to_string();
            assert!(error.contains(word), "{url}: {error}");
        }
    }

    #[test]
    fn one_name_by_two_rules_is_a_lock_of_two_stores() {
        let [default, dotnet, sqlx] = ["", "&names=dotnet", "&names=sqlx"].map(|names| {
            config(&format!("postgres://localhost/app?mode=session{names}")).unwrap().identity()
        });
        assert!(default == dotnet && dotnet != sqlx, "{default}, {dotnet}, {sqlx}");
    }

    #[test]
    fn debug_shows_no_password() {
        let config = config("postgres://app:s3cret@localhost/app").unwrap();
        let shown = format!("{config:?}");
        assert!(!shown.contains("s3cret") && shown.contains("localhost"), "{shown}");
    }
}
