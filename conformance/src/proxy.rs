//! A TCP proxy between a network client and its server. It injects the faults of networks: it cuts,
//! stalls, delays, delivers late and hangs up.

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

/// A TCP proxy on 127.0.0.1. Everything passes until a method changes that. Unless it says
/// otherwise, a method applies to all connections, including future ones.
///
/// The proxy belongs to the runtime in which it was created. It ends with that runtime, or when it
/// is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    traffic: watch::Sender<Traffic>,
    count: Arc<Count>,
    task: JoinHandle<()>,
}

/// Numbers of connections and bytes from the clients so far.
#[derive(Debug, Default)]
struct Count {
    connections: AtomicUsize,
    /// Bytes, counted when the proxy reads them.
    requested: AtomicUsize,
}

/// Treatment of connections and their bytes.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    /// Target of new connections.
    server: SocketAddr,
    requests: Flow,
    replies: Flow,
    /// Number of the first connection whose requests are not held back. Connections are numbered
    /// from 1.
    first_open: usize,
    /// Number of cuts. A connection ends when this number differs from its value at the start of
    /// the connection.
    cuts: u64,
    /// Number of cuts of the clients' sides, which likewise end the replies of a connection.
    client_cuts: u64,
    hangs_up: bool,
}

/// Treatment of the bytes of one direction.
#[derive(Clone, Copy, Debug)]
enum Flow {
    Open,
    /// The bytes arrive when the flow changes.
    Held,
    Delayed(Duration),
    /// The connection was cut. No more bytes arrive.
    Cut,
}

impl Traffic {
    fn to(server: SocketAddr) -> Self {
        let (requests, replies) = (Flow::Open, Flow::Open);
        Self { server, requests, replies, first_open: 0, cuts: 0, client_cuts: 0, hangs_up: false }
    }
}

impl Proxy {
    /// Starts a proxy to this server.
    ///
    /// # Errors
    /// If no port is free.
    #[expect(
        clippy::disallowed_methods,
        reason = "connections are accepted by a task, which ends with the proxy"
    )]
    pub async fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (traffic, count) = (watch::Sender::new(Traffic::to(server)), Arc::new(Count::default()));
        let task = tokio::spawn(accept(listener, traffic.clone(), Arc::clone(&count)));
        Ok(Self { address, traffic, count, task })
    }

    /// Returns the address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections that clients have made so far.
    pub fn connections(&self) -> usize {
        self.count.connections.load(Relaxed)
    }

    /// Returns the number of bytes that clients have sent so far. Bytes that wait in a client's
    /// connection because the proxy holds requests back are counted when they are delivered.
    pub fn requested(&self) -> usize {
        self.count.requested.load(Relaxed)
    }

    /// Lets everything pass from now on, and delivers what was held back.
    pub fn pass(&self) {
        self.change(|traffic| {
            let Traffic { server, cuts, client_cuts, .. } = *traffic;
            *traffic = Traffic { cuts, client_cuts, ..Traffic::to(server) };
        });
    }

    /// Holds back both directions from now on. The server seems to accept connections and to send
    /// nothing.
    pub fn stall(&self) {
        self.change(|traffic| (traffic.requests, traffic.replies) = (Flow::Held, Flow::Held));
    }

    /// Holds requests back from now on, until everything passes again. They are delivered then even
    /// if the client has disconnected.
    pub fn hold_requests(&self) {
        self.change(|traffic| traffic.requests = Flow::Held);
    }

    /// Holds back the requests of all connections that are open now, until everything passes again.
    /// They are delivered then even if the client has closed the connection. Later connections
    /// pass.
    pub fn hold_open_connections(&self) {
        let last = self.connections();
        self.change(|traffic| (traffic.requests, traffic.first_open) = (Flow::Open, last + 1));
    }

    /// Holds replies back from now on, until everything passes again. Requests reach the server.
    pub fn hold_answers(&self) {
        self.change(|traffic| traffic.replies = Flow::Held);
    }

    /// Delays both directions by `by` each from now on.
    pub fn delay(&self, by: Duration) {
        self.change(|traffic| (traffic.requests, traffic.replies) = (Flow::Delayed(by), Flow::Delayed(by)));
    }

    /// Delays requests by at least `by` from now on, also those of a client that has disconnected
    /// since. A request that arrives during the delay of an earlier one is delayed from the delivery
    /// of that one. Replies pass.
    pub fn delay_requests(&self, by: Duration) {
        self.change(|traffic| traffic.requests = Flow::Delayed(by));
    }

    /// Delays replies by at least `by` from now on. A reply that arrives during the delay of an
    /// earlier one is delayed from the delivery of that one. Requests reach the server at once.
    pub fn delay_answers(&self, by: Duration) {
        self.change(|traffic| traffic.replies = Flow::Delayed(by));
    }

    /// Breaks every open connection once. Later connections are not affected.
    pub fn cut(&self) {
        self.change(|traffic| traffic.cuts += 1);
    }

    /// Ends every open connection towards its client once. Requests that are held back are delivered
    /// when everything passes. Later connections are not affected.
    pub fn cut_clients(&self) {
        self.change(|traffic| traffic.client_cuts += 1);
    }

    /// Leads new connections to this server from now on, as after a change of an address or a name.
    /// Open connections are not affected.
    pub fn lead_to(&self, server: SocketAddr) {
        self.change(|traffic| traffic.server = server);
    }

    /// Breaks every open connection, and from now on each new connection as soon as it is made.
    pub fn hang_up(&self) {
        self.change(|traffic| (traffic.cuts, traffic.hangs_up) = (traffic.cuts + 1, true));
    }

    fn change(&self, change: impl FnOnce(&mut Traffic)) {
        self.traffic.send_modify(change);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, traffic: watch::Sender<Traffic>, count: Arc<Count>) {
    // Dropping the set with this task ends the connections.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let number = count.connections.fetch_add(1, Relaxed) + 1;
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(client, number, traffic.subscribe(), Arc::clone(&count)));
    }
}

