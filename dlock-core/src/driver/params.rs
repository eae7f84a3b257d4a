//! Typed parameters of a store's URL, named, checked and refused in the same way for every store. Over the usual length
//! with its tests.

use std::{
    fmt::{self, Display},
    fs,
    ops::{Bound, RangeBounds},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use humantime::parse_duration;

use super::{Error, Result, StoreUrl, duration};

/// One server of a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// A name or an address; an IPv6 address without its brackets.
    pub host: String,
    /// The URL's port, or the store's default.
    pub port: u16,
}

/// A password that stands in the URL, or the path of a file that holds it. `Debug` shows the path, never a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Where);

#[derive(Clone, PartialEq, Eq)]
enum Where {
    Url(String),
    File(PathBuf),
}

/// A user and a password, where the URL has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The user. There is never a user without a password.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
}

/// The PEM files of a TLS connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The certificate of the authority that signed the server's certificate, if this machine does not trust that authority
    /// already.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key, where the server wants one.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// The contents of the files of a [`Tls`].
pub struct Pems {
    /// The content of [`Tls::ca`].
    pub ca: Option<Vec<u8>>,
    /// The contents of [`Tls::own`].
    pub own: Option<(Vec<u8>, Vec<u8>)>,
}

/// The parameters of a store's URL with their types. A driver first names all that it knows with [`allow`](Self::allow), then
/// reads each.
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
    /// The parameters that [`tls`](Self::tls) reads, for the list of known ones.
    pub const TLS: [&str; 4] = ["tls", "ca", "cert", "key"];

    /// An error that says what is wrong with this URL. It shows no secret of the URL.
    pub fn invalid(&self, what: impl Display) -> Error {
        Error::InvalidConfig { reason: format!("`{self}` {what}") }
    }

    /// A span of time, as in `timeout=500ms`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for what is no time, or not within `range`.
    pub fn duration(&self, key: &str, range: impl RangeBounds<Duration>) -> Result<Option<Duration>> {
        let Some(text) = self.param(key) else { return Ok(None) };
        match parse_duration(text) {
            Ok(duration) if range.contains(&duration) => Ok(Some(duration)),
            parsed => {
                let bounds = parsed.map(|_| bounds(&range, |span| duration::text(*span))).unwrap_or_default();
                let example = match (range.contains(&Duration::from_secs(3)), range.start_bound()) {
                    (false, Bound::Included(least)) => duration::text(*least),
                    _ => "3s".to_owned(),
                };
                let given = self.shown(key, text);
                Err(refused(format!("`{given}` is no time{bounds}; write for example `{key}={example}`")))
            }
        }
    }

    /// A whole number, as in `retries=3`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for what is no number, or not within `range`.
    pub fn number<T>(&self, key: &str, range: impl RangeBounds<T>) -> Result<Option<T>>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(text) = self.param(key) else { return Ok(None) };
        match text.parse() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => {
                let (given, bounds) = (self.shown(key, text), bounds(&range, T::to_string));
                Err(refused(format!("`{given}` is no number{bounds}")))
            }
        }
    }

    /// One of several words, as in `tls=on`. The first choice is the default.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for another word; the error lists the choices.
    ///
    /// # Panics
    /// Without any choice.
    pub fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<T> {
        let Some(text) = self.param(key) else { return Ok(choices[0].1) };
        if let Some((_, chosen)) = choices.iter().find(|(word, _)| *word == text) {
            return Ok(*chosen);
        }
        let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
        Err(refused(format!("`{}` is unknown; there are: {}", self.shown(key, text), words.join(", "))))
    }

    /// The hosts with their ports: `host`, `host:port`, `[::1]` or `[::1]:port`. Empty for a URL without hosts.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for an empty host, a port that is no number, or a host with a colon, as where the `@host`
    /// behind a password is missing.
    pub fn addresses(&self, default_port: u16) -> Result<Vec<Address>> {
        let addresses = self.hosts().iter().map(|host| address(host, default_port));
        addresses.collect::<Option<_>>().ok_or_else(|| {
            self.invalid(format_args!(
                "has a host or a port that is none; IPv6 is written `[::1]:{default_port}`, a password \
                 `:password@host`"
            ))
        })
    }

    /// The login that stands before the hosts, or whose password is in the file that the parameter `file` names.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for two passwords, or a user without one.
    pub fn login(&self, file: &str) -> Result<Login> {
        let login = Login::new(self.user(), self.password(), self.param(file));
        login.map_err(|wrong| match wrong {
            WrongLogin::TwoPasswords => self.invalid("has both a password and a file with a password"),
            WrongLogin::NoPassword => self.invalid("has a user and no password"),
        })
    }

    /// A second login, for another party than the servers, from three parameters: the user, the password, and the file that
    /// holds the password.
    ///
    /// # Errors
    /// As [`login`](Self::login).
    pub fn other_login(&self, [user, password, file]: [&str; 3]) -> Result<Login> {
        let login = Login::new(self.param(user), self.param(password), self.param(file));
        login.map_err(|wrong| match wrong {
            WrongLogin::TwoPasswords => self.invalid(format_args!("has both `{password}` and `{file}`")),
            WrongLogin::NoPassword => self.invalid(format_args!("has a `{user}` and no `{password}`")),
        })
    }

    /// Whether to use TLS, and with which files: `tls=on` or `tls=off`, `ca`, `cert` and `key`. If the URL's scheme is
    /// `secure`, such as `rediss`, TLS is on without any of these.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a certificate without its key, files without TLS, or `tls=off` with the scheme `secure`.
    pub fn tls(&self, secure: Option<&str>) -> Result<Option<Tls>> {
        let (on, off) = (("on", true), ("off", false));
        let is_on = match secure.filter(|secure| *secure == self.scheme()) {
            None => self.choice("tls", &[off, on])?,
            Some(_) if self.choice("tls", &[on, off])? => true,
            Some(scheme) => {
                return Err(refused(format!(
                    "`{scheme}://` turns TLS on and `tls=off` turns TLS off: leave out `tls=off`, or write a scheme without TLS \
                     instead of `{scheme}://`"
                )));
            }
        };
        let file = |key| self.param(key).map(PathBuf::from);
        let own = match (file("cert"), file("key")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                let reason = "`cert` and `key` go together: the client's certificate and its key";
                return Err(refused(reason.to_owned()));
            }
        };
        let tls = Tls { ca: file("ca"), own };
        if !is_on && tls != Tls::default() {
            let scheme = secure.map(|secure| format!("`{secure}://`, or ")).unwrap_or_default();
            return Err(refused(format!("`ca`, `cert` and `key` need TLS: write {scheme}`tls=on`")));
        }
        Ok(is_on.then_some(tls))
    }

    /// A parameter as an error may show it. The value is left out if the URL holds a secret: it may be the rest of that
    /// secret, after an `&` that was not escaped.
    fn shown(&self, key: &str, value: &str) -> String {
        if self.hides_parameters() { format!("{key}=***") } else { format!("{key}={value}") }
    }
}

