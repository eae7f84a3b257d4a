//! A proxy that counts the commands of clients, by the headers of the packets that it forwards.

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

/// First byte of the command that ends a session. It has no reply, so it is not counted.
const QUIT: u8 = 1;

/// A proxy in front of a server. Its threads end with their connections, or with the benchmark.
pub(super) struct RoundTrips {
    address: SocketAddr,
    count: Arc<AtomicUsize>,
}

impl RoundTrips {
    pub(super) fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let proxy = Self { address: listener.local_addr()?, count: Arc::default() };
        let count = Arc::clone(&proxy.count);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else { return };
                let count = Arc::clone(&count);
                thread::spawn(move || forward(client, &server, &count));
            }
        });
        Ok(proxy)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

#[async_trait(?Send)]
impl Counter for RoundTrips {
    /// Returns the number of commands that all clients have sent.
    async fn read(&self) -> Outcome<f64> {
        Ok(self.count.load(SeqCst) as f64)
    }
}

/// Forwards bytes in both directions until one direction ends, and counts the client's commands.
fn forward(client: TcpStream, server: &TcpStream, count: &AtomicUsize) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || io::copy(&mut from, &mut to));
    let result = forward_commands(client, server, count);
    // The other thread still reads from the server. The shutdown ends it.
    server.shutdown(Shutdown::Both).and(result)
}

/// Forwards packets from the client to the server, and counts those that begin a command.
///
/// The packets of a command are numbered from 0.
fn forward_commands(mut client: TcpStream, mut server: &TcpStream, count: &AtomicUsize) -> io::Result<()> {
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
