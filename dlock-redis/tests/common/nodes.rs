//! Several independent servers, for a RedLock.

use std::{io, ops::Range, time::Duration};

use dlock_conformance::Unreachable;
use dlock_core::{LockOptions, Locks, Result};
use dlock_testbed::servers::{
    Running, Server,
    redis::{Brand, Flavour, start},
};
use futures_util::future::{join_all, try_join_all};

use super::{connect, parse_command, raw};

pub(crate) struct Nodes {
    running: Vec<Running>,
    /// URL of the RedLock on all servers.
    url: String,
}

impl Nodes {
    /// Starts `count` servers. `params` are the parameters of the URL of all of them.
    ///
    /// # Errors
    /// If the servers cannot be started, or if the address of a single server was given, which
    /// cannot replace several.
    pub(crate) async fn new(count: usize, params: &str) -> Result<Self, Unreachable> {
        let running = try_join_all((0..count).map(|_| start(Brand::Redis, Flavour::Standalone))).await?;
        if running.iter().any(|running| running.servers().is_empty()) {
            let variable = Flavour::Standalone.variable(Brand::Redis);
            let reason = format!("{variable} names one server, and a redlock needs {count}; unset it");
            return Err(Unreachable { name: "redlock".to_owned(), reason });
        }
        let hosts: Vec<_> =
            running.iter().map(|running| running.servers()[0].address().to_string()).collect();
        let url = format!("redis+redlock://{}?{params}", hosts.join(","));
        Ok(Self { running, url })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the servers.
    pub(crate) fn servers(&self) -> Vec<Server> {
        self.running.iter().map(|running| running.servers()[0].clone()).collect()
    }

    /// Returns the URL of each server.
    pub(crate) fn urls(&self) -> Vec<&str> {
        self.running.iter().map(Running::url).collect()
    }

    /// Applies a fault to each of these servers.
    pub(crate) async fn apply(&self, numbers: Range<usize>, fault: impl AsyncFn(&Server) -> io::Result<()>) {
        let faults = self.running[numbers].iter().map(|running| fault(&running.servers()[0]));
        for result in join_all(faults).await {
            result.expect("the fault can be applied to the server");
        }
    }

    /// Connects a new client, like one in another process.
    pub(crate) async fn locks(&self, ttl: Duration) -> Locks {
        let store = connect(&self.url).await.expect("a majority is running");
        Locks::new(store).with_defaults(LockOptions::new().ttl(ttl))
    }

    /// Returns the number of these servers that have the key of the lock.
    pub(crate) async fn key_count(&self, numbers: Range<usize>, name: &str) -> usize {
        let counts = numbers.map(async |number| {
            let mut raw = raw(self.running[number].url()).await;
            let count: usize = parse_command(&format!("EXISTS {name}"))
                .query_async(&mut raw)
                .await
                .expect("the server replies");
            count
        });
        join_all(counts).await.into_iter().sum()
    }

    /// Waits until `count` of these servers have the key of the lock.
    pub(crate) async fn wait_for_key_count(&self, numbers: Range<usize>, name: &str, count: usize) {
        let reached = async {
            while self.key_count(numbers.clone(), name).await != count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let result = tokio::time::timeout(Duration::from_secs(20), reached).await;
        assert!(result.is_ok(), "the key of `{name}` was never on exactly {count} of the servers");
    }
}
