//! Several servers that know nothing of each other, for a RedLock.

use std::{io, ops::Range, time::Duration};

use dlock_conformance::Unreachable;
use dlock_core::{LockOptions, Locks, Result};
use dlock_testbed::servers::{
    Running, Server,
    redis::{Brand, Flavour, start},
};
use futures_util::future::{join_all, try_join_all};

use super::{connect, raw, words};

pub(crate) struct Nodes {
    running: Vec<Running>,
    /// The URL of the RedLock on all servers.
    url: String,
}

impl Nodes {
    /// This many servers, with these parameters in the URL that names them all.
    ///
    /// # Errors
    /// If servers cannot be started. A single server whose address was given cannot stand for several.
    pub(crate) async fn new(count: usize, params: &str) -> Result<Self, Unreachable> {
        let running = try_join_all((0..count).map(|_| start(Brand::Redis, Flavour::Standalone))).await?;
        if running.iter().any(|running| running.servers().is_empty()) {
            let variable = Flavour::Standalone.variable(Brand::Redis);
            let reason = format!("{variable} names one server, and a redlock needs {count}; unset it");
            return Err(Unreachable { name: "redlock".to_owned(), reason });
        }
        let hosts: Vec<_> = running.iter().map(|one| one.servers()[0].address().to_string()).collect();
        let url = format!("redis+redlock://{}?{params}", hosts.join(","));
        Ok(Self { running, url })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The URL of each.
    pub(crate) fn urls(&self) -> Vec<&str> {
        self.running.iter().map(Running::url).collect()
    }

    /// Causes this fault at each of these servers.
    pub(crate) async fn each(&self, numbers: Range<usize>, fault: impl AsyncFn(&Server) -> io::Result<()>) {
        for done in join_all(self.running[numbers].iter().map(|one| fault(&one.servers()[0]))).await {
            done.expect("the fault can be done to a server");
        }
    }

    /// A new client, as from another process.
    pub(crate) async fn locks(&self, ttl: Duration) -> Locks {
        let store = connect(&self.url).await.expect("a majority is there");
        Locks::new(store).with_defaults(LockOptions::new().ttl(ttl))
    }

    /// How many of these servers know the lock.
    pub(crate) async fn knowing(&self, numbers: Range<usize>, name: &str) -> usize {
        let knows = numbers.map(async |number| {
            let mut raw = raw(self.running[number].url()).await;
            let known: usize =
                words(&format!("EXISTS {name}")).query_async(&mut raw).await.expect("the server answers");
            known
        });
        join_all(knows).await.into_iter().sum()
    }

    /// Waits until so many of these servers know the lock.
    pub(crate) async fn until_knowing(&self, numbers: Range<usize>, name: &str, count: usize) {
        let until = async {
            while self.knowing(numbers.clone(), name).await != count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let within = tokio::time::timeout(Duration::from_secs(20), until).await;
        assert!(within.is_ok(), "it never happened that {count} of the servers know `{name}`");
    }
}
