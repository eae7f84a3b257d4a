//! Faults of a minority of a store's servers, which must cost no lock and delay no client for
//! longer than a ttl.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use dlock_conformance::Proxy;
use dlock_core::{ClaimId, Guard, Kind, LockOptions, Locks, Result, driver::Store};
use futures_util::{FutureExt, future::join_all};
use tokio::{
    net::{TcpSocket, TcpStream},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use crate::servers::Server;

/// A fault of a server, or of the network between the clients and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Packets from the clients are dropped. Replies to earlier requests arrive.
    RequestsDropped,
    /// Packets from the server are dropped. The server executes all requests.
    RepliesDropped,
    /// All packets are dropped, including those that would establish a connection.
    AllDropped,
    /// Replies arrive at least 4 s late.
    RepliesLate,
    /// Connections are accepted and closed.
    HungUp,
    /// The processes of the servers are suspended. The kernel still accepts connections.
    Stopped,
    /// Every write of the servers to their disks hangs. The servers continue to run.
    DiskHung,
}

impl Fault {
    /// Faults of the network. They affect only the clients of one case, so the cases can run
    /// concurrently on the same servers.
    pub const OF_NETWORK: [Self; 5] =
        [Self::RequestsDropped, Self::RepliesDropped, Self::AllDropped, Self::RepliesLate, Self::HungUp];
}

/// Delay of [`Fault::RepliesLate`].
const LATENESS: Duration = Duration::from_secs(4);

/// Number of clients that hold a lock before the fault. A client that uses one server at a time
/// chooses it at random, so some of them use the servers that fail.
const HOLDERS: usize = 6;

/// Number of clients that connect during the fault.
const NEWCOMERS: usize = 4;

/// Time after the end of a ttl, in which a hold that was not renewed is reported as lost.
const GRACE: Duration = Duration::from_secs(2);

/// Longest time until a waiter has joined the queue of a healthy store, on a busy machine.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(30);

