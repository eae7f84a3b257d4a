//! A small network store, correct or with a bug that shows only when a connection fails. It tests
//! the cases of the group `network`.
//!
//! The server has the queues of a correct [`BuggyStore`](crate::BuggyStore). A client has one
//! connection, and sends one line for each call.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, thread, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Kind, LockName, Result, Token, Wait,
    driver::{Attempt, Backend, Claim, Driver, Grant, Info, Release, Renewal, Request, Store, StoreUrl},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Mutex, Notify, oneshot},
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{Bug, queues::BuggyQueues};

/// Maximum time of a call, unless a third of its ttl is less.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause of a client between a failure of the connection and the next attempt to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Number of first attempts, and of repeated ones, that a client sends one after the other within
/// [`CALL_TIMEOUT`], also on a slow network.
const ATTEMPTS_IN_FLIGHT: usize = 8;

/// Interval of the attempts of a waiter with [`LineBug::WaiterPolls`].
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Interval of the attempts of a waiter with [`LineBug::RetriesAddUp`].
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Time after which [`LineBug::RetriesAddUp`] sends a request again.
const RESEND_DELAY: Duration = Duration::from_millis(50);

/// Bells of the claims of all clients. The server rings them without the network.
type Bells = Arc<parking_lot::Mutex<HashMap<ClaimId, Arc<Notify>>>>;

/// The bug of the clients of a [`BuggyServer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LineBug {
    /// No bug. The cases must pass.
    None,
    /// A call has no timeout.
    CallsWithoutTimeout,
    /// Connecting has no timeout.
    ConnectsWithoutTimeout,
    /// The connection of a call that has timed out is used again, so the next call reads the late
    /// reply.
    LateReplyIsUsed,
    /// A client never replaces a broken connection.
    NeverReconnects,
    /// A renewal without a reply reports the loss of the lock.
    BreakIsLoss,
    /// Every call reconnects if there is no connection, without a pause after a failure.
    ReconnectsWithoutPause,
    /// A waiter sends an attempt every 20 ms, although the server notifies it.
    WaiterPolls,
    /// A waiter checks its place every 250 ms. Any request without a reply within 50 ms is sent
    /// again every millisecond.
    RetriesAddUp,
}

/// A server on 127.0.0.1, on its own thread. Dropping this value stops it.
#[derive(Debug)]
pub struct BuggyServer {
    address: SocketAddr,
    bug: LineBug,
    bells: Bells,
    _stop: oneshot::Sender<()>,
}

impl BuggyServer {
    /// Starts a server whose clients have this bug.
    ///
    /// # Panics
    /// If no port is free.
    pub fn start(bug: LineBug) -> Self {
        Self::start_with(Bug::None, bug)
    }

    /// Starts a server with the bug of a store, for clients of other processes, which connect through
    /// [`LINE_DRIVER`].
    ///
    /// # Panics
    /// If no port is free.
    pub fn start_buggy(bug: Bug) -> Self {
        Self::start_with(bug, LineBug::None)
    }

    fn start_with(bug_of_store: Bug, bug: LineBug) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the listener is bound");
        listener.set_nonblocking(true).expect("the socket can be non-blocking");
        let (stop, stopped) = oneshot::channel();
        let bells = Bells::default();
        let bells_of_server = Arc::clone(&bells);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(async {
                tokio::select! {
                    () = accept(TcpListener::from_std(listener).expect("the listener is valid"), bug_of_store, bells_of_server) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, bug, bells, _stop: stop }
    }

    /// Address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects a client through this address, which may be that of a proxy.
    ///
    /// # Errors
    /// If the server does not reply in time.
    pub async fn connect(&self, address: SocketAddr) -> Result<Store> {
        connect(address, self.address, self.bug, Arc::clone(&self.bells)).await
    }
}

/// Connects clients of other processes than the server's: `line://127.0.0.1:4711`. The server cannot
/// wake them, so a waiter attempts again after a third of its ttl.
pub const LINE_DRIVER: Driver = Driver::new(&["line"], |url| Box::pin(connect_by_url(url)));

async fn connect_by_url(url: StoreUrl) -> Result<Store> {
    url.allow(&[])?;
    let address = url.hosts().first().and_then(|host| host.parse().ok());
    let reason = || "write for example `line://127.0.0.1:4711`".to_owned();
    let address = address.ok_or_else(|| Error::InvalidConfig { reason: reason() })?;
    connect(address, address, LineBug::None, Bells::default()).await
}

/// Connects a client through `address` to the server at `server`.
async fn connect(address: SocketAddr, server: SocketAddr, bug: LineBug, bells: Bells) -> Result<Store> {
    let info = Info::new("wrong", format!("wrong:{server}")).tokens(true);
    let info = info.attempts_in_flight(ATTEMPTS_IN_FLIGHT);
    let client = Client { address, bug, info, link: Mutex::default(), bells };
    let limit = (bug != LineBug::ConnectsWithoutTimeout).then_some(CALL_TIMEOUT);
    client.request("hello", limit).await?;
    Ok(Store::new(Arc::new(BuggyBackend(Arc::new(client)))))
}

async fn accept(listener: TcpListener, bug: Bug, bells: Bells) {
    let queues = Arc::new(parking_lot::Mutex::new(BuggyQueues::new(bug)));
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (queues, bells) = (Arc::clone(&queues), Arc::clone(&bells));
        connections.spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).await.is_ok_and(|count| count > 0) {
                let reply = execute(&mut queues.lock(), &bells, &line);
                if stream.write_all(reply.as_bytes()).await.is_err() {
                    return;
                }
                line.clear();
            }
        });
    }
}

