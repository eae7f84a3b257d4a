//! The rows of the suite's table. Each row is the plain store or one way to make it misbehave.

use std::fmt;

use crate::wrap::Habit;

/// The behaviour of the store in one run of the table. Each row repeats the cases whose result it
/// may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// The store as it is.
    Plain,
    /// Every client misbehaves in this way.
    Habit(Habit),
    /// One member of a composite store misbehaves in this way, for every client.
    Member(Habit),
}

impl Row {
    /// Returns all rows. The rows for composite stores come last.
    pub fn all() -> impl Iterator<Item = Self> {
        let habits = Habit::ALL.into_iter().map(Self::Habit);
        let members = Habit::ALL.into_iter().map(Self::Member);
        [Self::Plain].into_iter().chain(habits).chain(members)
    }
}

impl fmt::Display for Row {
    /// Formats the first word of a trial's name, such as `plain`, `deaf`, `deaf_member`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Habit(habit) => write!(f, "{habit}"),
            Self::Member(habit) => write!(f, "{habit}_member"),
        }
    }
}
