//! Store URLs: `scheme:path` and `scheme://user:password@host,host/path?key=value`.

use std::{collections::BTreeMap, fmt, str::FromStr};

use percent_encoding::percent_decode_str;

use crate::model::{Error, Result};

/// A parsed store URL.
///
/// `Debug` and `Display` show neither a password nor a part of the URL that may be a password. Such
/// parts are the value of a parameter whose name suggests a secret, a user without a password, and a
/// host that is not a valid host name. The last is a password if the `@` behind it was forgotten.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    user: Option<String>,
    password: Option<String>,
    /// Whether the URL has a `//`.
    has_authority: bool,
    hosts: Vec<String>,
    path: String,
    params: BTreeMap<String, String>,
}

impl StoreUrl {
    /// Returns the part before the first colon, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the user, decoded.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Returns the password, decoded. Keep it out of messages.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Returns the hosts as written in the URL, each with its port if it has one.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Checks that the URL names a host.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`]. Without `//` a host cannot be distinguished from a password, so the
    /// error does not show the URL.
    pub fn require_host(&self) -> Result<()> {
        if !self.hosts.is_empty() {
            return Ok(());
        }
        let scheme = &self.scheme;
        let reason = format!("the `{scheme}:` URL names no host: write for example `{scheme}://localhost`");
        Err(Error::InvalidConfig { reason })
    }

    /// Returns the path after the hosts, decoded, with its leading slash. In a URL without `//`,
    /// the path is the part between the scheme and the parameters.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the value of a parameter, decoded.
    pub fn param(&self, key: &str) -> Option<&str> {
        self.params.get(key).map(String::as_str)
    }

    /// Returns a copy with only this host and another scheme, for a store that consists of several
    /// stores.
    #[must_use]
    pub fn with_host(&self, scheme: &str, host: &str) -> Self {
        Self { scheme: scheme.to_owned(), hosts: vec![host.to_owned()], ..self.clone() }
    }

    /// Removes a parameter and returns its value, decoded.
    pub fn take_param(&mut self, key: &str) -> Option<String> {
        self.params.remove(key)
    }

    /// Rejects parameters that are not in `known`. A misspelt parameter must not silently weaken a
    /// lock.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], which lists the known parameters.
    pub fn allow(&self, known: &[&str]) -> Result<()> {
        let Some(unknown) = self.params.keys().find(|key| !known.contains(&key.as_str())) else {
            return Ok(());
        };
        let choices = if known.is_empty() {
            "there are none".to_owned()
        } else {
            format!("there are: {}", known.join(", "))
        };
        // The message has no value, because an unknown parameter may hold a secret. If the URL has
        // a secret and more than one parameter, the message has no name either, because the name
        // may be the rest of that secret after an unescaped `&`.
        let may_be_rest_of_a_secret = self.hides_hosts() || self.hides_parameters() && self.params.len() > 1;
        let mistake = if may_be_rest_of_a_secret {
            format!("`{self}` has an unknown parameter, or an unescaped `&` (write %26) in a secret")
        } else {
            let url = Self { params: BTreeMap::new(), ..self.clone() };
            format!("`{url}` has an unknown parameter `{unknown}`")
        };
        Err(Error::InvalidConfig { reason: format!("{mistake}; {choices}") })
    }

    pub(super) fn hides_parameters(&self) -> bool {
        self.hides_hosts() || self.params.keys().any(|key| is_secret(key))
    }

    fn hides_hosts(&self) -> bool {
        !self.hosts_look_like_hosts() || self.path_may_hold_a_login()
    }

