//! Who is measured: the limits, dlock, and its rivals with their default settings, in one list for all measures.

use std::time::Duration;

use dlock::Kind;
use dlock_testbed::peer::{PeerKind, Program};

use super::{
    Server,
    clients::{Rlock, Rslock},
    limit::{PlainByHand, RedissonByHand},
};
use crate::contest::{self, Contestant, Dlock, Here, Outcome, There, Waits};

/// The groups: each speaks one protocol with the server.
pub(super) const REDISSON: &str = "Redisson's";
pub(super) const PLAIN: &str = "plain";

/// How many clients a contestant has: as many as the largest contest.
pub(super) const CLIENTS: usize = 8;

/// The ttl of the peers: longer than any measure. Redisson 4.7.0 leaves a renewal behind for each quick pair, which must not run in
/// another contestant's rounds.
pub(super) const PEERS_TTL: Duration = Duration::from_secs(3600);

/// All contestants that lock on one server.
pub(super) async fn all(server: &Server) -> Outcome<Vec<Contestant>> {
    use Waits::{InOrder, Never, Polls, Woken};
    const NEWEST: Program = Program::REDISSON;
    const OLD: Program = Program::REDISSON_3;
    const REDSYNC: Program = Program::REDSYNC;
    let url = server.url();
    let dlock = async |params, kind| {
        Here::connect(CLIENTS, async || Dlock::connect(&server.with(params), kind).await).await
    };
    let redisson_by_hand = Here::connect(CLIENTS, async || RedissonByHand::connect(server).await).await?;
    let plain_by_hand = Here::connect(CLIENTS, async || PlainByHand::connect(server).await).await?;
    let rslock = Here::connect(CLIENTS, async || Ok(Rslock::connect(vec![url.to_owned()]))).await?;
    let rlock = Here::connect(CLIENTS, async || Rlock::connect(url).await).await?;
    let [newest, old, redsync] =
        [NEWEST, OLD, REDSYNC].map(|program| contest::start(program, url, PEERS_TTL));
    let fair = format!("{}, fair", NEWEST.name());
    Ok(vec![
        Contestant::new("limit, Redisson's", REDISSON, Woken, Ok(redisson_by_hand)).limit(),
        Contestant::new("dlock", REDISSON, Woken, Ok(dlock("", Kind::Mutex).await?)),
        Contestant::new(&NEWEST.name(), REDISSON, Woken, There::of(&newest, PeerKind::Mutex)),
        Contestant::new(&OLD.name(), REDISSON, Woken, There::of(&old, PeerKind::Mutex)),
        Contestant::new("dlock, fair", REDISSON, InOrder, Ok(dlock("", Kind::Fair).await?)),
        Contestant::new(&fair, REDISSON, InOrder, There::of(&newest, PeerKind::Fair)),
        Contestant::new("limit, plain", PLAIN, Never, Ok(plain_by_hand)).limit(),
        Contestant::new("dlock, plain", PLAIN, Woken, Ok(dlock("dialect=plain", Kind::Mutex).await?)),
        Contestant::new("rslock", PLAIN, Polls, Ok(rslock)),
        Contestant::new("rlock", PLAIN, Polls, Ok(rlock)),
        Contestant::new(&REDSYNC.name(), PLAIN, Polls, There::of(&redsync, PeerKind::Mutex)),
    ])
}
