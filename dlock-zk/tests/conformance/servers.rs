//! The fixture of a ZooKeeper store with one server or three.

use std::{io, net::SocketAddr, time::Duration};

use async_trait::async_trait;
use dlock_conformance::{Data, Fixture, Kill, Network, Restart, Unreachable, killable};
use dlock_core::{Result, driver::Store};
use dlock_testbed::servers::{
    Running,
    zookeeper::{Flavour, NAME, start, tls_params},
};

use crate::{HEAP, common::connect};

/// Session of clients that stay connected, or that outlast faults. The longest ttl that it allows outlasts the delays of a
/// busy machine.
const LONG: &str = "session=32s";
/// Session of clients that are killed. Twice the ttl of a renewed claim.
const MORTAL: &str = "session=10s";
/// Session of clients behind a proxy. Short, because a case waits for little longer than this until
/// a claim is forgotten.
const SHORT: &str = "session=5600ms";

pub(crate) struct ZooKeeper {
    running: Running,
    /// Parameters of every URL, each with an `&` before it.
    params: String,
}

impl ZooKeeper {
    pub(crate) async fn start(flavour: Flavour) -> Result<Self, Unreachable> {
        let running = start(flavour).await?;
        let secure = running.servers().first().filter(|_| flavour == Flavour::Tls);
        let params = secure.map(|server| format!("&{}", tls_params(server))).unwrap_or_default();
        Ok(Self { running, params })
    }

    /// Returns the addresses of the servers, if the test has started them.
    fn addresses(&self) -> Vec<SocketAddr> {
        let hosts = self.running.url().trim_start_matches("zk://");
        match self.running.servers() {
            [] => Vec::new(),
            _ => hosts.split(',').map(|host| host.parse().expect("the recipe writes addresses")).collect(),
        }
    }

    async fn open(&self, addresses: &[SocketAddr], session: &str) -> Result<Store> {
        let hosts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        connect(&format!("zk://{}?{session}{}", hosts.join(","), self.params)).await
    }
}

#[async_trait]
impl Fixture for ZooKeeper {
    fn name(&self) -> &str {
        NAME
    }

    async fn connect(&self) -> Result<Store> {
        connect(&format!("{}?{LONG}{}", self.running.url(), self.params)).await
    }

    async fn connect_killable(&self) -> Option<Result<(Store, Kill)>> {
        let servers = self.addresses();
        if servers.is_empty() {
            return None;
        }
        Some(killable(&servers, async |proxies| self.open(&proxies, MORTAL).await).await)
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(2800)
    }

    /// Many cases may run at the same time, because most of them wait for the end of a ttl or a
    /// session. With too many, an ensemble on two cores may not reply within a ttl.
    fn at_once(&self) -> usize {
        if self.running.servers().len() == 1 { 40 } else { 24 }
    }

    /// `zookeeper-client` keeps the paths of the last thousand nodes that were watched.
    fn warm_up(&self) -> usize {
        1100
    }

    /// A token is the number of a transaction, which starts again from one.
    fn tokens_outlive_data(&self) -> bool {
        false
    }

    fn allocated(&self) -> Option<usize> {
        Some(HEAP.allocated())
    }

    fn network(&self) -> Option<&dyn Network> {
        (self.running.servers().len() == 1).then_some(self)
    }
}

#[async_trait]
impl Network for ZooKeeper {
    fn server(&self) -> SocketAddr {
        self.addresses()[0]
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Store> {
        self.open(&[address], SHORT).await
    }

    async fn connect_lasting_to(&self, address: SocketAddr) -> Result<Store> {
        self.open(&[address], LONG).await
    }

    fn bound(&self, ttl: Duration) -> Duration {
        // The default of the parameter `timeout`.
        ttl.min(Duration::from_secs(3))
    }

    fn restart(&self) -> Option<&dyn Restart> {
        Some(self)
    }
}

#[async_trait]
impl Restart for ZooKeeper {
    async fn restart(&self, data: Data) -> io::Result<()> {
        let server = &self.running.servers()[0];
        server.kill().await?;
        server.start(data).await
    }
}
