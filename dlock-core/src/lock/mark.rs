//! Marks: the names under which a store records that the work of an occurrence is done.

use std::time::Duration;

use super::Locks;
use crate::{
    contract::{LockState, MARK_PREFIX},
    model::{Error, LockName, Result},
};

/// Maximum length of a lock's name and a key together, in bytes. The name of a mark contains both.
const MAX_LEN: usize = 1000;

/// The record of a store that the work of an occurrence is done. See [`Locks::marks`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mark {
    /// Name of the lock under which the work ran.
    pub name: LockName,
    /// Key of the occurrence.
    pub key: String,
    /// Time since the mark was set. `None` if the store does not record it.
    pub since: Option<Duration>,
    /// Time until the mark ends. `None` if the store does not report it in a list.
    pub ttl_left: Option<Duration>,
    /// Label of the client that set the mark.
    pub who: Option<String>,
}

/// Returns the name of the mark of an occurrence: `dlock-once:report:2026-11-23:6`. The number is
/// the length of the lock's name, so two different pairs never have the same mark. It is the last
/// part, so that a store can list the marks of the names with one prefix.
///
/// # Errors
/// [`Error::InvalidName`] for an illegal name of a lock. [`Error::InvalidOptions`] for a key that is
/// empty, has a control character, or is too long.
pub(super) fn mark_name(name: &LockName, key: &str) -> Result<LockName> {
    name.check()?;
    let invalid = |reason| {
        let reason = format!("the key of an occurrence of lock `{name}` is not valid: {reason}");
        Err(Error::InvalidOptions { reason })
    };
    let len = name.as_str().len();
    if key.is_empty() {
        return invalid("it is empty".to_owned());
    }
    if let Some(at) = key.find(char::is_control) {
        return invalid(format!("it has a control character at byte {at}"));
    }
    if len + key.len() > MAX_LEN {
        return invalid(format!(
            "name and key have {} bytes together, the limit is {MAX_LEN}",
            len + key.len()
        ));
    }
    LockName::new(format!("{MARK_PREFIX}{name}:{key}:{len}"))
}

/// Returns whether this is the name of a mark.
pub(super) fn is_mark(name: &LockName) -> bool {
    name.as_str().starts_with(MARK_PREFIX)
}

/// Returns the lock's name and the key of a mark. `None` for the name of a lock.
fn parse(mark: &LockName) -> Option<(LockName, String)> {
    let (rest, len) = mark.as_str().strip_prefix(MARK_PREFIX)?.rsplit_once(':')?;
    let (name, key) = rest.split_at_checked(len.parse().ok()?)?;
    let (name, key) = (LockName::new(name).ok()?, key.strip_prefix(':')?.to_owned());
    // A name with the length in another notation, such as `+1`, would be listed as the mark of an
    // occurrence that has none, and `forget` would not find it.
    (mark_name(&name, &key).ok()? == *mark).then_some((name, key))
}

impl Mark {
    fn of(state: LockState) -> Option<Self> {
        let (name, key) = parse(&state.name)?;
        // A RedLock of which some members have lost the mark reports it as waiting.
        let contender = state.holders.into_iter().chain(state.queue).next()?;
        Some(Self { name, key, since: contender.since, ttl_left: contender.ttl_left, who: contender.who })
    }
}

impl Locks {
    /// Returns the marks of the locks whose names begin with `prefix`: the
    /// [occurrences](crate::Occurrence) whose work is done. In the order of the names and keys. May
    /// be expensive in a store with many such marks.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// let locks = dlock_core::Locks::memory();
    /// let occurrence = locks.mutex("report").once("2026-11-23");
    /// occurrence.run(async |_guard| Ok::<_, dlock_core::Error>(())).await.unwrap();
    /// let marks = locks.marks("rep").await?;
    /// assert_eq!((marks.len(), marks[0].key.as_str()), (1, "2026-11-23"));
    /// assert!(locks.list("").await?.is_empty()); // marks are not locks
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store cannot list its locks, and the store's errors.
    ///
    /// # Cancel safety
    /// Safe. The call only reads.
    pub async fn marks(&self, prefix: &str) -> Result<Vec<Mark>> {
        let states = self.list_all(&format!("{MARK_PREFIX}{prefix}")).await?;
        let marks = states.into_iter().filter_map(Mark::of);
        let mut marks: Vec<_> = marks.filter(|mark| mark.name.as_str().starts_with(prefix)).collect();
        marks.sort_by(|a, b| (&a.name, &a.key).cmp(&(&b.name, &b.key)));
        Ok(marks)
    }

    /// Removes the mark of an occurrence, so that its work can run again. Returns whether there was
    /// one.
    ///
    /// # Errors
    /// [`Error::InvalidName`] and [`Error::InvalidOptions`] before any I/O, [`Error::Unsupported`] if
    /// the store cannot break a lock, and the store's errors. After an error of the store, the mark
    /// may or may not have been removed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the mark may or may not have been removed.
    pub async fn forget(&self, name: impl AsRef<str> + Send, key: &str) -> Result<bool> {
        self.force_release(mark_name(&LockName::new(name)?, key)?).await
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_mark_reads_back_as_its_name_and_key(name in "[^\\p{Cc}]{1,40}", key in "[^\\p{Cc}]{1,40}") {
            let name = LockName::new(name).expect("legal");
            let mark = mark_name(&name, &key).expect("legal");
            prop_assert!(is_mark(&mark));
            prop_assert_eq!(parse(&mark), Some((name, key)));
        }
    }

    #[test]
    fn a_lock_with_a_name_like_a_mark_is_not_taken_for_one() {
        for name in [
            "report",
            "report@2026",
            "dlock-once",
            "dlock-once:",
            "dlock-once:a:b:x",
            "dlock-once:a:b:9",
            "dlock-once:a:b:+1",
            "dlock-once:a:b:01",
            "dlock-once:a::1",
        ] {
            assert_eq!(parse(&LockName::new(name).expect("legal")), None, "{name}");
        }
    }

    #[test]
    fn a_key_that_cannot_be_recorded_is_refused_with_its_fault() {
        let name = LockName::new("report").expect("legal");
        for (key, fault) in
            [("", "empty"), ("a\nb", "control character at byte 1"), (&*"x".repeat(995), "1001 bytes")]
        {
            let error = mark_name(&name, key).expect_err("not a key").to_string();
            assert!(error.contains(fault) && error.contains("`report`"), "{error}");
        }
        let longest = mark_name(&name, &"x".repeat(994)).expect("1000 bytes together");
        assert!(longest.as_str().len() <= 1024);
    }
}
