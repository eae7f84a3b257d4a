//! A connection that many callers share. The first that needs it opens it. When it breaks, one caller at a time opens it
//! again. Over the usual length with its tests.

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep_until, timeout};

use super::{Error, Failures, Pace, Result, Retold};

/// If the next attempt to connect is due within this time, a caller waits for it. If it is due later, the caller gets the
/// last failure at once, since it may have little time.
const SOON: Duration = Duration::from_millis(250);

/// How a [`Link`] makes its connections.
pub trait Connect: Send + Sync {
    /// A connection. Its clones are the same connection.
    type Connection: Clone + Send;

    /// Makes a connection. Bounds its own I/O.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection>> + Send;

    /// Called after a new connection has replaced one that was given up. The new connection was begun at `since`, and may
    /// lead to another server. Default: nothing.
    fn reconnected(&self, since: Instant) {
        let _ = since;
    }

    /// Whether a connection opens itself again when it breaks, and so is never given up. Default: no.
    fn mends_itself(&self, connection: &Self::Connection) -> bool {
        let _ = connection;
        false
    }
}

/// A connection that all claims of a client share. It is opened again when it breaks, with a pause behind each failure
/// ([`Pace`]); the callers that need it meanwhile share one attempt.
///
/// ```
/// use dlock_core::{Result, driver::{Connect, Failures, Link}};
/// use std::time::Duration;
/// const STORE: Failures = Failures::of("table");
///
/// struct Server; // and its address
///
/// impl Connect for Server {
///     type Connection = (); // the client crate's
///     async fn connect(&self) -> Result<()> {
///         STORE.in_time(Duration::from_secs(3), async { Ok(()) }).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let link = Link::new(STORE, Duration::from_secs(3), Server);
/// let live = link.live().await?;
/// let answer: Result<()> = Ok(live.connection); // … a request through it
/// match answer {
///     Ok(()) => link.note_answer(),
///     Err(error) => return Err(link.give_up(&live, error)), // if the connection broke or the answer is late
/// }
/// # Ok(()) }
/// ```
pub struct Link<C: Connect> {
    failures: Failures,
    /// How long a caller waits for the attempt of another caller.
    limit: Duration,
    connect: C,
    /// The connection. Empty at first and after it broke.
    slot: Mutex<Option<Live<C::Connection>>>,
    /// The caller that opens the connection holds this, so that only one does.
    gate: tokio::sync::Mutex<Gate>,
    /// How many attempts to open it have failed.
    failed: AtomicU64,
    /// The last failure, if there was no working connection since.
    last: Mutex<Option<Retold>>,
    /// Whether the server has answered on the connection that is there now.
    is_proven: AtomicBool,
}

struct Gate {
    pace: Pace,
    /// How often it was opened.
    number: u64,
}

/// The connection that a link has now.
#[derive(Clone, Debug)]
pub struct Live<C> {
    number: u64,
    /// The connection to send requests through.
    pub connection: C,
}

impl<C> Live<C> {
    /// Number of the connection: each that a link opens has another.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl<C: Connect> Link<C> {
    /// A link that is opened when it is first needed. `limit` is how long a caller waits for the attempt of another caller;
    /// pass the time that a call may take.
    pub fn new(failures: Failures, limit: Duration, connect: C) -> Self {
        Self {
            failures,
            limit,
            connect,
            slot: Mutex::new(None),
            gate: tokio::sync::Mutex::new(Gate { pace: Pace::quick(), number: 0 }),
            failed: AtomicU64::new(0),
            last: Mutex::new(None),
            is_proven: AtomicBool::new(false),
        }
    }

    /// A link on a connection that is open already.
    pub fn open(failures: Failures, limit: Duration, connect: C, connection: C::Connection) -> Self {
        let mut link = Self::new(failures, limit, connect);
        // The first connection. One that replaces it has the number 2.
        link.gate.get_mut().number = 1;
        *link.slot() = Some(Live { number: 1, connection });
        link
    }

    /// The connection. Opens it if there is none. If another caller is opening it, this one waits for the result, for
    /// `limit` at most. If the next attempt is not due soon, this returns at once the error of the last one.
    ///
    /// # Errors
    /// When it cannot be opened.
    ///
    /// # Cancel safety
    /// Safe: if an attempt is dropped, the next caller makes another.
    pub async fn live(&self) -> Result<Live<C::Connection>> {
        if let Some(live) = self.slot().clone() {
            return Ok(live);
        }
        let failed = self.failed.load(Relaxed);
        let late = |_| self.failures.late(self.limit);
        let mut gate = timeout(self.limit, self.gate.lock()).await.map_err(late)?;
        if let Some(live) = self.slot().clone() {
            return Ok(live);
        }
        if self.is_proven.swap(false, Relaxed) {
            gate.pace.note_answer();
            *self.last() = None;
        }
        let next = gate.pace.next();
        if let Some(last) = &*self.last()
            && (self.failed.load(Relaxed) != failed || next > Instant::now() + SOON)
        {
            return Err(last.error());
        }
        sleep_until(next).await;
        gate.pace.note_attempt();
        let began = Instant::now();
        let connection = match self.connect.connect().await {
            Ok(connection) => connection,
            Err(error) => {
                *self.last() = Some(self.failures.retell(&error));
                self.failed.fetch_add(1, Relaxed);
                return Err(error);
            }
        };
        gate.number += 1;
        let live = Live { number: gate.number, connection };
        *self.slot() = Some(live.clone());
        if gate.number > 1 {
            self.connect.reconnected(began);
        }
        Ok(live)
    }

