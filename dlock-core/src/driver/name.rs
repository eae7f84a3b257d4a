//! Lock names: what is legal in every store.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use super::{Error, Result};

/// The longest name in bytes. A driver whose store cannot hold such names hashes what does not fit.
const MAX: usize = 1024;

/// The name of a lock: 1 to 1024 bytes of UTF-8 without control characters, case-sensitive, compared byte by byte.
///
/// Cheap to clone. A text like `"invoice/42"` converts into a name. The first call that would use an illegal name reports
/// it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<str>);

impl LockName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`Error::InvalidName`] if it is empty, too long, or has a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = Self::unchecked(name);
        name.check().map(|()| name)
    }

    /// A name that is not checked yet: [`check`](Self::check) does that later.
    pub(crate) fn unchecked(name: impl AsRef<str>) -> Self {
        Self(name.as_ref().into())
    }

    pub(crate) fn check(&self) -> Result<()> {
        let name = &*self.0;
        let reason = if name.is_empty() {
            "it is empty".to_owned()
        } else if name.len() > MAX {
            format!("it has {} bytes, the limit is {MAX}", name.len())
        } else if let Some(at) = name.find(char::is_control) {
            format!("it has a control character at byte {at}")
        } else {
            return Ok(());
        };
        let shown: String = name.chars().take(40).collect();
        Err(Error::InvalidName { name: shown.escape_debug().to_string(), reason })
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name, shared rather than copied, for a driver whose key it is.
    pub fn shared(&self) -> Arc<str> {
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
mod tests {
    use super::*;

    #[test]
    fn names_of_any_script_and_up_to_the_limit_are_legal() {
        for name in ["a", "invoice/42", "{slot}:key", "İstanbul 🔒", "a b", &"x".repeat(MAX)] {
            assert_eq!(LockName::new(name).expect(name).as_str(), name);
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
            (&*"x".repeat(MAX + 1), "1025 bytes"),
            ("a\nb", "control character at byte 1"),
            ("nul\0", "control character at byte 3"),
        ] {
            let error = LockName::new(name).expect_err(name).to_string();
            assert!(error.contains(reason), "{error}");
            assert!(!error.contains(['\n', '\0']), "the message itself must be printable: {error:?}");
        }
    }
}
