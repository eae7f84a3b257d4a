//! The input of a property.

use std::{borrow::Cow, fmt, time::Duration};

use super::corpus;

/// Number of numbers in an input.
pub(crate) const NUMBERS: usize = 6;

/// The input of a property: a changed entry of the corpus, a second text that often is nearly the
/// same, and numbers that often are at the limits of their types.
#[derive(Clone, PartialEq, Eq)]
pub struct Input {
    pub(crate) bytes: Vec<u8>,
    pub(crate) other: Vec<u8>,
    pub(crate) numbers: [u64; NUMBERS],
}

impl Input {
    /// Returns the input that is an unchanged entry of the corpus.
    pub(crate) fn of_entry(entry: &[u8]) -> Self {
        Self { bytes: entry.to_vec(), other: entry.to_vec(), numbers: [1; NUMBERS] }
    }

    /// Returns the changed entry.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the changed entry as a text. Replaces what is not UTF-8.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    /// Returns a second input, for a property of two.
    pub fn other_bytes(&self) -> &[u8] {
        &self.other
    }

    /// Returns the second input as a text.
    pub fn other_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.other)
    }

    /// Returns one of six numbers.
    ///
    /// # Panics
    /// For an index above 5.
    pub fn number(&self, index: usize) -> u64 {
        self.numbers[index]
    }

    /// Returns one of the numbers as a signed number.
    ///
    /// # Panics
    /// As [`number`](Self::number).
    pub fn signed(&self, index: usize) -> i64 {
        self.number(index).cast_signed()
    }

    /// Returns a duration of any length that is made from two of the numbers.
    ///
    /// # Panics
    /// As [`number`](Self::number).
    pub fn duration(&self, index: usize) -> Duration {
        let nanos = u32::try_from(self.number(index + 1) % 1_000_000_000).unwrap_or_default();
        Duration::new(self.number(index), nanos)
    }

    /// Returns one of the values, selected by one of the numbers.
    ///
    /// # Panics
    /// If `values` is empty, and as [`number`](Self::number).
    pub fn pick<T: Clone>(&self, index: usize, values: &[T]) -> T {
        let count = u64::try_from(values.len()).unwrap_or(u64::MAX);
        let at = usize::try_from(self.number(index) % count).unwrap_or_default();
        values[at].clone()
    }
}

/// Shows the input as a line of a corpus.
impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "line of the corpus: {}", corpus::escape(&self.bytes))?;
        writeln!(f, "second text: {}", corpus::escape(&self.other))?;
        write!(f, "numbers: {:?}", self.numbers)
    }
}
