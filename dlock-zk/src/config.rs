//! Configuration of a client. It names the servers, the way to reach them, and the node above the
//! locks.

use std::{fmt, time::Duration};

use dlock_core::{
    Result,
    driver::{Address, Login, StoreUrl, Tls},
};

use crate::keys::{self, Elections, Names};

/// Configuration of a client, parsed from a URL by [`from_url`](Self::from_url).
#[derive(Clone, PartialEq, Eq)]
pub struct ZooKeeperConfig {
    pub(crate) hosts: Vec<Address>,
    pub(crate) login: Login,
    pub(crate) tls: Option<Tls>,
    /// Path of the node that stands for the root. It must exist. Empty for the root itself.
    pub(crate) chroot: String,
    /// Path of the node above the locks' directories, below the chroot. Empty for the chroot
    /// itself.
    pub(crate) base: String,
    pub(crate) names: Names,
    pub(crate) elections: Elections,
    pub(crate) acl: Acl,
    /// Session timeout that the URL requests. `None` requests [`DEFAULT_SESSION`], and accepts any
    /// timeout that is granted.
    pub(crate) session: Option<Duration>,
    /// Time limit of a call.
    pub(crate) timeout: Duration,
}

/// Rights that a client grants on the nodes that it creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acl {
    /// All rights for all clients, as Curator and kazoo do by default.
    Open,
    /// All rights, but only for clients with the login of the node's creator.
    Creator,
}

/// Default of the requested session timeout. A server with the default settings grants 4 to 40 s.
pub(crate) const DEFAULT_SESSION: Duration = Duration::from_secs(30);

/// Minimum session timeout in a URL. A request on a busy machine must be completed in a third of
/// it.
const MIN_SESSION: Duration = Duration::from_millis(500);

/// Maximum session timeout in a URL. The protocol has 31 bits of milliseconds for it, and no server
/// grants as much.
const MAX_SESSION: Duration = Duration::from_secs(24 * 3600);

/// Node above the locks' directories if the URL has no path.
const DEFAULT_BASE: &str = "/dlock";

const PARAMS: &[&str] = &[
    "session",
    "timeout",
    "chroot",
    "names",
    "elections",
    "acl",
    "password_file",
    "tls",
    "ca",
    "cert",
    "key",
];

impl ZooKeeperConfig {
    /// Parses a URL such as `zk://user:password@host:port,host:port/path?session=30s`. The path is
    /// the node above the locks. The README lists the parameters.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a host, path or parameter that cannot be used.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        url.require_host()?;
        url.allow(PARAMS)?;
        let node = |noun: &str, path: &str| {
            let path = path.trim_end_matches('/');
            keys::check_path(path)
                .map(|()| path.to_owned())
                .map_err(|problem| url.invalid(format!("has {noun} {problem}")))
        };
        let config = Self {
            hosts: url.addresses(2181)?,
            login: url.login("password_file")?,
            tls: url.tls(None)?,
            chroot: node("a `chroot`", url.param("chroot").unwrap_or_default())?,
            base: node("a path", if url.path().is_empty() { DEFAULT_BASE } else { url.path() })?,
            names: url.choice("names", &[("encoded", Names::Encoded), ("exact", Names::Exact)])?,
            elections: url
                .choice("elections", &[("selector", Elections::Selector), ("latch", Elections::Latch)])?,
            acl: url.choice("acl", &[("open", Acl::Open), ("creator", Acl::Creator)])?,
            session: url.duration("session", MIN_SESSION..=MAX_SESSION)?,
            timeout: url
                .duration("timeout", Duration::from_millis(1)..=MAX_SESSION)?
                .unwrap_or(Duration::from_secs(3)),
        };
        if format!("{}{}/", config.chroot, config.base).starts_with("/zookeeper/") {
            return Err(url.invalid(
                "leads into `/zookeeper`, which is the servers' own; choose another path or `chroot`",
            ));
        }
        if config.chroot.contains(',') {
            return Err(url.invalid(
                "has a `chroot` with a comma, which `zookeeper-client` takes for the end of a host; choose one without a comma",
            ));
        }
        let has_own = config.tls.as_ref().is_some_and(|tls| tls.client_cert.is_some());
        if config.acl == Acl::Creator && config.login.password.is_none() && !has_own {
            return Err(url.invalid(
                "has `acl=creator` and no login: write `zk://user:password@host`, or name a certificate of your own",
            ));
        }
        if config.tls.is_some() && cfg!(not(feature = "tls")) {
            return Err(url.invalid("needs TLS, which this dlock lacks: build it with the feature `zk-tls`"));
        }
        Ok(config)
    }

    /// Returns the time within which a server must open a connection, or send data on an open
    /// connection, before the client tries another server. `None` with a single server, for the
    /// default of `zookeeper-client`, which is two fifths of the session timeout.
    ///
    /// A client that has lost its server may try another silent server first. Even then it must
    /// find a live server and receive the reply to a heartbeat within two thirds of the session
    /// timeout, counted from the last confirmed heartbeat. Up to a sixth of the timeout may have
    /// passed before the connection was lost. A call should also have enough time to try a second
    /// server.
    pub(crate) fn connection_timeout(&self) -> Option<Duration> {
        const LONGEST: Duration = Duration::from_secs(3);
        let session = self.session.unwrap_or(DEFAULT_SESSION);
        (self.hosts.len() > 1).then(|| (self.timeout / 2).clamp(session / 20, session / 6).min(LONGEST))
    }

    /// Returns a text that identifies the store. It contains no secrets.
    pub(crate) fn identity(&self) -> String {
        let mut hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.sort_unstable();
        format!("zk://{}{}{}", hosts.join(","), self.chroot, self.base)
    }

    /// Returns the servers and the chroot in the format of `zookeeper-client`.
    pub(crate) fn cluster(&self) -> String {
        let scheme = if self.tls.is_some() { "tcp+tls" } else { "tcp" };
        let hosts: Vec<_> = self.hosts.iter().map(|host| format!("{scheme}://{host}")).collect();
        format!("{}{}", hosts.join(","), self.chroot)
    }
}

