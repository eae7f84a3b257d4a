//! A majority of several servers, beside one server, rslock and redsync; and several names as one
//! lock.

use dlock::{DistributedLock, Kind, LockOptions, MultiLock};
use dlock_testbed::peer::{PeerKind, Program};
use tokio::time::Instant;

use super::{
    Server,
    clients::Rslock,
    connect,
    contestants::{CLIENTS, PEERS_TTL, PLAIN},
};
use crate::{
    Effort,
    contest::{self, Contestant, Dlock, InProcess, Outcome, PeerContestant, Table, Waiting},
    figures::Figures,
    results::Results,
    targets,
};

/// Measures RedLocks of three and five servers.
pub(super) async fn redlock(server: &Server, effort: Effort, results: &Results) -> Outcome {
    let mut servers = Vec::new();
    for _ in 0..5 {
        servers.extend(Server::start_own().await?);
    }
    if servers.len() < 5 {
        let reason = "no redis-server could be started";
        println!("\nRedLock: not measured, {reason}");
        results.missing(&targets::REDLOCK_3, reason)?;
        return results.missing(&targets::REDLOCK_5, reason);
    }
    let dlock = async |url: String| {
        InProcess::connect(CLIENTS, async || Dlock::connect(&url, Kind::Mutex).await).await
    };
    let one = dlock(server.url_with("dialect=plain")).await?;
    let mut contestants =
        vec![Contestant::new("dlock, one server", PLAIN, Waiting::Notified, Ok(one)).into_limit()];
    for members in [3, 5] {
        let urls: Vec<_> = servers[..members].iter().map(|server| server.url().to_owned()).collect();
        let hosts = urls.join(",").replace("redis://", "");
        let redlock = dlock(format!("redis+redlock://{hosts}?dialect=plain")).await?;
        let rslock = InProcess::connect(CLIENTS, async || Ok(Rslock::connect(urls.clone()))).await?;
        let redsync = contest::start(Program::REDSYNC, &urls.join(","), PEERS_TTL);
        let redsync = PeerContestant::of(&redsync, PeerKind::Mutex);
        contestants.extend([
            Contestant::new(&format!("dlock of {members}"), PLAIN, Waiting::Notified, Ok(redlock)),
            Contestant::new(&format!("rslock of {members}"), PLAIN, Waiting::Polls, Ok(rslock)),
            Contestant::new(&format!("redsync of {members}"), PLAIN, Waiting::Polls, redsync),
        ]);
    }
    let table = Table::measure(
        &contestants,
        "several",
        |_| effort.rounds,
        async |_, contestant, name| {
            Ok(Figures::micros(&contestant.pairs(name, effort.pairs as usize / 100).await?))
        },
    )
    .await;
    let title = "RedLock: lock + release of a free lock";
    table.print(title, "   p50 µs    p99 µs    × one server", |row| table.times(row, 1));
    for (members, target) in [(3, &targets::REDLOCK_3), (5, &targets::REDLOCK_5)] {
        let [dlock, rslock, redsync] =
            ["dlock", "rslock", "redsync"].map(|program| format!("{program} of {members}"));
        table.record_ratio(results, target, &dlock, &[&rslock, &redsync], |round| round.quantile(0.5))?;
    }
    Ok(())
}

/// Measures ten free names as one lock, beside one name.
pub(super) async fn multilock(server: &Server, effort: Effort, results: &Results) -> Outcome {
    let client = connect(server, "").await?;
    let ten = MultiLock::new((0..10).map(|i| client.of(Kind::Mutex, format!("multi-{i}"))))?;
    let one = client.of(Kind::Mutex, "multi-one");
    let (mut ten_times, mut one_times, mut ratios) =
        (Figures::default(), Figures::default(), Figures::default());
    let before = server.commands().await?;
    one.lock(&LockOptions::new()).await?.release().await?;
    let between = server.commands().await?;
    ten.lock(&LockOptions::new()).await?.release().await?;
    let after = server.commands().await?;
    for _ in 0..effort.rounds {
        let mut medians = Vec::new();
        for (lock, figures) in [(&ten as &dyn DistributedLock, &mut ten_times), (&*one, &mut one_times)] {
            let mut round = Figures::default();
            for _ in 0..effort.pairs / 250 {
                let started_at = Instant::now();
                lock.lock(&LockOptions::new()).await?.release().await?;
                round.add_micros(started_at.elapsed());
            }
            medians.push(round.quantile(0.5));
            figures.add(round.quantile(0.5));
        }
        ratios.add(medians[0] / medians[1]);
    }
    println!("\nMultiLock of 10 free names on one Redis, beside one lock, µs");
    println!("  ten names            {ten_times}   {} commands", after - between);
    println!("  one name             {one_times}   {} commands", between - before);
    println!("  ratio                {ratios}");
    results.measured(&targets::MULTILOCK, &ratios)
}
