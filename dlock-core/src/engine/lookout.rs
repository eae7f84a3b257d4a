//! The lookout: the one task of a client that inspects an observed lock for all its observers.
//!
//! It inspects the lock at each hint, at intervals, and when the claim of the holder ends. The
//! observers read its last sighting, and send no request themselves.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Client, Hold,
    keeper::{retry_pause, start, with_large_jitter, with_small_jitter},
};
use crate::{
    contract::{Contender, Inspect, Watch},
    kit::{Moment, SharedError, StoreErrors},
    model::LockName,
};

/// Minimum interval of inspections while no hint arrives and no claim of a holder ends, however
/// short the ttl is.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two inspections. Each hint in a row that finds no change doubles it, up to
/// sixteen times, so that a store that sends hints all the time is not inspected all the time.
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_DOUBLINGS: u32 = 4;

/// The last sighting of a lock, and the task that refreshes it. Dropping the lookout ends the task.
pub(crate) struct Lookout(Arc<Shared>);

struct Shared {
    name: LockName,
    ttl: Duration,
    sighting: watch::Sender<Sighting>,
    is_running: AtomicBool,
    /// Cancelled when the last observer was dropped.
    end: CancellationToken,
}

/// The result of the last inspections of a lock.
#[derive(Clone, Debug)]
pub(crate) struct Sighting {
    /// The holder in the last reply.
    pub(crate) holder: Option<Arc<Contender>>,
    /// Time after which the store no longer keeps the claim of the holder, unless the holder has
    /// renewed it since. `None` without a holder, and in a store that does not report the time.
    pub(crate) claim_ends: Option<Moment>,
    /// Send time of the last inspection with a reply, or the start of the observation if there was
    /// no reply yet.
    pub(crate) replied_at: Moment,
    /// Time after which the reply is too old to be relied on.
    pub(crate) trusted_until: Moment,
    /// Whether the holder is unknown, because there was no reply yet, `trusted_until` passed
    /// without a further reply, or the task has ended.
    pub(crate) is_stale: bool,
    /// Error of the last inspection, if it failed.
    pub(crate) error: Option<SharedError>,
    /// Whether the first inspection has completed or failed, or the task has ended.
    pub(crate) is_checked: bool,
}

impl Lookout {
    pub(crate) fn new(name: LockName, ttl: Duration) -> Self {
        let now = Moment::now();
        let nothing = Sighting {
            holder: None,
            claim_ends: None,
            replied_at: now,
            trusted_until: now,
            is_stale: true,
            error: None,
            is_checked: false,
        };
        Self(Arc::new(Shared {
            name,
            ttl,
            sighting: watch::Sender::new(nothing),
            is_running: AtomicBool::new(false),
            end: CancellationToken::new(),
        }))
    }

    /// Returns the name of the observed lock.
    pub(crate) fn name(&self) -> &LockName {
        &self.0.name
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Sighting> {
        self.0.sighting.subscribe()
    }

    /// Starts the task on the current runtime, unless it runs. It does not run before the first
    /// call, and after its runtime has ended.
    pub(crate) fn ensure_runs(&self, client: &Arc<Client>, inspect: &Arc<dyn Inspect>) {
        let is_closed = client.closing.is_cancelled();
        if is_closed || self.0.is_running.swap(true, SeqCst) {
            return;
        }
        let task = Task {
            running: Running(Arc::clone(&self.0)),
            client: Arc::clone(client),
            inspect: Arc::clone(inspect),
        };
        start(&client.tasks, task.run());
    }

    /// Returns whether the task runs.
    pub(crate) fn is_running(&self) -> bool {
        self.0.is_running.load(SeqCst)
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.0.end.cancel();
    }
}

/// Marks the sighting as stale when the task ends, because nothing refreshes it any more.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        // The sighting is marked before another task can start and publish newer sightings.
        self.0.sighting.send_modify(|sighting| (sighting.is_stale, sighting.is_checked) = (true, true));
        self.0.is_running.store(false, SeqCst);
        // Notifies the observers once more. After the first notification an observer may have read
        // `is_running` before the store above.
        self.0.sighting.send_modify(|_| {});
    }
}

/// State of the task of a lookout.
struct Task {
    running: Running,
    client: Arc<Client>,
    inspect: Arc<dyn Inspect>,
}

impl Task {
    async fn run(self) {
        let shared = &self.running.0;
        tokio::select! {
            () = shared.end.cancelled() => {}
            () = self.client.closing.cancelled() => {}
            () = shared.mark_stale() => {}
            () = self.look_out() => {}
        }
    }

