//! The source's end of the seats: the one task of a client that listens.

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
    /// Listens, reconnects, and listens again, until [`Listener::stirred`] says that the client is gone.
    ///
    /// The first waiter starts this on its runtime. If that runtime ends, this future is dropped, all waiters are woken, and the
    /// next of them starts this again on its own runtime. What is to last beyond that is in `self`. All events are then to be
    /// subscribed to again.
    async fn listen(&mut self, seats: &Listener);
}

/// What a [`EventSource`] tells the seats, and asks of them.
pub struct Listener(Arc<Waiters>);

impl Listener {
    #[cfg(test)]
    pub(super) fn of(waiters: &Arc<Waiters>) -> Self {
        Self(Arc::clone(waiters))
    }

    /// Ends when there are subscriptions to [`take`](Self::take) since it last ended, or when the client is gone: `false`.
    ///
    /// # Cancel safety
    /// Safe: nothing is missed.
    pub async fn stirred(&self) -> bool {
        if !self.0.is_closed.load(Relaxed) {
            self.0.stirred.notified().await;
        }
        !self.0.is_closed.load(Relaxed)
    }

    /// What to subscribe to, and which subscriptions to end: up to `most` of each, and none that is `busy` with an earlier call.
    /// The last word on an event counts.
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

    /// Messages of these events come from now on. Whoever may have missed one is woken.
    pub fn mark_heard(&self, heard: &[String]) {
        let mut events = self.0.events();
        events.refusal = None;
        for event in heard {
            if let Some(event) = events.open.get_mut(event) {
                event.heard.send_replace(true);
                if std::mem::take(&mut event.is_missed) {
                    event.wake(Wake::All);
                }
            }
        }
    }

    /// Messages of this event do not come until it is subscribed to again, which is to be [taken](Self::take) if anybody still
    /// waits for it.
    pub fn mark_missed(&self, event: &str) {
        let mut events = self.0.events();
        if let Some(missed) = events.open.get_mut(event)
            && missed.needs != Subscription::Never
        {
            missed.mark_missed();
            events.come.insert(event.to_owned());
        }
    }

    /// No messages come until all events are subscribed to again.
    pub fn mark_all_missed(&self) {
        self.0.mark_all_missed();
    }

    /// As [`mark_all_missed`](Self::mark_all_missed), and all subscriptions have ended with their connection: there is none that
    /// would have to be ended.
    pub fn mark_all_ended(&self) {
        let mut events = self.0.events();
        events.mark_all_missed();
        events.gone.clear();
        for event in events.open.values_mut().filter(|event| event.needs == Subscription::Told) {
            event.needs = Subscription::New;
        }
    }

    /// The store lets nobody subscribe: whoever waits for a subscription is told why, until one is [heard](Self::mark_heard)
    /// again. To be called after the `mark_…_missed` of the same failure, or a waiter that comes in between would not be told.
    pub fn refuse(&self, why: Retold) {
        let mut events = self.0.events();
        events.refusal = Some(why);
        events.open.values().for_each(|event| {
            event.heard.send_replace(true);
        });
    }

    /// Wakes those who wait for an event. Nothing happens if nobody does.
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

/// A source that is being listened to. Dropped with its runtime, it is parked again, so that another runtime can go on.
pub(super) struct Running {
    source: Option<Box<dyn EventSource>>,
    waiters: Arc<Waiters>,
}

impl Running {
    /// `None` if somebody listens already.
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
        *self.waiters.parked() = self.source.take();
        // Nobody listens any more: whoever waits asks, and starts the source again.
        self.waiters.mark_all_missed();
        self.waiters.wake_all_events();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = self.0.events();
        write!(f, "Listener({} to subscribe to, {} to leave)", events.come.len(), events.gone.len())
    }
}
