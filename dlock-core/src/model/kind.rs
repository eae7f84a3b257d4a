//! The kinds of lock.

use std::fmt;

/// How a claim holds its lock.
///
/// Later versions may add kinds. A driver lists in [`Info::kinds`](crate::driver::Info::kinds) the
/// kinds that it supports, and the engine requests no other kind from it. A driver that matches on
/// the kind returns [`Info::unsupported`](crate::driver::Info::unsupported) in the last arm, so
/// that an unknown kind is never treated as a known one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time. The store chooses the next holder.
    Mutex,
    /// One holder at a time, in order of arrival.
    Fair,
    /// Shared with other readers. Excludes all other kinds.
    Read,
    /// One holder at a time, and no reader. Readers that arrive after a waiting writer wait behind
    /// it.
    Write,
    /// One of several permits, in order of arrival. Excludes all other kinds. Each claim carries
    /// its own [limit](crate::driver::Request::limit), which is the number of permits.
    Permit,
}

impl Kind {
    /// All kinds of this version. Do not use it for [`Info::kinds`](crate::driver::Info::kinds):
    /// once a later version adds a kind, the driver would promise a kind that it does not know.
    pub const ALL: &'static [Self] = &[Self::Mutex, Self::Fair, Self::Read, Self::Write, Self::Permit];

    /// Returns the name of the kind, which is the same on all stores and in all messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Permit => "permit",
        }
    }

    /// Returns the kind with this [`name`](Self::name), or `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Returns whether any number of claims of this kind and the other kind may hold one lock at
    /// the same time. Returns `false` for permits, because their limits restrict how many hold
    /// together. [`turn`](crate::driver::turn) counts them.
    pub fn shares_with(self, other: Self) -> bool {
        self == Self::Read && other == Self::Read
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_kind_is_read_back_as_that_kind() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(Kind::from_name("Mutex"), None);
    }
}
