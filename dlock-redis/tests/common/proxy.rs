//! A line to a server that can be harmed, one connection at a time.
#![expect(clippy::disallowed_methods, reason = "a connection is two tasks")]

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// What becomes of what is sent on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// It arrives.
    Sound,
    /// Nothing arrives at the server until the line is sound again, though the client is gone by then.
    HeldBack,
    /// Nothing arrives at the client, and nobody says that the connection is broken.
    HalfOpen,
    /// The next answer does not arrive: the connection breaks instead.
    BreaksAtAnswer,
}

/// Passes connections on to a server.
pub(crate) struct Proxy {
    address: SocketAddr,
    lines: Arc<Mutex<Vec<watch::Sender<Line>>>>,
}

impl Proxy {
    /// Passes on to the server of a URL.
    pub(crate) async fn to(url: &str) -> Self {
        let server = url.trim_start_matches("redis://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let lines: Arc<Mutex<Vec<watch::Sender<Line>>>> = Arc::default();
        let all = Arc::clone(&lines);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let line = watch::Sender::new(Line::Sound);
                let ((from, to), (answers, back)) = (client.into_split(), server.into_split());
                tokio::spawn(requests(from, back, line.subscribe()));
                tokio::spawn(replies(answers, to, line.subscribe()));
                all.lock().expect("nobody panics").push(line);
            }
        });
        Self { address, lines }
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// How many connections there have been.
    pub(crate) fn count(&self) -> usize {
        self.lines.lock().expect("nobody panics").len()
    }

    /// Does this to all connections that there have been. Later ones are sound.
    pub(crate) fn set(&self, line: Line) {
        self.lines.lock().expect("nobody panics").iter().for_each(|one| {
            one.send_replace(line);
        });
    }

    /// Does this to one connection, by the order in which they came.
    pub(crate) fn set_one(&self, number: usize, line: Line) {
        self.lines.lock().expect("nobody panics")[number].send_replace(line);
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut line: watch::Receiver<Line>) {
    let mut bytes = vec![0; 65536];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        line.wait_for(|line| *line != Line::HeldBack).await.ok();
        // Also the client's end comes behind what it has sent.
        if read == 0 || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut line: watch::Receiver<Line>) {
    let mut bytes = vec![0; 65536];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        line.wait_for(|line| *line != Line::HalfOpen).await.ok();
        if read == 0 || *line.borrow() == Line::BreaksAtAnswer || to.write_all(&bytes[..read]).await.is_err()
        {
            return;
        }
    }
}
