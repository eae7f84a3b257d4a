//! Typed parameters of a store's URL, with the same names, checks and error messages on all stores.

use std::{
    fmt::{self, Display},
    fs,
    ops::{Bound, RangeBounds},
    path::{Path, PathBuf},
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

/// A password from the URL, or the path of a file that contains it. `Debug` shows the path, never a
/// password.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Location);

#[derive(Clone, PartialEq, Eq)]
enum Location {
    Url(String),
    File(PathBuf),
}

/// The user and the password of a URL, if it has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// User. It always has a password, except in a login of
    /// [`login_with_optional_password`](StoreUrl::login_with_optional_password).
    pub user: Option<String>,
    /// Password.
    pub password: Option<Secret>,
}

/// Paths of the PEM files of a TLS connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificate of the authority that signed the server's certificate. `None` if this machine
    /// already trusts the authority.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key. `None` if the server requires no client certificate.
    pub client_cert: Option<(PathBuf, PathBuf)>,
}

/// Contents of the files of a [`Tls`].
pub struct Pems {
    /// Content of [`Tls::ca`].
    pub ca: Option<Vec<u8>>,
    /// Contents of [`Tls::client_cert`].
    pub client_cert: Option<(Vec<u8>, Vec<u8>)>,
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
    /// Parameters that [`tls`](Self::tls) reads, for the list of known parameters.
    pub const TLS: [&str; 4] = ["tls", "ca", "cert", "key"];

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

    /// Returns the login in front of the hosts. The password may instead be in a file, whose path
    /// is the value of the parameter `file`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for two passwords, or a user without a password.
    pub fn login(&self, file: &str) -> Result<Login> {
        let login = self.login_with_optional_password(file)?;
        if login.lacks_password() {
            return Err(self.invalid("has a user and no password"));
        }
        Ok(login)
    }

    /// As [`login`](Self::login), for a store that finds passwords elsewhere too.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for two passwords.
    pub fn login_with_optional_password(&self, file: &str) -> Result<Login> {
        let login = Login::new(self.user(), self.password(), self.param(file));
        login.ok_or_else(|| self.invalid("has both a password and a file with a password"))
    }

    /// Returns a second login from three parameters: the user, the password, and the path of a file
    /// with the password. For a party other than the store's servers, such as Sentinels.
    ///
    /// # Errors
    /// As [`login`](Self::login).
    pub fn login_from_params(&self, [user, password, file]: [&str; 3]) -> Result<Login> {
        let login = Login::new(self.param(user), self.param(password), self.param(file));
        let login = login.ok_or_else(|| self.invalid(format_args!("has both `{password}` and `{file}`")))?;
        if login.lacks_password() {
            return Err(self.invalid(format_args!("has a `{user}` and no `{password}`")));
        }
        Ok(login)
    }

    /// Returns the files for TLS, or `None` if TLS is off. Reads `tls=on` or `tls=off`, `ca`,
    /// `cert` and `key`. TLS is on without `tls=on` if the URL's scheme is `secure`, such as
    /// `rediss`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a certificate without its key, files without TLS, or `tls=off`
    /// with the scheme `secure`.
    pub fn tls(&self, secure: Option<&str>) -> Result<Option<Tls>> {
        let (on, off) = (("on", true), ("off", false));
        let is_on = match secure.filter(|secure| *secure == self.scheme()) {
            None => self.choice("tls", &[off, on])?,
            Some(_) if self.choice("tls", &[on, off])? => true,
            Some(scheme) => {
                return Err(invalid_config(format!(
                    "`{scheme}://` turns TLS on and `tls=off` turns it off; leave out `tls=off`, or write a scheme \
                     without TLS instead of `{scheme}://`"
                )));
            }
        };
        let file = |key| self.param(key).map(PathBuf::from);
        let client_cert = match (file("cert"), file("key")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                let reason =
                    "`cert` and `key` go together; set both, to the client's certificate and its key";
                return Err(invalid_config(reason.to_owned()));
            }
        };
        let tls = Tls { ca: file("ca"), client_cert };
        if !is_on && tls != Tls::default() {
            let scheme = secure.map(|secure| format!("`{secure}://`, or ")).unwrap_or_default();
            return Err(invalid_config(format!("`ca`, `cert` and `key` need TLS; write {scheme}`tls=on`")));
        }
        Ok(is_on.then_some(tls))
    }

    /// Formats a parameter for an error message. Hides the value if the URL contains a secret,
    /// because the value may be the rest of that secret after an unescaped `&`.
    fn display_param(&self, key: &str, value: &str) -> String {
        if self.hides_parameters() { format!("{key}=***") } else { format!("{key}={value}") }
    }
}

