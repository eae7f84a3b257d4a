//! The configuration: the servers, the logins, the protocol and its parameters.

use std::{fmt, ops::RangeInclusive, path::PathBuf, time::Duration};

use dlock_core::{
    Error, Result,
    driver::{Address, Login, StoreUrl, Tls},
};

use crate::keys;

/// The configuration of a store, created from a URL by [`from_url`](Self::from_url).
#[derive(Clone, PartialEq, Eq)]
pub struct RedisConfig {
    pub(crate) topology: Topology,
    /// Host and port of each server, Sentinel or node. Empty for a socket.
    pub(crate) hosts: Vec<Address>,
    pub(crate) login: Login,
    /// Login for Sentinels. The servers' login is never sent to a Sentinel.
    pub(crate) sentinel_login: Login,
    pub(crate) db: i64,
    pub(crate) tls: Option<Tls>,
    pub(crate) prefix: String,
    pub(crate) dialect: Dialect,
    pub(crate) timeout: Duration,
    /// Redisson's `fairLockWaitTimeout`: the time after which Redisson removes a fair waiter that
    /// has not renewed its place.
    pub(crate) fair_wait_timeout: Duration,
    /// Time for which the key of a name's token is kept after the last draw. `None` means forever.
    pub(crate) token_ttl: Option<Duration>,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) events: bool,
    pub(crate) pubsub: PubSub,
    /// Name of the connection for commands in `CLIENT LIST`.
    pub(crate) client_name: String,
}

/// The relation of the servers to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    /// One server, reached through a Unix socket.
    Socket {
        path: PathBuf,
    },
    /// Several servers, of which one is the master. Each is queried for its role.
    Listed,
    Sentinel {
        master: String,
    },
    Cluster,
}

/// The way in which messages are published in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PubSub {
    /// As Redisson does by default: sharded if the servers support it.
    Auto,
    Sharded,
    Classic,
}

/// Confirmation of a grant by replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    /// Number of replicas to wait for. One that confirms within the time is enough.
    pub(crate) count: u32,
    /// Maximum time to wait for them.
    pub(crate) timeout: Duration,
}

/// The protocol of the locks. It decides with which other programs dlock shares them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Redisson's protocol: mutex, fair, read and write locks, each with a fencing token. Waiters
    /// are notified.
    #[default]
    Redisson,
    /// `SET key value NX PX`, the protocol of redsync, redis-py's `Lock`, node-redlock and rslock:
    /// a mutex without a token.
    Plain,
}

/// Default of `token_ttl`. An administered clock is not set back by more than a week, and the token
/// of a name that was used only once does not stay for longer.
const DEFAULT_TOKEN_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// Minimum of `token_ttl`. NTP sets a clock back by less.
const MIN_TOKEN_TTL: Duration = Duration::from_secs(1);

/// Minimum of a parameter that is a duration, unless it has its own minimum.
pub(crate) const MIN_DURATION: Duration = Duration::from_millis(1);

/// Timeouts that a URL may set for a reply. The maximum is a day, because no reply takes longer,
/// and the sum of two such timeouts does not overflow.
const REPLY_TIMEOUTS: RangeInclusive<Duration> = MIN_DURATION..=Duration::from_secs(24 * 3600);

const PARAMS: &[&str] = &[
    "prefix",
    "dialect",
    "timeout",
    "patience",
    "token_ttl",
    "wait_replicas",
    "replicas_timeout",
    "keyspace_events",
    "role",
    "pubsub",
    "client_name",
    "password_file",
    "sentinel_username",
    "sentinel_password",
    "sentinel_password_file",
    "db",
    "tls",
    "ca",
    "cert",
    "key",
];

