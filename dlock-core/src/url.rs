//! Store URLs: `scheme:path`, `scheme://user:password@host,host/path?key=value`.

use std::{collections::BTreeMap, fmt, str::FromStr};

use percent_encoding::percent_decode_str;

use crate::{Error, Result};

/// A store's URL, taken apart. `Debug` and `Display` never show the password or a parameter that may hold a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    user: Option<String>,
    password: Option<String>,
    /// Whether `//` was there.
    authority: bool,
    hosts: Vec<String>,
    path: String,
    params: BTreeMap<String, String>,
}

impl StoreUrl {
    /// What stands before the first colon, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The user, decoded.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password, decoded. Keep it out of messages.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// The hosts as they stand, each with its port if it has one.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// What follows the hosts, decoded, with its leading slash; all of it in a URL without `//`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A parameter's value, decoded.
    pub fn param(&self, key: &str) -> Option<&str> {
        self.params.get(key).map(String::as_str)
    }

    /// The URL of one of several hosts, under another scheme: for a store that is made of several.
    #[must_use]
    pub fn of_host(&self, scheme: &str, host: &str) -> Self {
        Self { scheme: scheme.to_owned(), hosts: vec![host.to_owned()], ..self.clone() }
    }

    /// Takes a parameter out, decoded.
    pub fn take_param(&mut self, key: &str) -> Option<String> {
        self.params.remove(key)
    }

    /// Refuses parameters that are not among `known`: a misspelt one must not silently weaken a lock.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], with those there are.
    pub fn allow(&self, known: &[&str]) -> Result<()> {
        let Some(unknown) = self.params.keys().find(|key| !known.contains(&key.as_str())) else {
            return Ok(());
        };
        let there = if known.is_empty() {
            "there are none".to_owned()
        } else {
            format!("there are: {}", known.join(", "))
        };
        Err(Error::InvalidConfig {
            reason: format!("`{self}` has an unknown parameter `{unknown}`; {there}"),
        })
    }
}

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // The text itself may hold a password: it is not shown.
        let invalid = |what: &str| Error::InvalidConfig { reason: format!("not a store's URL: {what}") };
        let decoded = |part: &str| {
            let decoded = percent_decode_str(part).decode_utf8();
            decoded.map(String::from).map_err(|_| invalid("a %-escape is not UTF-8"))
        };
        let no_scheme = || invalid("it has no scheme; write for example `sqlite:locks.db` or `memory:`");
        let (scheme, rest) = text.split_once(':').ok_or_else(no_scheme)?;
        let legal = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(legal) {
            return Err(no_scheme());
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut params = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| invalid("a parameter has no `=`"))?;
            let key = decoded(key)?;
            if params.insert(key.clone(), decoded(value)?).is_some() {
                return Err(invalid(&format!("parameter `{key}` stands twice")));
            }
        }
        let mut url = Self {
            scheme: scheme.to_ascii_lowercase(),
            user: None,
            password: None,
            authority: rest.starts_with("//"),
            hosts: Vec::new(),
            path: String::new(),
            params,
        };
        let path = match rest.strip_prefix("//") {
            None => rest,
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                let hosts = match authority.rsplit_once('@') {
                    None => authority,
                    Some((login, hosts)) => {
                        let (user, password) = login
                            .split_once(':')
                            .map_or((login, None), |(user, password)| (user, Some(password)));
                        url.user = Some(decoded(user)?).filter(|user| !user.is_empty());
                        url.password = password.map(decoded).transpose()?;
                        hosts
                    }
                };
                url.hosts = hosts.split(',').filter(|host| !host.is_empty()).map(str::to_owned).collect();
                path
            }
        };
        url.path = decoded(path)?;
        Ok(url)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme, if self.authority { "//" } else { "" })?;
        if self.user.is_some() || self.password.is_some() {
            let password = if self.password.is_some() { ":***" } else { "" };
            write!(f, "{}{password}@", self.user.as_deref().unwrap_or_default())?;
        }
        write!(f, "{}{}", self.hosts.join(","), self.path)?;
        for (i, (key, value)) in self.params.iter().enumerate() {
            let secret =
                ["pass", "secret", "token", "key"].iter().any(|word| key.to_ascii_lowercase().contains(word));
            write!(f, "{}{key}={}", if i == 0 { '?' } else { '&' }, if secret { "***" } else { value })?;
        }
        Ok(())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> StoreUrl {
        text.parse().expect(text)
    }

    #[test]
    fn a_url_is_taken_apart() {
        let url = parse("Redis+Sentinel://app:p%40ss@s1:26379,[::1]:26380/main%2F1?db=2&prefix=a%20b");
        assert_eq!(url.scheme(), "redis+sentinel");
        assert_eq!((url.user(), url.password()), (Some("app"), Some("p@ss")));
        assert_eq!(url.hosts(), ["s1:26379", "[::1]:26380"]);
        assert_eq!((url.path(), url.param("db"), url.param("prefix")), ("/main/1", Some("2"), Some("a b")));
    }

    #[test]
    fn a_path_needs_no_slashes() {
        assert_eq!(parse("sqlite:locks.db").path(), "locks.db");
        assert_eq!(parse("sqlite:/var/lib/locks.db").path(), "/var/lib/locks.db");
        assert_eq!(parse("sqlite:///var/lib/locks.db").path(), "/var/lib/locks.db");
        assert_eq!(parse("memory:").path(), "");
    }

    #[test]
    fn a_url_of_several_hosts_is_one_of_each() {
        let mut url = parse("redis+redlock://u:p@a,b:7000/1?wait=2s&prefix=x");
        assert_eq!(url.take_param("wait").as_deref(), Some("2s"));
        let each: Vec<_> = url.hosts().iter().map(|host| url.of_host("redis", host)).collect();
        assert_eq!(each, [parse("redis://u:p@a/1?prefix=x"), parse("redis://u:p@b:7000/1?prefix=x")]);
    }

    #[test]
    fn what_is_no_url_is_refused_without_being_shown() {
        for text in ["locks.db", "", ":x", "1a:x", "redis//u:hunter2@h", "x:?a", "x:?a=1&a=2", "x:%ff"] {
            let error = text.parse::<StoreUrl>().expect_err(text).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_secret_is_never_shown(secret in "[a-zA-Z0-9]{12,20}") {
            let url = parse(&format!("redis://u:{secret}@h:1/0?password={secret}&tls_key={secret}"));
            let shown = format!("{url} {url:?}");
            prop_assert!(!shown.contains(&secret), "{}", shown);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,60}") {
            let _ = text.parse::<StoreUrl>();
        }
    }
}
