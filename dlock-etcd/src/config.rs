//! Configuration of a client. It names the cluster, the way to reach it, and the rule for the
//! names of locks.

use std::{fmt, time::Duration};

use dlock_core::{
    ClaimId, Error, Guard, LockName, Result,
    driver::{Address, Login, StoreUrl, Tls, duration},
};

use crate::keys::Keys;

/// Default session: the time for which the claims of a dead client stay. The maximum ttl is four
/// fifths of it.
const DEFAULT_SESSION: Duration = Duration::from_secs(30);

/// Minimum session. With etcd's default election timeout no lease is shorter.
const MIN_SESSION: Duration = Duration::from_secs(2);

const MAX_SESSION: Duration = Duration::from_secs(24 * 3600);

/// Default time limit of a call. A limit is at most half the session. Otherwise one lost keep-alive
/// would lose all locks.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);

const PARAMS: &[&str] =
    &["prefix", "names", "session", "timeout", "password_file", "tls", "ca", "cert", "key"];

/// Configuration of a client, parsed from a URL by [`from_url`](Self::from_url).
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    pub(crate) hosts: Vec<Address>,
    pub(crate) login: Login,
    pub(crate) tls: Option<Tls>,
    pub(crate) prefix: String,
    pub(crate) names: Names,
    /// Ttl that the client requests for its lease.
    pub(crate) session: Duration,
    /// Time limit of a call.
    pub(crate) timeout: Duration,
}

/// Rule by which the name of a lock becomes a part of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Names {
    /// A slash is written `%2F` and a percent sign `%25`, so that different names are different
    /// locks.
    #[default]
    Encoded,
    /// The name is used unchanged, as `etcdctl lock` does. A name with a slash is refused, because
    /// its claims would block the lock whose name is the part before the slash.
    Exact,
}

impl EtcdConfig {
    /// Parses a URL such as `etcd://user:password@host,host:port`, or `etcds://` with TLS. The
    /// README lists the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for an invalid host or parameter.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        url.require_host()?;
        url.allow(PARAMS)?;
        if !url.path().trim_matches('/').is_empty() {
            return Err(url.invalid("has a path; a prefix for the names of locks is written `?prefix=app.`"));
        }
        let session = url.duration("session", MIN_SESSION..=MAX_SESSION)?.unwrap_or(DEFAULT_SESSION);
        let timeout = url.duration("timeout", Duration::from_millis(1)..=MAX_SESSION)?;
        if let Some(timeout) = timeout.filter(|timeout| *timeout > session / 2) {
            let [timeout, session] = [timeout, session].map(duration::text);
            let reason =
                format!("has a timeout of {timeout}, which is more than half the session of {session}");
            return Err(url.invalid(&reason));
        }
        let config = Self {
            hosts: url.addresses(2379)?,
            login: url.login("password_file")?,
            tls: url.tls(Some("etcds"))?,
            prefix: url.param("prefix").unwrap_or_default().to_owned(),
            names: url.choice("names", &[("encoded", Names::Encoded), ("exact", Names::Exact)])?,
            session,
            timeout: timeout.unwrap_or(DEFAULT_TIMEOUT.min(session / 2)),
        };
        if config.prefix.chars().any(char::is_control) {
            return Err(url.invalid("has a prefix with a control character"));
        }
        if config.names == Names::Encoded && config.prefix.contains('/') {
            return Err(url.invalid(
                "has a prefix with a slash: its locks would block the lock whose name is the part of the prefix \
                 before the slash; write for example `?prefix=app.`, or use names unchanged with `names=exact`",
            ));
        }
        if config.login.password.is_some() && config.login.user.is_none() {
            return Err(url.invalid("has a password and no user"));
        }
        Ok(config)
    }

    /// Returns the key of a hold and its create revision. A transaction of your own that compares
    /// them is executed only while the hold lasts. After a release or a loss the comparison fails,
    /// also while another claim holds the lock. It also fails for a guard of another store.
    ///
    /// The hold must belong to a client with the same `prefix` and `names`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the guard of a [`MultiLock`](dlock_core::MultiLock), which has
    /// one key for each name, so lock the names one by one. [`Error::InvalidName`] for a name with
    /// a slash, if the URL has `names=exact`.
    pub fn compare(&self, guard: &Guard) -> Result<(String, i64)> {
        let (Some(id), Some(token)) = (guard.id(), guard.token()) else {
            let what = format!("guard a write with `{}`, which is not one hold with a token", guard.name());
            return Err(Error::Unsupported { store: "etcd", what });
        };
        // A token of another store may be larger than `i64::MAX`. No key has that revision.
        Ok((self.key(guard.name(), id)?, i64::try_from(token.get()).unwrap_or(i64::MAX)))
    }

    /// Returns the key of the hold with this id, whether or not it exists. A detached hold keeps
    /// its key. Compare its create revision with the token of the ticket, as
    /// [`compare`](Self::compare) does for a guard.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for a name with a slash, if the URL has `names=exact`.
    pub fn key(&self, name: &LockName, id: ClaimId) -> Result<String> {
        Keys::new(self, name, id).map(|keys| keys.own)
    }

    /// Returns the text that identifies this store. It contains no secret.
    pub(crate) fn identity(&self) -> String {
        let mut hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.sort_unstable();
        let exact = if self.names == Names::Exact { "exact:" } else { "" };
        format!("etcd://{}[{exact}{}]", hosts.join(","), self.prefix)
    }
}

