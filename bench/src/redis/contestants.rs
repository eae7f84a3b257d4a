//! The contestants of most parts. They are the limits, dlock, and other implementations with their
//! default settings.

use std::time::Duration;

use dlock::Kind;
use dlock_testbed::peer::{PeerKind, Program};

use super::{
    Server,
    clients::{Rlock, Rslock},
    limit::{PlainLimit, RedissonLimit},
};
use crate::contest::{self, Contestant, Dlock, InProcess, Outcome, PeerContestant, Waiting};

/// Group of the contestants that use Redisson's protocol.
pub(super) const REDISSON: &str = "Redisson's";
/// Group of the contestants that use the plain dialect.
pub(super) const PLAIN: &str = "plain";

/// Name of the limit of Redisson's protocol.
pub(super) const REDISSON_LIMIT: &str = "limit, Redisson's";
/// Name of the limit of the plain dialect.
pub(super) const PLAIN_LIMIT: &str = "limit, plain";

/// Number of clients of each contestant, as many as the largest contest has.
pub(super) const CLIENTS: usize = 8;

/// Ttl of the peers' locks, longer than any measurement. Redisson 4.7.0 leaves a renewal scheduled
/// for each short pair. It must not run in the rounds of another contestant.
pub(super) const PEERS_TTL: Duration = Duration::from_secs(3600);

/// Returns the contestants that lock on one server.
pub(super) async fn all(server: &Server) -> Outcome<Vec<Contestant>> {
    use Waiting::{InOrder, Notified, Polls, Unsupported};
    const NEWEST: Program = Program::REDISSON;
    const OLD: Program = Program::REDISSON_3;
    const REDSYNC: Program = Program::REDSYNC;
    let url = server.url();
    let dlock = async |params, kind| {
        InProcess::connect(CLIENTS, async || Dlock::connect(&server.url_with(params), kind).await).await
    };
    let plain_limit = InProcess::connect(CLIENTS, async || PlainLimit::connect(server).await).await?;
    let rslock = InProcess::connect(CLIENTS, async || Ok(Rslock::connect(vec![url.to_owned()]))).await?;
    let rlock = InProcess::connect(CLIENTS, async || Rlock::connect(url).await).await?;
    let [newest, old, redsync] =
        [NEWEST, OLD, REDSYNC].map(|program| contest::start(program, url, PEERS_TTL));
    let fair = format!("{}, fair", NEWEST.name());
    let mut contestants = redisson_in_process(server).await?;
    contestants.extend([
        Contestant::new(&NEWEST.name(), REDISSON, Notified, PeerContestant::of(&newest, PeerKind::Mutex)),
        Contestant::new(&OLD.name(), REDISSON, Notified, PeerContestant::of(&old, PeerKind::Mutex)),
        Contestant::new("dlock, fair", REDISSON, InOrder, Ok(dlock("", Kind::Fair).await?)),
        Contestant::new(&fair, REDISSON, InOrder, PeerContestant::of(&newest, PeerKind::Fair)),
        Contestant::new(PLAIN_LIMIT, PLAIN, Unsupported, Ok(plain_limit)).into_limit(),
        Contestant::new("dlock, plain", PLAIN, Notified, Ok(dlock("dialect=plain", Kind::Mutex).await?)),
        Contestant::new("rslock", PLAIN, Polls, Ok(rslock)),
        Contestant::new("rlock", PLAIN, Polls, Ok(rlock)),
        Contestant::new(&REDSYNC.name(), PLAIN, Polls, PeerContestant::of(&redsync, PeerKind::Mutex)),
    ]);
    Ok(contestants)
}

/// Returns dlock and the limit, in Redisson's protocol.
pub(super) async fn redisson_in_process(server: &Server) -> Outcome<Vec<Contestant>> {
    let limit = InProcess::connect(CLIENTS, async || RedissonLimit::connect(server).await).await?;
    let dlock = async || Dlock::connect(server.url(), Kind::Mutex).await;
    let dlock = InProcess::connect(CLIENTS, dlock).await?;
    Ok(vec![
        Contestant::new(REDISSON_LIMIT, REDISSON, Waiting::Notified, Ok(limit)).into_limit(),
        Contestant::new("dlock", REDISSON, Waiting::Notified, Ok(dlock)),
    ])
}
