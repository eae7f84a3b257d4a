//! Several connections of one client, of which each call uses the least busy one.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

use super::{CallCounter, Connect, CountedCall, Link, LiveConnection, StoreErrors};
use crate::model::{Error, Result};

/// Time after a failure to open a lane's connection. During this time the lane is used only if all
/// lanes have failed.
const FAILED_LANE_AVOIDANCE: Duration = Duration::from_secs(1);

/// Load that a lane without an open connection has in addition to its calls, when a call prefers
/// open connections. Such a call opens another connection only if every open lane has at least this
/// many more calls.
const UNOPENED_LOAD: usize = 2;

/// Time that a call of [`Lanes::open_avoiding_slow`] waits for one connection to open before it
/// uses another lane. Most servers, even busy ones, accept a connection in less time, so few
/// attempts to connect are dropped.
const SLOW_OPENING: Duration = Duration::from_millis(500);

/// The connections that the calls of one client share. The first lanes can be reserved for calls
/// that must not wait behind others.
///
/// ```
/// use dlock_core::{Result, driver::{CallCounter, Connect, Lanes, Link, StoreErrors}};
/// use std::time::Duration;
/// use tokio::time::Instant;
/// const STORE: StoreErrors = StoreErrors::new("table");
/// const TIMEOUT: Duration = Duration::from_secs(3);
///
/// struct Server; // and its address
///
/// impl Connect for Server {
///     type Connection = (); // the client crate's
///     async fn connect(&self) -> Result<()> { Ok(()) }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let lane = || (Link::new(STORE, TIMEOUT, Server), CallCounter::default());
/// let lanes = Lanes::new(STORE, [lane(), lane()]);
/// let (deadline, mut failed) = (Instant::now() + TIMEOUT, 0);
/// loop {
///     // The first lane is reserved for other calls.
///     if let Some(open) = lanes.open_least_busy(1, false, deadline, TIMEOUT, &mut failed).await? {
///         let () = open.live.connection; // … a request through it
///         open.lane.note_reply();
///         break;
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Lanes<C: Connect> {
    errors: StoreErrors,
    lanes: Vec<Lane<C>>,
    /// Notifies calls that wait for any connection to open.
    opened: Notify,
}

/// A lane that was chosen for a call, with its open connection.
pub struct OpenLane<'a, C: Connect> {
    /// The lane.
    pub lane: &'a Lane<C>,
    /// The connection of the lane.
    pub live: LiveConnection<C::Connection>,
    /// Counts the call until it is dropped.
    pub counted: CountedCall<'a>,
}

/// One connection of a client, open or not, with the number of calls that use it.
pub struct Lane<C: Connect> {
    link: Link<C>,
    calls: CallCounter,
    is_open: AtomicBool,
    /// Time of the last failure to open the connection, if it has not been opened since.
    failed_at: Mutex<Option<Instant>>,
}

impl<C: Connect> Lanes<C> {
    /// Creates a lane for each link, with the counter of its calls. A driver that makes some calls
    /// on a certain connection counts these with the same counter.
    ///
    /// # Panics
    /// Without a link.
    pub fn new(errors: StoreErrors, links: impl IntoIterator<Item = (Link<C>, CallCounter)>) -> Self {
        let lane =
            |(link, calls)| Lane { link, calls, is_open: AtomicBool::default(), failed_at: Mutex::default() };
        let lanes: Vec<_> = links.into_iter().map(lane).collect();
        assert!(!lanes.is_empty(), "a client needs a lane");
        Self { errors, lanes, opened: Notify::new() }
    }

