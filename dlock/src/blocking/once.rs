//! Work that runs once for each occurrence, for code that is not async.

use std::{sync::Arc, time::Duration};

use dlock_core::{Guard, LockOptions, Mark, Once, OnceError, Result, Wait};
use pollster::block_on;

use super::{Lock, Locks};

/// One occurrence of work that all clients of a store together do once.
/// [`dlock::Occurrence`](dlock_core::Occurrence) describes its guarantees, limits and costs.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use dlock::Once;
/// let locks = dlock::blocking::connect("memory:")?;
/// let report = locks.mutex("report").once("2026-11-23");
/// assert_eq!(report.run(|_guard| Ok::<_, std::io::Error>("printed"))?, Once::Ran("printed"));
/// assert_eq!(report.run(|_guard| Ok::<_, std::io::Error>("printed again"))?, Once::Done);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing happens until `run` is called"]
pub struct Occurrence(dlock_core::Occurrence);

impl Lock {
    /// Returns the occurrence with this key of the work that the lock protects. The lock must be of
    /// an exclusive kind. As [`dlock::Lock::once`](dlock_core::Lock::once), with the options of this
    /// lock.
    pub fn once(&self, key: impl Into<Arc<str>>) -> Occurrence {
        Occurrence(self.locks.once(Arc::clone(&self.lock), key).options(self.options.clone()))
    }
}

impl Occurrence {
    /// Sets the time for which the store keeps the mark, counted from its creation at the end of the
    /// work. Default: 7 days.
    pub fn keep(self, keep: Duration) -> Self {
        Self(self.0.keep(keep))
    }

    /// Sets the maximum time that [`run`](Self::run) waits for the lock. Zero is a single try.
    pub fn wait(self, wait: impl Into<Wait>) -> Self {
        Self(self.0.wait(wait))
    }

    /// Sets all options of the lock, and replaces those that were set before.
    pub fn options(self, options: LockOptions) -> Self {
        Self(self.0.options(options))
    }

    /// Runs the work unless the occurrence is done, as
    /// [`dlock::Occurrence::run`](dlock_core::Occurrence::run) does. The work runs on this thread, with
    /// the guard of the async API. A busy thread is not notified of the loss of its lock, so work that
    /// takes long has to call [`is_lost`](dlock_core::Guard::is_lost). Work whose lock was lost leaves no mark.
    ///
    /// # Errors
    /// As [`dlock::Occurrence::run`](dlock_core::Occurrence::run). A panic of the work releases the
    /// lock, without a mark.
    pub fn run<T, E>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<Once<T>, OnceError<E>> {
        block_on(self.0.run(async |guard| work(guard)))
    }

    /// Returns whether the occurrence is marked as done.
    ///
    /// # Errors
    /// As [`dlock::Occurrence::is_done`](dlock_core::Occurrence::is_done).
    pub fn is_done(&self) -> Result<bool> {
        block_on(self.0.is_done())
    }

    /// Removes the mark, so that the work can run again. Returns whether there was one.
    ///
    /// # Errors
    /// As [`dlock::Locks::forget`](dlock_core::Locks::forget).
    pub fn forget(&self) -> Result<bool> {
        block_on(self.0.forget())
    }
}

impl Locks {
    /// Returns the key of the present period of this length, by the store's clock.
    ///
    /// # Errors
    /// As [`dlock::Locks::period_key`](dlock_core::Locks::period_key).
    pub fn period_key(&self, length: Duration) -> Result<String> {
        block_on(self.0.period_key(length))
    }

    /// Returns the marks of the locks whose names begin with `prefix`.
    ///
    /// # Errors
    /// As [`dlock::Locks::marks`](dlock_core::Locks::marks).
    pub fn marks(&self, prefix: &str) -> Result<Vec<Mark>> {
        block_on(self.0.marks(prefix))
    }

    /// Removes the mark of an occurrence. Returns whether there was one.
    ///
    /// # Errors
    /// As [`dlock::Locks::forget`](dlock_core::Locks::forget).
    pub fn forget(&self, name: impl AsRef<str> + Send, key: &str) -> Result<bool> {
        block_on(self.0.forget(name, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking::connect;

    #[test]
    fn work_of_threads_runs_once_and_work_whose_lock_is_lost_leaves_no_mark() {
        let locks = connect("memory:").unwrap();
        let report = locks.fair("report").once("2026-11-23").keep(Duration::from_secs(60));
        let lost = report.run(|guard| {
            assert!(locks.force_release(guard.name()).unwrap());
            Ok::<_, std::fmt::Error>(())
        });
        assert!(matches!(lost, Err(OnceError::Lock(crate::Error::Lost { .. }))), "{lost:?}");
        let failed = report.run(|_guard| Err::<(), _>(std::fmt::Error));
        assert!(matches!(failed, Err(OnceError::Work(_))), "{failed:?}");
        let results: Vec<_> = std::thread::scope(|scope| {
            let run = || report.run(|_guard| Ok::<_, std::fmt::Error>(7)).unwrap();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let count = |wanted| results.iter().filter(|result| **result == wanted).count();
        assert_eq!((count(Once::Ran(7)), count(Once::Done)), (1, 3), "{results:?}");
        assert_eq!(locks.marks("report").unwrap().len(), 1);
        assert!(report.is_done().unwrap() && report.forget().unwrap() && !report.is_done().unwrap());
        assert!(!locks.forget("report", "2026-11-23").unwrap());
        let held = locks.mutex("report").lock().unwrap();
        let busy = report.wait(Duration::from_millis(20)).run(|_guard| Ok::<_, std::fmt::Error>(7));
        assert_eq!(busy.unwrap(), Once::Busy);
        held.release().unwrap();
        assert!(locks.period_key(Duration::from_secs(60)).unwrap().ends_with("/1m"));
        locks.close();
    }
}