impl RedisConfig {
    /// Creates the configuration of a URL: `redis://user:password@host:port/db`, `rediss://` with
    /// TLS, `redis+unix:///path`, `redis://host,host?role=master`,
    /// `redis+sentinel://host,host/master?db=0` or `redis-cluster://host,host`.
    ///
    /// The README lists the parameters. User and password are for the servers. Sentinels get
    /// `sentinel_username` and `sentinel_password`, if the URL has them.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for an invalid host, path or parameter.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        if url.scheme() == "redis+unix" {
            return Self::for_socket(url);
        }
        url.require_host()?;
        url.allow(PARAMS)?;
        let invalid = |what: &str| url.invalid(what);
        let path = url.path().trim_matches('/');
        let (topology, port) = match url.scheme() {
            "redis" | "rediss" if url.choice("role", &[("any", false), ("master", true)])? => {
                (Topology::Listed, 6379)
            }
            "redis" | "rediss" => (Topology::Single, 6379),
            "redis-cluster" => (Topology::Cluster, 6379),
            "redis+sentinel" if path.is_empty() || path.contains('/') => {
                return Err(invalid("names no master: write `redis+sentinel://host,host/master?db=0`"));
            }
            "redis+sentinel" => (Topology::Sentinel { master: path.to_owned() }, 26379),
            scheme => {
                return Err(invalid(&format!("has the scheme `{scheme}`, which is not a scheme of Redis")));
            }
        };
        let hosts = url.addresses(port)?;
        if topology == Topology::Single && hosts.len() > 1 {
            return Err(invalid(
                "names several hosts: write `redis-cluster://`, `redis+sentinel://`, or `?role=master` if they are a master \
                 and its replicas",
            ));
        }
        let db = match (&topology, path, url.param("db")) {
            (Topology::Single | Topology::Listed, "", None)
            | (Topology::Sentinel { .. }, _, None)
            | (Topology::Cluster, "", None) => "0",
            (Topology::Single | Topology::Listed, "", Some(db))
            | (Topology::Sentinel { .. }, _, Some(db)) => db,
            (Topology::Single | Topology::Listed, db, None) => db,
            (Topology::Cluster, ..) => {
                return Err(invalid("names a database, but a cluster has only database 0"));
            }
            _ => return Err(invalid("names the database twice")),
        };
        let db = db.parse::<u32>().map_err(|_| invalid("names a database that is not a number"))?.into();
        Self::with(url, topology, hosts, db)
    }

    /// Creates the configuration of `redis+unix://user:password@/path?db=0`. If the URL names no
    /// socket, the error does not show the URL, because a password may have been parsed as the
    /// path.
    fn for_socket(url: &StoreUrl) -> Result<Self> {
        let invalid = |what: &str| Error::InvalidConfig { reason: format!("the `redis+unix:` URL {what}") };
        let path = url.path();
        if !url.hosts().is_empty() || !path.starts_with('/') || path.contains('@') || path.ends_with('/') {
            return Err(invalid(
                "names no socket: write for example `redis+unix:///run/redis/redis.sock?db=0`",
            ));
        }
        url.allow(PARAMS)?;
        if url.param("tls").is_some() || url.param("role").is_some() {
            return Err(invalid("has `tls` or `role`, which do not apply to a socket"));
        }
        let db = url.param("db").unwrap_or("0").parse::<u32>();
        let db = db.map_err(|_| invalid("names a database that is not a number"))?.into();
        Self::with(url, Topology::Socket { path: path.into() }, Vec::new(), db)
    }

    fn with(url: &StoreUrl, topology: Topology, hosts: Vec<Address>, db: i64) -> Result<Self> {
        let invalid = |what: &str| url.invalid(what);
        let config = Self {
            topology,
            hosts,
            login: url.login("password_file")?,
            sentinel_login: url.login_from_params([
                "sentinel_username",
                "sentinel_password",
                "sentinel_password_file",
            ])?,
            db,
            tls: url.tls(Some("rediss"))?,
            prefix: url.param("prefix").unwrap_or_default().to_owned(),
            dialect: url.choice("dialect", &[("redisson", Dialect::Redisson), ("plain", Dialect::Plain)])?,
            timeout: url.duration("timeout", REPLY_TIMEOUTS)?.unwrap_or(Duration::from_secs(3)),
            fair_wait_timeout: url.duration("patience", MIN_DURATION..)?.unwrap_or(Duration::from_secs(300)),
            token_ttl: token_ttl(url)?,
            replicas: replicas(url)?,
            events: url.choice("keyspace_events", &[("off", false), ("on", true)])?,
            pubsub: url.choice(
                "pubsub",
                &[("auto", PubSub::Auto), ("sharded", PubSub::Sharded), ("classic", PubSub::Classic)],
            )?,
            client_name: url.param("client_name").unwrap_or("dlock").to_owned(),
        };
        if config.pubsub != PubSub::Auto && config.topology != Topology::Cluster {
            return Err(invalid("has `pubsub`, which is for `redis-cluster://`"));
        }
        if url.param("role").is_some() && !matches!(config.topology, Topology::Single | Topology::Listed) {
            return Err(invalid("has `role`, which is for `redis://` and `rediss://`"));
        }
        if url.param("token_ttl").is_some() && config.dialect == Dialect::Plain {
            return Err(invalid("has `token_ttl`, but the plain dialect has no tokens"));
        }
        if config.client_name.is_empty() || !config.client_name.chars().all(|c| c.is_ascii_graphic()) {
            return Err(invalid(
                "has a `client_name` that is empty or has other characters than visible ASCII",
            ));
        }
        if config.sentinel_login.password.is_some() && !matches!(config.topology, Topology::Sentinel { .. }) {
            return Err(invalid(
                "has a `sentinel_password`, which is for `redis+sentinel://`; write a server's password before its host",
            ));
        }
        if config.prefix.chars().any(char::is_control) {
            return Err(invalid("has a prefix with a control character"));
        }
        if config.topology == Topology::Cluster && !keys::is_regular(&config.prefix) {
            return Err(invalid(
                "has a prefix that puts a lock's keys into several slots: write no brace, or a pair `{…}` with text between",
            ));
        }
        if config.events && config.topology == Topology::Cluster {
            return Err(invalid(
                "requests keyspace events, which each node of a cluster sends only to its own clients",
            ));
        }
        Ok(config)
    }

    /// Returns a text that identifies this store. Contains no secrets.
    pub(crate) fn identity(&self) -> String {
        let mut hosts: Vec<_> =
            self.hosts.iter().map(|Address { host, port }| format!("{host}:{port}")).collect();
        hosts.sort_unstable();
        let (hosts, prefix) = (hosts.join(","), &self.prefix);
        match &self.topology {
            Topology::Single | Topology::Listed => format!("redis://{hosts}/{}[{prefix}]", self.db),
            Topology::Socket { path } => format!("redis+unix:{}/{}[{prefix}]", path.display(), self.db),
            Topology::Sentinel { master } => {
                format!("redis+sentinel://{hosts}/{master}/{}[{prefix}]", self.db)
            }
            Topology::Cluster => format!("redis-cluster://{hosts}[{prefix}]"),
        }
    }
}

