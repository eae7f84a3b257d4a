//! The heartbeats of a session.

use std::{
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use dlock_core::driver::Moment;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{sync::Notify, time::timeout};
use zookeeper_client::{SessionState, StateWatcher};

use super::Session;
use crate::{error, keys};

/// Number of heartbeats in a session timeout. With six of them, a renewal may promise half of the
/// timeout.
const HEARTBEATS_PER_TIMEOUT: u32 = 6;

/// Returns the interval between two heartbeats of a session.
pub(super) fn period(session_timeout: Duration) -> Duration {
    session_timeout / HEARTBEATS_PER_TIMEOUT
}

/// Sends heartbeats until the session is over or dropped. Then wakes the reaper, so that its loop
/// ends, too.
pub(super) async fn run(
    session: &Weak<Session>,
    mut states: StateWatcher,
    reaper_wake: &Notify,
    period: Duration,
) {
    // Heartbeats may overlap. A late reply still counts, from the send time of its request.
    let mut heartbeats = FuturesUnordered::new();
    while let Some(live) = session.upgrade().filter(|session| !session.end_if_silent()) {
        heartbeats.push(live.send_heartbeat());
        drop(live);
        // A new connection gets a heartbeat at once.
        let mut next = pin!(timeout(period, states.changed()));
        loop {
            tokio::select! {
                changed = &mut next => {
                    // Late requests may have been executed before the connection changed.
                    if changed.is_ok() {
                        reaper_wake.notify_one();
                    }
                    break;
                }
                Some(()) = heartbeats.next() => {}
            }
        }
    }
    reaper_wake.notify_one();
}

impl Session {
    /// Sends a heartbeat, unless the session has no connection. The future does not keep the
    /// session alive.
    ///
    /// A heartbeat is a write that changes nothing. A majority of the servers must confirm a write,
    /// whereas a leader that has lost the majority answers `sync` for some time.
    fn send_heartbeat(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let is_connected = self.states.peek_state() == SessionState::SyncConnected;
        let client = self.client.lock().clone().filter(|_| is_connected);
        let (session, limit) = (Arc::downgrade(self), self.timeout);
        async move {
            let Some(client) = client else { return };
            let sent = Moment::now();
            let delete = client.delete(keys::HEARTBEAT_PATH, Some(keys::HEARTBEAT_VERSION));
            // A failed heartbeat needs no handling, because the age of the last confirmed request
            // grows.
            if let (Ok(reply), Some(session)) = (timeout(limit, delete).await, session.upgrade())
                && reply.as_ref().err().is_none_or(error::is_confirmed)
            {
                session.note_confirmed(sent);
            }
        }
    }
}
