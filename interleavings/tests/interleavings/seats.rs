//! The waiters of one client: each change wakes one of them, whichever of them leave.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_interleavings::{
    Kind,
    driver::{EventSource, Listener, Seats, Wake},
    runner::{Time, explore},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{drop_after, finish, yield_randomly};

const EVENT: &str = "x";

/// Time that a waiter waits for its subscription.
const LIMIT: Duration = Duration::from_secs(3);

/// A lock in a server, which publishes a message when it is freed.
#[derive(Clone, Default)]
struct Server(Arc<ServerState>);

#[derive(Default)]
struct ServerState {
    state: Mutex<State>,
    /// Notified when a message was published.
    published: Notify,
}

#[derive(Default)]
struct State {
    is_held: bool,
    is_subscribed: bool,
    /// Number of messages that the subscriber has not received.
    messages: usize,
}

impl Server {
    fn try_lock(&self) -> bool {
        !std::mem::replace(&mut self.0.state.lock().is_held, true)
    }

    fn unlock(&self) {
        let mut state = self.0.state.lock();
        state.is_held = false;
        state.messages += usize::from(state.is_subscribed);
        drop(state);
        self.0.published.notify_one();
    }
}

/// The connection of a client on which it receives the messages.
#[async_trait]
impl EventSource for Server {
    async fn listen(&mut self, seats: &Listener) {
        loop {
            let is_open = tokio::select! {
                biased;
                is_open = seats.wait_for_changes() => is_open,
                () = self.0.published.notified() => true,
            };
            if !is_open {
                return;
            }
            let received = std::mem::take(&mut self.0.state.lock().messages);
            for _ in 0..received {
                seats.wake(EVENT, Wake::First);
            }
            let (added, removed) = seats.take_changes(10, &HashSet::new());
            if !removed.is_empty() {
                self.0.state.lock().is_subscribed = false;
            }
            if !added.is_empty() {
                self.0.state.lock().is_subscribed = true;
                yield_randomly(2).await;
                seats.mark_subscribed(&added);
            }
        }
    }
}

/// Waits for the lock, holds it, and frees it.
async fn wait(server: Server, seats: Seats) {
    if !server.try_lock() {
        let seat = seats.join(EVENT.to_owned(), None, Kind::Mutex, LIMIT).await.expect("no refusal");
        loop {
            seat.clear();
            if server.try_lock() {
                break;
            }
            seat.notified().await;
        }
    }
    yield_randomly(3).await;
    server.unlock();
}

/// Two waiters follow one another, and a third one, which is ahead of them, leaves at any step before
/// it has the lock.
pub(crate) async fn waiters() {
    let server = Server::default();
    let seats = Seats::new(server.clone());
    assert!(server.try_lock());
    let waiters: Vec<_> = (0..2).map(|_| tokio::spawn(wait(server.clone(), seats.clone()))).collect();
    let leaver = tokio::spawn(async move {
        let joined = seats.join(EVENT.to_owned(), Some(0), Kind::Mutex, LIMIT);
        let wait = async { joined.await.expect("no refusal").notified().await };
        drop_after(40, wait).await;
    });
    yield_randomly(40).await;
    server.unlock();
    finish(waiters.into_iter().chain([leaver]).collect()).await;
}

#[test]
fn a_change_wakes_a_waiter_whichever_waiters_leave() {
    explore(Time::WhenIdle, waiters);
}
