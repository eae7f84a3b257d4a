//! A small network store, correct or with one bug that shows only when the line fails. It tests the cases about the line.
//!
//! A server keeps the queues of the memory store; a client has one connection, and sends one line for each call.
//! A few lines over the usual length: both ends of one line.

use std::{net::SocketAddr, sync::Arc, thread, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Error, Kind, LockName, Result, Token, Wait,
    driver::{Attempt, Backend, Claim, Grant, Info, Release, Renewal, Request, Store},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Mutex, Notify, oneshot},
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{Bug, shelf::WrongShelf};

/// The longest that a call takes; a third of its ttl, if that is less.
const BOUND: Duration = Duration::from_secs(1);

/// How long a client waits after a failed connection before it connects again.
const PAUSE: Duration = Duration::from_millis(200);

/// What is wrong with the clients of a [`WrongServer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LineBug {
    /// Nothing: it must pass.
    None,
    /// A call waits for its answer for as long as that takes.
    CallsWithoutBound,
    /// Connecting waits for its answer for as long as that takes.
    ConnectsWithoutBound,
    /// After a call that took too long its connection is used again, so the next call reads the answer to the call before.
    LateAnswerTaken,
    /// A connection that broke is never made again.
    NeverDialsAgain,
    /// A renewal that gets no answer says that the lock is lost.
    BreakIsLoss,
    /// Every call connects if there is no connection, without a pause after failures.
    DialsWithoutPause,
}

/// A server on 127.0.0.1, on a thread of its own that ends when this is dropped.
#[derive(Debug)]
pub struct WrongServer {
    address: SocketAddr,
    bug: LineBug,
    _ends: oneshot::Sender<()>,
}

impl WrongServer {
    /// Starts a server whose clients have this bug.
    ///
    /// # Panics
    /// Where no port is free.
    pub fn start(bug: LineBug) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        listener.set_nonblocking(true).expect("tokio needs it");
        let (ends, end) = oneshot::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(async {
                tokio::select! {
                    () = accept(TcpListener::from_std(listener).expect("it listens")) => {}
                    _ = end => {}
                }
            });
        });
        Self { address, bug, _ends: ends }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects a client to this address, which may be that of a proxy to the server.
    ///
    /// # Errors
    /// When the server does not answer in time.
    pub async fn connect(&self, address: SocketAddr) -> Result<Store> {
        let info = Info::new("wrong", format!("wrong:{}", self.address)).tokens(true);
        let client = Client { address, bug: self.bug, info, link: Mutex::default() };
        let bound = (self.bug != LineBug::ConnectsWithoutBound).then_some(BOUND);
        client.ask("hello", bound).await?;
        Ok(Store::new(Arc::new(Wire(Arc::new(client)))))
    }
}

async fn accept(listener: TcpListener) {
    let shelf = Arc::new(std::sync::Mutex::new(WrongShelf::new(Bug::None)));
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shelf = Arc::clone(&shelf);
        connections.spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).await.is_ok_and(|count| count > 0) {
                let answer = answer(&mut shelf.lock().expect("no answer panics"), &line);
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
                line.clear();
            }
        });
    }
}

/// What the server says to a line of a client.
fn answer(shelf: &mut WrongShelf, line: &str) -> String {
    let words: Vec<_> = line.trim_end().splitn(5, ' ').collect();
    let [call, id, ttl, wait, name] = words[..] else { return "hello\n".to_owned() };
    let id = ClaimId::from_bytes(u128::from_str_radix(id, 16).expect("in hexadecimal").to_be_bytes());
    let ttl = Duration::from_millis(ttl.parse().expect("a number"));
    let wait = if wait == "try" { Wait::Never } else { Wait::Forever };
    let request = Request::new(LockName::new(name).expect("a name"), Kind::Mutex, ttl).id(id).wait(wait);
    match call {
        "attempt" => match shelf.attempt(&request, 0, &Arc::new(Notify::new()), false) {
            Ok(token) => format!("granted {token}\n"),
            Err(_) => "busy\n".to_owned(),
        },
        "renew" if shelf.renew(&request, 0, &Arc::default()) => "renewed\n".to_owned(),
        "renew" => "lost\n".to_owned(),
        _ if shelf.release(&request.name, id, false) => "done\n".to_owned(),
        _ => "gone\n".to_owned(),
    }
}

