//! Lock names that are legal in every store.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use super::{Error, Result};

/// Maximum length of a name in bytes. A driver whose store cannot hold such names hashes the names
/// that do not fit.
const MAX_LEN: usize = 1024;

/// The name of a lock: 1 to 1024 bytes of UTF-8 without control characters, case-sensitive,
/// compared byte by byte.
///
/// Cheap to clone. A text like `"invoice/42"` converts into a name. [`new`](Self::new) and the
/// conversions refuse an illegal name. A handle, such as that of
/// [`Locks::mutex`](crate::Locks::mutex), accepts it, and its first call returns the error.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<str>);

impl LockName {
    /// Creates a name from a text.
    ///
    /// # Errors
    /// [`Error::InvalidName`] if the text is empty, too long, or has a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = Self::unchecked(name);
        name.check().map(|()| name)
    }

    /// Creates a name without checking it. [`check`](Self::check) must follow before the name is
    /// used.
    pub(crate) fn unchecked(name: impl AsRef<str>) -> Self {
        Self(name.as_ref().into())
    }

    pub(crate) fn check(&self) -> Result<()> {
        let name = &*self.0;
        let reason = if name.is_empty() {
            "it is empty".to_owned()
        } else if name.len() > MAX_LEN {
            format!("it has {} bytes, the limit is {MAX_LEN}", name.len())
        } else if let Some(at) = name.find(char::is_control) {
            format!("it has a control character at byte {at}")
        } else {
            return Ok(());
        };
        let beginning: String = name.chars().take(40).collect();
        Err(Error::InvalidName { name: beginning.escape_debug().to_string(), reason })
    }

    /// Returns the name as a text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name as a shared text, without copying it. For drivers that use the name as a
    /// key.
    pub fn to_arc(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for LockName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<&str> for LockName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<String> for LockName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_script_and_up_to_the_limit_are_legal() {
        for name in ["a", "invoice/42", "{slot}:key", "İstanbul 🔒", "a b", &"x".repeat(MAX_LEN)] {
            assert_eq!(LockName::new(name).expect(name).as_str(), name);
            assert_eq!(
                LockName::try_from(name).expect(name),
                LockName::try_from(name.to_owned()).expect(name)
            );
        }
    }

    #[test]
    fn a_name_is_found_by_its_text() {
        let name = LockName::new("x").expect("legal");
        assert_eq!(AsRef::<str>::as_ref(&name), "x");
        let names = std::collections::HashMap::from([(name, 1)]);
        assert_eq!((names.get("x"), names.get("y")), (Some(&1), None));
    }

    #[test]
    fn an_illegal_name_is_refused_with_its_reason() {
        for (name, reason) in [
            ("", "empty"),
            (&*"x".repeat(MAX_LEN + 1), "1025 bytes"),
            ("a\nb", "control character at byte 1"),
            ("nul\0", "control character at byte 3"),
        ] {
            let error = LockName::new(name).expect_err(name).to_string();
            assert!(error.contains(reason), "{error}");
            assert!(!error.contains(['\n', '\0']), "the message itself must be printable: {error:?}");
        }
    }
}
