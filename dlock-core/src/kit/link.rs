//! A connection that many callers share. The first caller that needs the connection opens it. After
//! it breaks, one caller at a time opens it again.

use std::{
    fmt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{Backoff, SharedError, StoreErrors};
use crate::model::{Error, Result};

/// Maximum time that a caller waits for the next attempt to become due. If the attempt is due
/// later, the caller gets the last error at once, because it may have little time.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// How a [`Link`] opens its connections.
pub trait Connect: Send + Sync {
    /// A connection. Its clones share one connection.
    type Connection: Clone + Send;

    /// Opens a connection. Must bound its own I/O.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection>> + Send;

    /// Called after a new connection has replaced a broken one. The attempt began at `since`, and
    /// the new connection may lead to another server. Default: nothing.
    fn reconnected(&self, since: Instant) {
        let _ = since;
    }

    /// Returns whether the connection reopens itself after a break. The link never gives up such a
    /// connection. Default: false.
    fn reconnects_itself(&self, connection: &Self::Connection) -> bool {
        let _ = connection;
        false
    }
}

/// A connection that all claims of a client share.
///
/// The link reopens the connection when it breaks, with a pause after each failure ([`Backoff`]).
/// Callers that need the connection at the same time share one attempt.
///
/// ```
/// use dlock_core::{Result, driver::{Connect, Link, StoreErrors}};
/// use std::time::Duration;
/// const STORE: StoreErrors = StoreErrors::new("table");
///
/// struct Server; // and its address
///
/// impl Connect for Server {
///     type Connection = (); // the client crate's
///     async fn connect(&self) -> Result<()> {
///         STORE.with_timeout(Duration::from_secs(3), async { Ok(()) }).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let link = Link::new(STORE, Duration::from_secs(3), Server);
/// let live = link.live().await?;
/// let result: Result<()> = Ok(live.connection); // … a request through it
/// match result {
///     Ok(()) => link.note_reply(),
///     // If the connection broke, or the request timed out.
///     Err(error) => return Err(link.give_up(&live, error)),
/// }
/// # Ok(()) }
/// ```
pub struct Link<C: Connect> {
    errors: StoreErrors,
    /// Maximum time that a caller waits for the attempt of another caller.
    limit: Duration,
    connect: C,
    /// The open connection. Empty at first and after a break.
    current: Mutex<Option<LiveConnection<C::Connection>>>,
    /// State of the attempts. The caller that opens the connection holds the lock.
    opening: tokio::sync::Mutex<Opening>,
    /// Number of failed attempts.
    failed_attempts: AtomicU64,
    /// Last failure. Empty after a connection has worked.
    last_error: Mutex<Option<SharedError>>,
    /// Whether the server has replied on the current connection.
    has_replied: AtomicBool,
}

struct Opening {
    backoff: Backoff,
    /// Number of connections opened so far.
    opened: u64,
}

/// The current connection of a link.
#[derive(Clone, Debug)]
pub struct LiveConnection<C> {
    number: u64,
    /// Connection for sending requests.
    pub connection: C,
}

impl<C> LiveConnection<C> {
    /// Returns the number of the connection, which is different for each connection of the link.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl<C: Connect> Link<C> {
    /// Creates a link that is opened when it is first needed. `limit` is the maximum time that a
    /// caller waits for the attempt of another caller. Pass the timeout of a call.
    pub fn new(errors: StoreErrors, limit: Duration, connect: C) -> Self {
        Self {
            errors,
            limit,
            connect,
            current: Mutex::new(None),
            opening: tokio::sync::Mutex::new(Opening { backoff: Backoff::foreground(), opened: 0 }),
            failed_attempts: AtomicU64::new(0),
            last_error: Mutex::new(None),
            has_replied: AtomicBool::new(false),
        }
    }

    /// Creates a link with a connection that is already open.
    pub fn with_connection(
        errors: StoreErrors,
        limit: Duration,
        connect: C,
        connection: C::Connection,
    ) -> Self {
        let mut link = Self::new(errors, limit, connect);
        link.opening.get_mut().opened = 1;
        *link.current.lock() = Some(LiveConnection { number: 1, connection });
        link
    }

    /// Returns the connection, and opens it if there is none. If another caller is opening it, this
    /// call waits for the result, at most `limit`. If the next attempt is due in more than 250 ms,
    /// the call returns the last error at once.
    ///
    /// # Errors
    /// If the connection cannot be opened.
    ///
    /// # Cancel safety
    /// Safe. If an attempt is dropped, the next caller makes another.
    pub async fn live(&self) -> Result<LiveConnection<C::Connection>> {
        match self.if_open() {
            Some(live) => Ok(live),
            // Boxed because this future is large, is needed rarely, and is a part of the future of
            // every call.
            None => Box::pin(self.open()).await,
        }
    }

    async fn open(&self) -> Result<LiveConnection<C::Connection>> {
        let failed_before = self.failed_attempts.load(Relaxed);
        let timed_out = |_| self.errors.timed_out(self.limit);
        let mut opening = timeout(self.limit, self.opening.lock()).await.map_err(timed_out)?;
        if let Some(live) = self.if_open() {
            return Ok(live);
        }
        if self.has_replied.swap(false, Relaxed) {
            opening.backoff.note_reply();
            *self.last_error.lock() = None;
        }
        let next_attempt = opening.backoff.next_attempt();
        if let Some(error) = &*self.last_error.lock()
            && (self.failed_attempts.load(Relaxed) != failed_before
                || next_attempt > Instant::now() + MAX_PAUSE)
        {
            return Err(error.error());
        }
        opening.backoff.pause().await;
        opening.backoff.note_attempt();
        let began = Instant::now();
        let connection = match self.connect.connect().await {
            Ok(connection) => connection,
            Err(error) => {
                *self.last_error.lock() = Some(self.errors.share(&error));
                self.failed_attempts.fetch_add(1, Relaxed);
                return Err(error);
            }
        };
        opening.opened += 1;
        let live = LiveConnection { number: opening.opened, connection };
        *self.current.lock() = Some(live.clone());
        if opening.opened > 1 {
            self.connect.reconnected(began);
        }
        Ok(live)
    }

    /// Returns the connection if it is open.
    pub(super) fn if_open(&self) -> Option<LiveConnection<C::Connection>> {
        self.current.lock().clone()
    }

    /// Records that the server has replied on the connection. Do not call it for a reply in which
    /// the server refuses to serve this connection.
    pub fn note_reply(&self) {
        if !self.has_replied.load(Relaxed) {
            self.has_replied.store(true, Relaxed);
        }
    }

    /// Gives a connection up because of this error, and returns the error. The next call of
    /// [`live`](Self::live) opens another connection. Does nothing if the connection was given up
    /// already.
    pub fn give_up(&self, live: &LiveConnection<C::Connection>, error: Error) -> Error {
        let is_this = |current: &mut LiveConnection<C::Connection>| {
            current.number == live.number && !self.connect.reconnects_itself(&current.connection)
        };
        let given_up = self.current.lock().take_if(is_this);
        if given_up.is_some() && !self.has_replied.load(Relaxed) {
            *self.last_error.lock() = Some(self.errors.share(&error));
        }
        error
    }
}

impl<C: Connect> fmt::Debug for Link<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.current.lock().is_some() { "open" } else { "closed" };
        write!(f, "Link({} {state})", self.errors.store())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use tokio::time::{advance, sleep};

    const STORE: StoreErrors = StoreErrors::new("table");
    const LIMIT: Duration = Duration::from_secs(3);
    /// Duration of an attempt to connect.
    const CONNECT_TIME: Duration = Duration::from_millis(100);

    #[derive(Default)]
    struct Server {
        attempts: AtomicU64,
        /// Whether attempts fail.
        is_down: AtomicBool,
        /// Number of calls of [`Connect::reconnected`].
        reconnected: AtomicU64,
    }

    impl Connect for &Server {
        type Connection = u64;

        async fn connect(&self) -> Result<u64> {
            let attempt = self.attempts.fetch_add(1, Relaxed) + 1;
            sleep(CONNECT_TIME).await;
            if self.is_down.load(Relaxed) {
                return Err(STORE.unavailable(format!("attempt {attempt}")));
            }
            Ok(attempt)
        }

        fn reconnected(&self, _: Instant) {
            self.reconnected.fetch_add(1, Relaxed);
        }
    }

    fn link(server: &Server) -> Link<&Server> {
        Link::new(STORE, LIMIT, server)
    }

    impl Server {
        fn attempts(&self) -> u64 {
            self.attempts.load(Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_attempt_and_its_outcome() {
        let server = Server::default();
        let link = link(&server);
        for live in join_all((0..10).map(|_| link.live())).await {
            assert_eq!(live.expect("open").connection, 1);
        }
        let broken = link.live().await.unwrap();
        server.is_down.store(true, Relaxed);
        link.give_up(&broken, STORE.unavailable("broke"));
        for live in join_all((0..10).map(|_| link.live())).await {
            assert!(live.expect_err("down").is_transient());
        }
        assert_eq!(server.attempts(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn not_every_caller_connects_to_a_server_that_is_down() {
        let server = Server { is_down: true.into(), ..Server::default() };
        let (link, start) = (link(&server), Instant::now());
        while start.elapsed() < Duration::from_secs(20) {
            let began = Instant::now();
            link.live().await.expect_err("down");
            assert!(
                began.elapsed() <= MAX_PAUSE + CONNECT_TIME,
                "a caller got the error late, although it may have little time"
            );
            sleep(Duration::from_millis(10)).await;
        }
        assert!((10..30).contains(&server.attempts()), "{} attempts in 20 s", server.attempts());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_worked_and_broke_is_reopened_at_once() {
        let server = Server::default();
        let link = link(&server);
        let live = link.live().await.unwrap();
        link.note_reply();
        advance(Duration::from_secs(1)).await;
        link.give_up(&live, STORE.unavailable("broke"));
        let began = Instant::now();
        let next = link.live().await.expect("open again");
        assert_eq!((next.connection, began.elapsed()), (2, CONNECT_TIME));
        assert_eq!(server.reconnected.load(Relaxed), 1);
        // The error of a request on the old connection must not end the new connection.
        link.give_up(&live, STORE.unavailable("broke"));
        assert_eq!(link.live().await.unwrap().connection, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_passed_in_is_replaced_like_any_other() {
        let server = Server::default();
        let link = Link::with_connection(STORE, LIMIT, &server, 7);
        let live = link.live().await.unwrap();
        assert_eq!((live.connection, server.attempts()), (7, 0));
        link.give_up(&live, STORE.unavailable("broke"));
        assert_eq!(link.live().await.expect("open again").connection, 1);
        assert_eq!(server.reconnected.load(Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_caller_drops_its_attempt_the_next_caller_connects() {
        let server = Server::default();
        let link = link(&server);
        timeout(CONNECT_TIME / 2, link.live()).await.expect_err("takes longer");
        assert_eq!(link.live().await.expect("open").connection, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn no_caller_waits_longer_than_the_limit_for_the_attempt_of_another() {
        let server = Server::default();
        let link = link(&server);
        let _opening = link.opening.lock().await;
        let began = Instant::now();
        assert!(link.live().await.expect_err("another caller is opening the connection").is_transient());
        assert_eq!(began.elapsed(), LIMIT);
    }
}