    /// Returns the lane with the fewest calls and its connection, and opens the connection if there
    /// is none. Returns `None` if the connection cannot be opened but another lane may work. This
    /// happens if the server allows fewer connections than there are lanes. The caller then calls
    /// this method again.
    ///
    /// `failed` counts the lanes that could not be opened for one call to the store. It is zero
    /// before the first try, and each further try gets the same counter.
    ///
    /// A lane that failed to open within the last second, and the first `reserved` lanes, are
    /// chosen only if there is no other. With `prefers_open`, a lane that must first open its
    /// connection counts as busier by two calls.
    ///
    /// # Errors
    /// If no lane works. After `deadline`, the error states `timeout` as the time limit of the
    /// call.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open_least_busy(
        &self,
        reserved: usize,
        prefers_open: bool,
        deadline: Instant,
        timeout: Duration,
        failed: &mut usize,
    ) -> Result<Option<OpenLane<'_, C>>> {
        let (lane, counted) = self.least_busy(reserved, prefers_open);
        let live = self.open(lane, deadline, timeout, failed).await?;
        Ok(live.map(|live| OpenLane { lane, live, counted }))
    }

    /// Chooses a lane as [`open_least_busy`](Self::open_least_busy), and counts a call for it.
    fn least_busy(&self, reserved: usize, prefers_open: bool) -> (&Lane<C>, CountedCall<'_>) {
        let rank = |(index, lane): &(usize, &Lane<C>)| {
            let is_opening = prefers_open && !lane.is_open.load(Relaxed);
            let load = lane.calls.calls() + if is_opening { UNOPENED_LOAD } else { 0 };
            (lane.failed_recently(), *index < reserved, load)
        };
        let (_, lane) = self.lanes.iter().enumerate().min_by_key(rank).expect("there is a lane");
        (lane, lane.calls.count())
    }

    /// Returns the connection of a lane, as [`open_least_busy`](Self::open_least_busy).
    async fn open(
        &self,
        lane: &Lane<C>,
        deadline: Instant,
        timeout: Duration,
        failed: &mut usize,
    ) -> Result<Option<LiveConnection<C::Connection>>> {
        let opened = timeout_at(deadline, lane.link.live()).await;
        let opened = opened.unwrap_or_else(|_| Err(self.errors.timed_out(timeout)));
        if lane.record(opened.is_ok()) {
            self.opened.notify_waiters();
        }
        let error = match opened {
            Ok(live) => return Ok(Some(live)),
            Err(error) => error,
        };
        *failed += 1;
        let may_work = *failed < self.lanes.len() && self.lanes.iter().any(|lane| !lane.failed_recently());
        if may_work && Instant::now() < deadline { Ok(None) } else { Err(error) }
    }

    /// Opens the least busy lane as [`open_least_busy`](Self::open_least_busy) does, without
    /// reserved lanes and with a preference for open connections. If opening takes longer than half
    /// a second, returns the least busy of the other lanes with an open connection as soon as there
    /// is one. This is for calls that must not wait for one slow connection, such as renewals.
    ///
    /// An attempt to connect that began while the server did not reply may never get a reply. It
    /// then ends with its own timeout, long after other lanes have reached the server.
    ///
    /// # Errors
    /// As [`open_least_busy`](Self::open_least_busy).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open_avoiding_slow(
        &self,
        deadline: Instant,
        timeout: Duration,
        failed: &mut usize,
    ) -> Result<Option<OpenLane<'_, C>>> {
        let (lane, counted) = self.least_busy(0, true);
        tokio::select! {
            biased;
            opened = self.open(lane, deadline, timeout, failed) => {
                Ok(opened?.map(|live| OpenLane { lane, live, counted }))
            }
            other = self.open_lane_beside(lane) => Ok(Some(other)),
        }
    }

    /// Returns the connections that are open, for a client that closes.
    pub fn open_connections(&self) -> impl Iterator<Item = C::Connection> {
        self.lanes.iter().filter_map(|lane| Some(lane.link.if_open()?.connection))
    }

    /// Waits for [`SLOW_OPENING`], and then until a lane other than `slow` has an open connection.
    /// Returns the least busy of these lanes.
    async fn open_lane_beside(&self, slow: &Lane<C>) -> OpenLane<'_, C> {
        sleep(SLOW_OPENING).await;
        loop {
            // The notification is requested before the lanes are read, so that no opening is
            // missed.
            let opened = self.opened.notified();
            let others = self.lanes.iter().filter(|lane| !std::ptr::eq(*lane, slow));
            let open = others.filter_map(|lane| Some((lane, lane.link.if_open()?)));
            if let Some((lane, live)) = open.min_by_key(|(lane, _)| lane.calls.calls()) {
                return OpenLane { lane, live, counted: lane.calls.count() };
            }
            opened.await;
        }
    }
}

impl<C: Connect> fmt::Debug for Lanes<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.lanes).finish()
    }
}

impl<C: Connect> fmt::Debug for OpenLane<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenLane").field(self.lane).finish()
    }
}

impl<C: Connect> fmt::Debug for Lane<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} with {} calls", self.link, self.calls.calls())
    }
}

impl<C: Connect> Lane<C> {
    /// Records that the server has replied, see [`Link::note_reply`].
    pub fn note_reply(&self) {
        self.link.note_reply();
    }

    /// Gives up the connection of a call that has failed, see [`Link::give_up`].
    pub fn give_up(&self, live: &LiveConnection<C::Connection>, error: Error) -> Error {
        self.is_open.store(false, Relaxed);
        self.link.give_up(live, error)
    }

    /// Records whether the connection is open. Returns whether it was not open before and is now.
    fn record(&self, is_open: bool) -> bool {
        let was_open = self.is_open.swap(is_open, Relaxed);
        let failed_at = (!is_open).then(Instant::now);
        *self.failed_at.lock() = failed_at;
        is_open && !was_open
    }

