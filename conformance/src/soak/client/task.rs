//! A task of a client process. It requests one lock after the other, holds it, queries its guard, and
//! releases it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Error, Guard, Kind, LockOptions, Locks, Wait};
use fastrand::Rng;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    super::{
        clock::{nanos, now},
        event::{End, Event, Queued},
        plan::{PERMITS, Plan},
    },
    describe,
    place::Place,
    record,
};

/// Longest of the short holds, which are most of all holds.
const SHORT_HOLD: Duration = Duration::from_millis(20);

/// One of this number of holds is long, so that it is renewed and meets faults.
const LONG_HOLDS: u32 = 48;

/// Number of queries of a guard in a ttl.
const CHECKS_PER_TTL: u32 = 10;

/// Longest pause of a task between two acquisitions.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Pause of a task after a transient error, as a user of the library would make.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Task {
    pub(super) plan: Arc<Plan>,
    pub(super) locks: Locks,
    /// Number of acquisitions of the process.
    pub(super) numbers: Arc<AtomicU64>,
    /// True when the client is to end.
    pub(super) stopping: watch::Receiver<bool>,
}

/// How a task requests a lock.
enum Request {
    Try,
    Wait(Wait),
    /// The future is dropped after this time.
    Drop(Duration),
}

impl Plan {
    /// Returns the options of all requests. The wait limit is set for each request.
    pub(super) fn options(&self) -> LockOptions {
        LockOptions::new().ttl(self.ttl)
    }
}

impl Task {
    /// Requests locks until the client is to end.
    pub(super) async fn run(mut self, number: usize) {
        let mut dice = Rng::with_seed(self.plan.seed ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        while !*self.stopping.borrow() {
            sleep(LONGEST_PAUSE.mul_f64(dice.f64())).await;
            let name = dice.usize(..self.plan.names.len());
            let kinds = &self.plan.names[name].kinds;
            let kind = kinds[dice.usize(..kinds.len())];
            let request = self.request(&mut dice);
            let of = self.numbers.fetch_add(1, Relaxed);
            let wait = match &request {
                Request::Wait(Wait::For(limit)) => Some(nanos(*limit)),
                Request::Wait(_) => None,
                Request::Try => Some(0),
                Request::Drop(after) => Some(nanos(*after)),
            };
            record(&Event::Attempt { of, at: now(), name, kind, wait });
            let place = Place::default();
            match place.record(self.acquire(name, kind, &request)).await {
                Ok(guard) => self.hold(of, guard, place.queued(), &mut dice).await,
                Err(how) => {
                    let failed = matches!(how, End::Failed(_) | End::Refused(_));
                    record(&Event::Ended { of, at: now(), how, queued: place.queued() });
                    if failed {
                        sleep(ERROR_PAUSE).await;
                    }
                }
            }
        }
    }

    fn request(&self, dice: &mut Rng) -> Request {
        let limit = self.plan.longest_wait().mul_f64(dice.f64());
        match dice.u8(..20) {
            0..2 => Request::Try,
            2..5 => Request::Drop(limit / 4),
            5..7 => Request::Wait(Wait::Forever),
            _ => Request::Wait(Wait::For(limit.max(Duration::from_millis(1)))),
        }
    }

    async fn acquire(&self, name: usize, kind: Kind, request: &Request) -> Result<Guard, End> {
        let name = &self.plan.names[name].name;
        let options = self.plan.options();
        let acquired = async {
            let wait = match request {
                Request::Wait(wait) => *wait,
                Request::Try => Wait::Never,
                Request::Drop(_) => Wait::Forever,
            };
            let options = options.wait(wait);
            if kind == Kind::Permit {
                let semaphore = self.locks.semaphore(name, PERMITS);
                let lock: Arc<dyn dlock_core::DistributedLock> = semaphore.into();
                return take(&*lock, &options, wait).await;
            }
            take(&*self.locks.of(kind, name), &options, wait).await
        };
        let limit = if let Request::Drop(after) = request { *after } else { Duration::MAX };
        match timeout(limit, acquired).await {
            Err(_) => Err(End::Dropped),
            Ok(Ok(guard)) => guard.ok_or(End::Busy),
            Ok(Err(error)) => Err(end_of(&error)),
        }
    }

    async fn hold(&mut self, of: u64, guard: Guard, queued: Option<Queued>, dice: &mut Rng) {
        let at = now();
        record(&Event::Grant { of, at, token: guard.token(), left: nanos(guard.remaining()), queued });
        let longest = if dice.u32(..LONG_HOLDS) == 0 { self.plan.longest_hold() } else { SHORT_HOLD };
        let until = Instant::now() + longest.mul_f64(dice.f64());
        while Instant::now() < until && !*self.stopping.borrow() {
            let pause = (until - Instant::now()).min(self.plan.ttl / CHECKS_PER_TTL);
            let mut stopping = self.stopping.clone();
            tokio::select! {
                () = sleep(pause) => {}
                _ = guard.lost() => {}
                _ = stopping.wait_for(|stops| *stops) => {}
            }
            if !check(of, &guard) {
                return self.lose(of, guard).await;
            }
        }
        if dice.u8(..4) == 0 {
            record(&Event::Release { of, at: now(), dropped: true });
            return drop(guard);
        }
        record(&Event::Release { of, at: now(), dropped: false });
        match guard.release().await {
            Ok(()) => record(&Event::Released { of, at: now() }),
            Err(Error::Lost { reason, .. }) => record(&Event::Lost { of, at: now(), reason: reason.into() }),
            // The keeper continues with the release.
            Err(error) => record(&Event::Ended { of, at: now(), how: end_of(&error), queued }),
        }
    }

    /// Records the loss, and queries the guard once more: a lost guard must stay lost.
    async fn lose(&self, of: u64, guard: Guard) {
        let reason = guard.lost().await;
        record(&Event::Lost { of, at: now(), reason: reason.into() });
        check(of, &guard);
    }
}

async fn take(
    lock: &dyn dlock_core::DistributedLock,
    options: &LockOptions,
    wait: Wait,
) -> dlock_core::Result<Option<Guard>> {
    if wait == Wait::Never { lock.try_lock(options).await } else { lock.lock(options).await.map(Some) }
}

/// Queries the guard and records its reply. Returns whether it is held.
fn check(of: u64, guard: &Guard) -> bool {
    let at = now();
    let left = nanos(guard.remaining());
    let held = !guard.is_lost();
    record(&Event::Check { of, at, until: now(), held, left });
    held
}

fn end_of(error: &Error) -> End {
    match error {
        Error::Timeout { .. } => End::TimedOut,
        error if error.is_transient() => End::Failed(describe(error)),
        error => End::Refused(describe(error)),
    }
}
