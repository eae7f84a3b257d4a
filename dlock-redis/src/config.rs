//! Which server, how to reach it, and which protocol to speak. Over the usual length with its tests.

use std::{fmt, path::PathBuf, time::Duration};

use dlock_core::{Error, Result, StoreUrl};

use crate::keys;

/// Where the locks are: made of a URL, by [`from_url`](Self::from_url).
#[derive(Clone, PartialEq, Eq)]
pub struct RedisConfig {
    pub(crate) topology: Topology,
    /// Host and port of each server, Sentinel or node.
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) login: Login,
    /// What Sentinels are told; the servers' own login is not told to them.
    pub(crate) sentinel_login: Login,
    pub(crate) db: i64,
    pub(crate) tls: Option<Tls>,
    pub(crate) prefix: String,
    pub(crate) dialect: Dialect,
    pub(crate) timeout: Duration,
    pub(crate) patience: Duration,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) events: bool,
}

/// How the servers stand together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    Sentinel { master: String },
    Cluster,
}

/// User and password. Without `Debug`, which would show them.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// Files in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Who signed the server's certificate, if it is nobody whom this machine trusts.
    pub(crate) ca: Option<PathBuf>,
    /// The client's certificate and key, where the server wants one.
    pub(crate) own: Option<(PathBuf, PathBuf)>,
}

/// How many replicas must have a grant before it counts, and how long they may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

/// Which locks of which other programs are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Redisson's: mutex, fair, read and write, each with a fencing token; whoever waits is woken.
    #[default]
    Redisson,
    /// `SET key value NX PX`, as redsync, redis-py's `Lock`, node-redlock and rslock do: a mutex without a token.
    Plain,
}

const PARAMS: &[&str] = &[
    "prefix",
    "dialect",
    "timeout",
    "patience",
    "wait_replicas",
    "replicas_timeout",
    "keyspace_events",
    "sentinel_username",
    "sentinel_password",
    "db",
    "tls",
    "ca",
    "cert",
    "key",
];

impl RedisConfig {
    /// The store that a URL names: `redis://user:password@host:port/db`, `rediss://` with TLS,
    /// `redis+sentinel://host,host/master?db=0`, `redis-cluster://host,host`. The README lists the parameters. User and
    /// password are the servers'; Sentinels are told `sentinel_username` and `sentinel_password`, where given.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a host, path or parameter that cannot be used.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        url.allow(PARAMS)?;
        let invalid = |what: &str| Error::InvalidConfig { reason: format!("`{url}` {what}") };
        let path = url.path().trim_matches('/');
        let (topology, port) = match url.scheme() {
            "redis" | "rediss" => (Topology::Single, 6379),
            "redis-cluster" => (Topology::Cluster, 6379),
            "redis+sentinel" if path.is_empty() || path.contains('/') => {
                return Err(invalid("names no master: write `redis+sentinel://host,host/master?db=0`"));
            }
            "redis+sentinel" => (Topology::Sentinel { master: path.to_owned() }, 26379),
            scheme => return Err(invalid(&format!("has the scheme `{scheme}`, which is not Redis's"))),
        };
        let hosts: Vec<_> = url.hosts().iter().map(|host| host_and_port(host, port)).collect();
        let hosts = hosts.into_iter().collect::<Option<Vec<_>>>();
        let hosts = hosts.ok_or_else(|| invalid("has a port that is no number"))?;
        if hosts.is_empty() {
            return Err(invalid("names no host: write for example `redis://localhost:6379/0`"));
        }
        if topology == Topology::Single && hosts.len() > 1 {
            return Err(invalid(
                "names several hosts: write `redis-cluster://` or `redis+sentinel://`, or one URL for each",
            ));
        }
        let db = match (&topology, path, url.param("db")) {
            (Topology::Single, "", None)
            | (Topology::Sentinel { .. }, _, None)
            | (Topology::Cluster, "", None) => "0",
            (Topology::Single, "", Some(db)) | (Topology::Sentinel { .. }, _, Some(db)) => db,
            (Topology::Single, db, None) => db,
            (Topology::Cluster, ..) => return Err(invalid("names a database, and a cluster has none but 0")),
            _ => return Err(invalid("names the database twice")),
        };
        let db = db.parse::<u32>().map_err(|_| invalid("names a database that is no number"))?.into();
        let config = Self {
            topology,
            hosts,
            login: Login::new(url.user(), url.password()),
            sentinel_login: Login::new(url.param("sentinel_username"), url.param("sentinel_password")),
            db,
            tls: tls(url)?,
            prefix: url.param("prefix").unwrap_or_default().to_owned(),
            dialect: choice(url, "dialect", &[("redisson", Dialect::Redisson), ("plain", Dialect::Plain)])?,
            timeout: duration(url, "timeout")?.unwrap_or(Duration::from_secs(3)),
            patience: duration(url, "patience")?.unwrap_or(Duration::from_secs(300)),
            replicas: replicas(url)?,
            events: choice(url, "keyspace_events", &[("off", false), ("on", true)])?,
        };
        if config.login.lacks_password() {
            return Err(invalid("has a user and no password"));
        }
        if config.sentinel_login.lacks_password() {
            return Err(invalid("has a `sentinel_username` and no `sentinel_password`"));
        }
        if config.sentinel_login.password.is_some() && !matches!(config.topology, Topology::Sentinel { .. }) {
            return Err(invalid(
                "has a `sentinel_password`, which is for `redis+sentinel://`; a server's stands before its host",
            ));
        }
        if config.prefix.chars().any(char::is_control) {
            return Err(invalid("has a prefix with a control character"));
        }
        if config.topology == Topology::Cluster && !keys::is_regular(&config.prefix) {
            return Err(invalid(
                "has a prefix that a cluster would spread: no brace, or a pair `{…}` with text between",
            ));
        }
        if config.events && config.topology == Topology::Cluster {
            return Err(invalid("asks for keyspace events, which a cluster's nodes each keep to themselves"));
        }
        Ok(config)
    }

    /// What tells this store from others. Without secrets.
    pub(crate) fn identity(&self) -> String {
        let mut hosts: Vec<_> = self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        hosts.sort_unstable();
        let (hosts, prefix) = (hosts.join(","), &self.prefix);
        match &self.topology {
            Topology::Single => format!("redis://{hosts}/{}[{prefix}]", self.db),
            Topology::Sentinel { master } => {
                format!("redis+sentinel://{hosts}/{master}/{}[{prefix}]", self.db)
            }
            Topology::Cluster => format!("redis-cluster://{hosts}[{prefix}]"),
        }
    }
}

