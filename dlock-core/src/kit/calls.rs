//! The number of calls in flight.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Counts the calls that use a connection or wait for it. Clones are the same counter.
#[derive(Clone, Debug, Default)]
pub struct CallCounter(Arc<AtomicUsize>);

/// A call that a [`CallCounter`] counts until this value is dropped.
#[derive(Debug)]
pub struct CountedCall<'a>(&'a CallCounter);

impl CallCounter {
    /// Counts a call until the returned value is dropped.
    pub fn count(&self) -> CountedCall<'_> {
        self.0.fetch_add(1, Relaxed);
        CountedCall(self)
    }

    /// Returns the number of calls that are counted now.
    pub fn calls(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_call_is_not_counted() {
        let counter = CallCounter::default();
        let first = counter.count();
        let second = counter.clone();
        let second = second.count();
        assert_eq!(counter.calls(), 2);
        drop(first);
        drop(second);
        assert_eq!(counter.calls(), 0);
    }
}
