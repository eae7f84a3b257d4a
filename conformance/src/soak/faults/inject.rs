//! Injects the faults of a schedule.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use super::{
    super::{clock, fleet::Fleet, record::Fault},
    Action, Planned,
};

/// Interval at which a full disk is filled again, because the store may free bytes.
const REFILL_INTERVAL: Duration = Duration::from_millis(100);

/// Injects the faults until the run ends. When the call returns, no fault is active.
///
/// # Errors
/// If a fault cannot be injected.
pub(in super::super) async fn inject(
    fleet: &Fleet,
    schedule: Vec<Planned>,
    started: Instant,
) -> Result<(), String> {
    let mut active = FuturesUnordered::new();
    for planned in schedule {
        loop {
            tokio::select! {
                () = sleep_until(started + planned.at) => break active.push(one(fleet, planned)),
                () = fleet.stopped() => break,
                Some(ended) = active.next() => ended?,
            }
        }
    }
    while let Some(ended) = active.next().await {
        ended?;
    }
    Ok(())
}

async fn one(fleet: &Fleet, Planned { client, action, .. }: Planned) -> Result<(), String> {
    let from = clock::now();
    let failed = |error: std::io::Error| format!("`{}` cannot be injected: {error}", action.kind());
    match action {
        Action::Pause(length) => {
            fleet.signal(client, Signal::STOP);
            fleet.sleep(length).await;
            fleet.signal(client, Signal::CONT);
        }
        Action::Kill(restart_after) => fleet.kill(client, restart_after).await,
        Action::Step(seconds) => match &fleet.clocks {
            Some(clocks) => clocks.step(client, seconds).map_err(failed)?,
            None => return Ok(()),
        },
        Action::Fill(length) => {
            let Some(disk) = &fleet.disk else { return Ok(()) };
            let end = Instant::now() + length;
            while Instant::now() < end && !fleet.is_stopped() {
                disk.fill().map_err(failed)?;
                fleet.sleep(REFILL_INTERVAL).await;
            }
            disk.free().map_err(failed)?;
        }
        _ => {
            let Some(relay) = fleet.relays.get(client) else { return Ok(()) };
            relay.begin(action);
            fleet.sleep(lasting(action)).await;
            relay.end();
        }
    }
    // Bytes that arrived last are late by as much.
    let delay = match action {
        Action::LateReplies { by, .. } | Action::LateRequests { by, .. } => by,
        _ => Duration::ZERO,
    };
    let fault = Fault {
        kind: action.kind(),
        client: (!matches!(action, Action::Fill(_))).then_some(client),
        from,
        until: clock::now() + clock::nanos(delay),
        what: format!("{action:?}"),
    };
    fleet.record().fault(fault).map_err(failed)
}

/// Returns the time for which a fault of the network is active.
fn lasting(action: Action) -> Duration {
    match action {
        Action::LateReplies { lasting, .. } | Action::LateRequests { lasting, .. } => lasting,
        action => action.length(),
    }
}
