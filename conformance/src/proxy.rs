//! A TCP proxy between a network client and its server that does what networks do: cuts, stalls, delays, delivers late,
//! hangs up.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};

/// A TCP proxy on 127.0.0.1. Everything passes until a method changes that. Each method concerns all connections, also
/// future ones, unless it says otherwise.
///
/// It belongs to the runtime in which it was made, and ends with it or when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    line: watch::Sender<Traffic>,
    count: Arc<Count>,
    task: JoinHandle<()>,
}

/// What the clients have sent so far.
#[derive(Debug, Default)]
struct Count {
    connections: AtomicUsize,
    /// Bytes, counted when the proxy reads them.
    requested: AtomicUsize,
}

/// What becomes of bytes and connections.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    /// Where new connections lead.
    server: SocketAddr,
    requests: Flow,
    answers: Flow,
    /// Number of the first connection whose requests are not held back. Connections are numbered from 1.
    first_open: usize,
    /// Counts the cuts. A connection ends when this number is no longer the one that it began with.
    cuts: u64,
    hangs_up: bool,
}

/// What becomes of the bytes of one direction.
#[derive(Clone, Copy, Debug)]
enum Flow {
    Passes,
    /// They arrive when the flow changes.
    Stops,
    Takes(Duration),
}

impl Traffic {
    fn to(server: SocketAddr) -> Self {
        Self {
            server,
            requests: Flow::Passes,
            answers: Flow::Passes,
            first_open: 0,
            cuts: 0,
            hangs_up: false,
        }
    }
}

impl Proxy {
    /// A proxy to this server.
    ///
    /// # Errors
    /// When no port is free.
    #[expect(
        clippy::disallowed_methods,
        reason = "what accepts connections is a task, and ends with the proxy"
    )]
    pub async fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (line, count) = (watch::Sender::new(Traffic::to(server)), Arc::new(Count::default()));
        let task = tokio::spawn(accept(listener, line.clone(), Arc::clone(&count)));
        Ok(Self { address, line, count, task })
    }

    /// Where clients are to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections clients have made so far.
    pub fn connections(&self) -> usize {
        self.count.connections.load(Relaxed)
    }

    /// Number of bytes that clients have sent so far. Bytes that wait in a client's connection because the proxy holds
    /// requests back are counted when they are delivered.
    pub fn requested(&self) -> usize {
        self.count.requested.load(Relaxed)
    }

    /// From now on everything passes. What was held back is delivered.
    pub fn pass(&self) {
        self.change(|line| *line = Traffic { cuts: line.cuts, ..Traffic::to(line.server) });
    }

    /// From now on nothing passes, in either direction: the server seems to accept connections and to say nothing.
    pub fn stall(&self) {
        self.change(|line| (line.requests, line.answers) = (Flow::Stops, Flow::Stops));
    }

    /// From now on requests reach the server only when everything passes again, also if the client is gone by then.
    pub fn hold_requests(&self) {
        self.change(|line| line.requests = Flow::Stops);
    }

    /// From now on the requests of all connections that are open now reach the server only when everything passes again, also
    /// if the client has closed the connection by then. Later connections pass.
    pub fn hold_open_connections(&self) {
        let last = self.connections();
        self.change(|line| (line.requests, line.first_open) = (Flow::Passes, last + 1));
    }

    /// From now on the server acts, but its answers arrive only when everything passes again.
    pub fn hold_answers(&self) {
        self.change(|line| line.answers = Flow::Stops);
    }

    /// From now on everything arrives this much later, in each direction.
    pub fn delay(&self, by: Duration) {
        self.change(|line| (line.requests, line.answers) = (Flow::Takes(by), Flow::Takes(by)));
    }

    /// Breaks every connection, once. New ones are not concerned.
    pub fn cut(&self) {
        self.change(|line| line.cuts += 1);
    }

    /// From now on new connections lead to this server, as after a change of an address or a name. Existing connections
    /// stay.
    pub fn lead_to(&self, server: SocketAddr) {
        self.change(|line| line.server = server);
    }

    /// Breaks every connection, and from now on each new one as soon as it is made.
    pub fn hang_up(&self) {
        self.change(|line| (line.cuts, line.hangs_up) = (line.cuts + 1, true));
    }

    fn change(&self, change: impl FnOnce(&mut Traffic)) {
        self.line.send_modify(change);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, line: watch::Sender<Traffic>, count: Arc<Count>) {
    // Dropped, and so ended, with this task.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let number = count.connections.fetch_add(1, Relaxed) + 1;
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(client, number, line.subscribe(), Arc::clone(&count)));
    }
}

/// Passes bytes on until both sides have ended, or the connection is cut.
async fn serve(
    client: TcpStream,
    number: usize,
    mut line: watch::Receiver<Traffic>,
    count: Arc<Count>,
) -> io::Result<()> {
    let Traffic { server, cuts, hangs_up, .. } = *line.borrow();
    if hangs_up {
        return Ok(());
    }
    let server = TcpStream::connect(server).await?;
    // Otherwise the kernel would add delays of its own.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let held = |line: &Traffic| if number < line.first_open { Flow::Stops } else { line.requests };
    let requested = |bytes: usize| {
        count.requested.fetch_add(bytes, Relaxed);
    };
    let requests = pump(from_client, to_server, line.clone(), held, requested);
    let answers = pump(from_server, to_client, line.clone(), |line| line.answers, |_| {});
    tokio::select! {
        _ = async { tokio::join!(requests, answers) } => {}
        _ = line.wait_for(|line| line.cuts != cuts) => {}
    }
    Ok(())
}

/// Passes on what one side sends until it ends; what it sent before is delivered.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut line: watch::Receiver<Traffic>,
    flow: impl Fn(&Traffic) -> Flow + Send + Sync,
    seen: impl Fn(usize) + Send + Sync,
) -> io::Result<()> {
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut chunk).await?;
        let came = Instant::now();
        seen(count);
        let now = line.wait_for(|line| !matches!(flow(line), Flow::Stops)).await.map(|line| flow(&line));
        if let Ok(Flow::Takes(delay)) = now {
            sleep_until(came + delay).await;
        }
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..count]).await?;
    }
}