impl fmt::Debug for ZooKeeperConfig {
    /// Omits the login.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ZooKeeperConfig").field(&self.identity()).finish()
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<ZooKeeperConfig> {
        ZooKeeperConfig::from_url(&url.parse().expect(url))
    }

    fn refusal(url: &str) -> String {
        config(url).expect_err(url).to_string()
    }

    #[test]
    fn a_url_may_be_short() {
        let config = config("zk://localhost").unwrap();
        assert_eq!(config.cluster(), "tcp://localhost:2181");
        assert_eq!((config.base.as_str(), config.session, config.acl), ("/dlock", None, Acl::Open));
        assert_eq!((config.names, config.elections), (Names::Encoded, Elections::Selector));
        assert_eq!((DEFAULT_SESSION, config.timeout), (Duration::from_secs(30), Duration::from_secs(3)));
    }

    #[test]
    fn a_url_may_say_everything() {
        let config = config(
            "zk://app:pw@a,[::1]:7000/locks/jobs?session=20s&timeout=500ms&chroot=/prod&names=exact&elections=latch&acl=creator",
        )
        .unwrap();
        assert_eq!(config.cluster(), "tcp://a:2181,tcp://[::1]:7000/prod");
        assert_eq!(
            (config.base.as_str(), config.names, config.elections, config.acl),
            ("/locks/jobs", Names::Exact, Elections::Latch, Acl::Creator)
        );
        assert_eq!(config.session, Some(Duration::from_secs(20)));
    }

    #[test]
    fn a_silent_server_is_left_for_another_long_before_the_session_ends() {
        let after = |url: &str| config(url).unwrap().connection_timeout();
        assert_eq!(after("zk://a,b,c"), Some(Duration::from_millis(1500)));
        assert_eq!(after("zk://a,b?session=3s&timeout=10s"), Some(Duration::from_millis(500)));
        assert_eq!(after("zk://a,b?session=60s&timeout=10s"), Some(Duration::from_secs(3)));
        assert_eq!(after("zk://a,b?timeout=1ms"), Some(Duration::from_millis(1500)));
        assert_eq!(after("zk://a"), None, "there is no other server");
    }

    #[test]
    fn one_store_has_one_identity_however_its_url_is_written() {
        let identity = config("zk://b:1,a:2181/x/y").unwrap().identity();
        assert_eq!(identity, "zk://a:2181,b:1/x/y");
        assert_eq!(config("zk://u:p@a,b:1/y?chroot=/x&session=9s").unwrap().identity(), identity);
        assert_ne!(config("zk://a,b:1/x").unwrap().identity(), identity);
    }

    #[test]
    fn an_unusable_url_is_refused_with_the_reason() {
        for (url, reason) in [
            ("zk://h/a/../b", "`..`"),
            ("zk://h/a/./b", "`.`"),
            ("zk://h//a", "empty"),
            ("zk://h/a%01", "U+0001"),
            ("zk://h/%F0%9F%94%92", "U+1F512"),
            ("zk://h/zookeeper", "`/zookeeper`"),
            ("zk://h/x?chroot=/zookeeper/y", "`/zookeeper`"),
            ("zk://h/x?chroot=y", "begin with a slash"),
            ("zk://h/x?chroot=/a,b", "comma"),
            ("zk://h?acl=creator", "no login"),
            ("zk://h?ca=/ca", "`tls=on`"),
            ("zk://h?tls=on&acl=creator", "no login"),
            ("zk://h?session=1ms", "is not a duration"),
            ("zk:h", "names no host"),
            ("zk://h?retries=3", "unknown parameter"),
        ] {
            assert!(refusal(url).contains(reason), "{url}: {}", refusal(url));
        }
        assert!(config("zk://h/zookeeper2").is_ok() && config("zk://h/").is_ok());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_for_all_servers_and_a_client_certificate_is_a_login() {
        let config = config("zk://a,b:1?tls=on&cert=/c&key=/k&acl=creator").unwrap();
        assert_eq!(config.cluster(), "tcp+tls://a:2181,tcp+tls://b:1");
        assert_eq!(config.identity(), "zk://a:2181,b:1/dlock", "the same store as without TLS");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_the_feature_tls_is_refused() {
        assert!(refusal("zk://h?tls=on").contains("feature `zk-tls`"));
    }

    #[test]
    fn no_secret_is_shown() {
        let config = config("zk://app:hunter2@h").unwrap();
        assert!(!format!("{config:?} {}", config.identity()).contains("hunter2"));
    }
}
