//! The Redis server of the benchmark.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::Duration,
};

use futures_util::StreamExt;
use redis::{
    AsyncConnectionConfig, FromRedisValue,
    aio::{MultiplexedConnection, PubSub},
};
use tokio::time::sleep;

use super::Outcome;

pub(super) struct Server {
    url: String,
    process: Option<Child>,
}

impl Server {
    /// Returns the server that the environment names, or starts one. Returns `None` if neither
    /// exists.
    pub(super) async fn start() -> Outcome<Option<Self>> {
        if let Ok(url) = std::env::var("DLOCK_BENCH_REDIS_URL") {
            return Ok(Some(Self { url, process: None }));
        }
        Self::start_own().await
    }

    /// Returns the server at the other end of a slow link, if the environment names one.
    pub(super) fn distant() -> Option<Self> {
        std::env::var("DLOCK_BENCH_REDIS_DISTANT_URL").ok().map(|url| Self { url, process: None })
    }

    /// Starts a server on the second core. Returns `None` if that fails.
    pub(super) async fn start_own() -> Outcome<Option<Self>> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut command = Command::new("taskset");
        command.args(["-c", "1", "redis-server", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--save", "", "--appendonly", "no"]).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(process) = command.spawn() else { return Ok(None) };
        let server = Self { url: format!("redis://127.0.0.1:{port}"), process: Some(process) };
        for _ in 0..100 {
            if server.query::<String>(&["PING"]).await.is_ok() {
                return Ok(Some(server));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(None)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the server's URL with parameters for dlock.
    pub(super) fn url_with(&self, params: &str) -> String {
        format!("{}?{params}", self.url)
    }

    pub(super) async fn connection(&self) -> Outcome<MultiplexedConnection> {
        // The client crate's default is half a second, which is too short on a busy machine.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        Ok(redis::Client::open(self.url())?.get_multiplexed_async_connection_with_config(&config).await?)
    }

    pub(super) async fn messages(&self) -> Outcome<PubSub> {
        Ok(redis::Client::open(self.url())?.get_async_pubsub().await?)
    }

    /// Sends a command on a new connection.
    pub(super) async fn query<T: FromRedisValue>(&self, words: &[&str]) -> Outcome<T> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        Ok(command.query_async(&mut self.connection().await?).await?)
    }

    /// Returns the number of commands with this name that clients send within `span`. Commands that
    /// scripts call do not count.
    pub(super) async fn commands_about(&self, name: &str, span: Duration) -> Outcome<usize> {
        let monitor = redis::Client::open(self.url())?.get_async_monitor().await?;
        let mut lines = monitor.into_on_message::<String>();
        let end = sleep(span);
        tokio::pin!(end);
        let mut commands = 0;
        loop {
            tokio::select! {
                () = &mut end => return Ok(commands),
                line = lines.next() => {
                    let line = line.ok_or("the connection is closed")?;
                    commands += usize::from(line.contains(name) && !line.contains(" lua] "));
                }
            }
        }
    }

    /// Returns the number of scripts and subscriptions that clients have requested. These are the
    /// commands of locks. Commands that scripts call do not count.
    pub(super) async fn commands(&self) -> Outcome<u64> {
        self.count(|name| ["evalsha", "eval", "subscribe", "unsubscribe"].contains(&name)).await
    }

    /// Returns the number of all commands, with those that scripts have called.
    pub(super) async fn calls(&self) -> Outcome<u64> {
        self.count(|_| true).await
    }

    async fn count(&self, is_counted: impl Fn(&str) -> bool) -> Outcome<u64> {
        let info: String = self.query(&["INFO", "commandstats"]).await?;
        let count = |line: &str| -> Option<u64> {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            is_counted(name).then(|| rest.split(',').next()?.parse().ok()).flatten()
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
