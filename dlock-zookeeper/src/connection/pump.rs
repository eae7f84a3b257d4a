//! The one task of a session: it sends heartbeats, and deletes the claims whose keepers have fallen silent.

use std::{
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use zookeeper_client::StateWatcher;

use super::Session;

/// How many heartbeats a session gets in its timeout. So a renewal may promise half of the timeout.
const BEATS: u32 = 6;

/// How soon a claim that could not be deleted is tried again, and how long the pump sleeps at least.
const AGAIN: Duration = Duration::from_millis(500);
const NAP: Duration = Duration::from_millis(5);

/// Runs until the session is over or nobody has it any more.
pub(super) async fn run(session: Weak<Session>, states: StateWatcher, knock: Arc<Notify>) {
    let Some(period) = session.upgrade().map(|session| session.timeout / BEATS) else { return };
    tokio::join!(beat(&session, states, &knock, period), reap(&session, &knock, period));
}

async fn beat(session: &Weak<Session>, mut states: StateWatcher, knock: &Notify, period: Duration) {
    // One that is answered late counts as well, from when it was sent.
    let mut beats = FuturesUnordered::new();
    while let Some(live) = session.upgrade().filter(|session| !session.end_if_silent()) {
        beats.push(live.beat());
        drop(live);
        // A new connection is asked at once.
        let mut next = pin!(timeout(period, states.changed()));
        loop {
            tokio::select! {
                _ = &mut next => break,
                Some(()) = beats.next() => {}
            }
        }
    }
    knock.notify_one();
}

async fn reap(session: &Weak<Session>, knock: &Notify, period: Duration) {
    while let Some(live) = session.upgrade().filter(|session| !session.end_if_silent()) {
        let overdue = live.reaper().overdue();
        let mut next = if overdue.is_empty() { period } else { period.min(AGAIN) };
        for id in overdue {
            let _ = timeout(period, live.remove(id)).await;
        }
        next = live.look_again(next).max(NAP);
        drop(live);
        let _ = timeout(next, knock.notified()).await;
        // Many claims may knock at once.
        sleep(NAP).await;
    }
}
