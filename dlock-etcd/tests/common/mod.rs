//! A cluster for a test binary, and a plain client beside dlock's.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::time::Duration;

use dlock_conformance::Data;
use dlock_core::{ClaimId, LockOptions, Locks, Result, driver::Store};
use dlock_etcd::DRIVER;
use dlock_testbed::servers::{
    Running,
    etcd::{Flavour, ask, start},
};
use etcd_client::{Client, GetOptions, KeyValue};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

/// A ttl that no test outlives, of a session that the tests' clients have.
pub(crate) const TTL: Duration = Duration::from_secs(16);

/// What an answer or a wake-up may take on a busy machine: less than a third of [`TTL`].
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// A client of the store that a URL names.
pub(crate) async fn connect(url: &str) -> Result<Store> {
    (DRIVER.connect)(url.parse()?).await
}

/// A cluster for a test, and a connection that speaks to it by hand.
pub(crate) struct Bench {
    pub(crate) running: Running,
    pub(crate) raw: Client,
}

impl Bench {
    /// `None` if there is no etcd and none is required.
    pub(crate) async fn new(flavour: Flavour) -> Option<Self> {
        Some(Self::of(dlock_conformance::or_ignore(start(flavour).await)?).await)
    }

    pub(crate) async fn of(running: Running) -> Self {
        let members: Vec<_> = running.servers().iter().map(|server| server.address().to_string()).collect();
        let raw = Client::connect(members, None).await.expect("it connects later");
        Self { running, raw }
    }

    pub(crate) async fn one() -> Option<Self> {
        Self::new(Flavour::Standalone).await
    }

    /// A new client, as from another process.
    pub(crate) async fn locks(&self, params: &str) -> Locks {
        self.locks_at(self.running.url(), params).await
    }

    pub(crate) async fn locks_at(&self, url: &str, params: &str) -> Locks {
        self.locks_with(url, &format!("session=20s&{params}")).await
    }

    /// The same with another session.
    pub(crate) async fn locks_with(&self, url: &str, params: &str) -> Locks {
        let store = connect(&format!("{url}?{params}")).await.expect("the cluster is there");
        Locks::new(store).with_defaults(LockOptions::new().ttl(TTL))
    }

    /// The claims of a lock in order of arrival.
    pub(crate) async fn queue(&self, name: &str) -> Vec<KeyValue> {
        use etcd_client::{SortOrder, SortTarget};
        let options = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
        let mut found = self.raw.kv_client().get(format!("{name}/"), Some(options)).await.expect("an answer");
        found.take_kvs()
    }

    /// Waits until so many claims hold or wait.
    pub(crate) async fn until_queued(&self, name: &str, count: usize) {
        until(&format!("there are never {count} claims"), async || self.queue(name).await.len() == count)
            .await;
    }

    pub(crate) async fn revision(&self) -> i64 {
        let found = self.raw.kv_client().get("nothing", None).await.expect("an answer");
        found.header().expect("a header").revision()
    }

    /// How many requests of a kind the first member has had, such as `Txn`, and how many messages on streams of it.
    pub(crate) async fn requests(&self, method: &str) -> u64 {
        let metrics = ask(&self.running.servers()[0], "/metrics").await.expect("an answer");
        let of_method = format!("grpc_method=\"{method}\"");
        let is_asked =
            |line: &&str| line.starts_with("grpc_server_msg_received_total{") && line.contains(&of_method);
        let count = |line: &str| line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok());
        metrics.lines().filter(is_asked).filter_map(count).sum::<f64>() as u64
    }
}

/// The number of the member that leads.
pub(crate) async fn leader(running: &Running) -> usize {
    let mut found = None;
    until("there is no leader", async || {
        for (number, server) in running.servers().iter().enumerate() {
            if ask(server, "/metrics").await.is_ok_and(|told| told.contains("\netcd_server_is_leader 1\n")) {
                found = Some(number);
            }
        }
        found.is_some()
    })
    .await;
    found.expect("found")
}

/// Kills the member that leads, and starts it again a second later.
pub(crate) async fn kill_leader(running: &Running) {
    let server = &running.servers()[leader(running).await];
    server.kill().await.expect("it runs");
    sleep(Duration::from_secs(1)).await;
    server.start(Data::Kept).await.expect("it was killed");
    running.ready().await.expect("it comes back");
}

/// Starts a contender as a task of its own.
#[expect(clippy::disallowed_methods, reason = "a contender in a test")]
pub(crate) fn go<F>(contender: impl IntoFuture<IntoFuture = F>) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(contender.into_future())
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !is_so().await {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub(crate) async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    timeout(SOON, wait).await.unwrap_or_else(|_| panic!("{what}"))
}

/// A name that no other test uses.
pub(crate) fn unique() -> String {
    ClaimId::random().to_string()
}
