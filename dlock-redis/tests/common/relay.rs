//! A relay between a client and its server that knows commands and answers: it replaces commands, and keeps back or loses answers.
//! The suite's `Proxy` knows only bytes and connections.
#![expect(clippy::disallowed_methods, reason = "each direction of each connection is a task")]

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

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

/// A command that the server answers with this error.
pub(crate) fn refusal(error: &str) -> Words {
    ["EVAL", "return redis.error_reply(ARGV[1])", "0", error].map(str::to_owned).to_vec()
}

/// A command that the server answers with this text.
pub(crate) fn answer(text: &str) -> Words {
    ["EVAL", "return ARGV[1]", "0", text].map(str::to_owned).to_vec()
}

/// What becomes of the answers on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    Arrive,
    /// They are kept back until the test lets answers arrive again. The client sees no broken connection.
    Stay,
    /// The next answer is lost, and the connection is closed.
    Break,
}

/// A relay. It ends with the runtime of its test.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    flow: Arc<Flow>,
}

struct Flow {
    /// Where new connections lead.
    server: Mutex<SocketAddr>,
    rewrite: Box<dyn Fn(Words) -> Words + Send + Sync>,
    /// How many scripts were asked for.
    asked: watch::Sender<usize>,
    /// How many scripts must have been asked for before the next answer arrives.
    wanted: watch::Sender<usize>,
    /// What becomes of the answers on each connection, in the order in which the connections came.
    connections: Mutex<Vec<watch::Sender<Answers>>>,
}

impl Relay {
    /// A relay that changes no command.
    pub(crate) async fn to(server: SocketAddr) -> Self {
        Self::rewriting(server, |words| words).await
    }

    /// A relay that sends what this makes of each command, and closes the connection where that is `None`.
    pub(crate) async fn rewriting(
        server: SocketAddr,
        rewrite: impl Fn(Words) -> Words + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (asked, wanted) = (watch::Sender::new(0), watch::Sender::new(0));
        let flow = Arc::new(Flow {
            server: Mutex::new(server),
            rewrite: Box::new(rewrite),
            asked,
            wanted,
            connections: Mutex::default(),
        });
        let shared = Arc::clone(&flow);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let answers = shared.connection();
                let to = *shared.server.lock().expect("nobody panics");
                let server = TcpStream::connect(to).await.expect("the server is there");
                let (up, down) = (Arc::clone(&shared), Arc::clone(&shared));
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(async move { up.questions(from_client, to_server).await });
                tokio::spawn(async move { down.answers(from_server, to_client, answers).await });
            }
        });
        Self { address, flow }
    }

    /// Keeps answers back until so many more scripts were asked for.
    pub(crate) fn hold_answers_for(&self, scripts: usize) {
        let asked = *self.flow.asked.borrow();
        self.flow.wanted.send_replace(asked + scripts);
    }

    /// Loses the next answer, and closes its connection.
    pub(crate) fn lose_answer(&self) {
        self.all(Answers::Break);
    }

    /// How many connections there have been.
    pub(crate) fn count(&self) -> usize {
        self.flow.connections.lock().expect("nobody panics").len()
    }

    /// Makes new connections lead to another server.
    pub(crate) fn lead_to(&self, server: SocketAddr) {
        *self.flow.server.lock().expect("nobody panics") = server;
    }

    /// Does this to the answers on all connections so far. On later connections answers arrive.
    pub(crate) fn all(&self, answers: Answers) {
        for connection in self.flow.connections.lock().expect("nobody panics").iter() {
            connection.send_replace(answers);
        }
    }

    /// Does this to the answers on the first connection.
    pub(crate) fn first(&self, answers: Answers) {
        self.flow.connections.lock().expect("nobody panics")[0].send_replace(answers);
    }
}

impl Flow {
    fn connection(&self) -> watch::Receiver<Answers> {
        let (sender, answers) = watch::channel(Answers::Arrive);
        self.connections.lock().expect("nobody panics").push(sender);
        answers
    }

    async fn questions(&self, client: OwnedReadHalf, mut server: OwnedWriteHalf) -> Option<()> {
        let mut client = BufReader::new(client);
        loop {
            let words = command(&mut client).await?;
            self.asked.send_modify(|asked| *asked += usize::from(words[0] == "EVALSHA"));
            let words = (self.rewrite)(words);
            if words.is_empty() {
                return None;
            }
            let mut sent = format!("*{}\r\n", words.len());
            words.iter().for_each(|word| sent += &format!("${}\r\n{word}\r\n", word.len()));
            server.write_all(sent.as_bytes()).await.ok()?;
        }
    }

    async fn answers(
        &self,
        mut server: OwnedReadHalf,
        mut client: OwnedWriteHalf,
        mut answers: watch::Receiver<Answers>,
    ) -> Option<()> {
        let mut chunk = [0; 4096];
        loop {
            let count = server.read(&mut chunk).await.ok().filter(|count| *count > 0)?;
            if *answers.wait_for(|answers| *answers != Answers::Stay).await.ok()? == Answers::Break {
                return None;
            }
            let wanted = *self.wanted.borrow();
            self.asked.subscribe().wait_for(|asked| *asked >= wanted).await.ok()?;
            client.write_all(&chunk[..count]).await.ok()?;
        }
    }
}

/// Reads the next command, which clients send as an array of strings.
async fn command(client: &mut BufReader<OwnedReadHalf>) -> Option<Words> {
    let count = number(client).await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(client).await?;
        let mut word = vec![0; length + "\r\n".len()];
        client.read_exact(&mut word).await.ok()?;
        word.truncate(length);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

/// Reads the number of a line like `*3` or `$7`.
async fn number(client: &mut BufReader<OwnedReadHalf>) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}