    /// Inspects the lock in a loop: after each hint, and after each pause without a hint.
    async fn look_out(&self) {
        let mut watch = self.client.store.backend.watch(&self.running.0.name);
        let mut term_holds = self.client.term_holds.subscribe();
        let name = &self.running.0.name;
        let own_terms = |holds: &[Arc<Hold>]| -> Vec<_> {
            holds.iter().filter(|hold| hold.name == *name).map(|hold| hold.id).collect()
        };
        let (mut failures, mut idle_hints) = (0_u32, 0_u32);
        loop {
            let inspected_at = Instant::now();
            let known_terms = own_terms(&term_holds.borrow_and_update());
            let pause = match self.inspect().await {
                Ok(Found { is_changed, pause }) => {
                    failures = 0;
                    idle_hints = if is_changed { 0 } else { idle_hints };
                    with_small_jitter(pause.max(MIN_PAUSE))
                }
                Err(()) => {
                    failures += 1;
                    with_large_jitter(retry_pause(failures))
                }
            };
            let hint = async {
                // After a failure hints are ignored, so that they do not make the client send
                // requests all the time to a store that is down.
                if failures > 0 {
                    pending::<()>().await;
                }
                tokio::select! {
                    () = changed(watch.as_deref_mut()) => {}
                    // A term of this client has begun or ended.
                    _ = term_holds.wait_for(|holds| own_terms(holds) != known_terms) => {}
                }
                sleep_until(inspected_at + MIN_PAUSE * (1 << idle_hints.min(MAX_DOUBLINGS))).await;
            };
            tokio::select! {
                () = hint => idle_hints += 1,
                () = sleep(pause) => idle_hints = 0,
            }
        }
    }

    /// Inspects the lock once, and publishes the result.
    async fn inspect(&self) -> Result<Found, ()> {
        let (shared, store) = (&self.running.0, StoreErrors::new(self.client.store.backend.info().store));
        let sent = Moment::now();
        let inspection = self.inspect.holder(&shared.name);
        let reply = timeout(shared.ttl.max(MIN_INTERVAL), inspection).await;
        match reply.unwrap_or_else(|_| Err(store.unavailable("no reply to an inspection"))) {
            Ok(holder) => Ok(shared.publish(holder, sent)),
            Err(error) => {
                shared.sighting.send_if_modified(|sighting| {
                    sighting.error = Some(store.share(&error));
                    !std::mem::replace(&mut sighting.is_checked, true)
                });
                Err(())
            }
        }
    }
}

/// Result of an inspection.
struct Found {
    is_changed: bool,
    /// Time until the next inspection if no hint arrives.
    pause: Duration,
}

/// Waits for a hint. Never returns in a store without hints.
async fn changed(watch: Option<&mut (dyn Watch + 'static)>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => pending().await,
    }
}

impl Shared {
    /// Returns the interval of inspections while no hint arrives.
    fn interval(&self) -> Duration {
        (self.ttl / 3).max(MIN_INTERVAL)
    }

    /// Publishes the holder of the lock, from the reply to an inspection that was sent at `sent`.
    fn publish(&self, holder: Option<Contender>, sent: Moment) -> Found {
        let holder = holder.map(Arc::new);
        let ttl_left = holder.as_ref().and_then(|holder| holder.ttl_left);
        // Counted from before the request, because this process may have read the reply long after
        // the store sent it.
        let claim_ends = ttl_left.map(|left| sent.after(left));
        let mut trusted_until = sent.after(self.ttl.max(3 * MIN_INTERVAL));
        if let Some(claim_ends) = claim_ends {
            // The inspection at the end of the claim needs time for its reply.
            trusted_until = trusted_until.min(claim_ends.after(self.interval()));
        }
        let is_changed = self.sighting.send_if_modified(|sighting| {
            // Observers compare `trusted_until` and `claim_ends` with the clocks themselves. Once
            // one of these times has passed, an observer no longer reports the holder as the
            // leader. It must therefore be notified even if the holder is the same.
            let was_outdated =
                sighting.trusted_until.has_passed() || sighting.claim_ends.is_some_and(Moment::has_passed);
            let is_changed =
                sighting.is_stale || was_outdated || !is_same(sighting.holder.as_deref(), holder.as_deref());
            *sighting = Sighting {
                holder,
                claim_ends,
                replied_at: sent,
                trusted_until,
                is_stale: false,
                error: None,
                is_checked: true,
            };
            is_changed
        });
        // A millisecond more, because stores report whole milliseconds.
        let pause = claim_ends.map_or(self.interval(), |end| {
            self.interval().min(end.remaining().saturating_add(Duration::from_millis(1)))
        });
        Found { is_changed, pause }
    }

    /// Marks each sighting as stale when it can no longer be relied on. Never returns.
    async fn mark_stale(&self) {
        let mut latest = self.sighting.subscribe();
        loop {
            let until = {
                let sighting = latest.borrow_and_update();
                (!sighting.is_stale).then_some(sighting.trusted_until)
            };
            let ends = async {
                match until {
                    Some(until) => sleep_until(until.instant()).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                // Fails only without a sender, which `self` has.
                _ = latest.changed() => {}
                () = ends => {
                    self.sighting.send_if_modified(|sighting| {
                        let ends = !sighting.is_stale && sighting.trusted_until.has_passed();
                        sighting.is_stale |= ends;
                        ends
                    });
                }
            }
        }
    }
}

/// Returns whether both are the same holder. Its remaining time does not matter.
fn is_same(a: Option<&Contender>, b: Option<&Contender>) -> bool {
    let identity = |holder: &Contender| (holder.id.clone(), holder.token, holder.who.clone());
    a.map(identity) == b.map(identity)
}
