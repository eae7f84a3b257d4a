//! Runs the suite on one member and on three members.
//!
//! `cargo test -p dlock-etcd --test conformance cluster` runs the cases with that word in their
//! names. By default, the suite of three members runs without wrappers; `DLOCK_SUITES=cluster:all`
//! runs it with all of them.

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

/// Counts allocated bytes for the case that detects leaks.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Parameters of clients that are not killed. The session allows the longest ttl of the suite's
/// cases on a busy machine. The timeout lets dozens of clients connect at the same time.
const LONG: &str = "session=40s&timeout=6s";

/// Parameters of clients that are killed. The sessions are short, because the cases wait for their
/// end, of several sessions one after the other.
const MORTAL: &str = "session=10s&timeout=5s";

fn main() -> ExitCode {
    run_suites([
        Suite::new("one", Etcd::start(Flavour::Standalone)),
        // The claims are the same as in the first suite. Only the connections differ.
        Suite::new("cluster", Etcd::start(Flavour::Cluster)).in_rows([Row::Plain]),
    ])
}

struct Etcd(Running);

impl Etcd {
    async fn start(flavour: Flavour) -> Result<Self, Unreachable> {
        start(flavour).await.map(Self)
    }

    /// Connects a client to the members at these addresses.
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

    /// The time limit of a call is a third of the ttl. The replies of a cluster are slow while a
    /// hundred cases send requests at the same time on a busy machine.
    fn ttl(&self) -> Duration {
        Duration::from_secs(7)
    }

    fn short_ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Some cases kill several clients one after the other, and wait for the end of each session.
    fn limit(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Many cases can run at the same time, because most of them wait for the end of a ttl or of a
    /// session. Three members share the cores that one member has alone.
    fn at_once(&self) -> usize {
        if self.0.servers().len() == 1 { 40 } else { 24 }
    }

    fn allocated(&self) -> Option<usize> {
        Some(HEAP.allocated())
    }

    /// The revision of a cluster that has lost its data starts again.
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
