//! Clients of other programs, which share locks with dlock's clients in tests.
//!
//! A peer is a program that tests control with lines of text, described in `peers/README.md`. The
//! folders beside that file contain the programs. One process can have any number of contenders.
//!
//! ```no_run
//! use std::time::Duration;
//! use dlock_testbed::peer::{PeerKind, Program};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let program = Program::REDISSON.build().map_err(|unreachable| unreachable.reason)?;
//! let redisson = program.start("redis://127.0.0.1:6379", Duration::from_secs(30));
//! let one = redisson.contender();
//! if one.try_lock(PeerKind::Mutex, "stock").await?.is_some() {
//!     one.unlock(PeerKind::Mutex, "stock").await?;
//! }
//! # Ok(()) }
//! ```

mod border;
pub mod cases;
pub mod elections;
mod fleet;
mod lines;
mod measure;
mod program;
mod report;
#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Kind, Token};

pub use border::{Border, Side};
pub use fleet::Fleet;
use lines::Lines;
pub use measure::Contest;
pub use program::{Built, Program};
pub use report::Report;

/// Maximum time for a reply, in addition to the wait limit of the request.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Kind of a peer's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// As [`Kind::Mutex`], without a token.
    Mutex,
    /// As [`Kind::Fair`].
    Fair,
    /// As [`Kind::Read`].
    Read,
    /// As [`Kind::Write`].
    Write,
    /// As [`Kind::Mutex`], with a token.
    Fenced,
    /// Several of [`Mutex`](Self::Mutex) as one. A name is a list of names with commas.
    Multi,
    /// A majority of several of [`Mutex`](Self::Mutex) as one. A name is a list of names with
    /// commas.
    Redlock,
    /// A candidate of an election, whose term is the hold.
    Candidate,
    /// A candidate of another kind of election, which ignores those of [`Candidate`](Self::Candidate).
    Latch,
}

impl PeerKind {
    const ALL: [Self; 9] = [
        Self::Mutex,
        Self::Fair,
        Self::Read,
        Self::Write,
        Self::Fenced,
        Self::Multi,
        Self::Redlock,
        Self::Candidate,
        Self::Latch,
    ];

    /// Returns the equivalent kind of dlock.
    pub fn kind(self) -> Kind {
        match self {
            Self::Mutex | Self::Fenced | Self::Multi | Self::Redlock => Kind::Mutex,
            Self::Fair | Self::Candidate | Self::Latch => Kind::Fair,
            Self::Read => Kind::Read,
            Self::Write => Kind::Write,
        }
    }
}

impl fmt::Display for PeerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mutex => "mutex",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Fenced => "fenced",
            Self::Multi => "multi",
            Self::Redlock => "redlock",
            Self::Candidate => "candidate",
            Self::Latch => "latch",
        })
    }
}

/// A running peer. Dropping it kills the process, and its locks stay held until their ttl ends.
#[derive(Debug)]
pub struct Peer {
    name: String,
    child: Child,
    kinds: Vec<PeerKind>,
    lines: Arc<Lines>,
    contenders: AtomicUsize,
}

impl Peer {
    /// Name and version, for messages: `redisson 4.7.0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the peer has locks of this kind.
    pub fn can(&self, kind: PeerKind) -> bool {
        self.kinds.contains(&kind)
    }

    /// Adds a contender to the process. It shares no hold with the other contenders.
    pub fn contender(&self) -> Contender {
        let number = self.contenders.fetch_add(1, Relaxed);
        Contender { name: format!("{} #{number}", self.name), number, lines: Arc::clone(&self.lines) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A contender in a [`Peer`]. It has at most one request at a time.
///
/// # Cancel safety
/// Dropping a call does not cancel the request. The contender must not be used afterwards, because
/// its next reply would be that of the dropped call.
#[derive(Debug)]
pub struct Contender {
    name: String,
    number: usize,
    lines: Arc<Lines>,
}

/// A lock that a peer's contender holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Fencing token, if the kind has tokens.
    pub token: Option<Token>,
}

impl Contender {
    /// Waits for a lock. Returns `None` at the end of `wait`.
    ///
    /// # Errors
    /// If the peer reports an error, has ended, or does not reply.
    pub async fn lock(&self, kind: PeerKind, name: &str, wait: Duration) -> io::Result<Option<Taken>> {
        let request = format!("lock {kind} {name} {}", wait.as_millis());
        let reply = self.request(&request, wait + REPLY_TIMEOUT).await?;
        self.taken(&request, &reply)
    }

    /// Tries to take a lock, without waiting.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self, kind: PeerKind, name: &str) -> io::Result<Option<Taken>> {
        let request = format!("try {kind} {name}");
        let reply = self.request(&request, REPLY_TIMEOUT).await?;
        self.taken(&request, &reply)
    }

    /// Releases a lock.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and if the contender does not hold the lock.
    pub async fn unlock(&self, kind: PeerKind, name: &str) -> io::Result<()> {
        let request = format!("unlock {kind} {name}");
        match self.request(&request, REPLY_TIMEOUT).await?.as_str() {
            "free" => Ok(()),
            reply => Err(self.unexpected_reply(&request, reply)),
        }
    }

    /// Returns the remaining ttl of the lock's holder, whether of this peer or not. `None` if the
    /// lock is free.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn state(&self, kind: PeerKind, name: &str) -> io::Result<Option<Duration>> {
        let request = format!("state {kind} {name}");
        let reply = self.request(&request, REPLY_TIMEOUT).await?;
        match reply.strip_prefix("held ").map(str::parse) {
            Some(Ok(ttl)) => Ok(Some(Duration::from_millis(ttl))),
            None if reply == "free" => Ok(None),
            _ => Err(self.unexpected_reply(&request, &reply)),
        }
    }

    /// Returns the label of an election's leader, whether of this peer or not. `None` if there is no
    /// leader.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn leader(&self, kind: PeerKind, name: &str) -> io::Result<Option<String>> {
        let request = format!("leader {kind} {name}");
        let reply = self.request(&request, REPLY_TIMEOUT).await?;
        match reply.strip_prefix("leader ") {
            Some(label) => Ok(Some(label.to_owned())),
            None if reply == "vacant" => Ok(None),
            None => Err(self.unexpected_reply(&request, &reply)),
        }
    }

    /// Returns the label under which the contender stands in elections.
    pub fn label(&self) -> String {
        format!("peer-{}", self.number)
    }

    fn taken(&self, request: &str, reply: &str) -> io::Result<Option<Taken>> {
        let token = |text: &str| text.parse().ok().and_then(Token::new);
        match reply.split_once(' ') {
            None if reply == "busy" => Ok(None),
            None if reply == "held" => Ok(Some(Taken { token: None })),
            Some(("held", text)) if token(text).is_some() => Ok(Some(Taken { token: token(text) })),
            _ => Err(self.unexpected_reply(request, reply)),
        }
    }

    async fn request(&self, request: &str, limit: Duration) -> io::Result<String> {
        let reply = tokio::time::timeout(limit, self.lines.request(self.number, request)).await;
        let error = |failure: fmt::Arguments<'_>| {
            io::Error::other(format!("{}, asked for `{request}`, {failure}", self.name))
        };
        match reply {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(ended)) => Err(error(format_args!("has ended: {ended}"))),
            Err(_) => Err(error(format_args!("does not reply within {limit:?}"))),
        }
    }

    fn unexpected_reply(&self, request: &str, reply: &str) -> io::Error {
        io::Error::other(format!("{}, asked for `{request}`, replied `{reply}`", self.name))
    }
}
