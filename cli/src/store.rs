//! The connection to a store.

use std::time::Duration;

use dlock::{Error, Locks, Registry, Result, Who};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::{
    args::WhoArg,
    choice::{Chosen, Stores},
    exit::Outcome,
    output, values,
    wait::WaitLimit,
};

/// Maximum time that dlock waits at its end for outstanding releases. The store deletes unreleased
/// claims after their ttl.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between attempts to connect to an unreachable store.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(250);

/// Connects to the store of a lock.
pub(crate) async fn connect(stores: &Stores<'_>, lock: &str) -> Outcome<Locks> {
    Ok(stores.chosen(Some(lock))?.connect(stores.registry).await?)
}

/// Connects to the store of a lock, or to the default store, to inspect it. If the store is a file
/// that does not exist yet, prints a message and returns `None`, because an inspection creates no
/// store.
pub(crate) async fn connect_to_inspect(stores: &Stores<'_>, lock: Option<&str>) -> Outcome<Option<Locks>> {
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
) -> Outcome<(Locks, Who)> {
    // An empty variable counts as unset.
    let is_unset = std::env::var_os("DLOCK_WHO").is_some_and(|who| who.is_empty());
    let label = who
        .who
        .as_ref()
        .filter(|who| !(is_unset && who.is_empty()))
        .map(|who| values::utf8(who, "the text of --who or DLOCK_WHO"));
    let label = label.transpose()?.map(Who::new).transpose()?;
    let locks = connect_within(stores.registry, chosen, wait_limit).await?;
    let who = label.or_else(|| chosen.who()).unwrap_or_else(|| Who::doing(activity));
    Ok((locks.with_who(who.clone()), who))
}

/// Connects to the store. Retries until the end of the wait limit while the store is unreachable.
async fn connect_within(registry: &Registry, chosen: &Chosen, wait_limit: WaitLimit) -> Result<Locks> {
    let Some(deadline) = wait_limit.deadline() else { return chosen.connect(registry).await };
    let mut last_error = None;
    loop {
        match timeout_at(deadline, chosen.connect(registry)).await {
            Ok(Err(error)) if error.is_transient() && Instant::now() + RECONNECT_INTERVAL < deadline => {
                last_error = Some(error)
            }
            Ok(result) => return result,
            Err(_) => {
                let timed_out = || Error::Unavailable {
                    store: "the store",
                    source: "no reply within the time of --wait".into(),
                };
                return Err(last_error.unwrap_or_else(timed_out));
            }
        }
        sleep_until(Instant::now() + RECONNECT_INTERVAL).await;
    }
}

/// Waits until the store has confirmed all releases, for at most [`CLOSE_TIMEOUT`].
pub(crate) async fn close(locks: &Locks) {
    if timeout(CLOSE_TIMEOUT, locks.close()).await.is_err() {
        output::say("the store did not confirm the release in time; it frees the lock when its ttl ends");
    }
}
