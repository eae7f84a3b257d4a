//! Counts the calls that clients send to a server: passes on what they send, and looks at the packets.

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

use crate::contest::{Counter, Outcome};

/// The last call of a session, which has no answer.
const QUIT: u8 = 1;

/// A way to a server on which calls are counted. Its threads end with the connections, or with the benchmark.
pub(super) struct Trips {
    address: SocketAddr,
    count: Arc<AtomicUsize>,
}

impl Trips {
    pub(super) fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let trips = Self { address: listener.local_addr()?, count: Arc::default() };
        let count = Arc::clone(&trips.count);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else { return };
                let count = Arc::clone(&count);
                thread::spawn(move || pass(client, &server, &count));
            }
        });
        Ok(trips)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

#[async_trait(?Send)]
impl Counter for Trips {
    /// How many calls clients have sent so far.
    async fn read(&self) -> Outcome<f64> {
        Ok(self.count.load(SeqCst) as f64)
    }
}

/// Passes on both ways until one ends, and counts the client's calls.
fn pass(client: TcpStream, server: &TcpStream, count: &AtomicUsize) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || io::copy(&mut from, &mut to));
    let ended = pass_calls(client, server, count);
    // The other thread reads from it still.
    server.shutdown(Shutdown::Both).and(ended)
}

/// Each call begins a new numbering of packets.
fn pass_calls(mut client: TcpStream, mut server: &TcpStream, count: &AtomicUsize) -> io::Result<()> {
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