/// Checks the promises of a cluster during a fault of a minority of its servers.
///
/// `connect` connects a new client to servers at these addresses, in the order of `servers`, with
/// default settings. The fault affects the servers that the clients use most, or those of `victims`
/// if it is not empty.
///
/// - Holds last for longer than their ttl, and their waiters are not granted.
/// - Clients from before the fault, and clients that connect during the fault, acquire a free lock
///   within the ttl. Connecting succeeds.
/// - Released locks are granted to their waiters within the ttl.
/// - The claims of all clients are deleted within the ttl, counted from the end of the fault.
///
/// # Panics
/// If a promise is broken. The message names the fault.
pub async fn costs_no_lock<C>(
    servers: &[Server],
    victims: &[usize],
    fault: Fault,
    connect: impl Fn(Vec<SocketAddr>) -> C + Sync,
) where
    C: Future<Output = Result<Store>> + Send,
{
    let mut network = Network::new(servers, fault).await;
    let prefix = format!("minority-{}", ClaimId::random());
    let name = |number: usize| format!("{prefix}-{number}");
    let connect = async |addresses| Locks::new(connect(addresses).await.or_panic(fault, "cannot connect"));

    // The clients hold a lock each, and wait for the lock of the next client. The store may have no
    // queue for a mutex, in which the waiter could be seen.
    let kind = |number: usize| if number.is_multiple_of(2) { Kind::Mutex } else { Kind::Fair };
    let lock = |client: &Locks, number: usize| {
        let lock = client.of(kind(number), name(number));
        async move { lock.lock(&LockOptions::new()).await }
    };
    let clients = join_all((0..HOLDERS).map(|_| connect(network.addresses()))).await;
    let hold = async |(number, client): (usize, &Locks)| {
        lock(client, number).await.or_panic(fault, "a free lock was not granted")
    };
    let held = join_all(clients.iter().enumerate().map(hold)).await;
    let ttl = held.iter().map(Guard::remaining).max().expect("there are holders");
    let waiters: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(number, client)| spawn(lock(client, (number + 1) % HOLDERS)))
        .collect();
    let fair = (0..HOLDERS).filter(|number| kind(*number) == Kind::Fair);
    join_all(fair.map(|number| wait_for_queue(fault, &clients[0], name(number)))).await;

    network.fail(servers, victims).await;
    let began = Instant::now();
    let acquire = async |client: &Locks, deadline: Instant| {
        let lock = client.mutex(format!("{prefix}-{}", ClaimId::random()));
        let result = timeout_at(deadline, lock.lock().into_future()).await;
        let result = result.unwrap_or_else(|_| panic!("{fault:?}: no free lock was granted within the ttl"));
        result.or_panic(fault, "a free lock was not granted").release().await.or_panic(fault, "not released");
    };
    let newcomer = async |number: usize| {
        let client = connect(network.addresses_of_newcomers()).await;
        acquire(&client, Instant::now() + ttl).await;
        let tried = client.mutex(name(number)).try_lock().await.or_panic(fault, "a try failed");
        assert!(tried.is_none(), "{fault:?}: two clients hold the lock");
        client
    };
    let (_, newcomers) = tokio::join!(
        join_all(clients.iter().map(|client| acquire(client, began + ttl))),
        join_all((0..NEWCOMERS).map(newcomer)),
    );
    let acquired = began.elapsed();
    sleep_until(began + ttl + GRACE).await;
    for (guard, waiter) in held.iter().zip(&waiters) {
        assert_eq!(
            guard.lost().now_or_never(),
            None,
            "{fault:?}: a majority is healthy, but a lock was lost"
        );
        assert!(!waiter.is_finished(), "{fault:?}: a waiter ended while another client held its lock");
    }

    let released_at = Instant::now();
    for result in join_all(held.into_iter().map(Guard::release)).await {
        result.or_panic(fault, "a lock was not released");
    }
    let released = released_at.elapsed();
    for waiter in waiters {
        let result = timeout_at(released_at + ttl, waiter).await;
        let result = result.unwrap_or_else(|_| panic!("{fault:?}: a waiter was not granted within the ttl"));
        let guard = result.expect("the task does not panic").or_panic(fault, "a waiter failed");
        guard.release().await.or_panic(fault, "a lock was not released");
    }
    let handed_over = released_at.elapsed();
    network.recover(servers).await;
    let recovered_at = Instant::now();
    join_all(clients[1..].iter().chain(&newcomers).map(Locks::close)).await;
    wait_until_empty(fault, &clients[0], &prefix, ttl).await;
    clients[0].close().await;
    print_figure(&format!(
        "{fault:?}: all clients acquired within {acquired:.1?}, released within {released:.1?}, handed over within \
         {handed_over:.1?}; cleaned up {:.1?} after the fault",
        recovered_at.elapsed()
    ));
}

#[expect(clippy::print_stderr, reason = "the test reports a measurement")]
fn print_figure(figure: &str) {
    eprintln!("{figure}");
}

/// The links between the clients of a case and the servers.
struct Network {
    fault: Fault,
    links: Vec<Proxy>,
    /// Indices of the servers with the fault.
    victims: Vec<usize>,
    /// Replace the links of servers to which new clients cannot establish a connection.
    black_holes: Vec<BlackHole>,
}

impl Network {
    async fn new(servers: &[Server], fault: Fault) -> Self {
        let link = async |server: &Server| Proxy::to(server.address()).await.expect("a port is free");
        let links = join_all(servers.iter().map(link)).await;
        let black_holes = join_all(servers.iter().map(|_| BlackHole::new())).await;
        Self { fault, links, victims: Vec::new(), black_holes }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.links.iter().map(Proxy::address).collect()
    }

    fn addresses_of_newcomers(&self) -> Vec<SocketAddr> {
        let mut addresses = self.addresses();
        if self.fault == Fault::AllDropped {
            self.victims.iter().for_each(|victim| addresses[*victim] = self.black_holes[*victim].address);
        }
        addresses
    }

