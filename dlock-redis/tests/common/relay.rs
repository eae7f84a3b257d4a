//! A relay between a client and its server that understands commands and replies. It replaces
//! commands, and holds or loses replies. The `Proxy` of the suite only understands bytes and
//! connections.
#![expect(clippy::disallowed_methods, reason = "each direction of each connection is a task")]

use std::{net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// The words of a command.
pub(crate) type Words = Vec<String>;

/// Returns a command to which the server replies with this error.
pub(crate) fn error_reply(error: &str) -> Words {
    ["EVAL", "return redis.error_reply(ARGV[1])", "0", error].map(str::to_owned).to_vec()
}

/// Returns a command to which the server replies with this text.
pub(crate) fn text_reply(text: &str) -> Words {
    ["EVAL", "return ARGV[1]", "0", text].map(str::to_owned).to_vec()
}

/// The treatment of the replies on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    /// Replies are forwarded.
    Deliver,
    /// Replies are held until the test sets another treatment. The connection stays open.
    Hold,
    /// The next reply is lost, and the connection is closed.
    Disconnect,
}

/// A relay. It ends with the runtime of its test.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

struct State {
    /// The server to which new connections lead.
    server: Mutex<SocketAddr>,
    rewrite: Box<dyn Fn(Words) -> Words + Send + Sync>,
    /// Number of scripts that were requested so far.
    scripts: watch::Sender<usize>,
    /// Number of scripts that must have been requested before the next reply is forwarded.
    scripts_before_reply: watch::Sender<usize>,
    /// The treatment of the replies on each connection, in the order in which the connections were
    /// opened.
    connections: Mutex<Vec<watch::Sender<Replies>>>,
}

impl Relay {
    /// Starts a relay that changes no command.
    pub(crate) async fn to(server: SocketAddr) -> Self {
        Self::rewriting(server, |words| words).await
    }

    /// Starts a relay that sends the result of `rewrite` instead of each command, and closes the
    /// connection if the result is empty.
    pub(crate) async fn rewriting(
        server: SocketAddr,
        rewrite: impl Fn(Words) -> Words + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let state = Arc::new(State {
            server: Mutex::new(server),
            rewrite: Box::new(rewrite),
            scripts: watch::Sender::new(0),
            scripts_before_reply: watch::Sender::new(0),
            connections: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let replies = shared.add_connection();
                let address = *shared.server.lock();
                let server = TcpStream::connect(address).await.expect("the server is running");
                let (up, down) = (Arc::clone(&shared), Arc::clone(&shared));
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(async move { up.forward_commands(from_client, to_server).await });
                tokio::spawn(async move { down.forward_replies(from_server, to_client, replies).await });
            }
        });
        Self { address, state }
    }

    /// Holds replies until `scripts` more scripts have been requested.
    pub(crate) fn hold_replies_for(&self, scripts: usize) {
        let requested = *self.state.scripts.borrow();
        self.state.scripts_before_reply.send_replace(requested + scripts);
    }

    /// Loses the next reply, and closes its connection.
    pub(crate) fn lose_reply(&self) {
        self.set_all(Replies::Disconnect);
    }

    /// Returns the number of connections that were opened so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.lock().len()
    }

    /// Connects new clients to another server.
    pub(crate) fn redirect_to(&self, server: SocketAddr) {
        *self.state.server.lock() = server;
    }

    /// Sets the treatment of the replies on all connections so far. Replies on later connections
    /// are forwarded.
    pub(crate) fn set_all(&self, replies: Replies) {
        for connection in self.state.connections.lock().iter() {
            connection.send_replace(replies);
        }
    }

    /// Sets the treatment of the replies on the first connection.
    pub(crate) fn set_first(&self, replies: Replies) {
        self.state.connections.lock()[0].send_replace(replies);
    }
}

impl State {
    fn add_connection(&self) -> watch::Receiver<Replies> {
        let (sender, replies) = watch::channel(Replies::Deliver);
        self.connections.lock().push(sender);
        replies
    }

    async fn forward_commands(&self, client: OwnedReadHalf, mut server: OwnedWriteHalf) -> Option<()> {
        let mut client = BufReader::new(client);
        loop {
            let words = read_command(&mut client).await?;
            self.scripts.send_modify(|scripts| *scripts += usize::from(words[0] == "EVALSHA"));
            let words = (self.rewrite)(words);
            if words.is_empty() {
                return None;
            }
            let mut sent = format!("*{}\r\n", words.len());
            words.iter().for_each(|word| sent += &format!("${}\r\n{word}\r\n", word.len()));
            server.write_all(sent.as_bytes()).await.ok()?;
        }
    }

    async fn forward_replies(
        &self,
        mut server: OwnedReadHalf,
        mut client: OwnedWriteHalf,
        mut replies: watch::Receiver<Replies>,
    ) -> Option<()> {
        let mut chunk = [0; 4096];
        loop {
            let count = server.read(&mut chunk).await.ok().filter(|count| *count > 0)?;
            let treatment = *replies.wait_for(|replies| *replies != Replies::Hold).await.ok()?;
            if treatment == Replies::Disconnect {
                return None;
            }
            let needed = *self.scripts_before_reply.borrow();
            self.scripts.subscribe().wait_for(|scripts| *scripts >= needed).await.ok()?;
            client.write_all(&chunk[..count]).await.ok()?;
        }
    }
}

/// Reads the next command, which clients send as an array of strings.
async fn read_command(client: &mut BufReader<OwnedReadHalf>) -> Option<Words> {
    let count = read_number(client).await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = read_number(client).await?;
        let mut word = vec![0; length + "\r\n".len()];
        client.read_exact(&mut word).await.ok()?;
        word.truncate(length);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

/// Reads the number of a line such as `*3` or `$7`.
async fn read_number(client: &mut BufReader<OwnedReadHalf>) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}
