//! A majority of several servers beside one, and beside rslock and redsync with as many; and several names at once.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use dlock::{DistributedLock, Kind, LockOptions, Locks, MultiLock};
use tokio::time::Instant;

use super::{Outcome, Server, locks};
use crate::{Effort, figures::Figures};

const TTL: Duration = Duration::from_secs(30);

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
    let hosts: Vec<_> = servers.iter().map(|server| server.url().trim_start_matches("redis://")).collect();
    let urls: Vec<_> = servers.iter().map(|server| server.url().to_owned()).collect();
    let one = locks(server, "dialect=plain").await?;
    let (mut ours, mut rslocks, mut redsyncs) = (Vec::new(), Vec::new(), Vec::new());
    for members in [3, 5] {
        ours.push(
            dlock::connect(&format!("redis+redlock://{}?dialect=plain", hosts[..members].join(","))).await?,
        );
        rslocks.push(rslock::LockManager::new(urls[..members].to_vec()));
        redsyncs.extend(Redsync::start(&urls[..members].join(",")));
    }
    let pairs = effort.pairs / 100;
    let mut figures: [Figures; 7] = Default::default();
    let mut ratios: [Figures; 7] = Default::default();
    for _ in 0..effort.rounds {
        let mut round = vec![dlock_pairs(&one, pairs).await?];
        for i in 0..2 {
            round.push(dlock_pairs(&ours[i], pairs).await?);
            round.push(rslock_pairs(&rslocks[i], pairs).await?);
            round.push(redsyncs.get_mut(i).map_or(Ok(f64::NAN), |redsync| redsync.pairs(pairs))?);
        }
        for (i, micros) in round.iter().enumerate() {
            figures[i].add(*micros);
            ratios[i].add(micros / round[0]);
        }
    }
    println!(
        "\nRedLock: acquire + release of a free lock, µs, × one server (aim: 1.5 per doubling, ahead of both peers)"
    );
    let names = [
        "dlock, one server",
        "dlock of 3",
        "rslock of 3",
        "redsync of 3",
        "dlock of 5",
        "rslock of 5",
        "redsync of 5",
    ];
    for (i, name) in names.into_iter().enumerate() {
        println!("  {name:20} {:9.1}   × {}", figures[i].quantile(0.5), ratios[i]);
    }
    Ok(())
}

/// The median of so many pairs, in µs.
async fn dlock_pairs(locks: &Locks, pairs: u32) -> Outcome<f64> {
    let mut figures = Figures::default();
    for turn in 0..pairs {
        let begun = Instant::now();
        locks.mutex(format!("several-{}", turn % 16)).lock().ttl(TTL).await?.release().await?;
        figures.add_micros(begun.elapsed());
    }
    Ok(figures.quantile(0.5))
}

async fn rslock_pairs(manager: &rslock::LockManager, pairs: u32) -> Outcome<f64> {
    let mut figures = Figures::default();
    for turn in 0..pairs {
        let begun = Instant::now();
        let lock = manager.lock(format!("several-rslock-{}", turn % 16).as_bytes(), TTL).await;
        manager.unlock(&lock.map_err(|error| error.to_string())?).await;
        figures.add_micros(begun.elapsed());
    }
    Ok(figures.quantile(0.5))
}

/// The peer of the interop tests, which also measures itself.
struct Redsync {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Redsync {
    /// `None` without Go.
    fn start(urls: &str) -> Option<Self> {
        let out = std::env::temp_dir().join("dlock-bench-redsync");
        let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/peers/redsync/build");
        let built =
            Command::new(build).arg(&out).stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?;
        let mut process = built.success().then(|| Command::new(out.join("run")))?;
        let process = process.args([urls, "30000"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = process.spawn().ok()?;
        let (to, from) = (process.stdin.take()?, BufReader::new(process.stdout.take()?));
        let mut redsync = Self { process, to, from };
        redsync.line().ok().filter(|line| line.starts_with("ready"))?;
        Some(redsync)
    }

    fn pairs(&mut self, pairs: u32) -> Outcome<f64> {
        writeln!(self.to, "1 time mutex several-redsync {pairs}")?;
        let line = self.line()?;
        let nanos = line.trim().strip_prefix("1 took ").ok_or(line.clone())?.split(' ').map(str::parse);
        let mut took = Figures::default();
        for nanos in nanos {
            took.add(nanos?);
        }
        Ok(took.quantile(0.5) / 1e3)
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for Redsync {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Ten free names as one lock, beside one.
pub(super) async fn multilock(server: &Server, effort: Effort) -> Outcome {
    let client = locks(server, "").await?;
    let ten = MultiLock::new((0..10).map(|i| client.lock(Kind::Mutex, format!("multi-{i}"))))?;
    let one = client.lock(Kind::Mutex, "multi-one");
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
