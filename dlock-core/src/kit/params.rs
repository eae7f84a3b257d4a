//! Typed parameters of a store's URL, with the same names, checks and error messages on all stores.

use std::{
    fmt::{self, Display},
    ops::{Bound, RangeBounds},
    str::FromStr,
    time::Duration,
};

use super::StoreUrl;
use crate::model::{Error, Result, duration};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Host name or IP address. An IPv6 address has no brackets.
    pub host: String,
    /// Port from the URL, or the store's default port.
    pub port: u16,
}

/// Typed parameters. A driver first lists all parameters that it knows with [`allow`](Self::allow),
/// then reads each of them.
///
/// ```
/// use dlock_core::driver::StoreUrl;
/// use std::time::Duration;
/// let url: StoreUrl = "etcd://a,[::1]:2380?timeout=500ms".parse()?;
/// url.allow(&["timeout", "retries"])?;
/// let timeout = url.duration("timeout", Duration::from_millis(1)..)?;
/// assert_eq!(timeout, Some(Duration::from_millis(500)));
/// assert_eq!(url.number("retries", 0..=9_u32)?, None);
/// assert_eq!(url.addresses(2379)?[1].to_string(), "[::1]:2380");
/// # Ok::<(), dlock_core::Error>(())
/// ```
impl StoreUrl {
    /// Returns an error about this URL. `mistake` continues a sentence that begins with the URL,
    /// such as `has no host`. The message shows no secret of the URL.
    pub fn invalid(&self, mistake: impl Display) -> Error {
        Error::InvalidConfig { reason: format!("`{self}` {mistake}") }
    }

    /// Returns a duration, as in `timeout=500ms`, in the notation of [`duration::parse`].
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the value is not a duration or not within `range`.
    pub fn duration(&self, key: &str, range: impl RangeBounds<Duration>) -> Result<Option<Duration>> {
        let Some(text) = self.param(key) else { return Ok(None) };
        match duration::parse(text) {
            Some(duration) if range.contains(&duration) => Ok(Some(duration)),
            parsed => {
                let bounds = parsed.map(|_| bounds(&range, |span| duration::text(*span))).unwrap_or_default();
                let example = match (range.contains(&Duration::from_secs(3)), range.start_bound()) {
                    (false, Bound::Included(min)) => duration::text(*min),
                    _ => "3s".to_owned(),
                };
                let given = self.display_param(key, text);
                Err(invalid_config(format!(
                    "`{given}` is not a duration{bounds}; write for example `{key}={example}`"
                )))
            }
        }
    }

    /// Returns an integer, as in `retries=3`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the value is not an integer or not within `range`.
    pub fn number<T>(&self, key: &str, range: impl RangeBounds<T>) -> Result<Option<T>>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(text) = self.param(key) else { return Ok(None) };
        match text.parse() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => {
                let (given, bounds) = (self.display_param(key, text), bounds(&range, T::to_string));
                Err(invalid_config(format!("`{given}` is not a number{bounds}")))
            }
        }
    }

    /// Returns the value of one of several words, as in `tls=on`. The first choice is the default.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for another word. The error lists the choices.
    ///
    /// # Panics
    /// If `choices` is empty.
    pub fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<T> {
        let Some(text) = self.param(key) else { return Ok(choices[0].1) };
        if let Some((_, chosen)) = choices.iter().find(|(word, _)| *word == text) {
            return Ok(*chosen);
        }
        let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
        let given = self.display_param(key, text);
        Err(invalid_config(format!("`{given}` is unknown; there are: {}", words.join(", "))))
    }

    /// Returns the hosts with their ports. Accepts `host`, `host:port`, `[::1]` and `[::1]:port`.
    /// Empty for a URL without hosts.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for an empty host, a port that is not a number, or a host with a
    /// colon. The `@host` after a password may be missing then.
    pub fn addresses(&self, default_port: u16) -> Result<Vec<Address>> {
        let addresses = self.hosts().iter().map(|host| address(host, default_port));
        addresses.collect::<Option<_>>().ok_or_else(|| {
            self.invalid(format_args!(
                "has an invalid host or port; write IPv6 as `[::1]:{default_port}`, and a password as \
                 `:password@host`"
            ))
        })
    }

    /// Formats a parameter for an error message. Hides the value if the URL contains a secret,
    /// because the value may be the rest of that secret after an unescaped `&`.
    fn display_param(&self, key: &str, value: &str) -> String {
        if self.hides_parameters() { format!("{key}=***") } else { format!("{key}={value}") }
    }
}

pub(super) fn invalid_config(reason: String) -> Error {
    Error::InvalidConfig { reason }
}

