//! A cluster for a test binary, and an etcd client that sends single requests.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod withheld;

use std::{ops::RangeInclusive, time::Duration};

use dlock_conformance::{Data, Proxy};
use dlock_core::{ClaimId, Guard, LockOptions, Locks, Result, driver::Store};
use dlock_etcd::DRIVER;
use dlock_testbed::servers::{
    Running, Server,
    etcd::{Flavour, ask, start},
};
use etcd_client::{Client, GetOptions, KeyValue};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

/// Ttl that is longer than any test holds a lock, and short enough for the session of the tests'
/// clients.
pub(crate) const TTL: Duration = Duration::from_secs(16);

/// Longest time for a reply or a wake-up on a busy machine. Less than a third of [`TTL`], after
/// which a waiter would make an attempt on its own.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// Connects a client to the store of a URL.
pub(crate) async fn connect(url: &str) -> Result<Store> {
    DRIVER.connect(url.parse()?).await
}

/// A cluster for a test, and a connection for single requests.
pub(crate) struct Bench {
    pub(crate) running: Running,
    pub(crate) raw: Client,
}

impl Bench {
    /// Starts a cluster for a test. `None` if there is no etcd and none is required.
    pub(crate) async fn new(flavour: Flavour) -> Option<Self> {
        Some(Self::of(dlock_conformance::or_ignore(start(flavour).await)?).await)
    }

    /// Connects to a running cluster.
    pub(crate) async fn of(running: Running) -> Self {
        let members: Vec<_> = running.servers().iter().map(|server| server.address().to_string()).collect();
        let raw = Client::connect(members, None).await.expect("the client connects lazily");
        Self { running, raw }
    }

    /// Starts a cluster of one member.
    pub(crate) async fn standalone() -> Option<Self> {
        Self::new(Flavour::Standalone).await
    }

    /// Connects a new client, like one in another process.
    pub(crate) async fn locks(&self, params: &str) -> Locks {
        self.locks_at(self.running.url(), params).await
    }

    /// Connects a new client to a URL, with the session of most tests.
    pub(crate) async fn locks_at(&self, url: &str, params: &str) -> Locks {
        self.locks_with(url, &format!("session=20s&{params}")).await
    }

    /// Connects a new client to a URL, with a session that the parameters may set.
    pub(crate) async fn locks_with(&self, url: &str, params: &str) -> Locks {
        let store = connect(&format!("{url}?{params}")).await.expect("the cluster is running");
        Locks::new(store).with_defaults(LockOptions::new().ttl(TTL))
    }

