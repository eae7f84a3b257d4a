//! The password file of PostgreSQL's clients, `~/.pgpass`.
//!
//! Source: <https://www.postgresql.org/docs/current/libpq-pgpass.html>

use std::{
    env, fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use dlock_core::{Error, Result};

/// Path of a password file, which is read for each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passfile {
    path: PathBuf,
    /// Whether the URL names the file. Only the default file may be missing.
    is_required: bool,
}

/// The connection for which a password is needed.
pub(crate) struct Wanted<'a> {
    /// Names of the host, of which the line must have one.
    pub(crate) hosts: &'a [&'a str],
    pub(crate) port: u16,
    pub(crate) database: &'a str,
    pub(crate) user: &'a str,
}

impl Passfile {
    /// Returns the file with this path. Without a path, the file that the environment variable
    /// `PGPASSFILE` names, or else `~/.pgpass`. `None` if there is no home folder.
    pub(crate) fn new(path: Option<&str>) -> Option<Self> {
        if let Some(path) = path {
            return Some(Self { path: path.into(), is_required: true });
        }
        let named = env::var_os("PGPASSFILE").filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = named.or_else(|| Some(env::home_dir()?.join(".pgpass")))?;
        Some(Self { path, is_required: false })
    }

    /// Returns the password of the first line that matches. `None` if no line does, or if the default
    /// file does not exist.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the file cannot be read, or if other users may read it.
    pub(crate) fn password(&self, wanted: &Wanted<'_>) -> Result<Option<String>> {
        let content = match read(&self.path) {
            Ok(content) => content,
            Err(error) if error.kind() == ErrorKind::NotFound && !self.is_required => return Ok(None),
            Err(error) => {
                let reason = format!("the password file `{}` cannot be used: {error}", self.path.display());
                return Err(Error::InvalidConfig { reason });
            }
        };
        Ok(find(&content, wanted))
    }
}

fn read(path: &Path) -> io::Result<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
            return Err(io::Error::other("other users may read it: run `chmod 600` on it"));
        }
    }
    fs::read_to_string(path)
}

/// Returns the password of the first line `host:port:database:user:password` that matches. A field
/// `*` matches everything. `\` escapes `:` and `\`.
fn find(content: &str, wanted: &Wanted<'_>) -> Option<String> {
    let port = wanted.port.to_string();
    let mut lines = content.lines().filter(|line| !line.starts_with('#'));
    lines.find_map(|line| {
        let fields = fields(line);
        let [host, for_port, database, user, password, ..] = &fields[..] else { return None };
        let is = |field: &Field, value: &str| field.is_any || field.text == value;
        let matches = wanted.hosts.iter().any(|wanted| is(host, wanted))
            && is(for_port, &port)
            && is(database, wanted.database)
            && is(user, wanted.user);
        matches.then(|| password.text.clone())
    })
}

/// A field of a line, without escapes.
#[derive(Default)]
struct Field {
    text: String,
    /// Whether the field is `*`, not escaped.
    is_any: bool,
}

fn fields(line: &str) -> Vec<Field> {
    let (mut fields, mut field, mut is_escaped) = (Vec::new(), Field::default(), false);
    for letter in line.chars() {
        match letter {
            '\\' if !is_escaped => {
                is_escaped = true;
                continue;
            }
            ':' if !is_escaped => fields.push(std::mem::take(&mut field)),
            _ => {
                field.is_any = letter == '*' && !is_escaped && field.text.is_empty();
                field.text.push(letter);
            }
        }
        is_escaped = false;
    }
    fields.push(field);
    fields
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted<'_> =
        Wanted { hosts: &["db.example.com"], port: 5432, database: "app", user: "dlock" };

    fn found(content: &str) -> Option<String> {
        find(content, &WANTED)
    }

    #[test]
    fn the_first_line_that_matches_has_the_password() {
        let content = "# db.example.com:5432:app:dlock:comment\nother:5432:app:dlock:1\n\
                       db.example.com:5433:app:dlock:2\n*:*:app:dlock:3\ndb.example.com:5432:app:dlock:4\n";
        assert_eq!(found(content).as_deref(), Some("3"));
        for (line, password) in [
            ("*:*:*:*:secret", Some("secret")),
            ("db.example.com:5432:app:dlock:a\\:b\\\\c", Some("a:b\\c")),
            ("db.example.com:5432:app:dlock:", Some("")),
            ("db.example.com:5432:app:dlock:it's *", Some("it's *")),
            ("db.example.com:5432:app:dlock", None),
            ("*:*:*:other:secret", None),
            ("*:*:other:*:secret", None),
            ("*:5433:*:*:secret", None),
            ("db.example.com:5432:app:\\*:secret", None),
            ("db.example.com:5432:app:**:secret", None),
            ("", None),
        ] {
            assert_eq!(found(line).as_deref(), password, "{line}");
        }
    }

    #[test]
    fn a_socket_is_found_under_each_of_its_names() {
        let socket = Wanted { hosts: &["/run/postgresql", "localhost"], ..WANTED };
        for host in ["/run/postgresql", "localhost", "*"] {
            assert_eq!(find(&format!("{host}:*:*:*:x"), &socket).as_deref(), Some("x"), "{host}");
        }
        assert_eq!(find("/tmp:*:*:*:x", &socket), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_read_or_that_is_missing_is_an_error() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgpass");
        let named = Passfile::new(path.to_str()).unwrap();
        assert!(named.password(&WANTED).unwrap_err().to_string().contains("pgpass"));
        let default = Passfile { is_required: false, ..named.clone() };
        assert_eq!(default.password(&WANTED).unwrap(), None);
        fs::write(&path, "*:*:*:*:x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(default.password(&WANTED).unwrap_err().to_string().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(named.password(&WANTED).unwrap().as_deref(), Some("x"));
    }
}