    fn failed_recently(&self) -> bool {
        let failed_at = *self.failed_at.lock();
        failed_at.is_some_and(|at| at.elapsed() < FAILED_LANE_AVOIDANCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, atomic::AtomicUsize};

    const STORE: StoreErrors = StoreErrors::new("table");
    const TIMEOUT: Duration = Duration::from_secs(3);

    /// A server that allows a number of connections.
    #[derive(Clone)]
    struct Server(Arc<AtomicUsize>);

    impl Connect for Server {
        type Connection = ();

        async fn connect(&self) -> Result<()> {
            let allowed = self.0.fetch_update(Relaxed, Relaxed, |allowed| allowed.checked_sub(1));
            allowed.map(drop).map_err(|_| STORE.unavailable("too many connections"))
        }
    }

    fn lanes(count: usize, allowed: usize) -> Lanes<Server> {
        let server = Server(Arc::new(AtomicUsize::new(allowed)));
        let lane = |_| (Link::new(STORE, TIMEOUT, server.clone()), CallCounter::default());
        Lanes::new(STORE, (0..count).map(lane))
    }

    fn index_of(lanes: &Lanes<Server>, lane: &Lane<Server>) -> usize {
        lanes.lanes.iter().position(|other| std::ptr::eq(other, lane)).expect("one of them")
    }

    /// Opens the least busy lane, as a call does. Returns the index of the lane.
    async fn open(lanes: &Lanes<Server>) -> Result<usize> {
        let (deadline, mut failed) = (Instant::now() + TIMEOUT, 0);
        loop {
            let (lane, _counted) = lanes.least_busy(0, false);
            if lanes.open(lane, deadline, TIMEOUT, &mut failed).await?.is_some() {
                return Ok(index_of(lanes, lane));
            }
        }
    }

    #[test]
    fn a_call_uses_the_lane_with_the_fewest_calls_that_is_not_reserved() {
        let lanes = lanes(3, 3);
        let (first, _one) = lanes.least_busy(1, false);
        let (second, _two) = lanes.least_busy(1, false);
        let (third, _three) = lanes.least_busy(1, false);
        assert_eq!([first, second, third].map(|lane| index_of(&lanes, lane)), [1, 2, 1]);
        let (reserved, _four) = lanes.least_busy(0, false);
        assert_eq!(index_of(&lanes, reserved), 0);
        drop(_three);
        let (again, _five) = lanes.least_busy(1, false);
        assert_eq!(index_of(&lanes, again), 1, "a call that has ended still counts");
    }

    #[test]
    fn the_only_lane_is_used_although_it_is_reserved() {
        let lanes = lanes(1, 1);
        assert_eq!(index_of(&lanes, lanes.least_busy(1, false).0), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_connection_is_preferred_until_it_is_busy() {
        let lanes = lanes(2, 2);
        assert_eq!(open(&lanes).await.unwrap(), 0);
        let (first, _one) = lanes.least_busy(0, true);
        let (second, _two) = lanes.least_busy(0, true);
        let (third, _three) = lanes.least_busy(0, true);
        assert_eq!([first, second, third].map(|lane| index_of(&lanes, lane)), [0, 0, 0]);
        let (fourth, _four) = lanes.least_busy(0, true);
        assert_eq!(index_of(&lanes, fourth), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_allows_fewer_connections_is_used_with_these() {
        let lanes = lanes(3, 1);
        assert_eq!(open(&lanes).await.unwrap(), 0);
        let (_busy, _counted) = lanes.least_busy(0, false);
        assert_eq!(open(&lanes).await.unwrap(), 0, "the lanes without a connection were not passed over");
        for _ in 0..5 {
            assert_eq!(index_of(&lanes, lanes.least_busy(0, false).0), 0, "a lane that failed is used");
        }
    }

    /// A server that never replies to the first connection.
    #[derive(Clone, Default)]
    struct SilentAtFirst(Arc<AtomicUsize>);

    impl Connect for SilentAtFirst {
        type Connection = ();

        async fn connect(&self) -> Result<()> {
            if self.0.fetch_add(1, Relaxed) == 0 { std::future::pending().await } else { Ok(()) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_must_be_soon_leaves_a_lane_that_does_not_open() {
        let server = SilentAtFirst::default();
        let lane = |_| (Link::new(STORE, TIMEOUT, server.clone()), CallCounter::default());
        let lanes = Lanes::new(STORE, (0..2).map(lane));
        let (start, deadline) = (Instant::now(), Instant::now() + TIMEOUT);
        let (mut failed, mut failed_beside) = (0, 0);
        let soon = async {
            let opened = lanes.open_avoiding_slow(deadline, TIMEOUT, &mut failed).await;
            (opened.expect("the other lane works").expect("the other lane is open"), start.elapsed())
        };
        let beside = async {
            sleep(SLOW_OPENING * 2).await;
            let (other, _counted) = lanes.least_busy(1, false);
            lanes.open(other, deadline, TIMEOUT, &mut failed_beside).await.expect("the server replies");
        };
        let ((opened, waited), ()) = tokio::join!(soon, beside);
        assert!(std::ptr::eq(opened.lane, &lanes.lanes[1]), "the silent lane is used");
        assert_eq!(waited, SLOW_OPENING * 2, "the call waited longer than until the other lane was open");
        drop(opened);
        assert_eq!(
            lanes.lanes.iter().map(|lane| lane.calls.calls()).sum::<usize>(),
            0,
            "a call still counts"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn without_any_connection_the_error_is_returned() {
        let error = open(&lanes(3, 0)).await.expect_err("the server allows none");
        assert!(format!("{error:?}").contains("too many connections"), "{error:?}");
    }
}
