//! Who is measured: the limits, dlock, and its rivals with their default settings, in one list for all measures.

use std::time::Duration;

use async_trait::async_trait;
use dlock::Kind;
use dlock_conformance::peer::{Contest, PeerKind, Program};

use super::{
    Outcome, Server,
    clients::{Dlock, Rlock, Rslock},
    here::Here,
    limit::{PlainByHand, RedissonByHand},
    peers::{self, There},
};

pub(super) struct Contestant {
    pub(super) name: String,
    pub(super) dialect: Dialect,
    pub(super) waits: Waits,
    /// Whether this is the limit, to which the others of its dialect are compared.
    pub(super) is_limit: bool,
    /// How to measure it, or why it cannot be measured.
    pub(super) measured: Result<Box<dyn Measured>, String>,
}

/// The protocol that a contestant speaks with the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Redisson,
    Plain,
}

/// What a contestant does while another holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// It can only try.
    Never,
    /// Asks again and again.
    Polls,
    /// Asks again when a message tells of the release.
    Woken,
    /// The same, and waiters get the lock in the order of arrival.
    InOrder,
}

/// Measures how long a contestant takes.
#[async_trait(?Send)]
pub(super) trait Measured {
    /// The time of each of so many pairs of acquire and release, while nobody else wants the lock.
    async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>>;

    /// The time from each release until the other client has the lock. Two clients take turns: each waits while the other
    /// holds the lock.
    async fn handoff(&self, name: &str, turns: usize, hold: Duration) -> Outcome<Vec<Duration>>;

    /// The time of each wait of each task in a contest.
    async fn contend(&self, name: &str, contest: &Contest) -> Outcome<Vec<Duration>>;
}

impl Contestant {
    pub(super) fn new(
        name: &str,
        dialect: Dialect,
        waits: Waits,
        measured: Result<impl Measured + 'static, String>,
    ) -> Self {
        let measured = measured.map(|measured| Box::new(measured) as Box<dyn Measured>);
        Self { name: name.to_owned(), dialect, waits, is_limit: false, measured }
    }

    pub(super) fn limit(self) -> Self {
        Self { is_limit: true, ..self }
    }
}

/// All contestants that lock on one server.
pub(super) async fn all(server: &Server) -> Outcome<Vec<Contestant>> {
    use Dialect::{Plain, Redisson};
    use Waits::{InOrder, Never, Polls, Woken};
    const NEWEST: Program = Program::REDISSON;
    const OLD: Program = Program::REDISSON_3;
    const REDSYNC: Program = Program::REDSYNC;
    let url = server.url();
    let dlock =
        async |params, kind| Here::connect(async || Dlock::connect(&server.with(params), kind).await).await;
    let redisson_by_hand = Here::connect(async || RedissonByHand::connect(server).await).await?;
    let plain_by_hand = Here::connect(async || PlainByHand::connect(server).await).await?;
    let rslock = Here::connect(async || Ok(Rslock::connect(vec![url.to_owned()]))).await?;
    let rlock = Here::connect(async || Rlock::connect(url).await).await?;
    let [newest, old, redsync] = [NEWEST, OLD, REDSYNC].map(|program| peers::start(program, url));
    let fair = format!("{}, fair", NEWEST.name());
    Ok(vec![
        Contestant::new("limit, Redisson's", Redisson, Woken, Ok(redisson_by_hand)).limit(),
        Contestant::new("dlock", Redisson, Woken, Ok(dlock("", Kind::Mutex).await?)),
        Contestant::new(&NEWEST.name(), Redisson, Woken, There::of(&newest, PeerKind::Mutex)),
        Contestant::new(&OLD.name(), Redisson, Woken, There::of(&old, PeerKind::Mutex)),
        Contestant::new("dlock, fair", Redisson, InOrder, Ok(dlock("", Kind::Fair).await?)),
        Contestant::new(&fair, Redisson, InOrder, There::of(&newest, PeerKind::Fair)),
        Contestant::new("limit, plain", Plain, Never, Ok(plain_by_hand)).limit(),
        Contestant::new("dlock, plain", Plain, Woken, Ok(dlock("dialect=plain", Kind::Mutex).await?)),
        Contestant::new("rslock", Plain, Polls, Ok(rslock)),
        Contestant::new("rlock", Plain, Polls, Ok(rlock)),
        Contestant::new(&REDSYNC.name(), Plain, Polls, There::of(&redsync, PeerKind::Mutex)),
    ])
}
