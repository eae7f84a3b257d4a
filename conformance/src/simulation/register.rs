//! The resource that the locks protect: a counter that refuses stale tokens.

use dlock_core::Token;
use parking_lot::Mutex;

/// A counter of its own writes, behind a fence.
#[derive(Default)]
pub(super) struct Register(Mutex<(Option<Token>, u64)>);

impl Register {
    /// Returns the count, or `None` if the token is stale. Older tokens are stale from then on.
    pub(super) fn read(&self, token: Option<Token>) -> Option<u64> {
        self.access_with(token, |count| *count)
    }

    /// Writes `base + 1`. Returns `false` if the token is stale.
    pub(super) fn write(&self, token: Option<Token>, base: u64) -> bool {
        self.access_with(token, |count| *count = base + 1).is_some()
    }

    fn access_with<T>(&self, token: Option<Token>, access: impl FnOnce(&mut u64) -> T) -> Option<T> {
        let mut inner = self.0.lock();
        let (fence, count) = &mut *inner;
        if token < *fence {
            return None;
        }
        *fence = token;
        Some(access(count))
    }
}