fn invalid_config(reason: String) -> Error {
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

impl Login {
    /// Returns `None` if there are two passwords.
    fn new(user: Option<&str>, password: Option<&str>, file: Option<&str>) -> Option<Self> {
        let password = match (password, file) {
            (Some(_), Some(_)) => return None,
            (Some(password), None) => Some(Location::Url(password.to_owned())),
            (None, Some(file)) => Some(Location::File(file.into())),
            (None, None) => None,
        };
        Some(Self { user: user.map(str::to_owned), password: password.map(Secret) })
    }

    /// Returns whether there is a user without a password.
    pub fn lacks_password(&self) -> bool {
        self.user.is_some() && self.password.is_none()
    }
}

impl Secret {
    /// Returns the password. Reads the file on each call, because the file may have been replaced.
    /// Line ends after the password are not part of it.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a file that cannot be read or is not UTF-8. A driver that reads
    /// the file again later must convert the error with
    /// [`StoreErrors::as_transient`](super::StoreErrors::as_transient), because the file may just
    /// be being replaced.
    pub fn read(&self) -> Result<String> {
        match &self.0 {
            Location::Url(password) => Ok(password.clone()),
            Location::File(path) => {
                let mut password = String::from_utf8(read(path)?).map_err(|_| {
                    invalid_config(format!("`{}` has a password that is not UTF-8", path.display()))
                })?;
                password.truncate(password.trim_end_matches(['\r', '\n']).len());
                Ok(password)
            }
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Location::Url(_) => f.write_str("Secret(***)"),
            Location::File(path) => f.debug_tuple("Secret").field(path).finish(),
        }
    }
}

impl Tls {
    /// Reads the files. A driver reads them for each connection, because the files are replaced
    /// before the certificates expire.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a file that cannot be read.
    pub fn read(&self) -> Result<Pems> {
        let client_cert =
            self.client_cert.as_ref().map(|(cert, key)| Ok::<_, Error>((read(cert)?, read(key)?)));
        Ok(Pems { ca: self.ca.as_deref().map(read).transpose()?, client_cert: client_cert.transpose()? })
    }
}

impl fmt::Debug for Pems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pems").finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| invalid_config(format!("`{}` cannot be read: {error}", path.display())))
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
        assert_eq!(url.login("password_file").unwrap(), Login::default());
        assert_eq!(url.tls(Some("xs")).unwrap(), None);
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

    #[test]
    fn a_password_is_given_in_one_place_and_is_never_shown() {
        let login = url("x://u:hunter2@h").login("file").unwrap();
        assert_eq!(login.user.as_deref(), Some("u"));
        assert_eq!(login.password.as_ref().expect("given").read().unwrap(), "hunter2");
        assert!(!format!("{login:?}").contains("hunter2"), "{login:?}");
        let other = ["its_user", "its_password", "its_file"];
        for (text, words) in [
            ("x://u:p@h?file=/f", "both a password and a file"),
            ("x://u@h", "a user and no password"),
            ("x://h?its_user=u", "`its_user` and no `its_password`"),
            ("x://h?its_password=p&its_file=/f", "both `its_password` and `its_file`"),
        ] {
            let message = message(url(text).login("file").and_then(|_| url(text).login_from_params(other)));
            assert!(message.contains(words), "{text}: {message}");
        }
    }

    #[test]
    fn a_file_is_read_on_each_call_and_named_if_it_cannot_be_read() {
        let path = std::env::temp_dir().join(format!("dlock-password-{}", crate::ClaimId::random()));
        let login = url(&format!("x://u@h?file={}", path.display())).login("file").unwrap();
        let password = login.password.expect("a file is one");
        assert!(message(password.read()).contains("cannot be read"));
        for (content, expected) in [("one\n", "one"), ("two \r\n", "two ")] {
            fs::write(&path, content).unwrap();
            assert_eq!(password.read().unwrap(), expected);
        }
        fs::write(&path, [0xff]).unwrap();
        assert!(message(password.read()).contains("not UTF-8"));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn tls_is_enabled_by_its_scheme_or_its_parameter_and_files_require_tls() {
        assert_eq!(url("xs://h").tls(Some("xs")).unwrap(), Some(Tls::default()));
        assert_eq!(url("xs://h?tls=on").tls(Some("xs")).unwrap(), Some(Tls::default()));
        assert_eq!(url("x://h?tls=on").tls(None).unwrap(), Some(Tls::default()));
        assert_eq!(url("x://h?tls=off").tls(Some("xs")).unwrap(), None);
        let all = url("xs://h?ca=/ca&cert=/c&key=/k").tls(Some("xs")).unwrap().expect("on");
        assert_eq!(all.client_cert, Some(("/c".into(), "/k".into())));
        assert!(message(all.read().map(|_| ())).contains("cannot be read"));
        for (text, words) in [
            ("xs://h?cert=/c", "go together"),
            ("x://h?ca=/ca", "write `xs://`, or `tls=on`"),
            ("x://h?tls=maybe", "there are: off, on"),
            ("xs://h?tls=maybe", "there are: on, off"),
            ("xs://h?tls=off", "leave out `tls=off`, or write a scheme without TLS instead of `xs://`"),
        ] {
            let message = message(url(text).tls(Some("xs")));
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
