//! What the source sees of the seats. One task of each client runs the source.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use async_trait::async_trait;

use super::{Event, Retold, Subscription, Waiters, Wake};

/// Where a client's events come from: the connection on which its store sends messages.
#[async_trait]
pub trait EventSource: Send + 'static {
    /// Listens, reconnects, and listens again, until [`Listener::stirred`] returns `false` because the client is gone.
    ///
    /// The first waiter starts this on its runtime. If that runtime ends, this future is dropped and all waiters are woken.
    /// The next of them starts this again on its own runtime, where all events must be subscribed to again. State that must
    /// survive this belongs in `self`.
    async fn listen(&mut self, seats: &Listener);
}

/// How an [`EventSource`] talks to the seats.
pub struct Listener(Arc<Waiters>);

impl Listener {
    #[cfg(test)]
    pub(super) fn of(waiters: &Arc<Waiters>) -> Self {
        Self(Arc::clone(waiters))
    }

    /// Waits until there are new subscriptions to [`take`](Self::take), then returns `true`. Returns `false` when the
    /// client is gone.
    ///
    /// # Cancel safety
    /// Safe: nothing is missed.
    pub async fn stirred(&self) -> bool {
        if !self.0.is_closed.load(Relaxed) {
            self.0.stirred.notified().await;
        }
        !self.0.is_closed.load(Relaxed)
    }

    /// What to subscribe to, and which subscriptions to end: up to `most` of each, without the events in `busy`, which an
    /// earlier call still works on. If an event was joined and left since, only the last of the two counts.
    pub fn take(&self, most: usize, busy: &HashSet<String>) -> (Vec<String>, Vec<String>) {
        let some = |set: &mut HashSet<String>| {
            let free = set.iter().filter(|event| !busy.contains(*event));
            let some: Vec<_> = free.take(most).cloned().collect();
            some.iter().for_each(|event| {
                set.remove(event);
            });
            some
        };
        let mut events = self.0.events();
        let (come, gone) = (some(&mut events.come), some(&mut events.gone));
        for event in &come {
            if let Some(event) = events.open.get_mut(event) {
                event.needs = Subscription::Told;
            }
        }
        (come, gone)
    }

    /// Whether there is anything to [`take`](Self::take).
    pub fn is_stirred(&self) -> bool {
        let events = self.0.events();
        !events.come.is_empty() || !events.gone.is_empty()
    }

    /// Messages of these events arrive from now on. Wakes the waiters that may have missed one. Skips the events that
    /// [`take`](Self::take) lists again: their subscription may have ended since it was made.
    pub fn mark_heard(&self, heard: &[String]) {
        let mut events = self.0.events();
        events.refusal = None;
        let super::Events { open, come, .. } = &mut *events;
        for event in heard.iter().filter(|event| !come.contains(*event)) {
            if let Some(event) = open.get_mut(event) {
                event.heard.send_replace(true);
                if std::mem::take(&mut event.is_missed) {
                    event.wake(Wake::All);
                }
            }
        }
    }

    /// Messages of this event do not arrive until the source subscribes again. If anybody still waits for the event,
    /// [`take`](Self::take) lists it again.
    pub fn mark_missed(&self, event: &str) {
        let mut events = self.0.events();
        if let Some(missed) = events.open.get_mut(event)
            && missed.needs != Subscription::Never
        {
            missed.mark_missed();
            events.come.insert(event.to_owned());
        }
    }

    /// No messages arrive until the source has subscribed to all events again.
    pub fn mark_all_missed(&self) {
        self.0.mark_all_missed();
    }

    /// As [`mark_all_missed`](Self::mark_all_missed), when all subscriptions have ended with their connection:
    /// [`take`](Self::take) then lists none to end.
    pub fn mark_all_ended(&self) {
        let mut events = self.0.events();
        events.mark_all_missed();
        events.gone.clear();
        for event in events.open.values_mut().filter(|event| event.needs == Subscription::Told) {
            event.needs = Subscription::New;
        }
    }

    /// The store refuses subscriptions. Waiters for a subscription get this error until one is [heard](Self::mark_heard)
    /// again. Call this after the `mark_…_missed` of the same failure: otherwise a waiter that joins in between would not
    /// get the error.
    pub fn refuse(&self, why: Retold) {
        let mut events = self.0.events();
        events.refusal = Some(why);
        events.open.values().for_each(|event| {
            event.heard.send_replace(true);
        });
    }

    /// Wakes the waiters of an event. Does nothing if there are none.
    pub fn wake(&self, event: &str, wake: Wake) {
        self.0.wake(event, wake);
    }
}

impl super::Events {
    fn mark_all_missed(&mut self) {
        self.open.values_mut().for_each(Event::mark_missed);
        let subscribed = self.open.iter().filter(|(_, event)| event.needs != Subscription::Never);
        self.come.extend(subscribed.map(|(event, _)| event.clone()));
    }
}

impl Waiters {
    fn mark_all_missed(&self) {
        self.events().mark_all_missed();
    }

    fn wake_all_events(&self) {
        self.events().open.values().for_each(|event| event.wake(Wake::All));
    }
}

/// A source that a task runs. If the task's runtime ends, dropping this parks the source again, so that another runtime can
/// go on.
pub(super) struct Running {
    source: Option<Box<dyn EventSource>>,
    waiters: Arc<Waiters>,
}

impl Running {
    /// `None` if another task runs the source already.
    pub(super) fn take(waiters: &Arc<Waiters>) -> Option<Self> {
        let source = waiters.parked().take()?;
        Some(Self { source: Some(source), waiters: Arc::clone(waiters) })
    }

    pub(super) async fn listen(mut self) {
        let listener = Listener(Arc::clone(&self.waiters));
        if let Some(source) = &mut self.source {
            source.listen(&listener).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Before the source is parked, because it may run on another runtime at once and subscribe.
        self.waiters.mark_all_missed();
        *self.waiters.parked() = self.source.take();
        // Nobody listens any more. So wake all waiters: each asks the store, and the first to wait again restarts the
        // source.
        self.waiters.wake_all_events();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = self.0.events();
        write!(f, "Listener({} to subscribe to, {} to leave)", events.come.len(), events.gone.len())
    }
}
