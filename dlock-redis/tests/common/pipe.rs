//! Passes bytes on between a client and its server, encrypted ones too, at an address or a Unix socket of its own.
#![expect(clippy::disallowed_methods, reason = "each connection is a task")]

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional},
    net::{TcpListener, TcpStream, UnixListener},
    sync::watch,
};

/// Ends with the runtime of its test.
pub(crate) struct Pipe {
    server: Arc<Mutex<SocketAddr>>,
    /// How often all connections were cut.
    cuts: Arc<watch::Sender<usize>>,
}

impl Pipe {
    /// At a port of its own.
    pub(crate) async fn to(server: SocketAddr) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let (pipe, address) = (Self::new(server), listener.local_addr().expect("it is bound"));
        let (to, cuts) = (Arc::clone(&pipe.server), Arc::clone(&pipe.cuts));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, Arc::clone(&to), Arc::clone(&cuts)));
            }
        });
        (pipe, address)
    }

    /// At a socket.
    pub(crate) fn at(socket: &Path, server: SocketAddr) -> Self {
        let listener = UnixListener::bind(socket).expect("nobody else has that path");
        let pipe = Self::new(server);
        let (to, cuts) = (Arc::clone(&pipe.server), Arc::clone(&pipe.cuts));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, Arc::clone(&to), Arc::clone(&cuts)));
            }
        });
        pipe
    }

    fn new(server: SocketAddr) -> Self {
        Self { server: Arc::new(Mutex::new(server)), cuts: Arc::default() }
    }

    /// Cuts all connections. Those that come lead to this server.
    pub(crate) fn cut_and_lead_to(&self, server: SocketAddr) {
        *self.server.lock().expect("nobody panics") = server;
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn pass(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    server: Arc<Mutex<SocketAddr>>,
    cuts: Arc<watch::Sender<usize>>,
) {
    let mut cut = cuts.subscribe();
    let to = *server.lock().expect("nobody panics");
    let mut server = TcpStream::connect(to).await.expect("the server is there");
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = cut.changed() => {}
    }
}
