//! A proxy that counts the round trips of clients, by the headers of the messages that it forwards.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use async_trait::async_trait;
use dlock_conformance::Unreachable;
use dlock_testbed::servers::Running;

use crate::{
    contest::{Counter, Outcome},
    growth,
};

/// A server's own URL and address, from which URLs through a proxy are derived.
#[derive(Clone, Copy)]
pub(crate) struct Endpoint<'a> {
    pub(crate) url: &'a str,
    pub(crate) server: SocketAddr,
}

impl<'a> Endpoint<'a> {
    /// # Errors
    /// The reason why the server cannot be measured.
    pub(crate) fn of(running: &'a Running) -> Result<Self, String> {
        let server = running.servers().first().ok_or("the server's address is not known")?;
        Ok(Self { url: running.url(), server: server.address() })
    }

    /// Returns the URL with the server's address replaced by `address`.
    pub(crate) fn url_at(&self, address: SocketAddr, params: &str) -> String {
        format!("{}{params}", self.url.replace(&self.server.to_string(), &address.to_string()))
    }
}

/// Returns a server for the measurements of growth, behind a proxy that counts round trips, or the
/// reason why there is none.
pub(crate) fn store(
    started: Result<Running, Unreachable>,
    forward: Forward,
) -> Outcome<Result<growth::Store, String>> {
    let running = match started {
        Ok(running) => running,
        Err(unreachable) => return Ok(Err(unreachable.reason)),
    };
    let endpoint = match Endpoint::of(&running) {
        Ok(endpoint) => endpoint,
        Err(reason) => return Ok(Err(reason)),
    };
    let round_trips = RoundTrips::to(endpoint.server, forward)?;
    let url = endpoint.url_at(round_trips.address(), "");
    Ok(Ok(growth::Store::new(url, Some(Box::new(round_trips)), running)))
}

/// Forwards the messages of a client until its connection ends, and counts its requests.
pub(crate) type Forward = fn(TcpStream, &TcpStream, &AtomicUsize) -> io::Result<()>;

/// A proxy in front of a server. Its threads end with their connections, or with the benchmark.
pub(crate) struct RoundTrips {
    address: SocketAddr,
    count: Arc<AtomicUsize>,
}

impl RoundTrips {
    /// Starts a proxy. `forward` is [`mysql`] or [`postgres`].
    pub(crate) fn to(server: SocketAddr, forward: Forward) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let proxy = Self { address: listener.local_addr()?, count: Arc::default() };
        let count = Arc::clone(&proxy.count);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else { return };
                let count = Arc::clone(&count);
                thread::spawn(move || forward_both(client, &server, &count, forward));
            }
        });
        Ok(proxy)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

#[async_trait(?Send)]
impl Counter for RoundTrips {
    /// Returns the number of requests that all clients have sent.
    async fn read(&self) -> Outcome<f64> {
        Ok(self.count.load(SeqCst) as f64)
    }
}

/// Forwards both directions of a connection until one of them ends.
fn forward_both(
    client: TcpStream,
    server: &TcpStream,
    count: &AtomicUsize,
    forward: Forward,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || io::copy(&mut from, &mut to));
    let result = forward(client, server, count);
    // The other thread still reads from the server. The shutdown ends it.
    server.shutdown(Shutdown::Both).and(result)
}

/// Forwards packets of a client of MySQL, and counts those that begin a command.
///
/// The packets of a command are numbered from 0.
pub(crate) fn mysql(mut client: TcpStream, mut server: &TcpStream, count: &AtomicUsize) -> io::Result<()> {
    /// First byte of the command that ends a session. It has no reply.
    const QUIT: u8 = 1;
    loop {
        let mut packet = vec![0; 4];
        client.read_exact(&mut packet)?;
        let length = usize::from(packet[0]) | usize::from(packet[1]) << 8 | usize::from(packet[2]) << 16;
        packet.resize(4 + length, 0);
        client.read_exact(&mut packet[4..])?;
        if packet[3] == 0 && packet.get(4) != Some(&QUIT) {
            count.fetch_add(1, SeqCst);
        }
        server.write_all(&packet)?;
    }
}

/// Forwards messages of a client of PostgreSQL without TLS, and counts those to which the server
/// replies: queries as text, and the ends of groups of other messages.
pub(crate) fn postgres(mut client: TcpStream, mut server: &TcpStream, count: &AtomicUsize) -> io::Result<()> {
    const QUERY: u8 = b'Q';
    const SYNC: u8 = b'S';
    // The first message of a connection has no type.
    let mut header_length = 4;
    loop {
        let mut message = vec![0; header_length];
        client.read_exact(&mut message)?;
        let length =
            message[header_length - 4..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        message.resize(header_length - 4 + length, 0);
        client.read_exact(&mut message[header_length..])?;
        if header_length == 5 && matches!(message[0], QUERY | SYNC) {
            count.fetch_add(1, SeqCst);
        }
        server.write_all(&message)?;
        header_length = 5;
    }
}
