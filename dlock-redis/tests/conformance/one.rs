//! A store of one Redis or Valkey server, or of several that form one store.

use std::{io, net::SocketAddr, time::Duration};

use async_trait::async_trait;
use dlock_conformance::{Data, Fixture, Network, Restart, Unreachable};
use dlock_core::{Result, driver::Store};
use dlock_testbed::servers::{
    Running,
    redis::{Brand, Flavour, start},
};

use crate::{HEAP, common::connect};

pub(crate) struct Redis {
    brand: Brand,
    running: Running,
    /// Parameters of the URL, with the question mark, or empty.
    params: String,
}

impl Redis {
    /// Starts a store whose clients have these parameters in their URL.
    pub(crate) async fn start(brand: Brand, flavour: Flavour, params: &str) -> Result<Self, Unreachable> {
        let running = start(brand, flavour).await?;
        let ca = running.ca().map(|ca| format!("ca={}", ca.display()));
        let params: Vec<_> =
            [params.to_owned()].into_iter().filter(|params| !params.is_empty()).chain(ca).collect();
        let params = if params.is_empty() { String::new() } else { format!("?{}", params.join("&")) };
        Ok(Self { brand, running, params })
    }
}

#[async_trait]
impl Fixture for Redis {
    fn name(&self) -> &str {
        self.brand.name()
    }

    async fn connect(&self) -> Result<Store> {
        connect(&format!("{}{}", self.running.url(), self.params)).await
    }

    fn allocated(&self) -> Option<usize> {
        Some(HEAP.allocated())
    }

    fn polls(&self) -> Option<&'static str> {
        self.params.contains("dialect=plain").then_some("the plain dialect polls")
    }

    fn network(&self) -> Option<&dyn Network> {
        // Other flavours cannot be used through a proxy, because the servers report their own
        // addresses to clients, or a certificate names one.
        let is_single = self.running.url().starts_with("redis://") && self.running.servers().len() == 1;
        is_single.then_some(self)
    }
}

#[async_trait]
impl Network for Redis {
    fn server(&self) -> SocketAddr {
        self.running.servers()[0].address()
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Store> {
        connect(&format!("redis://{address}{}", self.params)).await
    }

    fn bound(&self, _ttl: Duration) -> Duration {
        // The default of the parameter `timeout`.
        Duration::from_secs(3)
    }

    fn restart(&self) -> Option<&dyn Restart> {
        Some(self)
    }
}

#[async_trait]
impl Restart for Redis {
    async fn restart(&self, data: Data) -> io::Result<()> {
        let server = &self.running.servers()[0];
        server.kill().await?;
        server.start(data).await
    }
}