impl fmt::Debug for RedisConfig {
    /// Omits the logins.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisConfig").field(&self.identity()).field(&self.dialect).finish()
    }
}

fn replicas(url: &StoreUrl) -> Result<Option<Replicas>> {
    let timeout = url.duration("replicas_timeout", REPLY_TIMEOUTS)?.unwrap_or(Duration::from_secs(1));
    Ok(url.number("wait_replicas", 1_u32..)?.map(|count| Replicas { count, timeout }))
}

/// Returns the time for which tokens are kept. `None` means forever.
fn token_ttl(url: &StoreUrl) -> Result<Option<Duration>> {
    if url.param("token_ttl") == Some("never") {
        return Ok(None);
    }
    let ttl = url
        .duration("token_ttl", MIN_TOKEN_TTL..)
        .map_err(|error| Error::InvalidConfig { reason: format!("{error}, or `token_ttl=never`") })?;
    Ok(Some(ttl.unwrap_or(DEFAULT_TOKEN_TTL)))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::redlock;

    fn config(url: &str) -> Result<RedisConfig> {
        RedisConfig::from_url(&url.parse().expect(url))
    }

    fn login(user: &str, password: &str) -> Login {
        format!("x://{user}:{password}@h").parse::<StoreUrl>().unwrap().login("file").unwrap()
    }

    fn address(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    #[test]
    fn a_url_may_be_short() {
        let config = config("redis://localhost").unwrap();
        assert_eq!(config.hosts, [address("localhost", 6379)]);
        assert_eq!(
            (config.db, config.dialect, config.timeout),
            (0, Dialect::Redisson, Duration::from_secs(3))
        );
        assert_eq!((config.fair_wait_timeout, config.replicas), (Duration::from_secs(300), None));
        assert_eq!(
            (config.events, config.pubsub, config.client_name.as_str()),
            (false, PubSub::Auto, "dlock")
        );
    }

    #[test]
    fn a_url_may_have_all_parts() {
        let config =
            config("rediss://app:p%40ss@[::1]:7000/2?prefix=a:&dialect=plain&timeout=500ms&wait_replicas=2")
                .unwrap();
        assert_eq!(config.hosts, [address("::1", 7000)]);
        assert!(config.login == login("app", "p%40ss"));
        assert_eq!((config.db, config.prefix.as_str(), config.dialect), (2, "a:", Dialect::Plain));
        assert_eq!(config.replicas, Some(Replicas { count: 2, timeout: Duration::from_secs(1) }));
        assert!(config.tls.is_some());
    }

    #[test]
    fn tokens_are_kept_for_a_week_unless_the_url_sets_another_time() {
        for (url, kept) in [
            ("redis://a", Some(Duration::from_secs(7 * 24 * 3600))),
            ("redis://a?token_ttl=1s", Some(Duration::from_secs(1))),
            ("redis://a?token_ttl=30d", Some(Duration::from_secs(30 * 24 * 3600))),
            ("redis://a?token_ttl=never", None),
        ] {
            assert_eq!(config(url).unwrap().token_ttl, kept, "{url}");
        }
    }

    #[test]
    fn a_socket_is_named_by_its_path() {
        let config = config("redis+unix://app:pass@/run/redis/redis.sock?db=2").unwrap();
        assert_eq!(config.topology, Topology::Socket { path: "/run/redis/redis.sock".into() });
        assert!(config.login == login("app", "pass"));
        assert_eq!((config.db, config.hosts.len()), (2, 0));
    }

    #[test]
    fn sentinels_are_named_with_their_master() {
        let config = config("redis+sentinel://s1,s2:5000/main?db=3").unwrap();
        assert_eq!(config.topology, Topology::Sentinel { master: "main".to_owned() });
        assert_eq!(config.hosts, [address("s1", 26379), address("s2", 5000)]);
        assert_eq!(config.db, 3);
    }

    #[test]
    fn sentinels_have_a_login_of_their_own() {
        let theirs = "sentinel_username=watch&sentinel_password=w%26rd";
        let both = config(&format!("redis+sentinel://app:pass@s1/main?{theirs}")).unwrap();
        assert!(both.login == login("app", "pass"));
        assert!(both.sentinel_login == login("watch", "w%26rd"));
        let one = config("redis+sentinel://app:pass@s1/main").unwrap();
        assert!(one.sentinel_login == Login::default(), "Sentinels get the servers' password");
    }

    #[test]
    fn an_invalid_url_is_refused_with_advice() {
        for (url, words) in [
            ("redis://", "names no host"),
            ("redis://a,b", "role=master"),
            ("redis-cluster://a,b?role=master", "is for `redis://`"),
            ("redis://a?pubsub=classic", "is for `redis-cluster://`"),
            ("redis://u:p@a?password_file=/x", "both a password and a file"),
            ("redis://u@a/zero?password_file=/x", "not a number"),
            ("redis+unix://a/x.sock", "names no socket"),
            ("redis+unix:x.sock", "names no socket"),
            ("redis+unix:///x.sock?db=x", "not a number"),
            ("redis://a?client_name=a%20b", "visible ASCII"),
            ("redis:a", "names no host"),
            ("redis://a:port", "an invalid host or port"),
            ("redis://:secret:6379", "an invalid host or port"),
            ("redis://::1", "[::1]"),
            ("redis://[::1]6379", "[::1]"),
            ("redis://a/zero", "not a number"),
            ("redis://a/1?db=2", "twice"),
            ("redis-cluster://a/1", "only database 0"),
            ("redis-cluster://a?keyspace_events=on", "only to its own clients"),
            ("redis-cluster://a?prefix=x%7By", "several slots"),
            ("redis+sentinel://a", "names no master"),
            ("redis://a?dialect=redlock", "redisson, plain"),
            ("redis://a?timeout=soon", "timeout=3s"),
            ("redis://a?timeout=0s", "`timeout=0s` is not a duration from 1ms to 1d"),
            ("redis://a?timeout=25h", "`timeout=25h` is not a duration from 1ms to 1d"),
            (
                "redis://a?wait_replicas=1&replicas_timeout=500y",
                "`replicas_timeout=500y` is not a duration from 1ms to 1d",
            ),
            ("redis://a?token_ttl=500ms", "`token_ttl=never`"),
            ("redis://a?token_ttl=no", "token_ttl"),
            ("redis://a?dialect=plain&token_ttl=1h", "has no tokens"),
            ("redis://a?wait_replicas=0", "wait_replicas=0"),
            ("redis://a?ca=ca.pem", "rediss://"),
            ("rediss://a?cert=c.pem", "go together"),
            ("rediss://a?tls=off", "leave out `tls=off`"),
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

    /// Returns the configuration of a URL. For a `redis+redlock://` URL, returns one for each host.
    fn configs(url: &StoreUrl) -> Vec<Result<RedisConfig>> {
        if url.scheme() == "redis+redlock" {
            redlock::configs(url)
                .map_or_else(|error| vec![Err(error)], |all| all.into_iter().map(Ok).collect())
        } else {
            vec![RedisConfig::from_url(url)]
        }
    }

    proptest! {
        #[test]
        fn no_password_is_ever_shown(
            gaps in proptest::collection::vec("[/@?#&=:,%\\[\\] .-]{0,2}", 1..4),
            word in "(pwd|auth|pw|pass|password|sentinel_password)",
            scheme in "(redis|rediss|redis-cluster|redis\\+sentinel|redis\\+redlock|redis\\+unix)",
            place in 0..10_usize,
        ) {
            let secret = gaps.iter().fold("hunter2".to_owned(), |secret, gap| format!("{secret}{gap}hunter2"));
            let url = match place {
                0 => format!("{scheme}://:{secret}@h/0"),
                1 => format!("{scheme}://u:{secret}@h:1/0?db=1"),
                2 => format!("{scheme}://u:{secret}@h1,h2:x?dialect=x"),
                // A URL without a host. The secret has no `@`, because the text after an `@` would
                // be the host.
                3 => format!("{scheme}://u:{}", secret.replace('@', "")),
                4 => format!("{scheme}:u:{secret}@h/0"),
                5 => format!("{scheme}:///:{secret}@h"),
                6 => format!("{scheme}://h/main?{word}={secret}&db=x"),
                // A secret with a colon would be parsed as user and password, and users are shown.
                7 => format!("{scheme}://{}@h/0", secret.replace(':', "")),
                8 => format!("{scheme}:{secret}@h/0"),
                _ => format!("{scheme}://u:{secret}@h?{word}={secret}&retries=3"),
            };
            let all = url.parse::<StoreUrl>().map(|url| configs(&url));
            let identities: Vec<_> = all.iter().flatten().flatten().map(RedisConfig::identity).collect();
            let shown = format!("{all:?} {identities:?}");
            prop_assert!(!shown.contains("hunter2"), "{} shows {}", url, shown);
        }
    }
}
