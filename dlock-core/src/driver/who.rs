//! Who asks for a lock, in words.

use std::{
    env, fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::Path,
    sync::{Arc, LazyLock},
};

use super::{Error, Result};

/// Who has a claim, in words for people: `anna@web-3 pid 4711 worker`, or a label that was chosen.
///
/// It proves nothing: whoever can write into the store can write any text.
#[derive(Clone, PartialEq, Eq)]
pub struct Who {
    text: Arc<str>,
    key: [u8; Self::KEY],
}

impl Who {
    /// How many bytes the [key](Self::key) has.
    pub const KEY: usize = 5;

    /// The longest text in bytes.
    pub const LONGEST: usize = 200;

    /// A text that was chosen: 1 to 200 bytes without control characters.
    ///
    /// # Errors
    /// [`Error::InvalidOptions`], with what is wrong.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self> {
        let text = text.into();
        let reason = if text.is_empty() {
            "a label is empty: it says who holds a lock".to_owned()
        } else if text.len() > Self::LONGEST {
            format!("a label has {} bytes; the limit is {}", text.len(), Self::LONGEST)
        } else if let Some(at) = text.find(char::is_control) {
            format!("a label has a control character at byte {at}")
        } else {
            return Ok(Self::of(text));
        };
        Err(Error::InvalidOptions { reason })
    }

    /// This process: its user, host and number, and the program's name.
    pub fn here() -> Self {
        static HERE: LazyLock<Who> = LazyLock::new(|| {
            let program = env::args_os().next().unwrap_or_default();
            Who::doing(&Path::new(&program).file_name().unwrap_or_default().to_string_lossy())
        });
        HERE.clone()
    }

    /// This process, and in place of the program's name what it does. What does not fit into a label is cut off, and control
    /// characters are replaced.
    pub fn doing(what: &str) -> Self {
        let text = format!("{}@{} pid {} {what}", user(), host(), std::process::id());
        let text: String = text.trim().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let end = (0..=Self::LONGEST.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        Self::of(text[..end.unwrap_or_default()].into())
    }

    fn of(text: Arc<str>) -> Self {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = hasher.finish().to_le_bytes();
        Self { text, key: std::array::from_fn(|at| hash[at]) }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A short key of the text. The ids of its claims begin with it, so a store that has no room for the text in a claim can
    /// keep it once for all of them. Two texts have one key as good as never, and then only show the wrong name.
    pub const fn key(&self) -> [u8; Self::KEY] {
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

/// The user's name as the environment has it, or else the user's number.
fn user() -> String {
    let named = ["USER", "LOGNAME", "USERNAME"].into_iter().filter_map(|name| env::var(name).ok());
    let number = || {
        #[cfg(unix)]
        return format!("uid{}", rustix::process::getuid().as_raw());
        #[cfg(not(unix))]
        return "somebody".to_owned();
    };
    named.into_iter().find(|name| !name.is_empty()).unwrap_or_else(number)
}

fn host() -> String {
    #[cfg(unix)]
    return rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    return env::var("COMPUTERNAME").unwrap_or_else(|_| "host".to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClaimId;

    #[test]
    fn a_process_is_told_by_its_host_its_number_and_what_it_does() {
        let here = Who::doing("dlock run report\n");
        let number = format!("@{} pid {} dlock run report", host(), std::process::id());
        assert!(here.text().contains(&number), "{here}");
        assert!(Who::here().text().contains(" pid "), "{}", Who::here());
    }

    #[test]
    fn what_does_not_fit_into_a_label_is_cut_between_two_characters() {
        let long = Who::doing(&"é".repeat(Who::LONGEST));
        assert!((Who::LONGEST - 1..=Who::LONGEST).contains(&long.text().len()), "{}", long.text().len());
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
        let (one, other) = (ClaimId::of(&anna), ClaimId::of(&anna));
        assert_ne!(one, other);
        assert_eq!((one.key(), other.key()), (anna.key(), anna.key()));
        assert_ne!(anna.key(), bert.key());
        assert_eq!(
            Who::new("anna").expect("legal").key(),
            anna.key(),
            "another process cannot find the text"
        );
    }
}
