//! The connection to a store.

use std::time::Duration;

use dlock::{
    Error, Locks, Registry, Result, Who,
    driver::{Backoff, duration},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::timeout;

use crate::{
    args::{Verbosity, WhoArg},
    choice::{Chosen, Stores},
    exit::{Outcome, chain},
    output, values,
    wait::{self, WaitLimit},
};

/// Maximum time that dlock waits at its end for outstanding releases. The store deletes unreleased
/// claims after their ttl.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to the store of a lock.
pub(crate) async fn connect(stores: &Stores<'_>, lock: &str) -> Outcome<Locks> {
    Ok(stores.chosen(Some(lock))?.connect(stores.registry).await?)
}

/// Connects to the store of a lock, or to the default store, to inspect it. If the store is a file
/// that does not exist yet, prints a message and returns `None`, because an inspection creates no
/// store.
async fn connect_to_inspect(stores: &Stores<'_>, lock: Option<&str>) -> Outcome<Option<Locks>> {
    let chosen = stores.chosen(lock)?;
    if chosen.is_missing() {
        output::say(&format!(
            "the store does not exist yet: it is {}, {}; the first lock creates it",
            chosen.display, chosen.reason
        ));
        return Ok(None);
    }
    Ok(Some(chosen.connect(stores.registry).await?))
}

/// Connects a command that acquires locks, and returns its label. The label is `--who` or
/// `DLOCK_WHO`, or else `who` of the configuration, or else `who=` of the store's URL. Without any
/// of these, the label describes this process and its `activity`.
pub(crate) async fn connect_as(
    stores: &Stores<'_>,
    chosen: &Chosen,
    who: &WhoArg,
    activity: &str,
    wait_limit: WaitLimit,
    verbosity: Verbosity,
) -> Outcome<(Locks, Who)> {
    // An empty variable counts as unset.
    let is_unset = std::env::var_os("DLOCK_WHO").is_some_and(|who| who.is_empty());
    let label = who
        .who
        .as_ref()
        .filter(|who| !(is_unset && who.is_empty()))
        .map(|who| values::utf8(who, "the text of --who or DLOCK_WHO"));
    let label = label.transpose()?.map(Who::new).transpose()?;
    let locks = connect_within(stores.registry, chosen, wait_limit, verbosity).await?;
    let who = label.or_else(|| chosen.who()).unwrap_or_else(|| Who::doing(activity));
    Ok((locks.with_who(who.clone()), who))
}

/// The error of the last attempt to connect.
#[derive(Default)]
struct LastError(Mutex<Option<Error>>);

impl LastError {
    fn lock(&self) -> MutexGuard<'_, Option<Error>> {
        self.0.lock()
    }
}

/// Connects to the store. Retries until the end of the wait limit while the store is unreachable. A
/// status line shows the reason.
async fn connect_within(
    registry: &Registry,
    chosen: &Chosen,
    wait_limit: WaitLimit,
    verbosity: Verbosity,
) -> Result<Locks> {
    let Some(limit) = wait_limit.for_store() else { return chosen.connect(registry).await };
    let last_error = LastError::default();
    let connecting = async {
        let mut backoff = Backoff::foreground();
        loop {
            backoff.pause().await;
            backoff.note_attempt();
            match chosen.connect(registry).await {
                Err(error @ Error::Unavailable { .. }) => *last_error.lock() = Some(error),
                result => return result,
            }
        }
    };
    let connecting = async {
        let timed_out = || Error::Unavailable {
            store: "the store",
            source: format!("no reply within {}; --wait sets this limit", duration::text(limit)).into(),
        };
        let result = timeout(limit, connecting).await;
        result.unwrap_or_else(|_| Err(last_error.lock().take().unwrap_or_else(timed_out)))
    };
    let progress = wait::show_progress(verbosity, async || {
        let reason = last_error.lock().as_ref().map(|error| format!(": {}", chain(error)));
        format!("waiting for the store, {}{}", chosen.display, reason.unwrap_or_default())
    });
    tokio::select! {
        biased;
        result = connecting => result,
        never = progress => match never {},
    }
}

/// Calls `work` with the store of a lock, or with the default store. The result is empty if the
/// store does not exist yet.
pub(crate) async fn with_store<T: Default>(
    stores: &Stores<'_>,
    lock: Option<&str>,
    work: impl AsyncFnOnce(&Locks) -> Result<T>,
) -> Outcome<T> {
    let Some(locks) = connect_to_inspect(stores, lock).await? else { return Ok(T::default()) };
    let result = work(&locks).await;
    close(&locks).await;
    Ok(result?)
}

/// Waits until the store has confirmed all releases, for at most [`CLOSE_TIMEOUT`].
pub(crate) async fn close(locks: &Locks) {
    if timeout(CLOSE_TIMEOUT, locks.close()).await.is_err() {
        output::say("the store did not confirm the release in time; it frees the lock when its ttl ends");
    }
}