impl Login {
    fn new(user: Option<&str>, password: Option<&str>) -> Self {
        Self { user: user.map(str::to_owned), password: password.map(str::to_owned) }
    }

    fn lacks_password(&self) -> bool {
        self.user.is_some() && self.password.is_none()
    }
}

impl fmt::Debug for RedisConfig {
    /// Without the logins.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisConfig").field(&self.identity()).field(&self.dialect).finish()
    }
}

/// `host`, `host:port`, `[::1]` or `[::1]:port`; `None` if the port is no number.
fn host_and_port(text: &str, default: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    Some((host.to_owned(), port.map_or(Some(default), |port| port.parse().ok())?))
}

fn tls(url: &StoreUrl) -> Result<Option<Tls>> {
    let wanted = url.scheme() == "rediss" || choice(url, "tls", &[("off", false), ("on", true)])?;
    let file = |key| url.param(key).map(PathBuf::from);
    let own = match (file("cert"), file("key")) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => {
            let reason = "`cert` and `key` go together: the client's certificate and its key".to_owned();
            return Err(Error::InvalidConfig { reason });
        }
    };
    let tls = Tls { ca: file("ca"), own };
    if !wanted && tls != Tls::default() {
        let reason = "`ca`, `cert` and `key` need TLS: write `rediss://`, or `tls=on`".to_owned();
        return Err(Error::InvalidConfig { reason });
    }
    Ok(wanted.then_some(tls))
}

fn replicas(url: &StoreUrl) -> Result<Option<Replicas>> {
    let within = duration(url, "replicas_timeout")?.unwrap_or(Duration::from_secs(1));
    let Some(text) = url.param("wait_replicas") else { return Ok(None) };
    match text.parse() {
        Ok(count) if count > 0 => Ok(Some(Replicas { count, within })),
        _ => {
            let reason =
                format!("`wait_replicas={text}` is no number of replicas; leave it out to wait for none");
            Err(Error::InvalidConfig { reason })
        }
    }
}

pub(crate) fn duration(url: &StoreUrl, key: &str) -> Result<Option<Duration>> {
    let Some(text) = url.param(key) else { return Ok(None) };
    match humantime::parse_duration(text) {
        Ok(duration) if duration >= Duration::from_millis(1) => Ok(Some(duration)),
        _ => Err(Error::InvalidConfig {
            reason: format!("`{key}={text}` is no time; write for example `{key}=3s`"),
        }),
    }
}

