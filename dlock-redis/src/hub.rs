//! Who waits for which channel, and whom a message wakes. Over the usual length: one data structure and its rules.
//!
//! All waiters of a client share one subscription of a channel. A message says "one may come" or "all may": one is woken
//! on it, or as many as can hold at once, and when the one is gone before it asked, the next.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::Result;
use redis::{PushInfo, cluster_async::ClusterConnection};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, timeout},
};

use crate::{
    dial::Dial,
    error::STORE,
    pump::{Borrowed, Ears, Shelf, pump},
};

/// One client's waiters.
pub(crate) struct Hub {
    shared: Arc<Shared>,
    /// Taken by the pump, which is started for the first waiter, and again if its runtime has ended.
    ears: Shelf,
    /// Tells the pump what is new; closed with the hub, which ends the pump.
    news: mpsc::UnboundedSender<News>,
    next: AtomicU64,
    limit: Duration,
}

/// What the pump and the waiters share.
#[derive(Default)]
pub(crate) struct Shared {
    channels: Mutex<Channels>,
}

#[derive(Default)]
struct Channels {
    open: HashMap<String, Channel>,
    /// Came or went since the pump has looked.
    changed: Vec<String>,
    /// Why the server lets nobody subscribe.
    refusal: Option<Arc<str>>,
}

struct Channel {
    /// In the order in which they are woken.
    seats: BTreeMap<Rank, Arc<Bell>>,
    /// Whether messages come.
    heard: watch::Sender<bool>,
    /// Whether some may have been missed by those who sit here.
    missed: bool,
}

/// The place of a waiter among those of its channel: by arrival.
type Rank = (u64, u64);

struct Bell {
    shares: bool,
    /// Woken, and has not asked since.
    rung: AtomicBool,
    notify: Notify,
}

/// A waiter's place. Dropped, it is gone, and a wake-up that it did not use goes to the next.
pub(crate) struct Seat {
    hub: Arc<Hub>,
    channel: String,
    rank: Rank,
    bell: Arc<Bell>,
}

/// What a pump is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News {
    /// Channels have come or gone.
    Channels,
    /// Commands go elsewhere since then.
    CommandsMoved(Instant),
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    One,
    All,
}

impl Hub {
    pub(crate) fn of_server(dial: Arc<Dial>, events: bool) -> Arc<Self> {
        let limit = dial.limit();
        Self::new(limit, |news| Ears::Server { dial, events, news })
    }

    pub(crate) fn of_cluster(
        cluster: ClusterConnection,
        messages: mpsc::UnboundedReceiver<PushInfo>,
        sharded: bool,
        limit: Duration,
    ) -> Arc<Self> {
        Self::new(limit, |news| Ears::Cluster { cluster, messages, sharded, news })
    }

    fn new(limit: Duration, ears: impl FnOnce(mpsc::UnboundedReceiver<News>) -> Ears) -> Arc<Self> {
        let (news, inbox) = mpsc::unbounded_channel();
        let ears = Arc::new(Mutex::new(Some(ears(inbox))));
        Arc::new(Self { shared: Arc::default(), ears, news, next: AtomicU64::new(0), limit })
    }

    /// Takes a place among the waiters of a channel, behind those whose arrival is earlier; without one, behind all.
    /// When this returns, no message is missed, unless the subscription is not to be had within the time of a command:
    /// then the waiter is woken when it is.
    ///
    /// # Errors
    /// When the server lets this user not subscribe.
    pub(crate) async fn join(
        self: &Arc<Self>,
        channel: String,
        arrival: Option<u64>,
        shares: bool,
    ) -> Result<Seat> {
        self.start();
        let (seat, mut heard) = self.sit(channel, arrival, shares, true);
        let heard = timeout(self.limit, heard.wait_for(|heard| *heard)).await.is_ok();
        let mut channels = self.shared.channels();
        if let Some(refusal) = channels.refusal.clone() {
            drop(channels);
            return Err(STORE.refused(refusal.to_string()));
        }
        if let (false, Some(channel)) = (heard, channels.open.get_mut(&seat.channel)) {
            channel.missed = true;
        }
        Ok(seat)
    }

    /// A place of somebody who holds a lock and wants to know when its key is gone.
    pub(crate) fn watch(self: &Arc<Self>, key: &str) -> Seat {
        self.start();
        self.sit(held(key), None, true, false).0
    }

    /// A place of somebody who waits for a lock's key to be gone, whoever deletes it, behind those whose arrival is earlier.
    pub(crate) fn await_deletion(self: &Arc<Self>, key: &str, arrival: Option<u64>) -> Seat {
        self.start();
        self.sit(wanted(key), arrival, false, false).0
    }

    /// Commands go through a connection that is opened since then: a connection for messages that is older may lead to a
    /// server that nobody writes to any more.
    pub(crate) fn commands_moved(&self, since: Instant) {
        self.news.send(News::CommandsMoved(since)).ok();
    }

