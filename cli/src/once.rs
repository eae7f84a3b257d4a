//! Commands that run once for each occurrence, with `--once` or `--every`, and `dlock forget`.

use std::{sync::Arc, time::Duration};

use dlock::{DistributedLock, Guard, LockName, LockOptions, Locks, Occurrence};

use crate::{
    args::{Forget, OnceArgs, Verbosity},
    choice::Stores,
    exit::{Failure, NO, OK, Outcome, chain},
    output, store, values,
};

/// Time for which a mark is kept by default. A mark of --every is kept for one period at least.
const DEFAULT_KEEP: Duration = Duration::from_secs(7 * 24 * 3600);

/// A key as long as any that a store's clock gives, for checks before the clock is read.
const SAMPLE_KEY: &str = "2026-11-23T09:00:00.000Z/315360000000ms";

/// The checked options of a run that happens once.
pub(crate) struct Plan {
    source: KeySource,
    keep: Duration,
}

/// Origin of the occurrence's key.
enum KeySource {
    Given(String),
    /// A period of this length, by the store's clock.
    Period(Duration),
}

impl Plan {
    /// Returns the plan of these options. `None` if the run is not for an occurrence.
    ///
    /// # Errors
    /// For a mark that would end before its period.
    pub(crate) fn new(args: &OnceArgs) -> Outcome<Option<Self>> {
        let source = match (&args.once, args.every) {
            (Some(key), _) => KeySource::Given(values::utf8(key, "the key of --once")?.to_owned()),
            (None, Some(length)) => KeySource::Period(length),
            (None, None) => return Ok(None),
        };
        let shortest = args.every.unwrap_or_default();
        let keep = args.keep.unwrap_or_else(|| DEFAULT_KEEP.max(shortest));
        if keep < shortest {
            return Err(Failure::usage(
                "--keep is shorter than --every, so the command would run twice in one period; make --keep as long, or leave it out",
            ));
        }
        Ok(Some(Self { source, keep }))
    }

    /// Returns the occurrence that is due, after all checks that need no I/O.
    ///
    /// # Errors
    /// If the store cannot keep a mark or has no clock, and the store's errors.
    pub(crate) async fn occurrence(
        &self,
        locks: &Locks,
        lock: Arc<dyn DistributedLock>,
        options: LockOptions,
    ) -> Outcome<Occurrence> {
        let with_key =
            |key: &str| locks.once(Arc::clone(&lock), key).keep(self.keep).options(options.clone());
        match &self.source {
            KeySource::Given(key) => {
                let occurrence = with_key(key);
                occurrence.check()?;
                Ok(occurrence)
            }
            KeySource::Period(length) => {
                with_key(SAMPLE_KEY).check()?;
                Ok(with_key(&locks.period_key(*length).await?))
            }
        }
    }
}

/// Returns whether the occurrence is done. If so, prints that.
pub(crate) async fn is_done(occurrence: &Occurrence, name: &LockName, verbosity: Verbosity) -> Outcome<bool> {
    let is_done = occurrence.is_done().await?;
    if is_done && verbosity != Verbosity::Quiet {
        output::say(&format!(
            "`{}` of lock `{name}` is done; `dlock forget` lets it run again",
            occurrence.key()
        ));
    }
    Ok(is_done)
}

/// Marks the occurrence as done, after its command has succeeded.
pub(crate) async fn mark(occurrence: &Occurrence, guard: &Guard) -> Outcome<()> {
    occurrence.mark(guard).await.map_err(|error| {
        let message = format!(
            "the command has succeeded, but `{}` is not marked as done and may run again: {}",
            occurrence.key(),
            chain(&error)
        );
        Failure::from(error).say_instead(message)
    })
}

/// Removes a mark. Returns [`NO`] if there was none.
pub(crate) async fn forget(stores: &Stores<'_>, args: Forget) -> Outcome {
    let name = values::name(&args.name)?;
    let key = values::utf8(&args.key, "the key")?;
    let Some(locks) = store::connect_to_inspect(stores, Some(name.as_str())).await? else { return Ok(NO) };
    let forgotten = locks.forget(&name, key).await;
    store::close(&locks).await;
    if forgotten? {
        return Ok(OK);
    }
    output::say(&format!("`{key}` of lock `{name}` is not marked as done"));
    Ok(NO)
}
