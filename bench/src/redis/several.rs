//! A majority of several servers, beside one server, and beside rslock and redsync on as many. And several names as one lock.

use dlock::{DistributedLock, Kind, LockOptions, MultiLock};
use dlock_testbed::peer::{PeerKind, Program};
use tokio::time::Instant;

use super::{
    Server,
    clients::Rslock,
    contestants::{CLIENTS, PEERS_TTL, PLAIN},
    locks,
};
use crate::{
    Effort,
    contest::{self, Contestant, Dlock, Here, Outcome, Table, There, Waits},
    figures::Figures,
};

/// RedLocks of three and five servers.
pub(super) async fn redlock(server: &Server, effort: Effort) -> Outcome {
    let mut servers = Vec::new();
    for _ in 0..5 {
        servers.extend(Server::start_own().await?);
    }
    if servers.len() < 5 {
        println!("\nRedLock: not measured, there is no redis-server");
        return Ok(());
    }
    let dlock =
        async |url: String| Here::connect(CLIENTS, async || Dlock::connect(&url, Kind::Mutex).await).await;
    let one = dlock(server.with("dialect=plain")).await?;
    let mut contestants = vec![Contestant::new("dlock, one server", PLAIN, Waits::Woken, Ok(one)).limit()];
    for members in [3, 5] {
        let urls: Vec<_> = servers[..members].iter().map(|server| server.url().to_owned()).collect();
        let hosts = urls.join(",").replace("redis://", "");
        let ours = dlock(format!("redis+redlock://{hosts}?dialect=plain")).await?;
        let rslock = Here::connect(CLIENTS, async || Ok(Rslock::connect(urls.clone()))).await?;
        let redsync = contest::start(Program::REDSYNC, &urls.join(","), PEERS_TTL);
        let redsync = There::of(&redsync, PeerKind::Mutex);
        contestants.extend([
            Contestant::new(&format!("dlock of {members}"), PLAIN, Waits::Woken, Ok(ours)),
            Contestant::new(&format!("rslock of {members}"), PLAIN, Waits::Polls, Ok(rslock)),
            Contestant::new(&format!("redsync of {members}"), PLAIN, Waits::Polls, redsync),
        ]);
    }
    let table = Table::measure(
        &contestants,
        "several",
        |_| effort.rounds,
        async |_, measured, name| {
            Ok(Figures::micros(&measured.pairs(name, effort.pairs as usize / 100).await?))
        },
    )
    .await;
    let title = "RedLock: acquire + release of a free lock (aim: 1.5 × per doubling, ahead of both peers)";
    table.print(title, "   p50 µs    p99 µs    × one server", |row| table.times(row, 1));
    Ok(())
}

/// Ten free names as one lock, beside one name.
pub(super) async fn multilock(server: &Server, effort: Effort) -> Outcome {
    let client = locks(server, "").await?;
    let ten = MultiLock::new((0..10).map(|i| client.of(Kind::Mutex, format!("multi-{i}"))))?;
    let one = client.of(Kind::Mutex, "multi-one");
    let (mut many, mut single, mut ratio) = (Figures::default(), Figures::default(), Figures::default());
    let before = server.commands().await?;
    one.lock(&LockOptions::new()).await?.release().await?;
    let between = server.commands().await?;
    ten.lock(&LockOptions::new()).await?.release().await?;
    let after = server.commands().await?;
    for _ in 0..effort.rounds {
        let mut medians = Vec::new();
        for (lock, figures) in [(&ten as &dyn DistributedLock, &mut many), (&*one, &mut single)] {
            let mut round = Figures::default();
            for _ in 0..effort.pairs / 250 {
                let begun = Instant::now();
                lock.lock(&LockOptions::new()).await?.release().await?;
                round.add_micros(begun.elapsed());
            }
            medians.push(round.quantile(0.5));
            figures.add(round.quantile(0.5));
        }
        ratio.add(medians[0] / medians[1]);
    }
    println!("\nMultiLock of 10 free names on one Redis, beside one lock, µs (aim: within 2 ×)");
    println!("  ten names            {many}   {} commands", after - between);
    println!("  one name             {single}   {} commands", between - before);
    println!("  ratio                {ratio}");
    Ok(())
}
