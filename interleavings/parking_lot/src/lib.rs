//! The part of parking_lot that dlock-core uses, on shuttle's mutex. Locking and unlocking are
//! points at which another thread may continue.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::PoisonError,
};

use shuttle::sync;

/// A mutex that ignores poisoning.
#[derive(Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// The guard of a [`Mutex`].
#[derive(Debug)]
pub struct MutexGuard<'a, T>(sync::MutexGuard<'a, T>);

impl<T> Mutex<T> {
    /// Creates a mutex.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Locks the mutex.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}