/// The first choice is the default.
fn choice<T: Copy>(url: &StoreUrl, key: &str, choices: &[(&str, T)]) -> Result<T> {
    let Some(text) = url.param(key) else { return Ok(choices[0].1) };
    if let Some((_, chosen)) = choices.iter().find(|(word, _)| *word == text) {
        return Ok(*chosen);
    }
    let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
    Err(Error::InvalidConfig {
        reason: format!("`{key}={text}` is unknown; there are: {}", words.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<RedisConfig> {
        RedisConfig::from_url(&url.parse().expect(url))
    }

    fn login(user: &str, password: &str) -> Login {
        Login::new(Some(user), Some(password))
    }

    #[test]
    fn a_url_may_be_short() {
        let config = config("redis://localhost").unwrap();
        assert_eq!(config.hosts, [("localhost".to_owned(), 6379)]);
        assert_eq!(
            (config.db, config.dialect, config.timeout),
            (0, Dialect::Redisson, Duration::from_secs(3))
        );
    }

    #[test]
    fn a_url_may_say_everything() {
        let config =
            config("rediss://app:p%40ss@[::1]:7000/2?prefix=a:&dialect=plain&timeout=500ms&wait_replicas=2")
                .unwrap();
        assert_eq!(config.hosts, [("::1".to_owned(), 7000)]);
        assert!(config.login == login("app", "p@ss"));
        assert_eq!((config.db, config.prefix.as_str(), config.dialect), (2, "a:", Dialect::Plain));
        assert_eq!(config.replicas, Some(Replicas { count: 2, within: Duration::from_secs(1) }));
        assert!(config.tls.is_some());
    }

    #[test]
    fn sentinels_are_named_with_their_master() {
        let config = config("redis+sentinel://s1,s2:5000/main?db=3").unwrap();
        assert_eq!(config.topology, Topology::Sentinel { master: "main".to_owned() });
        assert_eq!(config.hosts, [("s1".to_owned(), 26379), ("s2".to_owned(), 5000)]);
        assert_eq!(config.db, 3);
    }

    #[test]
    fn sentinels_have_a_login_of_their_own() {
        let theirs = "sentinel_username=watch&sentinel_password=w%26rd";
        let both = config(&format!("redis+sentinel://app:pass@s1/main?{theirs}")).unwrap();
        assert!(both.login == login("app", "pass"));
        assert!(both.sentinel_login == login("watch", "w&rd"));
        let one = config("redis+sentinel://app:pass@s1/main").unwrap();
        assert!(one.sentinel_login == Login::default(), "Sentinels are told the servers' password");
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_to_write() {
        for (url, words) in [
            ("redis://", "names no host"),
            ("redis://a,b", "redis-cluster://"),
            ("redis://a:port", "no number"),
            ("redis://a/zero", "no number"),
            ("redis://a/1?db=2", "twice"),
            ("redis-cluster://a/1", "none but 0"),
            ("redis-cluster://a?keyspace_events=on", "keep to themselves"),
            ("redis-cluster://a?prefix=x%7By", "would spread"),
            ("redis+sentinel://a", "names no master"),
            ("redis://a?dialect=redlock", "redisson, plain"),
            ("redis://a?timeout=soon", "timeout=3s"),
            ("redis://a?wait_replicas=0", "wait_replicas=0"),
            ("redis://a?ca=ca.pem", "rediss://"),
            ("rediss://a?cert=c.pem", "go together"),
            ("redis://app@a", "no password"),
            ("redis://a?sentinel_password=x", "is for `redis+sentinel://`"),
            ("redis-cluster://a?sentinel_username=x&sentinel_password=x", "is for `redis+sentinel://`"),
            ("redis+sentinel://a/main?sentinel_username=x", "no `sentinel_password`"),
            ("redis://a?retries=3", "unknown parameter `retries`"),
        ] {
            let error = config(url).expect_err(url).to_string();
            assert!(error.contains(words), "{url}: {error}");
        }
    }

    #[test]
    fn no_password_is_ever_shown() {
        for url in [
            "redis://u:hunter2@h/0?db=1",
            "redis://u:hunter2@h:x",
            "redis://u:hunter2@h/0?dialect=x",
            "redis://h/0?sentinel_password=hunter2",
            "redis+sentinel://h/main?sentinel_password=hunter2&db=x",
            "redis+sentinel://h/main?sentinel_password=hunter2&retries=3",
        ] {
            assert!(!format!("{:?}", config(url)).contains("hunter2"), "{url}");
        }
        for url in ["redis://u:hunter2@h", "redis+sentinel://h/main?sentinel_password=hunter2"] {
            let config = config(url).unwrap();
            assert!(!format!("{config:?} {}", config.identity()).contains("hunter2"), "{url}");
        }
    }
}