/// A client and its one connection.
#[derive(Debug)]
struct Client {
    address: SocketAddr,
    bug: LineBug,
    info: Info,
    link: Mutex<Link>,
}

#[derive(Debug, Default)]
struct Link {
    stream: Option<BufReader<TcpStream>>,
    /// When the last attempt to connect failed.
    failed: Option<Instant>,
    has_dialled: bool,
}

fn unanswered(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Unavailable { store: "wrong", source: why.into() }
}

impl Client {
    /// The answer to a line.
    async fn ask(&self, line: &str, bound: Option<Duration>) -> Result<String> {
        let call = async { self.link.lock().await.ask(self, line).await };
        match bound {
            Some(bound) => {
                timeout(bound, call).await.unwrap_or_else(|_| Err(unanswered("no answer in time")))
            }
            None => call.await,
        }
    }
}

impl Link {
    async fn ask(&mut self, client: &Client, line: &str) -> Result<String> {
        // Taken out while a call uses it. If the call is dropped, the connection is closed, and nobody can read the late
        // answer.
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.dial(client).await?,
        };
        let mut answer = String::new();
        let exchanged = if client.bug == LineBug::LateAnswerTaken {
            let kept = self.stream.insert(stream);
            return exchange(kept, line, &mut answer).await.map(|()| answer);
        } else {
            exchange(&mut stream, line, &mut answer).await
        };
        match exchanged {
            Ok(()) => self.stream = Some(stream),
            Err(_) => self.failed = Some(Instant::now()),
        }
        exchanged.map(|()| answer)
    }

    async fn dial(&mut self, client: &Client) -> Result<BufReader<TcpStream>> {
        if client.bug == LineBug::NeverDialsAgain && self.has_dialled {
            return Err(unanswered("the connection is broken"));
        }
        if client.bug != LineBug::DialsWithoutPause && self.failed.is_some_and(|at| at.elapsed() < PAUSE) {
            return Err(unanswered("the last connection came to nothing"));
        }
        self.has_dialled = true;
        let stream = TcpStream::connect(client.address).await.map_err(unanswered);
        self.failed = stream.is_err().then(Instant::now);
        stream.map(BufReader::new)
    }
}

async fn exchange(stream: &mut BufReader<TcpStream>, line: &str, answer: &mut String) -> Result<()> {
    stream.write_all(format!("{line}\n").as_bytes()).await.map_err(unanswered)?;
    match stream.read_line(answer).await.map_err(unanswered)? {
        0 => Err(unanswered("the server hung up")),
        _ => Ok(()),
    }
}

#[derive(Debug)]
struct Wire(Arc<Client>);

impl Backend for Wire {
    fn info(&self) -> &Info {
        &self.0.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(WireClaim { client: Arc::clone(&self.0), request })
    }
}

struct WireClaim {
    client: Arc<Client>,
    request: Request,
}

impl WireClaim {
    async fn call(&self, call: &str) -> Result<Vec<String>> {
        let Request { name, id, ttl, wait, .. } = &self.request;
        let wait = if *wait == Wait::Never { "try" } else { "wait" };
        let line =
            format!("{call} {:032x} {} {wait} {name}", u128::from_be_bytes(*id.as_bytes()), ttl.as_millis());
        let bound = (self.client.bug != LineBug::CallsWithoutBound).then(|| BOUND.min(*ttl / 3));
        let answer = self.client.ask(&line, bound).await?;
        Ok(answer.split_whitespace().map(str::to_owned).collect())
    }
}

#[async_trait]
impl Claim for WireClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let words = self.call("attempt").await?;
        let token = words.get(1).and_then(|token| token.parse().ok()).and_then(Token::new);
        Ok(match token {
            Some(_) => Attempt::Granted(Grant { token, valid_for: self.request.ttl }),
            None => Attempt::Busy { retry_in: Duration::from_millis(50) },
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
        std::future::pending().await
    }
}