/// Executes a line of a client, and returns the reply.
fn execute(queues: &mut BuggyQueues, bells: &Bells, line: &str) -> String {
    let words: Vec<_> = line.trim_end().splitn(5, ' ').collect();
    let [call, id, ttl, wait, name] = words[..] else { return "hello\n".to_owned() };
    let id = ClaimId::from_bytes(u128::from_str_radix(id, 16).expect("in hexadecimal").to_be_bytes());
    let ttl = Duration::from_millis(ttl.parse().expect("a number"));
    let wait = if wait == "try" { Wait::Never } else { Wait::Forever };
    let request = Request::new(LockName::new(name).expect("a name"), Kind::Mutex, ttl).id(id).wait(wait);
    let bell = bells.lock().get(&id).cloned().unwrap_or_default();
    match call {
        "attempt" => match queues.attempt(&request, 0, &bell, false) {
            Ok(token) => format!("granted {token}\n"),
            Err(_) => "busy\n".to_owned(),
        },
        "renew" if queues.renew(&request, 0, &bell) => "renewed\n".to_owned(),
        "renew" => "lost\n".to_owned(),
        _ if queues.release(&request.name, id, false) => "done\n".to_owned(),
        _ => "gone\n".to_owned(),
    }
}

/// A client with one connection.
#[derive(Debug)]
struct Client {
    address: SocketAddr,
    bug: LineBug,
    info: Info,
    link: Mutex<Link>,
    bells: Bells,
}

#[derive(Debug, Default)]
struct Link {
    stream: Option<BufReader<TcpStream>>,
    /// Time of the last failure of the connection.
    failed_at: Option<Instant>,
    has_connected: bool,
}

fn unavailable(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Unavailable { store: "wrong", source: reason.into() }
}

impl Client {
    /// Sends a line, and returns the reply.
    async fn request(&self, line: &str, limit: Option<Duration>) -> Result<String> {
        let call = async { self.link.lock().await.request(self, line).await };
        match limit {
            Some(limit) => {
                timeout(limit, call).await.unwrap_or_else(|_| Err(unavailable("no reply in time")))
            }
            None => call.await,
        }
    }
}

impl Link {
    async fn request(&mut self, client: &Client, line: &str) -> Result<String> {
        // Taken out during a call. Dropping the call closes the connection, so no later call reads
        // the late reply.
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect(client).await?,
        };
        let mut reply = String::new();
        let result = if client.bug == LineBug::LateReplyIsUsed {
            let stream = self.stream.insert(stream);
            return exchange(stream, line, &mut reply).await.map(|()| reply);
        } else if client.bug == LineBug::RetriesAddUp {
            let copies = exchange_impatiently(&mut stream, line, &mut reply).await;
            // The replies to the copies would answer later calls.
            return copies.map(|copies| {
                self.stream = (copies == 1).then_some(stream);
                reply
            });
        } else {
            exchange(&mut stream, line, &mut reply).await
        };
        match result {
            Ok(()) => self.stream = Some(stream),
            Err(_) => self.failed_at = Some(Instant::now()),
        }
        result.map(|()| reply)
    }

    async fn connect(&mut self, client: &Client) -> Result<BufReader<TcpStream>> {
        if client.bug == LineBug::NeverReconnects && self.has_connected {
            return Err(unavailable("the connection is broken"));
        }
        if client.bug != LineBug::ReconnectsWithoutPause
            && self.failed_at.is_some_and(|at| at.elapsed() < RECONNECT_PAUSE)
        {
            return Err(unavailable("the last attempt to connect has failed"));
        }
        self.has_connected = true;
        let stream = TcpStream::connect(client.address).await.map_err(unavailable);
        self.failed_at = stream.is_err().then(Instant::now);
        stream.map(BufReader::new)
    }
}