/// Formats a range in words, with a leading space: ` from 1 to 9`, ` from 1 up`.
fn bounds<T, S: Display>(range: &impl RangeBounds<T>, display: impl Fn(&T) -> S) -> String {
    let from = match range.start_bound() {
        Bound::Included(min) => format!(" from {}", display(min)),
        Bound::Excluded(min) => format!(" above {}", display(min)),
        Bound::Unbounded => String::new(),
    };
    match range.end_bound() {
        Bound::Included(max) => format!("{from} to {}", display(max)),
        Bound::Excluded(max) => format!("{from} below {}", display(max)),
        Bound::Unbounded if from.is_empty() => from,
        Bound::Unbounded => format!("{from} up"),
    }
}

fn address(text: &str, default_port: u16) -> Option<Address> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':')?)),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return None;
    }
    let port = port.map_or(Some(default_port), |port| port.parse().ok())?;
    Some(Address { host: host.to_owned(), port })
}

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn url(text: &str) -> StoreUrl {
        text.parse().expect(text)
    }

    fn message<T: fmt::Debug>(result: Result<T>) -> String {
        result.expect_err("invalid").to_string()
    }

    #[test]
    fn a_missing_parameter_is_none_or_the_first_choice() {
        let url = url("x://h");
        assert_eq!(url.duration("timeout", MS..).unwrap(), None);
        assert_eq!(url.number("count", 1..=9_u32).unwrap(), None);
        assert_eq!(url.choice("mode", &[("a", 1), ("b", 2)]).unwrap(), 1);
    }

    #[test]
    fn a_value_is_parsed_into_the_requested_type() {
        let url = url("x://h?timeout=1m30s&count=7&mode=b");
        assert_eq!(url.duration("timeout", MS..).unwrap(), Some(Duration::from_secs(90)));
        for text in ["90", "90.0s", "1m 30s"] {
            let url = self::url(&format!("x://h?timeout={}", text.replace(' ', "%20")));
            let ninety = Some(Duration::from_secs(90));
            assert_eq!(url.duration("timeout", MS..).unwrap(), ninety, "a configuration accepts {text}");
        }
        assert_eq!(url.number("count", 1..=9_u16).unwrap(), Some(7));
        assert_eq!(url.choice("mode", &[("a", 1), ("b", 2)]).unwrap(), 2);
    }

    #[test]
    fn the_error_for_an_invalid_value_says_which_values_are_valid() {
        let of = |value: &str| url(&format!("x://h?it={value}"));
        let s = Duration::from_secs;
        for (message, expected) in [
            (
                message(of("soon").duration("it", MS..)),
                "`it=soon` is not a duration; write for example `it=3s`",
            ),
            (
                message(of("0s").duration("it", MS..)),
                "`it=0s` is not a duration from 1ms up; write for example `it=3s`",
            ),
            (
                message(of("1h").duration("it", s(4)..=s(60))),
                "`it=1h` is not a duration from 4s to 1m; write for example `it=4s`",
            ),
            (message(of("0").number("it", 1_u32..)), "`it=0` is not a number from 1 up"),
            (message(of("ten").number("it", 1..=9_u32)), "`it=ten` is not a number from 1 to 9"),
            (message(of("300").number::<u8>("it", ..)), "`it=300` is not a number"),
            (message(of("c").choice("it", &[("a", 1), ("b", 2)])), "`it=c` is unknown; there are: a, b"),
        ] {
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn a_value_that_may_be_the_rest_of_a_secret_is_not_shown() {
        let url = url("x://h?password=a&timeout=hunter2&mode=hunter2&count=hunter2");
        let all = [
            message(url.duration("timeout", MS..)),
            message(url.choice("mode", &[("a", 1)])),
            message(url.number::<u32>("count", ..)),
        ];
        for message in all {
            assert!(message.contains("=***") && !message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn a_host_may_have_a_port_and_may_be_ipv6() {
        let addresses = |text: &str| -> Vec<String> {
            url(text).addresses(7).expect(text).iter().map(ToString::to_string).collect()
        };
        assert_eq!(addresses("x://a,b:1,[::1],[::2]:2"), ["a:7", "b:1", "[::1]:7", "[::2]:2"]);
        assert!(addresses("x:path").is_empty());
        for text in
            ["x://a:port", "x://a:", "x://:1", "x://::1", "x://[::1]1", "x://u:secret:1", "x://a:99999"]
        {
            let message = message(url(text).addresses(7));
            assert!(message.contains("[::1]:7") && !message.contains("secret"), "{text}: {message}");
        }
    }
}
