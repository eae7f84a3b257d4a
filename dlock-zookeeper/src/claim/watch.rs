//! A watch on one node, which fires once.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use zookeeper_client::{EventType, OneshotWatcher, WatchedEvent};

use crate::connection::WatchedPath;

/// Dropping a watch that has not fired tells the server to forget it.
pub(super) struct Watch {
    pub(super) name: String,
    event: Pin<Box<dyn Future<Output = WatchedEvent> + Send>>,
    fired: Option<EventType>,
    /// The last field: the watch is gone before its room is free.
    _room: WatchedPath,
}

impl Watch {
    pub(super) fn new(name: String, watcher: OneshotWatcher, room: WatchedPath) -> Self {
        Self { name, event: Box::pin(watcher.changed()), fired: None, _room: room }
    }

    /// What has happened to the node, or to the session. Wakes the context's task if nothing has.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Option<EventType> {
        if self.fired.is_none()
            && let Poll::Ready(event) = self.event.as_mut().poll(context)
        {
            self.fired = Some(event.event_type);
        }
        self.fired
    }

    /// The same, and wakes nobody.
    pub(super) fn poll_now(&mut self) -> Option<EventType> {
        self.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Whether it has fired when it was last polled.
    pub(super) fn has_fired(&self) -> bool {
        self.fired.is_some()
    }
}