impl fmt::Debug for EtcdConfig {
    /// Omits the login.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdConfig").field(&self.identity()).field(&self.session).finish()
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<EtcdConfig> {
        EtcdConfig::from_url(&url.parse().expect(url))
    }

    fn refusal(url: &str) -> String {
        config(url).expect_err(url).to_string()
    }

    #[test]
    fn a_url_may_be_short() {
        let config = config("etcd://localhost").unwrap();
        assert_eq!(config.identity(), "etcd://localhost:2379[]");
        assert_eq!((config.session, config.timeout), (Duration::from_secs(30), Duration::from_secs(3)));
        assert_eq!((config.names, config.tls), (Names::Encoded, None));
    }

    #[test]
    fn a_url_may_have_every_parameter() {
        let url = "etcds://anna:p%40ss@b:1,[::1],a?prefix=x.&names=exact&session=10s&timeout=1s&ca=/ca.pem";
        let config = config(url).unwrap();
        assert_eq!(config.identity(), "etcd://[::1]:2379,a:2379,b:1[exact:x.]");
        assert_eq!(config.login.user.as_deref(), Some("anna"));
        assert_eq!((config.session, config.timeout), (Duration::from_secs(10), Duration::from_secs(1)));
        assert!(config.tls.is_some_and(|tls| tls.ca.is_some()));
    }

    #[test]
    fn the_order_of_the_servers_does_not_change_the_identity() {
        assert_eq!(config("etcd://a,b").unwrap().identity(), config("etcd://b,a").unwrap().identity());
        assert_ne!(config("etcd://a").unwrap().identity(), config("etcd://a?prefix=x").unwrap().identity());
    }

    #[test]
    fn a_call_takes_no_longer_than_half_the_session() {
        assert_eq!(config("etcd://a?session=3s").unwrap().timeout, Duration::from_millis(1500));
    }

    #[test]
    fn with_exact_names_a_prefix_may_have_a_slash() {
        assert_eq!(config("etcd://a?names=exact&prefix=app/").unwrap().prefix, "app/");
    }

    #[test]
    fn an_unusable_url_is_refused() {
        for (url, words) in [
            ("etcd:", "names no host"),
            ("etcd://a/b", "prefix"),
            ("etcd://a?ttl=3s", "`ttl`"),
            ("etcd://a?session=1s", "from 2s to 1d"),
            ("etcd://a?session=25h", "from 2s to 1d"),
            ("etcd://a?names=raw", "encoded, exact"),
            ("etcd://a?prefix=app/", "names=exact"),
            ("etcd://a?session=4s&timeout=3s", "half the session of 4s"),
            ("etcd://anna@a", "a user and no password"),
            ("etcd://:secret@a", "a password and no user"),
            ("etcd://a?ca=x", "need TLS"),
            ("etcd://a:x", "an invalid host or port"),
        ] {
            let refusal = refusal(url);
            assert!(refusal.contains(words) && !refusal.contains("secret"), "{url}: {refusal}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let config = config("etcd://anna:secret@a").unwrap();
        assert!(!format!("{config:?} {}", config.identity()).contains("secret"));
    }
}
