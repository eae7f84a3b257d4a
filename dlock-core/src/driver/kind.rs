//! The kinds of lock.

use std::fmt;

/// How a claim wants to hold its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// One holder at a time; who comes next is the store's choice.
    Mutex,
    /// One holder at a time, in order of arrival.
    Fair,
    /// Shared with other readers; never beside any other kind.
    Read,
    /// One holder at a time, beside no reader; readers that come after a waiting writer wait behind it.
    Write,
}

impl Kind {
    /// All kinds, for stores that have them all.
    pub const ALL: &'static [Self] = &[Self::Mutex, Self::Fair, Self::Read, Self::Write];

    /// Whether two claims of one name, of this kind and the other, may hold at once.
    pub fn shares_with(self, other: Self) -> bool {
        self == Self::Read && other == Self::Read
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mutex => "mutex",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}
