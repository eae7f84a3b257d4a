//! The label of a claim: a text that says which user and process has it.

use std::{
    env, fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::Path,
    sync::{Arc, LazyLock},
};

use super::{Error, Result};

/// The label of a claim, for people: `anna@web-3 pid 4711 worker`, or a text of the user's choice.
///
/// A label proves nothing, because any client that can write into the store can write any text.
#[derive(Clone, PartialEq, Eq)]
pub struct Who {
    text: Arc<str>,
    key: [u8; Self::KEY_LEN],
}

impl Who {
    /// Length of the [key](Self::key) in bytes.
    pub const KEY_LEN: usize = 5;

    /// Maximum length of the text in bytes.
    pub const MAX_LEN: usize = 200;

    /// Creates a label from a text of 1 to 200 bytes without control characters.
    ///
    /// # Errors
    /// [`Error::InvalidOptions`], which names the rule that the text breaks.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self> {
        let text = text.into();
        let reason = if text.is_empty() {
            "a label is empty; name the user or program that takes the lock".to_owned()
        } else if text.len() > Self::MAX_LEN {
            format!("a label has {} bytes; the limit is {}", text.len(), Self::MAX_LEN)
        } else if let Some(at) = text.find(char::is_control) {
            format!("a label has a control character at byte {at}")
        } else {
            return Ok(Self::unchecked(text));
        };
        Err(Error::InvalidOptions { reason })
    }

    /// Returns the label of this process, with its user, host, process id and program name.
    pub fn this_process() -> Self {
        static THIS_PROCESS: LazyLock<Who> = LazyLock::new(|| {
            let program = env::args_os().next().unwrap_or_default();
            Who::doing(&Path::new(&program).file_name().unwrap_or_default().to_string_lossy())
        });
        THIS_PROCESS.clone()
    }

    /// Returns the label of this process with a description of its activity in place of the
    /// program's name. Cuts a text that is too long, and replaces control characters.
    pub fn doing(activity: &str) -> Self {
        let text = format!("{}@{} pid {} {activity}", user(), host(), std::process::id());
        let text: String = text.trim().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let end = (0..=Self::MAX_LEN.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        Self::unchecked(text[..end.unwrap_or_default()].into())
    }

    fn unchecked(text: Arc<str>) -> Self {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = hasher.finish().to_le_bytes();
        Self { text, key: std::array::from_fn(|at| hash[at]) }
    }

    /// Returns the text of the label.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns a short hash of the text. The ids of all claims with this label begin with it. A
    /// store without room for the text in a claim can therefore store the text once under this key.
    /// A collision of two labels is very unlikely, and only leads to a wrong label in the output.
    pub const fn key(&self) -> [u8; Self::KEY_LEN] {
        self.key
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// Returns the user's name from the environment, or else the user id.
fn user() -> String {
    let named = ["USER", "LOGNAME", "USERNAME"].into_iter().filter_map(|name| env::var(name).ok());
    let number = || {
        #[cfg(unix)]
        let uid = rustix::process::getuid().as_raw();
        let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        return name_of(uid, &accounts).map_or_else(|| format!("uid{uid}"), str::to_owned);
        #[cfg(not(unix))]
        return "unknown".to_owned();
    };
    named.into_iter().find(|name| !name.is_empty()).unwrap_or_else(number)
}

/// Returns the name of a user in the format of `/etc/passwd`. Services and containers often have no
/// variable with the name of their user.
#[cfg(unix)]
fn name_of(uid: u32, accounts: &str) -> Option<&str> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid) && !name.is_empty()).then_some(name)
    })
}

fn host() -> String {
    #[cfg(unix)]
    return rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    return env::var("COMPUTERNAME").unwrap_or_else(|_| "host".to_owned());
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClaimId;

    #[test]
    fn the_label_of_a_process_has_its_host_its_id_and_its_activity() {
        let label = Who::doing("dlock run report\n");
        let expected = format!("@{} pid {} dlock run report", host(), std::process::id());
        assert!(label.text().contains(&expected), "{label}");
        assert!(Who::this_process().text().contains(" pid "), "{}", Who::this_process());
    }

    #[cfg(unix)]
    #[test]
    fn a_user_without_a_variable_has_the_name_of_the_account() {
        let accounts =
            "root:x:0:0:root:/root:/bin/sh\n# a comment\nweb:x:33:33::/var/www:/usr/sbin/nologin\n";
        assert_eq!(name_of(0, accounts), Some("root"));
        assert_eq!(name_of(33, accounts), Some("web"));
        assert_eq!(name_of(34, accounts), None);
    }

    #[test]
    fn a_label_that_is_too_long_is_cut_between_two_characters() {
        let long = Who::doing(&"é".repeat(Who::MAX_LEN));
        assert!((Who::MAX_LEN - 1..=Who::MAX_LEN).contains(&long.text().len()), "{}", long.text().len());
    }

    #[test]
    fn a_label_that_no_store_could_show_is_refused() {
        for (label, words) in [("", "empty"), ("a\u{1b}[2J", "control character at byte 1")] {
            let error = Who::new(label).expect_err("illegal").to_string();
            assert!(error.contains(words), "{error}");
        }
        let error = Who::new("x".repeat(201)).expect_err("too long").to_string();
        assert_eq!(error, "a label has 201 bytes; the limit is 200");
    }

    #[test]
    fn the_ids_of_one_text_share_its_key_and_nothing_else() {
        let (anna, bert) = (Who::new("anna").expect("legal"), Who::new("bert").expect("legal"));
        let (first, second) = (ClaimId::random_for(&anna), ClaimId::random_for(&anna));
        assert_ne!(first, second);
        assert_eq!((first.who_key(), second.who_key()), (anna.key(), anna.key()));
        assert_ne!(anna.key(), bert.key());
        assert_eq!(
            Who::new("anna").expect("legal").key(),
            anna.key(),
            "the key differs between processes, so another process cannot find the label"
        );
    }
}
