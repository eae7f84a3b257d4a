//! The kinds of lock.

use std::fmt;

/// How a claim wants to hold its lock.
///
/// Later versions may add kinds. A driver lists in [`Info::kinds`](crate::driver::Info::kinds) the kinds that it knows, and
/// the engine asks it for no other. Where a driver matches on the kind all the same, its last arm refuses with
/// [`Info::unsupported`](crate::driver::Info::unsupported): an unknown kind is never treated as one that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time; who comes next is the store's choice.
    Mutex,
    /// One holder at a time, in order of arrival.
    Fair,
    /// Shared with other readers; never beside any other kind.
    Read,
    /// One holder at a time, beside no reader; readers that come after a waiting writer wait behind it.
    Write,
    /// One of several permits, in order of arrival; never beside any other kind. Each claim names the
    /// [limit](crate::driver::Request::limit), which is the number of permits.
    Permit,
}

impl Kind {
    /// All kinds of this version. Not for [`Info::kinds`](crate::driver::Info::kinds): it would promise kinds that the driver
    /// does not know as soon as this list grows.
    pub const ALL: &'static [Self] = &[Self::Mutex, Self::Fair, Self::Read, Self::Write, Self::Permit];

    /// Its name, on all stores and in all messages.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Permit => "permit",
        }
    }

    /// The kind that a [`word`](Self::word) stands for; `None` for any other text.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.word() == word)
    }

    /// Whether any number of claims of one name, of this kind and the other, may hold at once. `false` for permits, which
    /// hold at once only as far as their limits allow: [`turn`](crate::driver::turn) counts them.
    pub fn shares_with(self, other: Self) -> bool {
        self == Self::Read && other == Self::Read
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_a_kind_is_read_back_as_that_kind() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::from_word(kind.word()), Some(kind));
        }
        assert_eq!(Kind::from_word("Mutex"), None);
    }
}
