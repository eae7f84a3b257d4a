//! The login and the TLS files of a store's URL.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use super::{StoreUrl, params::invalid_config};
use crate::model::{Error, Result};

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

/// Logins and TLS.
impl StoreUrl {
    /// Parameters that [`tls`](Self::tls) reads, for the list of known parameters.
    pub const TLS: [&str; 4] = ["tls", "ca", "cert", "key"];

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

    fn url(text: &str) -> StoreUrl {
        text.parse().expect(text)
    }

    fn message<T: fmt::Debug>(result: Result<T>) -> String {
        result.expect_err("invalid").to_string()
    }

    #[test]
    fn a_url_without_credentials_has_an_empty_login_and_no_tls() {
        assert_eq!(url("x://h").login("password_file").unwrap(), Login::default());
        assert_eq!(url("x://h").tls(Some("xs")).unwrap(), None);
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
