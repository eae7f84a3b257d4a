//! One of the processes of a contestant.

use std::{env, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::Mutex,
    time::timeout,
};

use super::client::{ClientLock, READY, TOOK};
use crate::contest::{Measure, Outcome, PeerContestant};

/// Maximum time until a client has connected, on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) enum Process {
    Client(Box<Mutex<ClientProcess>>),
    Peer(PeerContestant),
}

impl Process {
    /// Returns the duration of each pair of lock and release.
    pub(super) async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>> {
        match self {
            Self::Client(client) => client.lock().await.pairs(name, pairs).await,
            Self::Peer(peer) => peer.pairs(name, pairs).await,
        }
    }
}

/// A process of this program as a [client](super::client). Dropping it kills the process.
pub(super) struct ClientProcess {
    _child: Child,
    requests: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl ClientProcess {
    /// Starts a process, and waits until it has connected.
    pub(super) async fn start(lock: ClientLock, url: &str) -> Outcome<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(["--client", &lock.to_string(), "--url", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(requests), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are pipes");
        };
        let mut client = Self { _child: child, requests, replies: BufReader::new(replies).lines() };
        match timeout(READY_TIMEOUT, client.reply()).await {
            Ok(reply) if reply.as_deref().ok() == Some(READY) => Ok(client),
            Ok(reply) => Err(format!("the client {lock} does not connect: {reply:?}").into()),
            Err(_) => Err(format!("the client {lock} does not connect within {READY_TIMEOUT:?}").into()),
        }
    }

    async fn pairs(&mut self, name: &str, pairs: usize) -> Outcome<Vec<Duration>> {
        self.requests.write_all(format!("{name} {pairs}\n").as_bytes()).await?;
        let reply = self.reply().await?;
        let nanos = reply.strip_prefix(TOOK).ok_or_else(|| reply.clone())?;
        Ok(nanos
            .split_whitespace()
            .map(|nanos| nanos.parse().map(Duration::from_nanos))
            .collect::<Result<_, _>>()?)
    }

    async fn reply(&mut self) -> Outcome<String> {
        Ok(self.replies.next_line().await?.ok_or("the client process has ended")?)
    }
}
