//! The connection to a store.

use std::time::Duration;

use dlock::{Error, Locks, Registry, Result, Who};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::{
    args::WhoArg,
    choice::{Chosen, Stores},
    exit::Outcome,
    output, values,
    wait::Patience,
};

/// How long dlock waits at its end for releases to reach the store. The store forgets by itself what was not released.
const FAREWELL: Duration = Duration::from_secs(5);

/// How soon a store that cannot be reached is tried again, while there is time.
const AGAIN: Duration = Duration::from_millis(250);

/// Connects to the store of a lock.
pub(crate) async fn connect(stores: &Stores<'_>, lock: &str) -> Outcome<Locks> {
    Ok(stores.chosen(Some(lock))?.connect(stores.registry).await?)
}

/// Connects to the store of a lock, or to the one that no rule names, to look into it. `None`, and a line that says so, if it is a
/// file that nobody has made yet: looking makes none.
pub(crate) async fn look(stores: &Stores<'_>, lock: Option<&str>) -> Outcome<Option<Locks>> {
    let chosen = stores.chosen(lock)?;
    if chosen.is_unmade() {
        output::say(&format!(
            "there is no store yet: it is {}, {}; the first lock makes it",
            chosen.shown, chosen.why
        ));
        return Ok(None);
    }
    Ok(Some(chosen.connect(stores.registry).await?))
}

/// Connects a command that holds locks or waits for them, and says under which name. That is what `--who` or `DLOCK_WHO` says,
/// or else the store's URL. Without them it is this process, and what it does.
pub(crate) async fn connect_as(
    stores: &Stores<'_>,
    chosen: &Chosen,
    who: &WhoArg,
    does: &str,
    patience: Patience,
) -> Outcome<(Locks, Who)> {
    // An empty variable is as good as none.
    let is_unset = std::env::var_os("DLOCK_WHO").is_some_and(|who| who.is_empty());
    let told = who
        .who
        .as_ref()
        .filter(|who| !(is_unset && who.is_empty()))
        .map(|who| values::utf8(who, "what --who or DLOCK_WHO says"));
    let told = told.transpose()?.map(Who::new).transpose()?;
    let locks = connect_within(stores.registry, chosen, patience).await?;
    let of_url = || chosen.url()?.param("who").map(Who::new)?.ok();
    let who = told.or_else(of_url).unwrap_or_else(|| Who::doing(does));
    Ok((locks.with_who(who.clone()), who))
}

/// Connects. A store that cannot be reached is tried again while there is time, as a store is that goes away later.
async fn connect_within(registry: &Registry, chosen: &Chosen, patience: Patience) -> Result<Locks> {
    let Some(end) = patience.end() else { return chosen.connect(registry).await };
    let mut last = None;
    loop {
        match timeout_at(end, chosen.connect(registry)).await {
            Ok(Err(error)) if error.is_transient() && Instant::now() + AGAIN < end => last = Some(error),
            Ok(connected) => return connected,
            Err(_) => {
                let late = || Error::Unavailable {
                    store: "the store",
                    source: "no answer in the time of --wait".into(),
                };
                return Err(last.unwrap_or_else(late));
            }
        }
        sleep_until(Instant::now() + AGAIN).await;
    }
}

/// Waits until all released locks have left the store, but not for ever.
pub(crate) async fn close(locks: &Locks) {
    if timeout(FAREWELL, locks.close()).await.is_err() {
        output::say("the store did not confirm the release in time; it frees the lock when its ttl ends");
    }
}