/// Forwards bytes in both directions until both sides have ended, or the connection is cut.
async fn serve(
    client: TcpStream,
    number: usize,
    mut traffic: watch::Receiver<Traffic>,
    count: Arc<Count>,
) -> io::Result<()> {
    let Traffic { server, cuts, client_cuts, hangs_up, .. } = *traffic.borrow();
    if hangs_up {
        return Ok(());
    }
    let server = TcpStream::connect(server).await?;
    // Without this option the kernel would add delays of its own.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let request_flow = |traffic: &Traffic| match traffic {
        traffic if traffic.cuts != cuts => Flow::Cut,
        traffic if number < traffic.first_open => Flow::Held,
        traffic => traffic.requests,
    };
    let reply_flow = |traffic: &Traffic| {
        if (traffic.cuts, traffic.client_cuts) == (cuts, client_cuts) { traffic.replies } else { Flow::Cut }
    };
    let count_requested = |bytes: usize| {
        count.requested.fetch_add(bytes, Relaxed);
    };
    let requests = pump(from_client, to_server, traffic.clone(), request_flow, count_requested);
    // Dropping the half that writes to the client ends the connection for the client.
    let mut until_cut = traffic.clone();
    let replies = pump(from_server, to_client, traffic.clone(), reply_flow, |_| {});
    let replies = async {
        tokio::select! {
            _ = replies => {}
            _ = until_cut.wait_for(|traffic| traffic.client_cuts != client_cuts) => {}
        }
    };
    tokio::select! {
        _ = async { tokio::join!(requests, replies) } => {}
        _ = traffic.wait_for(|traffic| traffic.cuts != cuts) => {}
    }
    Ok(())
}

/// Forwards the bytes of one side until that side ends. Bytes sent before the end are delivered.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut traffic: watch::Receiver<Traffic>,
    flow: impl Fn(&Traffic) -> Flow + Send + Sync,
    count_bytes: impl Fn(usize) + Send + Sync,
) -> io::Result<()> {
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut chunk).await?;
        let arrived = Instant::now();
        count_bytes(count);
        let current = traffic
            .wait_for(|traffic| !matches!(flow(traffic), Flow::Held))
            .await
            .map(|traffic| flow(&traffic));
        if let Ok(Flow::Delayed(delay)) = current {
            sleep_until(arrived + delay).await;
        }
        // After a cut, the task that runs this function may not have ended yet.
        if matches!(flow(&traffic.borrow()), Flow::Cut) {
            return Ok(());
        }
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..count]).await?;
    }
}