async fn exchange(stream: &mut BufReader<TcpStream>, line: &str, reply: &mut String) -> Result<()> {
    stream.write_all(format!("{line}\n").as_bytes()).await.map_err(unavailable)?;
    match stream.read_line(reply).await.map_err(unavailable)? {
        0 => Err(unavailable("the server hung up")),
        _ => Ok(()),
    }
}

/// Sends the line again and again until there is a reply. Returns the number of copies.
async fn exchange_impatiently(
    stream: &mut BufReader<TcpStream>,
    line: &str,
    reply: &mut String,
) -> Result<usize> {
    let (mut copies, mut delay) = (0, RESEND_DELAY);
    loop {
        stream.write_all(format!("{line}\n").as_bytes()).await.map_err(unavailable)?;
        copies += 1;
        // `read_line` keeps what it has read if it is dropped.
        match timeout(delay, stream.read_line(reply)).await {
            Ok(Ok(1..)) => return Ok(copies),
            Ok(_) => return Err(unavailable("the server hung up")),
            Err(_) => delay = Duration::from_millis(1),
        }
    }
}

#[derive(Debug)]
struct BuggyBackend(Arc<Client>);

impl Backend for BuggyBackend {
    fn info(&self) -> &Info {
        &self.0.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        let bell = Arc::<Notify>::default();
        self.0.bells.lock().insert(request.id, Arc::clone(&bell));
        Box::new(BuggyClaim { client: Arc::clone(&self.0), request, bell })
    }
}

struct BuggyClaim {
    client: Arc<Client>,
    request: Request,
    bell: Arc<Notify>,
}

impl Drop for BuggyClaim {
    fn drop(&mut self) {
        self.client.bells.lock().remove(&self.request.id);
    }
}

impl BuggyClaim {
    async fn call(&self, call: &str) -> Result<Vec<String>> {
        let Request { name, id, ttl, wait, .. } = &self.request;
        let wait = if *wait == Wait::Never { "try" } else { "wait" };
        let line =
            format!("{call} {:032x} {} {wait} {name}", u128::from_be_bytes(*id.as_bytes()), ttl.as_millis());
        let limit = (self.client.bug != LineBug::CallsWithoutTimeout).then(|| CALL_TIMEOUT.min(*ttl / 3));
        let reply = self.client.request(&line, limit).await?;
        Ok(reply.split_whitespace().map(str::to_owned).collect())
    }
}

#[async_trait]
impl Claim for BuggyClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let words = self.call("attempt").await?;
        let token = words.get(1).and_then(|token| token.parse().ok()).and_then(Token::new);
        Ok(match token {
            Some(_) => Attempt::Granted(Grant { token, valid_for: self.request.ttl }),
            None => Attempt::Busy {
                retry_in: match self.client.bug {
                    LineBug::WaiterPolls => POLL_INTERVAL,
                    LineBug::RetriesAddUp => CHECK_INTERVAL,
                    _ => self.request.ttl / 3,
                },
            },
        })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        match self.call("renew").await {
            Ok(words) if words[0] == "lost" => Ok(Renewal::Lost),
            Err(_) if self.client.bug == LineBug::BreakIsLoss => Ok(Renewal::Lost),
            renewed => renewed.map(|_| Renewal::Renewed { valid_for: self.request.ttl }),
        }
    }

    async fn release(&mut self) -> Result<Release> {
        let words = self.call("release").await?;
        Ok(if words[0] == "gone" { Release::Gone } else { Release::Done })
    }

    async fn changed(&mut self) {
        self.bell.notified().await;
    }
}
