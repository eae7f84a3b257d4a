//! The rows of the table: what stands between the cases and the store.

use std::fmt;

use crate::wrap::Habit;

/// What stands between the cases and the store. The whole table of cases is run once for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Nothing: the store as it is.
    Plain,
    /// Every client misbehaves in this way.
    Habit(Habit),
    /// One member of a composite store misbehaves in this way, for every client.
    Member(Habit),
}

impl Row {
    /// All of them: those that every store has, then those of composite stores.
    pub fn all() -> impl Iterator<Item = Self> {
        let habits = Habit::ALL.into_iter().map(Self::Habit);
        let members = Habit::ALL.into_iter().map(Self::Member);
        [Self::Plain].into_iter().chain(habits).chain(members)
    }
}

impl fmt::Display for Row {
    /// The first word of a trial's name: `plain`, `deaf`, `deaf_member`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Habit(habit) => write!(f, "{habit}"),
            Self::Member(habit) => write!(f, "{habit}_member"),
        }
    }
}