    /// Begins the fault.
    async fn fail(&mut self, servers: &[Server], victims: &[usize]) {
        self.victims = victims.to_vec();
        if victims.is_empty() {
            let mut by_traffic: Vec<_> = (0..self.links.len()).collect();
            by_traffic.sort_by_key(|index| std::cmp::Reverse(self.links[*index].requested()));
            by_traffic.truncate((self.links.len() - 1) / 2);
            self.victims = by_traffic;
        }
        for victim in &self.victims {
            let link = &self.links[*victim];
            match self.fault {
                Fault::RequestsDropped => link.hold_requests(),
                Fault::RepliesDropped => link.hold_answers(),
                Fault::AllDropped => link.stall(),
                Fault::RepliesLate => link.delay_answers(LATENESS),
                Fault::HungUp => link.hang_up(),
                Fault::Stopped => servers[*victim].pause().await.expect("the server is running"),
                Fault::DiskHung => servers[*victim].hang_disk().expect("the server has a disk of its own"),
            }
        }
    }

    /// Ends the fault. Data that was held back is delivered, as TCP would send it again.
    async fn recover(&self, servers: &[Server]) {
        self.links.iter().for_each(Proxy::pass);
        for victim in &self.victims {
            match self.fault {
                Fault::Stopped => servers[*victim].resume().await.expect("the server is running"),
                Fault::DiskHung => servers[*victim].recover_disk().expect("the disk hangs"),
                _ => {}
            }
        }
    }
}

/// An address at which no connection can be established, because every packet is dropped.
///
/// The kernel drops the first packet of a connection if the queue of the listener is full.
struct BlackHole {
    address: SocketAddr,
    _listener: tokio::net::TcpListener,
    /// Fills the queue.
    _connection: TcpStream,
}

impl BlackHole {
    async fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port is free");
        let listener = socket.listen(0).expect("the socket is bound");
        let address = listener.local_addr().expect("the socket is bound");
        let connection = TcpStream::connect(address).await.expect("the queue has one place");
        Self { address, _listener: listener, _connection: connection }
    }
}

/// Waits until the lock has a holder and a waiter.
async fn wait_for_queue(fault: Fault, client: &Locks, name: String) {
    let deadline = Instant::now() + ARRIVAL_LIMIT;
    loop {
        // The number of waiters is unknown while the store cannot be inspected.
        let state =
            or_none_if_transient(client.inspect(&name).await).or_panic(fault, "not inspected").flatten();
        if state.is_some_and(|state| state.holders.len() + state.queue.len() == 2) {
            return;
        }
        assert!(Instant::now() < deadline, "{fault:?}: `{name}` has no waiter before the fault");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until no lock with this prefix has a claim.
async fn wait_until_empty(fault: Fault, client: &Locks, prefix: &str, ttl: Duration) {
    let deadline = Instant::now() + ttl + GRACE;
    loop {
        let left = or_none_if_transient(client.list(prefix).await).or_panic(fault, "not inspected");
        if left.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        assert!(Instant::now() < deadline, "{fault:?}: claims are left after a ttl: {left:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Returns `None` for a transient error, because stores promise only that acquisitions and releases
/// succeed in spite of the fault.
fn or_none_if_transient<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.is_transient() => Ok(None),
        result => result.map(Some),
    }
}

#[expect(clippy::disallowed_methods, reason = "contenders are tasks")]
fn spawn<T: Send + 'static>(contender: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(contender)
}

/// Unwraps results with messages that name the fault.
trait OrPanic<T> {
    fn or_panic(self, fault: Fault, problem: &str) -> T;
}

impl<T, E: fmt::Debug> OrPanic<T> for std::result::Result<T, E> {
    #[track_caller]
    fn or_panic(self, fault: Fault, problem: &str) -> T {
        self.unwrap_or_else(|error| panic!("{fault:?}: {problem}: {error:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_connection_to_a_black_hole_is_established() {
        let hole = BlackHole::new().await;
        let connecting = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(hole.address));
        assert!(connecting.await.is_err(), "the connection was established or refused");
    }
}
