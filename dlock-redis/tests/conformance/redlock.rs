//! A majority of independent servers.

use std::time::Duration;

use async_trait::async_trait;
use dlock_conformance::{Fixture, Unreachable};
use dlock_core::{Result, driver::Store};

use crate::common::{connect, nodes::Nodes};

pub(crate) struct Majority(Nodes);

impl Majority {
    /// Starts `count` servers.
    pub(crate) async fn of(count: usize) -> Result<Self, Unreachable> {
        Nodes::new(count, "").await.map(Self)
    }
}

#[async_trait]
impl Fixture for Majority {
    fn name(&self) -> &str {
        "redis"
    }

    async fn connect(&self) -> Result<Store> {
        connect(self.0.url()).await
    }

    /// A member may take a tenth of it, and a busy server replies late.
    fn ttl(&self) -> Duration {
        Duration::from_secs(15)
    }

    /// The strict order is tested with members in memory, whose replies are never late.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Each client has a connection to each member, and a member counts as unreachable after some
    /// 100 ms.
    fn at_once(&self) -> usize {
        8
    }
}