    /// Returns the claims of a lock in order of arrival.
    pub(crate) async fn queue(&self, name: &str) -> Vec<KeyValue> {
        use etcd_client::{SortOrder, SortTarget};
        let options = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend);
        let mut found = self.raw.kv_client().get(format!("{name}/"), Some(options)).await.expect("a reply");
        found.take_kvs()
    }

    /// Waits until the lock has `count` claims that hold it or wait for it.
    pub(crate) async fn wait_for_claims(&self, name: &str, count: usize) {
        wait_until(&format!("the lock did not reach {count} claims"), async || {
            self.queue(name).await.len() == count
        })
        .await;
    }

    /// Returns the current revision of the cluster.
    pub(crate) async fn revision(&self) -> i64 {
        let found = self.raw.kv_client().get("nothing", None).await.expect("a reply");
        found.header().expect("a header").revision()
    }

    /// Returns the number of requests that the first member has received for a gRPC method such as
    /// `Txn`. For a streaming method, this is the number of messages.
    pub(crate) async fn requests(&self, method: &str) -> u64 {
        self.metric("grpc_server_msg_received_total{", &format!("grpc_method=\"{method}\"")).await as u64
    }

    /// Returns the processor time that the first member has used, in seconds.
    pub(crate) async fn cpu_seconds(&self) -> f64 {
        self.metric("process_cpu_seconds_total", "").await
    }

    /// Returns the sum of a metric of the first member over the lines with these labels.
    async fn metric(&self, name: &str, labels: &str) -> f64 {
        let metrics = ask(&self.running.servers()[0], "/metrics").await.expect("a reply");
        let found = metrics.lines().filter(|line| line.starts_with(name) && line.contains(labels));
        found.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

/// The claim of a client that has vanished while it held a lock.
pub(crate) struct DeadClaim {
    lease: i64,
    _guard: Guard,
    _silent_proxy: Proxy,
}

impl DeadClaim {
    /// Ttl of the lease, in seconds.
    const SESSION: i64 = 60;

    /// Seconds by which a new leader may extend a lease.
    const ELECTION: i64 = 2;

    /// Takes a lock with a client of the first member that vanishes, and waits until six seconds of
    /// the client's lease are over.
    pub(crate) async fn new(bench: &Bench, name: &str) -> Self {
        let proxy = Proxy::to(bench.running.servers()[0].address()).await.expect("a port is free");
        let params = format!("session={}s", Self::SESSION);
        let locks = bench.locks_with(&format!("etcd://{}", proxy.address()), &params).await;
        let guard = locks.mutex(name).lock().await.expect("the lock is free");
        proxy.stall();
        let lease = bench.queue(name).await[0].lease();
        let claim = Self { lease, _guard: guard, _silent_proxy: proxy };
        let waited = async {
            while !claim.has_left(bench, 0..=Self::SESSION - 6).await {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(SOON * 3, waited).await.expect("the client still sends keep-alives");
        claim
    }

    /// Waits until more of the lease is left than before. Without a new leader, less and less is
    /// left.
    pub(crate) async fn wait_for_full_ttl(&self, bench: &Bench) {
        wait_until("the lease does not have its full ttl again", async || {
            self.has_left(bench, Self::SESSION - 5..=Self::SESSION + Self::ELECTION).await
        })
        .await;
    }

    /// Returns whether the server reports one of these numbers of seconds that are left.
    async fn has_left(&self, bench: &Bench, seconds: RangeInclusive<i64>) -> bool {
        let lease = bench.raw.lease_client().time_to_live(self.lease, None).await;
        lease.is_ok_and(|lease| seconds.contains(&lease.ttl()))
    }
}

/// Waits until a member leads, and returns its index.
pub(crate) async fn leader(running: &Running) -> usize {
    let mut found = None;
    wait_until("no member became the leader", async || {
        for (index, server) in running.servers().iter().enumerate() {
            if is_leader(server).await {
                found = Some(index);
            }
        }
        found.is_some()
    })
    .await;
    found.expect("a member leads")
}

/// Returns whether the server reports that it is the leader.
pub(crate) async fn is_leader(server: &Server) -> bool {
    ask(server, "/metrics").await.is_ok_and(|metrics| metrics.contains("\netcd_server_is_leader 1\n"))
}

/// Kills the leader, and starts it again a second later.
pub(crate) async fn kill_leader(running: &Running) {
    let server = &running.servers()[leader(running).await];
    server.kill().await.expect("the server is running");
    sleep(Duration::from_secs(1)).await;
    server.start(Data::Kept).await.expect("the server starts again");
    running.ready().await.expect("the servers are ready again");
}

/// Spawns a contender as a task.
#[expect(clippy::disallowed_methods, reason = "contenders are tasks")]
pub(crate) fn spawn<F>(contender: impl IntoFuture<IntoFuture = F>) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(contender.into_future())
}

/// Waits until the condition is true.
///
/// # Panics
/// With `problem` after [`SOON`].
pub(crate) async fn wait_until(problem: &str, mut condition: impl AsyncFnMut() -> bool) {
    soon(problem, async {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Waits for a future.
///
/// # Panics
/// With `problem` after [`SOON`].
pub(crate) async fn soon<T>(problem: &str, wait: impl Future<Output = T>) -> T {
    timeout(SOON, wait).await.unwrap_or_else(|_| panic!("{problem}"))
}

/// Returns a name that no other test uses.
pub(crate) fn unique() -> String {
    ClaimId::random().to_string()
}
