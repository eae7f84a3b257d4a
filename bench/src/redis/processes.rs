//! Ten client processes for one name in Redis.

use dlock_testbed::peer::{PeerKind, Program};

use super::{Server, contestants::PEERS_TTL};
use crate::{
    Effort,
    contest::{Outcome, Waiting},
    processes::{self, ClientLock, Round},
    results::Results,
    targets,
};

pub(super) async fn contend(server: &Server, effort: Effort, results: &Results) -> Outcome {
    const FAIR: &str = "dlock, fair";
    let url = server.url();
    let redisson = processes::start_peers(Program::REDISSON, url, PEERS_TTL);
    let redsync = processes::start_peers(Program::REDSYNC, url, PEERS_TTL);
    let [redisson_name, redsync_name] = [Program::REDISSON, Program::REDSYNC].map(|program| program.name());
    let redisson_fair = format!("{redisson_name}, fair");
    let contestants = [
        processes::start_clients("dlock", Waiting::Notified, ClientLock::Mutex, url).await?,
        processes::peers(&redisson_name, Waiting::Notified, &redisson, PeerKind::Mutex),
        processes::start_clients(FAIR, Waiting::InOrder, ClientLock::Fair, url).await?,
        processes::peers(&redisson_fair, Waiting::InOrder, &redisson, PeerKind::Fair),
        processes::peers(&redsync_name, Waiting::Polls, &redsync, PeerKind::Mutex),
    ];
    let peers = [&*redisson_name, &redisson_fair, &redsync_name];
    let table =
        processes::measure("Redis", &contestants, &peers, effort.turns * 8, effort, processes::unprepared)
            .await;
    table.record_rate_ratio(results, &targets::PROCESSES_REDIS_RATE, "dlock", &peers, Round::rate)?;
    let fair_rate = &targets::PROCESSES_REDIS_FAIR_RATE;
    table.record_rate_ratio(results, fair_rate, FAIR, &[&redisson_fair], Round::rate)?;
    table.record(results, &targets::PROCESSES_REDIS_FAIR_WAIT, FAIR, |row| {
        row.rounds.iter().map(Round::p99).collect()
    })
}
