//! A ZooKeeper store, of one server or three.

use std::{io, net::SocketAddr, time::Duration};

use async_trait::async_trait;
use dlock_conformance::{
    Data, Fixture, Kill, Network, Restart, Unreachable, killable,
    stores::{
        Running,
        zookeeper::{Flavour, NAME, start, tls_params},
    },
};
use dlock_core::{Result, driver::Store};

use crate::{HEAP, common::connect};

/// The sessions of clients that nothing happens to. So long that the longest ttl outlives whatever a busy machine does.
const LONG: &str = "session=32s";
/// Of clients that die: twice the ttl that a claim has which is renewed.
const MORTAL: &str = "session=10s";
/// Of clients behind a proxy. A case waits for such a claim to be forgotten for not much longer than a moment.
const SHORT: &str = "session=5600ms";

pub(crate) struct ZooKeeper {
    running: Running,
    /// What every URL has, with an `&` before it.
    params: String,
}

impl ZooKeeper {
    pub(crate) async fn start(flavour: Flavour) -> Result<Self, Unreachable> {
        let running = start(flavour).await?;
        let secure = running.servers().first().filter(|_| flavour == Flavour::Tls);
        let params = secure.map(|server| format!("&{}", tls_params(server))).unwrap_or_default();
        Ok(Self { running, params })
    }

    /// Where clients reach the servers, if these are ours.
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

    /// Most cases wait for the end of a ttl or a session.
    fn at_once(&self) -> usize {
        64
    }

    /// The client crate keeps the paths of the last thousand nodes that were watched.
    fn warm_up(&self) -> usize {
        1100
    }

    /// The number of a transaction, which begins anew.
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

    fn bound(&self, ttl: Duration) -> Duration {
        // The default of `timeout`.
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
