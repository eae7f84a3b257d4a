//! Watches on nodes, which turn the servers' notifications into hints for the keepers of claims.
//! `wake/observed.rs` has the watches of observers.

mod observed;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use zookeeper_client::{EventType, OneshotWatcher, WatchedEvent};

use crate::session::WatchedPath;
pub(crate) use observed::ObservedDirectory;

/// A watch on one node. It fires once. Dropping a watch that has not fired removes it from the
/// server.
pub(crate) struct Watch {
    /// Name of the node, or the path of a directory.
    pub(crate) name: String,
    event: Pin<Box<dyn Future<Output = WatchedEvent> + Send>>,
    fired: Option<EventType>,
    /// Declared last so that it drops last: the watch must be removed before its room is free.
    _room: WatchedPath,
}

impl Watch {
    pub(crate) fn new(name: String, watcher: OneshotWatcher, room: WatchedPath) -> Self {
        Self { name, event: Box::pin(watcher.changed()), fired: None, _room: room }
    }

    /// Returns the event of the node or its session, once there is one. Otherwise registers the
    /// task of `context` to be woken.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Option<EventType> {
        if self.fired.is_none()
            && let Poll::Ready(event) = self.event.as_mut().poll(context)
        {
            self.fired = Some(event.event_type);
        }
        self.fired
    }

    /// Returns the event of the node or its session, once there is one. Registers no task.
    pub(crate) fn poll_now(&mut self) -> Option<EventType> {
        self.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Returns whether the watch had fired at its last poll.
    pub(crate) fn has_fired(&self) -> bool {
        self.fired.is_some()
    }
}
