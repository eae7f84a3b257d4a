//! The source's view of the seats. One task of each client runs the source.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use async_trait::async_trait;

use super::{Event, Events, Shared, SharedError, Subscription, Wake};

/// The source of a client's events: the connection on which its store sends messages.
#[async_trait]
pub trait EventSource: Send + 'static {
    /// Listens, and reconnects after each break, until [`Listener::wait_for_changes`] returns
    /// `false` because the client was dropped.
    ///
    /// The first waiter starts this future on its runtime. If that runtime ends, the future is
    /// dropped and all waiters are woken. The next waiter starts `listen` again on its own runtime,
    /// and the source must subscribe to all events again. State that must survive this belongs in
    /// `self`.
    async fn listen(&mut self, seats: &Listener);
}

/// The interface through which an [`EventSource`] reads and updates the seats.
pub struct Listener(Arc<Shared>);

impl Listener {
    #[cfg(test)]
    pub(super) fn of(shared: &Arc<Shared>) -> Self {
        Self(Arc::clone(shared))
    }

    /// Waits until there are subscriptions to make or to end, then returns `true`; see
    /// [`take_changes`](Self::take_changes). Returns `false` once the client was dropped.
    ///
    /// # Cancel safety
    /// Safe. No change is missed.
    pub async fn wait_for_changes(&self) -> bool {
        if !self.0.is_closed.load(Relaxed) {
            self.0.source_wake.notified().await;
        }
        !self.0.is_closed.load(Relaxed)
    }

    /// Returns the events to subscribe to and the events whose subscriptions must end, at most
    /// `max` of each. Skips the events in `in_progress`, for which an earlier call is still in
    /// flight. If an event was joined and left in between, only the later of the two counts.
    pub fn take_changes(&self, max: usize, in_progress: &HashSet<String>) -> (Vec<String>, Vec<String>) {
        let take = |events: &mut HashSet<String>| {
            let ready = events.iter().filter(|event| !in_progress.contains(*event));
            let taken: Vec<_> = ready.take(max).cloned().collect();
            taken.iter().for_each(|event| {
                events.remove(event);
            });
            taken
        };
        let mut events = self.0.events.lock();
        let (added, removed) = (take(&mut events.to_subscribe), take(&mut events.to_unsubscribe));
        for event in &added {
            if let Some(event) = events.waited_for.get_mut(event) {
                event.subscription = Subscription::Requested;
            }
        }
        (added, removed)
    }

    /// Returns whether [`take_changes`](Self::take_changes) has anything to return.
    pub fn has_changes(&self) -> bool {
        let events = self.0.events.lock();
        !events.to_subscribe.is_empty() || !events.to_unsubscribe.is_empty()
    }

    /// Records that messages of these events arrive from now on. Wakes the waiters that may have
    /// missed a message. Skips events that [`take_changes`](Self::take_changes) will return again,
    /// because their subscriptions may have ended since the server confirmed them.
    pub fn mark_subscribed(&self, subscribed: &[String]) {
        let mut events = self.0.events.lock();
        events.refusal = None;
        let Events { waited_for, to_subscribe, .. } = &mut *events;
        for event in subscribed.iter().filter(|event| !to_subscribe.contains(*event)) {
            if let Some(event) = waited_for.get_mut(event) {
                event.is_subscribed.send_replace(true);
                if std::mem::take(&mut event.may_have_missed) {
                    event.wake(Wake::All);
                }
            }
        }
    }

    /// Records that messages of this event do not arrive until the source subscribes again. If the
    /// event still has waiters, [`take_changes`](Self::take_changes) returns it again.
    pub fn mark_interrupted(&self, event: &str) {
        let mut events = self.0.events.lock();
        if let Some(interrupted) = events.waited_for.get_mut(event)
            && interrupted.subscription != Subscription::NotNeeded
        {
            interrupted.mark_interrupted();
            events.to_subscribe.insert(event.to_owned());
        }
    }

    /// Records that no messages arrive until the source has subscribed to all events again.
    pub fn mark_all_interrupted(&self) {
        self.0.events.lock().mark_all_interrupted();
    }

    /// Does the same as [`mark_all_interrupted`](Self::mark_all_interrupted), after all
    /// subscriptions have ended with their connection. [`take_changes`](Self::take_changes) then
    /// returns no subscription to end.
    pub fn mark_disconnected(&self) {
        let mut events = self.0.events.lock();
        events.mark_all_interrupted();
        events.to_unsubscribe.clear();
        let requested = |event: &&mut Event| event.subscription == Subscription::Requested;
        for event in events.waited_for.values_mut().filter(requested) {
            event.subscription = Subscription::New;
        }
    }

    /// Records that the store refuses subscriptions. Waiters for a subscription get this error
    /// until a subscription is [active](Self::mark_subscribed) again.
    ///
    /// Call this after [`mark_interrupted`](Self::mark_interrupted) or
    /// [`mark_disconnected`](Self::mark_disconnected) for the same failure. Otherwise a waiter that
    /// joins in between would not get the error.
    pub fn refuse(&self, error: SharedError) {
        let mut events = self.0.events.lock();
        events.refusal = Some(error);
        events.waited_for.values().for_each(|event| {
            event.is_subscribed.send_replace(true);
        });
    }

    /// Wakes waiters of an event. Does nothing if there are none.
    pub fn wake(&self, event: &str, wake: Wake) {
        self.0.wake(event, wake);
    }
}

impl Events {
    fn mark_all_interrupted(&mut self) {
        self.waited_for.values_mut().for_each(Event::mark_interrupted);
        let needed =
            self.waited_for.iter().filter(|(_, event)| event.subscription != Subscription::NotNeeded);
        self.to_subscribe.extend(needed.map(|(event, _)| event.clone()));
    }

    fn wake_all(&self) {
        self.waited_for.values().for_each(|event| event.wake(Wake::All));
    }
}

/// A source that a task runs. Dropping it, also when the task's runtime ends, parks the source, so
/// that another runtime can run it.
pub(super) struct RunningSource {
    source: Option<Box<dyn EventSource>>,
    shared: Arc<Shared>,
}

impl RunningSource {
    /// Takes the parked source. Returns `None` if another task runs it.
    pub(super) fn take(shared: &Arc<Shared>) -> Option<Self> {
        let source = shared.parked_source.lock().take()?;
        Some(Self { source: Some(source), shared: Arc::clone(shared) })
    }

    pub(super) async fn listen(mut self) {
        let listener = Listener(Arc::clone(&self.shared));
        if let Some(source) = &mut self.source {
            source.listen(&listener).await;
        }
    }
}

impl Drop for RunningSource {
    fn drop(&mut self) {
        // The events are marked before the source is parked. After that another runtime may run the
        // source at once, and subscribe.
        self.shared.events.lock().mark_all_interrupted();
        *self.shared.parked_source.lock() = self.source.take();
        // No task listens any more. All waiters send their requests to the store, and the first to
        // wait again restarts the source.
        self.shared.events.lock().wake_all();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = self.0.events.lock();
        let (added, removed) = (events.to_subscribe.len(), events.to_unsubscribe.len());
        write!(f, "Listener({added} to subscribe, {removed} to unsubscribe)")
    }
}
