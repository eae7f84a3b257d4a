//! Who is measured: the limits, dlock, and its rivals as they come, in one list for all measures.

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
    /// Whether the others of its dialect are put beside it.
    pub(super) is_limit: bool,
    /// Or why it is not.
    pub(super) measured: Result<Box<dyn Measured>, String>,
}

/// What it says to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Redisson,
    Plain,
}

/// What it does while another has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// It can only try.
    Never,
    /// Asks again and again.
    Polls,
    /// Asks again when the other one lets go.
    Woken,
    /// The same, in the order of arrival.
    InOrder,
}

/// How long it takes to do things with a lock.
#[async_trait(?Send)]
pub(super) trait Measured {
    /// Each of so many pairs of acquire and release, with nobody else there.
    async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>>;

    /// From each release until the other of two clients has the lock; they take turns, and each waits while the other
    /// holds it.
    async fn handoff(&self, name: &str, turns: usize, hold: Duration) -> Outcome<Vec<Duration>>;

    /// Each wait of each in a contest.
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

/// All who lock on one server.
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