    /// Returns whether each host has the form of a host. A text in another form may be a user and a
    /// password whose `@` is missing.
    fn hosts_look_like_hosts(&self) -> bool {
        self.hosts.iter().all(|host| {
            let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                Some((name, rest)) => (name, rest.strip_prefix(':')),
                None => {
                    host.rsplit_once(':').map_or((host.as_str(), None), |(name, port)| (name, Some(port)))
                }
            };
            let is_bracketed = host.starts_with('[');
            let legal =
                |c: char| c.is_alphanumeric() || "-._".contains(c) || is_bracketed && ":%".contains(c);
            name.chars().all(legal) && port.is_none_or(|port| port.chars().all(|c| c.is_ascii_digit()))
        })
    }

    /// Returns whether a URL without hosts may contain a login, as in `redis:user:password@host`.
    fn path_may_hold_a_login(&self) -> bool {
        let in_params = || self.params.iter().any(|(key, value)| key.contains('@') || value.contains('@'));
        self.hosts.is_empty() && self.path.contains(':') && (self.path.contains('@') || in_params())
    }
}

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // The message does not show the text, because it may contain a password.
        let invalid =
            |mistake: &str| Error::InvalidConfig { reason: format!("not a store's URL: {mistake}") };
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
        let end_of_hosts =
            rest.strip_prefix("//").map_or(0, |rest| rest.find(['/', '?']).unwrap_or(rest.len()));
        if end_of_hosts > 0 && rest[2 + end_of_hosts..].contains('@') {
            return Err(invalid(
                "it has an `@` after its hosts; in user, password and parameters write %40 for `@`, %2F for `/`, \
                 %3F for `?` and %23 for `#`",
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut params = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| invalid("a parameter has no `=`"))?;
            let key = decoded(key)?;
            if params.insert(key, decoded(value)?).is_some() {
                return Err(invalid("a parameter is given twice"));
            }
        }
        let mut url = Self {
            scheme: scheme.to_ascii_lowercase(),
            user: None,
            password: None,
            has_authority: rest.starts_with("//"),
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
        write!(f, "{}:{}", self.scheme, if self.has_authority { "//" } else { "" })?;
        let user = self.user.as_deref().unwrap_or_default();
        match self.password.as_deref() {
            None if self.user.is_none() => {}
            // A user without a password may be a password whose colon is missing.
            None => f.write_str("***@")?,
            Some("") if self.user.is_some() => f.write_str("***:@")?,
            Some(_) => write!(f, "{user}:***@")?,
        }
        if self.hides_hosts() {
            return f.write_str("***");
        }
        write!(f, "{}{}", self.hosts.join(","), self.path)?;
        if self.hides_parameters() {
            return f.write_str("?***");
        }
        for (i, (key, value)) in self.params.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

/// Returns whether a parameter's name suggests that its value is a secret.
fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    // The time for which fencing tokens are kept.
    if key == "token_ttl" {
        return false;
    }
    ["pass", "pwd", "pw", "auth", "secret", "token", "key", "cred", "login", "sign", "sas", "pin"]
        .iter()
        .any(|word| key.contains(word))
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> StoreUrl {
        text.parse().expect(text)
    }

    #[test]
    fn a_url_is_split_into_its_parts() {
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
    fn a_url_with_several_hosts_yields_a_url_for_each_host() {
        let mut url = parse("redis+redlock://u:p@a,b:7000/1?wait=2s&prefix=x");
        assert_eq!(url.take_param("wait").as_deref(), Some("2s"));
        let each: Vec<_> = url.hosts().iter().map(|host| url.with_host("redis", host)).collect();
        assert_eq!(each, [parse("redis://u:p@a/1?prefix=x"), parse("redis://u:p@b:7000/1?prefix=x")]);
    }

    #[test]
    fn an_invalid_url_is_refused_without_being_shown() {
        for text in ["locks.db", "", ":x", "1a:x", "redis//u:hunter2@h", "x:?a", "x:?a=1&a=2", "x:%ff"] {
            let error = text.parse::<StoreUrl>().expect_err(text).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn an_at_sign_after_the_hosts_is_refused_with_its_escape() {
        for text in ["redis://:a/b@h", "redis://u:a?b=c@h", "redis://h/x@y", "redis://u:p@h?prefix=a@b"] {
            let error = text.parse::<StoreUrl>().expect_err(text).to_string();
            assert!(error.contains("%40"), "{error}");
        }
        assert_eq!(parse("sqlite:/srv/app@v2/locks.db").path(), "/srv/app@v2/locks.db");
        assert_eq!(parse("sqlite:///srv/app@v2/locks.db").to_string(), "sqlite:///srv/app@v2/locks.db");
    }

    #[test]
    fn a_part_that_may_be_a_password_is_hidden() {
        for (text, shown) in [
            ("redis://hunter2@h", "redis://***@h"),
            ("redis://hunter2:@h", "redis://***:@h"),
            ("redis://:hunter2@h", "redis://:***@h"),
            ("redis://:@h", "redis://:***@h"),
            ("redis://u:hunter2:1", "redis://***"),
        ] {
            assert_eq!(parse(text).to_string(), shown);
        }
    }

    #[test]
    fn parts_that_are_no_secret_are_shown() {
        for text in [
            "redis://u:***@h:1,[::1]:2/0?db=1&prefix=a:",
            "redis://h_1.example/0?token_ttl=never",
            "sqlite:locks.db",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
        assert_eq!(format!("{:?}", parse("redis://h/0")), "StoreUrl(redis://h/0)");
    }

    #[test]
    fn an_unknown_parameter_is_named_unless_it_may_be_the_rest_of_a_secret() {
        for (text, expected) in [
            ("x://h/0?retries=hunter2", "`x://h/0` has an unknown parameter `retries`; there are: db"),
            ("x://h/0?password=hunter2", "`x://h/0` has an unknown parameter `password`; there are: db"),
            (
                "x://h/0?password=hunter2&hunter3=x",
                "`x://h/0?***` has an unknown parameter, or an unescaped `&` (write %26) in a secret; there are: db",
            ),
        ] {
            assert_eq!(parse(text).allow(&["db"]).unwrap_err().to_string(), expected);
        }
    }

    /// Secrets that consist of a word to search for. Between the words are unescaped characters
    /// that have to be escaped.
    fn secrets() -> impl Strategy<Value = String> {
        proptest::collection::vec("[/@?#&=:,%\\[\\] .-]{0,2}", 1..4).prop_map(|gaps| {
            gaps.iter().fold("hunter2".to_owned(), |secret, gap| format!("{secret}{gap}hunter2"))
        })
    }

    proptest! {
        #[test]
        fn a_secret_is_never_shown(
            secret in secrets(),
            word in "(pwd|auth|pw|pass|password|sentinel_password|api-key|token|credentials)",
            scheme in "(redis|rediss|redis-cluster|redis\\+sentinel|etcd|mysql|zk|x)",
            place in 0..9_usize,
        ) {
            let text = match place {
                0 => format!("{scheme}://:{secret}@h/0"),
                1 => format!("{scheme}://u:{secret}@h:1/0?db=1"),
                2 => format!("{scheme}://u:{secret}@h1,h2:x"),
                // A URL without a host. The secret has no `@`, because what follows an `@` would be
                // the host.
                3 => format!("{scheme}://u:{}", secret.replace('@', "")),
                4 => format!("{scheme}:u:{secret}@h/0"),
                5 => format!("{scheme}://h/0?{word}={secret}"),
                6 => format!("{scheme}://h/0?db=1&{word}={secret}&zz=2"),
                // A secret with a colon would be a user and a password, and users are shown.
                7 => format!("{scheme}://{}@h/0", secret.replace(':', "")),
                _ => format!("{scheme}://u:{secret}@h?{word}={secret}"),
            };
            let parsed = text.parse::<StoreUrl>();
            let refused = parsed.as_ref().map(|url| (url.to_string(), url.allow(&["db"])));
            let shown = format!("{parsed:?} {refused:?}");
            prop_assert!(!shown.contains("hunter2"), "{} shows {}", text, shown);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,60}") {
            let _ = text.parse::<StoreUrl>();
        }
    }
}
