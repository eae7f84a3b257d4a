//! Commands that run once for each occurrence, with `--once` or `--every`, and `dlock forget`.

use std::{sync::Arc, time::Duration};

use dlock::{DistributedLock, Guard, LockName, LockOptions, Locks, Occurrence};

use crate::{
    args::{Forget, OnceArgs, Verbosity},
    choice::Stores,
    exit::{Failure, NO, OK, Outcome, chain},
    output, store, values,
};

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
            (None, None) if args.keep.is_some() => {
                return Err(Failure::usage(
                    "--keep needs --once or --every; without them no command is remembered",
                ));
            }
            (None, None) => return Ok(None),
        };
        let shortest = args.every.unwrap_or_default();
        let keep = args.keep.unwrap_or_else(|| Occurrence::DEFAULT_KEEP.max(shortest));
        if keep < shortest {
            return Err(Failure::usage(
                "--keep is shorter than --every, so the command would run twice in one period; make --keep as long, or leave it out",
            ));
        }
        Ok(Some(Self { source, keep }))
    }

    /// Returns the option of the key.
    pub(crate) fn option(&self) -> &'static str {
        match self.source {
            KeySource::Given(_) => "--once",
            KeySource::Period(_) => "--every",
        }
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
    if store::with_store(stores, Some(name.as_str()), async |locks| locks.forget(&name, key).await).await? {
        return Ok(OK);
    }
    output::say(&format!("`{key}` of lock `{name}` is not marked as done"));
    Ok(NO)
}