    /// Notes that the server has answered. An answer that it cannot serve this connection does not count.
    pub fn note_answer(&self) {
        if !self.is_proven.load(Relaxed) {
            self.is_proven.store(true, Relaxed);
        }
    }

    /// Gives a connection up because of this error, and returns the error. The next call opens another connection. Does
    /// nothing if that connection was given up already.
    pub fn give_up(&self, live: &Live<C::Connection>, error: Error) -> Error {
        let is_this = |now: &mut Live<C::Connection>| {
            now.number == live.number && !self.connect.mends_itself(&now.connection)
        };
        let given_up = self.slot().take_if(is_this);
        if given_up.is_some() && !self.is_proven.load(Relaxed) {
            *self.last() = Some(self.failures.retell(&error));
        }
        error
    }

    fn last(&self) -> MutexGuard<'_, Option<Retold>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Live<C::Connection>>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Connect> fmt::Debug for Link<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.slot().is_some() { "open" } else { "closed" };
        write!(f, "Link({} {state})", self.failures.store())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use tokio::time::{advance, sleep};

    const STORE: Failures = Failures::of("table");
    const LIMIT: Duration = Duration::from_secs(3);
    /// How long an attempt to connect takes.
    const TAKES: Duration = Duration::from_millis(100);

    #[derive(Default)]
    struct Server {
        attempts: AtomicU64,
        is_away: AtomicBool,
        reconnected: AtomicU64,
    }

    impl Connect for &Server {
        type Connection = u64;

        async fn connect(&self) -> Result<u64> {
            let attempt = self.attempts.fetch_add(1, Relaxed) + 1;
            sleep(TAKES).await;
            if self.is_away.load(Relaxed) {
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
    async fn callers_that_come_at_once_share_one_attempt_and_its_outcome() {
        let server = Server::default();
        let link = link(&server);
        for live in join_all((0..10).map(|_| link.live())).await {
            assert_eq!(live.expect("open").connection, 1);
        }
        let broken = link.live().await.unwrap();
        server.is_away.store(true, Relaxed);
        link.give_up(&broken, STORE.unavailable("broke"));
        for live in join_all((0..10).map(|_| link.live())).await {
            assert!(live.expect_err("away").is_transient());
        }
        assert_eq!(server.attempts(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_away_is_not_asked_by_each_caller() {
        let server = Server { is_away: true.into(), ..Server::default() };
        let (link, start) = (link(&server), Instant::now());
        while start.elapsed() < Duration::from_secs(20) {
            let began = Instant::now();
            link.live().await.expect_err("away");
            assert!(
                began.elapsed() <= SOON + TAKES,
                "a caller was told late that the server is away, and it may have little time"
            );
            sleep(Duration::from_millis(10)).await;
        }
        assert!((10..30).contains(&server.attempts()), "{} attempts in 20 s", server.attempts());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_worked_and_broke_is_made_anew_at_once() {
        let server = Server::default();
        let link = link(&server);
        let live = link.live().await.unwrap();
        link.note_answer();
        advance(Duration::from_secs(1)).await;
        link.give_up(&live, STORE.unavailable("broke"));
        let began = Instant::now();
        let next = link.live().await.expect("open again");
        assert_eq!((next.connection, began.elapsed()), (2, TAKES));
        assert_eq!(server.reconnected.load(Relaxed), 1);
        // This error is of a request on the connection that was given up before. It must not end the new connection.
        link.give_up(&live, STORE.unavailable("broke"));
        assert_eq!(link.live().await.unwrap().connection, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_open_already_is_replaced_as_any_other() {
        let server = Server::default();
        let link = Link::open(STORE, LIMIT, &server, 7);
        let live = link.live().await.unwrap();
        assert_eq!((live.connection, server.attempts()), (7, 0));
        link.give_up(&live, STORE.unavailable("broke"));
        assert_eq!(link.live().await.expect("open again").connection, 1);
        assert_eq!(server.reconnected.load(Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn where_a_caller_drops_its_attempt_the_next_caller_connects() {
        let server = Server::default();
        let link = link(&server);
        timeout(TAKES / 2, link.live()).await.expect_err("takes longer");
        assert_eq!(link.live().await.expect("open").connection, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn no_caller_waits_for_anothers_attempt_for_longer_than_the_limit() {
        let server = Server::default();
        let link = link(&server);
        let _opens = link.gate.lock().await;
        let began = Instant::now();
        assert!(link.live().await.expect_err("the gate is held").is_transient());
        assert_eq!(began.elapsed(), LIMIT);
    }
}