fn refused(reason: String) -> Error {
    Error::InvalidConfig { reason }
}

/// In words: ` from 1 to 9`, ` from 1 up`.
fn bounds<T, S: Display>(range: &impl RangeBounds<T>, show: impl Fn(&T) -> S) -> String {
    let (least, most) = (range.start_bound(), range.end_bound());
    let from = match least {
        Bound::Included(least) => format!(" from {}", show(least)),
        Bound::Excluded(least) => format!(" above {}", show(least)),
        Bound::Unbounded => String::new(),
    };
    match most {
        Bound::Included(most) => format!("{from} to {}", show(most)),
        Bound::Excluded(most) => format!("{from} below {}", show(most)),
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

/// What is wrong with a login.
enum WrongLogin {
    TwoPasswords,
    NoPassword,
}

impl Login {
    fn new(user: Option<&str>, password: Option<&str>, file: Option<&str>) -> Result<Self, WrongLogin> {
        let password = match (password, file) {
            (Some(_), Some(_)) => return Err(WrongLogin::TwoPasswords),
            (Some(password), None) => Some(Where::Url(password.to_owned())),
            (None, Some(file)) => Some(Where::File(file.into())),
            (None, None) if user.is_some() => return Err(WrongLogin::NoPassword),
            (None, None) => None,
        };
        Ok(Self { user: user.map(str::to_owned), password: password.map(Secret) })
    }
}

impl Secret {
    /// The password. A file is read each time, because it may have been replaced; line ends behind the password are not part
    /// of it.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a file that cannot be read or is not UTF-8. When a driver reads the file again later,
    /// somebody may be replacing it at that moment, so the driver makes this a transient error with `Failures::not_now`.
    pub fn read(&self) -> Result<String> {
        match &self.0 {
            Where::Url(password) => Ok(password.clone()),
            Where::File(path) => {
                let mut password = String::from_utf8(read(path)?)
                    .map_err(|_| refused(format!("`{}` has a password that is not UTF-8", path.display())))?;
                password.truncate(password.trim_end_matches(['\r', '\n']).len());
                Ok(password)
            }
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Where::Url(_) => f.write_str("Secret(***)"),
            Where::File(path) => f.debug_tuple("Secret").field(path).finish(),
        }
    }
}

impl Tls {
    /// Reads the files. A driver reads them for each connection, because people replace them before the certificates
    /// expire.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a file that cannot be read.
    pub fn read(&self) -> Result<Pems> {
        let own = self.own.as_ref().map(|(cert, key)| Ok::<_, Error>((read(cert)?, read(key)?)));
        Ok(Pems { ca: self.ca.as_deref().map(read).transpose()?, own: own.transpose()? })
    }
}

impl fmt::Debug for Pems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pems").finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| refused(format!("`{}` cannot be read: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn url(text: &str) -> StoreUrl {
        text.parse().expect(text)
    }

    fn told<T: fmt::Debug>(outcome: Result<T>) -> String {
        outcome.expect_err("cannot be used").to_string()
    }

    #[test]
    fn what_is_not_there_is_none_or_the_first_choice() {
        let url = url("x://h");
        assert_eq!(url.duration("timeout", MS..).unwrap(), None);
        assert_eq!(url.number("count", 1..=9_u32).unwrap(), None);
        assert_eq!(url.choice("mode", &[("a", 1), ("b", 2)]).unwrap(), 1);
        assert_eq!(url.login("password_file").unwrap(), Login::default());
        assert_eq!(url.tls(Some("xs")).unwrap(), None);
    }

    #[test]
    fn a_value_has_the_type_that_is_asked_for() {
        let url = url("x://h?timeout=1m30s&count=7&mode=b");
        assert_eq!(url.duration("timeout", MS..).unwrap(), Some(Duration::from_secs(90)));
        assert_eq!(url.number("count", 1..=9_u16).unwrap(), Some(7));
        assert_eq!(url.choice("mode", &[("a", 1), ("b", 2)]).unwrap(), 2);
    }

    #[test]
    fn a_value_that_cannot_be_used_is_named_with_what_can() {
        let of = |value: &str| url(&format!("x://h?it={value}"));
        let s = Duration::from_secs;
        for (told, expected) in [
            (told(of("soon").duration("it", MS..)), "`it=soon` is no time; write for example `it=3s`"),
            (
                told(of("0s").duration("it", MS..)),
                "`it=0s` is no time from 1ms up; write for example `it=3s`",
            ),
            (
                told(of("1h").duration("it", s(4)..=s(60))),
                "`it=1h` is no time from 4s to 1m; write for example `it=4s`",
            ),
            (told(of("0").number("it", 1_u32..)), "`it=0` is no number from 1 up"),
            (told(of("ten").number("it", 1..=9_u32)), "`it=ten` is no number from 1 to 9"),
            (told(of("300").number::<u8>("it", ..)), "`it=300` is no number"),
            (told(of("c").choice("it", &[("a", 1), ("b", 2)])), "`it=c` is unknown; there are: a, b"),
        ] {
            assert_eq!(told, expected);
        }
    }

    #[test]
    fn a_value_is_not_shown_beside_a_secret_whose_rest_it_may_be() {
        let url = url("x://h?password=a&timeout=hunter2&mode=hunter2&count=hunter2");
        let all = [
            told(url.duration("timeout", MS..)),
            told(url.choice("mode", &[("a", 1)])),
            told(url.number::<u32>("count", ..)),
        ];
        for told in all {
            assert!(told.contains("=***") && !told.contains("hunter2"), "{told}");
        }
    }

    #[test]
    fn a_host_may_have_a_port_and_may_be_ipv6() {
        let shown = |text: &str| -> Vec<String> {
            url(text).addresses(7).expect(text).iter().map(ToString::to_string).collect()
        };
        assert_eq!(shown("x://a,b:1,[::1],[::2]:2"), ["a:7", "b:1", "[::1]:7", "[::2]:2"]);
        assert!(shown("x:path").is_empty());
        for text in
            ["x://a:port", "x://a:", "x://:1", "x://::1", "x://[::1]1", "x://u:secret:1", "x://a:99999"]
        {
            let told = told(url(text).addresses(7));
            assert!(told.contains("[::1]:7") && !told.contains("secret"), "{text}: {told}");
        }
    }

    #[test]
    fn a_password_stands_in_one_place_and_is_never_shown() {
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
            let told = told(url(text).login("file").and_then(|_| url(text).other_login(other)));
            assert!(told.contains(words), "{text}: {told}");
        }
    }

    #[test]
    fn a_file_is_read_anew_each_time_and_named_if_it_cannot_be() {
        let path = std::env::temp_dir().join(format!("dlock-password-{}", crate::ClaimId::random()));
        let login = url(&format!("x://u@h?file={}", path.display())).login("file").unwrap();
        let password = login.password.expect("a file is one");
        assert!(told(password.read()).contains("cannot be read"));
        for (content, expected) in [("one\n", "one"), ("two \r\n", "two ")] {
            fs::write(&path, content).unwrap();
            assert_eq!(password.read().unwrap(), expected);
        }
        fs::write(&path, [0xff]).unwrap();
        assert!(told(password.read()).contains("not UTF-8"));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn tls_comes_with_its_scheme_or_its_parameter_and_files_with_tls() {
        assert_eq!(url("xs://h").tls(Some("xs")).unwrap(), Some(Tls::default()));
        assert_eq!(url("xs://h?tls=on").tls(Some("xs")).unwrap(), Some(Tls::default()));
        assert_eq!(url("x://h?tls=on").tls(None).unwrap(), Some(Tls::default()));
        assert_eq!(url("x://h?tls=off").tls(Some("xs")).unwrap(), None);
        let all = url("xs://h?ca=/ca&cert=/c&key=/k").tls(Some("xs")).unwrap().expect("on");
        assert_eq!(all.own, Some(("/c".into(), "/k".into())));
        assert!(told(all.read().map(|_| ())).contains("cannot be read"));
        for (text, words) in [
            ("xs://h?cert=/c", "go together"),
            ("x://h?ca=/ca", "write `xs://`, or `tls=on`"),
            ("x://h?tls=maybe", "there are: off, on"),
            ("xs://h?tls=maybe", "there are: on, off"),
            ("xs://h?tls=off", "leave out `tls=off`, or write a scheme without TLS instead of `xs://`"),
        ] {
            let told = told(url(text).tls(Some("xs")));
            assert!(told.contains(words), "{text}: {told}");
        }
    }
}
