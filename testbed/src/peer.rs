//! Clients of other programs, for tests whether they and dlock's clients exclude, wake and understand each other.
//!
//! A peer is a program that is driven by lines of text. `peers/README.md` documents the lines; the folders beside it hold
//! the programs. One process may have any number of contenders.
//!
//! ```no_run
//! use std::time::Duration;
//! use dlock_testbed::peer::{PeerKind, Program};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let program = Program::REDISSON.build().map_err(|gone| gone.reason)?;
//! let redisson = program.start("redis://127.0.0.1:6379", Duration::from_secs(30));
//! let one = redisson.contender();
//! if one.try_lock(PeerKind::Mutex, "stock").await?.is_some() {
//!     one.unlock(PeerKind::Mutex, "stock").await?;
//! }
//! # Ok(()) }
//! ```

mod border;
pub mod cases;
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

/// The longest that an answer may take beside the wait that was asked for.
const ANSWER: Duration = Duration::from_secs(30);

/// How a peer's contender holds a lock.
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
    /// Several of [`Mutex`](Self::Mutex) as one, of the names between the commas of a name.
    Multi,
    /// A majority of several of [`Mutex`](Self::Mutex) as one, of the names between the commas of a name.
    Redlock,
}

impl PeerKind {
    const ALL: [Self; 7] =
        [Self::Mutex, Self::Fair, Self::Read, Self::Write, Self::Fenced, Self::Multi, Self::Redlock];

    /// The same kind of dlock's.
    pub fn kind(self) -> Kind {
        match self {
            Self::Mutex | Self::Fenced | Self::Multi | Self::Redlock => Kind::Mutex,
            Self::Fair => Kind::Fair,
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
        })
    }
}

/// A running peer. Dropping it kills it; what it holds stays held until its ttl ends.
#[derive(Debug)]
pub struct Peer {
    name: String,
    child: Child,
    kinds: Vec<PeerKind>,
    lines: Arc<Lines>,
    contenders: AtomicUsize,
}

impl Peer {
    /// Its name and version, for people: `redisson 4.7.0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has locks of this kind.
    pub fn can(&self, kind: PeerKind) -> bool {
        self.kinds.contains(&kind)
    }

    /// One more contender in the same process: a stranger to the others.
    pub fn contender(&self) -> Contender {
        let number = self.contenders.fetch_add(1, Relaxed);
        Contender { name: format!("{} #{number}", self.name), number, lines: Arc::clone(&self.lines) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Either fails only for one that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Who contends for locks in a [`Peer`]. Does one thing at a time.
///
/// # Cancel safety
/// Dropping a call does not undo it. The contender must not be used any more after that: its next answer would be the one
/// to the dropped call.
#[derive(Debug)]
pub struct Contender {
    name: String,
    number: usize,
    lines: Arc<Lines>,
}

/// What a peer's contender holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its fencing token, if it asked for one.
    pub token: Option<Token>,
}

impl Contender {
    /// Waits for a lock; `None` when the wait is over.
    ///
    /// # Errors
    /// The peer's, and those of a peer that has ended or does not answer.
    pub async fn lock(&self, kind: PeerKind, name: &str, wait: Duration) -> io::Result<Option<Taken>> {
        let asked = format!("lock {kind} {name} {}", wait.as_millis());
        let answer = self.ask(&asked, wait + ANSWER).await?;
        self.taken(&asked, &answer)
    }

    /// Tries once.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self, kind: PeerKind, name: &str) -> io::Result<Option<Taken>> {
        let asked = format!("try {kind} {name}");
        let answer = self.ask(&asked, ANSWER).await?;
        self.taken(&asked, &answer)
    }

    /// Lets go.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and if it does not hold it.
    pub async fn unlock(&self, kind: PeerKind, name: &str) -> io::Result<()> {
        let asked = format!("unlock {kind} {name}");
        match self.ask(&asked, ANSWER).await?.as_str() {
            "free" => Ok(()),
            answer => Err(self.strange(&asked, answer)),
        }
    }

    /// How long the lock is held without another renewal, by whom ever; `None` if nobody holds it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn state(&self, kind: PeerKind, name: &str) -> io::Result<Option<Duration>> {
        let asked = format!("state {kind} {name}");
        let answer = self.ask(&asked, ANSWER).await?;
        match answer.strip_prefix("held ").map(str::parse) {
            Some(Ok(ttl)) => Ok(Some(Duration::from_millis(ttl))),
            None if answer == "free" => Ok(None),
            _ => Err(self.strange(&asked, &answer)),
        }
    }

    fn taken(&self, asked: &str, answer: &str) -> io::Result<Option<Taken>> {
        let token = |text: &str| text.parse().ok().and_then(Token::new);
        match answer.split_once(' ') {
            None if answer == "busy" => Ok(None),
            None if answer == "held" => Ok(Some(Taken { token: None })),
            Some(("held", text)) if token(text).is_some() => Ok(Some(Taken { token: token(text) })),
            _ => Err(self.strange(asked, answer)),
        }
    }

    async fn ask(&self, words: &str, limit: Duration) -> io::Result<String> {
        let answer = tokio::time::timeout(limit, self.lines.ask(self.number, words)).await;
        let error = |what: fmt::Arguments<'_>| {
            io::Error::other(format!("{}, asked for `{words}`, {what}", self.name))
        };
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(ended)) => Err(error(format_args!("has ended: {ended}"))),
            Err(_) => Err(error(format_args!("does not answer within {limit:?}"))),
        }
    }

    fn strange(&self, asked: &str, answer: &str) -> io::Error {
        io::Error::other(format!("{}, asked for `{asked}`, says `{answer}`", self.name))
    }
}