    fn sit(
        self: &Arc<Self>,
        channel: String,
        arrival: Option<u64>,
        shares: bool,
        remote: bool,
    ) -> (Seat, watch::Receiver<bool>) {
        let number = self.next.fetch_add(1, Relaxed);
        let rank = (arrival.unwrap_or(number), number);
        let bell = Arc::new(Bell { shares, rung: AtomicBool::new(false), notify: Notify::new() });
        let mut channels = self.shared.channels();
        let Channels { open, changed, .. } = &mut *channels;
        let entry = open.entry(channel.clone()).or_insert_with(|| {
            if remote {
                changed.push(channel.clone());
            }
            Channel { seats: BTreeMap::new(), heard: watch::Sender::new(false), missed: false }
        });
        entry.seats.insert(rank, Arc::clone(&bell));
        let heard = entry.heard.subscribe();
        drop(channels);
        self.news.send(News::Channels).ok();
        (Seat { hub: Arc::clone(self), channel, rank, bell }, heard)
    }

    #[expect(clippy::disallowed_methods, reason = "the client's one hint pump; it ends with the hub")]
    fn start(&self) {
        if let Some(ears) = Borrowed::take(&self.ears, &self.shared) {
            tokio::spawn(pump(ears));
        }
    }
}

/// The local channel of those who hold the lock of a key.
fn held(key: &str) -> String {
    format!("\0{key}")
}

/// The local channel of those who wait for the lock of a key.
fn wanted(key: &str) -> String {
    format!("\0\0{key}")
}

impl Seat {
    /// Ends when there is reason to ask.
    pub(crate) async fn rung(&self) {
        self.hub.start();
        while !self.bell.rung.load(Relaxed) {
            self.bell.notify.notified().await;
        }
    }

    /// Says that its waiter asks now: what it was woken for is seen by that.
    pub(crate) fn asks(&self) {
        self.bell.rung.store(false, Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut channels = self.hub.shared.channels();
        let Channels { open, changed, .. } = &mut *channels;
        let Some(channel) = open.get_mut(&self.channel) else { return };
        channel.seats.remove(&self.rank);
        if !channel.seats.is_empty() {
            if self.bell.rung.load(Relaxed) {
                // What it was woken for may have been for all behind it: a writer that leaves a line of readers.
                channel.wake(Wake::All);
            }
            return;
        }
        open.remove(&self.channel);
        if !self.channel.starts_with('\0') {
            changed.push(std::mem::take(&mut self.channel));
        }
        drop(channels);
        self.hub.news.send(News::Channels).ok();
    }
}

impl Channel {
    /// Wakes the first, and with it those behind it that can hold beside it.
    fn wake(&self, wake: Wake) {
        let Some((_, first)) = self.seats.first_key_value() else { return };
        first.ring();
        if wake == Wake::All && first.shares {
            self.seats.values().skip(1).take_while(|bell| bell.shares).for_each(|bell| bell.ring());
        }
    }
}

impl Bell {
    fn ring(&self) {
        self.rung.store(true, Relaxed);
        self.notify.notify_one();
    }
}

impl Shared {
    fn channels(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message has come.
    pub(crate) fn wake(&self, channel: &str, wake: Wake) {
        if let Some(channel) = self.channels().open.get(channel) {
            channel.wake(wake);
        }
    }

    /// A key has gone.
    pub(crate) fn gone(&self, key: &str) {
        self.wake(&held(key), Wake::All);
        self.wake(&wanted(key), Wake::One);
    }

    /// The channels that are wanted now.
    pub(crate) fn all(&self) -> HashSet<String> {
        let mut channels = self.channels();
        channels.changed.clear();
        channels.open.keys().filter(|channel| !channel.starts_with('\0')).cloned().collect()
    }

    /// The channels that have come or gone since last asked: which of them are wanted, and which not.
    pub(crate) fn changed(&self) -> (Vec<String>, Vec<String>) {
        let mut channels = self.channels();
        let mut changed = std::mem::take(&mut channels.changed);
        changed.sort_unstable();
        changed.dedup();
        changed.into_iter().partition(|channel| channels.open.contains_key(channel))
    }

    /// Messages of these channels come from now on. Whoever may have missed one asks.
    pub(crate) fn heard(&self, heard: &[String]) {
        let mut channels = self.channels();
        channels.refusal = None;
        for name in heard {
            if let Some(channel) = channels.open.get_mut(name) {
                channel.heard.send_replace(true);
                if std::mem::take(&mut channel.missed) {
                    channel.seats.values().for_each(|bell| bell.ring());
                }
            }
        }
    }

    /// No messages come until they are [`heard`](Self::heard) again.
    pub(crate) fn missed(&self) {
        for channel in self.channels().open.values_mut() {
            channel.heard.send_replace(false);
            channel.missed = true;
        }
    }

    /// As [`missed`](Self::missed), of one channel; `false` if nobody waits there any more.
    pub(crate) fn is_missed(&self, name: &str) -> bool {
        let mut channels = self.channels();
        let Some(channel) = channels.open.get_mut(name) else { return false };
        channel.heard.send_replace(false);
        channel.missed = true;
        true
    }

    /// Nobody listens any more: whoever waits asks, and sees to that.
    pub(crate) fn deserted(&self) {
        self.missed();
        let channels = self.channels();
        channels.open.values().flat_map(|channel| channel.seats.values()).for_each(|bell| bell.ring());
    }

    /// Nobody is let subscribe: those who wait to be heard need not.
    pub(crate) fn refused(&self, why: &str) {
        let mut channels = self.channels();
        channels.refusal = Some(why.into());
        channels.open.values().for_each(|channel| {
            channel.heard.send_replace(true);
        });
    }
}
