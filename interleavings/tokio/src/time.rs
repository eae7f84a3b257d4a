//! A virtual clock. Time passes only in the thread of the clock, from one timer to the next.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    ops::{Add, AddAssign, Sub},
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use shuttle::{current, scheduler::TaskId, thread};

/// Time at which each execution begins. Code that subtracts from the current time does not get
/// below zero.
const START: Instant = Instant(Duration::from_secs(1_000_000));

/// Virtual time after which an execution has failed. None needs as much.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

thread_local! {
    // shuttle runs all threads of an execution on one thread of the system.
    static CLOCK: RefCell<Clock> = const { RefCell::new(Clock::new()) };
}

struct Clock {
    now: Instant,
    timers: BTreeMap<(Instant, u64), Waker>,
    /// Number of the next timer.
    next_number: u64,
    thread: Option<TaskId>,
    is_alone: bool,
    has_ended: bool,
}

impl Clock {
    const fn new() -> Self {
        Self {
            now: START,
            timers: BTreeMap::new(),
            next_number: 0,
            thread: None,
            is_alone: false,
            has_ended: false,
        }
    }
}

/// Starts the clock of an execution. Time passes whenever the scheduler selects the thread that
/// calls this. Returns after [`end_clock`].
///
/// # Panics
/// If all other threads wait and no timer is set, which is a deadlock, or if the execution does not
/// end within a day of virtual time.
pub fn run_clock() {
    CLOCK.with_borrow_mut(|clock| clock.thread = Some(current::me()));
    loop {
        // Only from here on the scheduler knows the thread of the clock.
        thread::yield_now();
        let next = CLOCK.with_borrow_mut(|clock| {
            assert!(clock.now - START < LIMIT, "no end within {LIMIT:?} of virtual time");
            let timer = clock.timers.pop_first();
            assert!(
                timer.is_some() || !clock.is_alone || clock.has_ended,
                "all threads wait, and no timer is set"
            );
            let ((at, _), waker) = timer?;
            clock.now = clock.now.max(at);
            Some(waker)
        });
        if let Some(waker) = next {
            waker.wake();
        }
        if CLOCK.with_borrow(|clock| clock.has_ended) {
            return;
        }
    }
}

/// Resets the clock for the next execution.
pub fn reset_clock() {
    // Wakers are dropped after the borrow ends.
    drop(CLOCK.replace(Clock::new()));
}

/// Ends the thread of the clock.
pub fn end_clock() {
    CLOCK.with_borrow_mut(|clock| clock.has_ended = true);
}

/// Returns the thread of the clock, for the scheduler.
pub fn clock_thread() -> Option<TaskId> {
    CLOCK.with_borrow(|clock| clock.thread)
}

/// Records whether the clock's thread is the only one that can continue.
pub fn set_alone(is_alone: bool) {
    CLOCK.with_borrow_mut(|clock| clock.is_alone = is_alone);
}

/// A point in virtual time.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Instant(Duration);

impl Instant {
    /// Returns the current time.
    pub fn now() -> Self {
        CLOCK.with_borrow(|clock| clock.now)
    }

    /// Returns the time since this point, or zero if it is in the future.
    pub fn elapsed(self) -> Duration {
        Self::now().duration_since(self)
    }

    /// Returns the time since an earlier point, or zero if that point is later.
    pub fn duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Does the same as [`duration_since`](Self::duration_since).
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }

    /// Returns the point `span` later.
    pub fn checked_add(self, span: Duration) -> Option<Self> {
        self.0.checked_add(span).map(Self)
    }

    /// Returns the point `span` earlier.
    pub fn checked_sub(self, span: Duration) -> Option<Self> {
        self.0.checked_sub(span).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0 + span)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        self.0 += span;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0 - span)
    }
}

/// A timer.
#[derive(Debug)]
pub struct Sleep {
    deadline: Instant,
    /// Number of the timer, once it is set.
    number: Option<u64>,
}

/// Returns a timer that ends in `span`.
pub fn sleep(span: Duration) -> Sleep {
    sleep_until(Instant::now() + span)
}

/// Returns a timer that ends at `deadline`.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, number: None }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        crate::switch();
        let deadline = self.deadline;
        CLOCK.with_borrow_mut(|clock| {
            if clock.now >= deadline {
                return Poll::Ready(());
            }
            let number = *self.number.get_or_insert_with(|| {
                clock.next_number += 1;
                clock.next_number
            });
            clock.timers.insert((deadline, number), context.waker().clone());
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = CLOCK.with_borrow_mut(|clock| clock.timers.remove(&(self.deadline, number)));
            drop(waker);
        }
    }
}

/// The error of a future that has not ended in time.
#[derive(Debug, Eq, PartialEq)]
pub struct Elapsed(());

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deadline has elapsed")
    }
}

impl std::error::Error for Elapsed {}

/// Waits for a future for at most `span`.
///
/// # Errors
/// The future has not ended in time.
pub async fn timeout<T>(span: Duration, future: impl IntoFuture<Output = T>) -> Result<T, Elapsed> {
    timeout_at(Instant::now() + span, future).await
}

/// Waits for a future until `deadline` at the latest.
///
/// # Errors
/// The future has not ended in time.
pub async fn timeout_at<T>(deadline: Instant, future: impl IntoFuture<Output = T>) -> Result<T, Elapsed> {
    tokio_original::select! {
        biased;
        value = future.into_future() => Ok(value),
        () = sleep_until(deadline) => Err(Elapsed(())),
    }
}
