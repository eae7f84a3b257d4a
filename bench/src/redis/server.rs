//! The server under the benchmark.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::Duration,
};

use redis::FromRedisValue;
use tokio::time::sleep;

use super::Outcome;

pub(super) struct Server {
    url: String,
    process: Option<Child>,
}

impl Server {
    /// `None` if there is none to be had.
    pub(super) async fn start() -> Outcome<Option<Self>> {
        if let Ok(url) = std::env::var("DLOCK_BENCH_REDIS_URL") {
            return Ok(Some(Self { url, process: None }));
        }
        Self::start_own().await
    }

    /// One of our own, on the second core.
    pub(super) async fn start_own() -> Outcome<Option<Self>> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut command = Command::new("taskset");
        command.args(["-c", "1", "redis-server", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--save", "", "--appendonly", "no"]).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(process) = command.spawn() else { return Ok(None) };
        let server = Self { url: format!("redis://127.0.0.1:{port}"), process: Some(process) };
        for _ in 0..100 {
            if server.ask::<String>(&["PING"]).await.is_ok() {
                return Ok(Some(server));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(None)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Asks on a connection of its own.
    pub(super) async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> Outcome<T> {
        let mut connection = redis::Client::open(self.url())?.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        Ok(command.query_async(&mut connection).await?)
    }

    /// How many scripts and subscriptions it was asked for so far: what locks cost, without what scripts call.
    pub(super) async fn commands(&self) -> Outcome<u64> {
        let info: String = self.ask(&["INFO", "commandstats"]).await?;
        let count = |line: &str| -> Option<u64> {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let ours = ["evalsha", "eval", "subscribe", "unsubscribe"].contains(&name);
            ours.then(|| rest.split(',').next()?.parse().ok()).flatten()
        };
        Ok(info.lines().filter_map(count).sum())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill().ok();
            process.wait().ok();
        }
    }
}
