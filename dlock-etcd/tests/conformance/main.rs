//! The suite, on one member and on three. `cargo test -p dlock-etcd --test conformance cluster` runs the cases with that word in
//! their names; `DLOCK_SUITES=cluster:all` puts all wrappers before three members, which otherwise have none.

#[path = "../common/mod.rs"]
mod common;

use std::{alloc::System, io, net::SocketAddr, process::ExitCode, time::Duration};

use async_trait::async_trait;
use cap::Cap;
use dlock_conformance::{
    Data, Fixture, Kill, Network, Restart, Row, Suite, Unreachable, killable, run_suites,
};
use dlock_core::{Result, driver::Store};
use dlock_testbed::servers::{
    Running,
    etcd::{Flavour, start},
};

use common::connect;

/// Counts bytes for the case that looks for leaks.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Parameters of clients that are not killed. The session allows the longest ttl of the suite's cases on a busy machine, and
/// the timeout allows dozens of clients to connect at the same time.
const LONG: &str = "session=40s&timeout=6s";

/// Of clients that die. The cases wait for their sessions to end, of several one after the other.
const MORTAL: &str = "session=10s&timeout=5s";

fn main() -> ExitCode {
    run_suites([
        Suite::new("one", Etcd::start(Flavour::Standalone)),
        // The same claims over other connections.
        Suite::new("cluster", Etcd::start(Flavour::Cluster)).in_rows([Row::Plain]),
    ])
}

struct Etcd(Running);

impl Etcd {
    async fn start(flavour: Flavour) -> Result<Self, Unreachable> {
        start(flavour).await.map(Self)
    }

    /// A client that reaches the members at these addresses.
    async fn connect_at(addresses: &[SocketAddr], params: &str) -> Result<Store> {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        connect(&format!("etcd://{}?{params}", addresses.join(","))).await
    }
}

#[async_trait]
impl Fixture for Etcd {
    fn name(&self) -> &str {
        "etcd"
    }

    async fn connect(&self) -> Result<Store> {
        connect(&format!("{}?{LONG}", self.0.url())).await
    }

    async fn connect_killable(&self) -> Option<Result<(Store, Kill)>> {
        let members: Vec<_> = self.0.servers().iter().map(|server| server.address()).collect();
        Some(killable(&members, async |proxies| Self::connect_at(&proxies, MORTAL).await).await)
    }

    /// A call may take a third of it, and a cluster answers late when a hundred cases ask at once on a busy machine.
    fn ttl(&self) -> Duration {
        Duration::from_secs(7)
    }

    fn short_ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Some cases wait for the sessions of several clients that die one after the other.
    fn limit(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Cases mostly wait for a ttl or a session to end. Three members share the cores of one.
    fn at_once(&self) -> usize {
        if self.0.servers().len() == 1 { 64 } else { 48 }
    }

    fn allocated(&self) -> Option<usize> {
        Some(HEAP.allocated())
    }

    /// A cluster that has lost its data begins to count anew.
    fn tokens_outlive_data(&self) -> bool {
        false
    }

    fn network(&self) -> Option<&dyn Network> {
        (self.0.servers().len() == 1).then_some(self)
    }
}

#[async_trait]
impl Network for Etcd {
    fn server(&self) -> SocketAddr {
        self.0.servers()[0].address()
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Store> {
        Self::connect_at(&[address], LONG).await
    }

    fn restart(&self) -> Option<&dyn Restart> {
        Some(self)
    }
}

#[async_trait]
impl Restart for Etcd {
    async fn restart(&self, data: Data) -> io::Result<()> {
        let server = &self.0.servers()[0];
        server.kill().await?;
        server.start(data).await?;
        self.0.ready().await
    }
}
