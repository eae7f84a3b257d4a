//! A cluster of three primaries.

use std::io;

use async_trait::async_trait;

use super::{Brand, expect_reply, member, resp};
use crate::servers::{
    port::Port,
    recipe::{Member, Recipe},
    server::Server,
};

pub(super) const FLAVOUR: &str = "cluster";

const NODES: u16 = 3;
const SLOTS: u16 = 16_384;

#[derive(Debug)]
pub(super) struct Cluster(pub(super) Brand);

#[async_trait]
impl Recipe for Cluster {
    fn package(&self) -> &'static str {
        self.0.name()
    }

    fn flavour(&self) -> &'static str {
        FLAVOUR
    }

    fn members(&self, program: &str) -> io::Result<Vec<Member>> {
        const MORE: &str = "cluster-enabled yes\ncluster-announce-ip 127.0.0.1\ncluster-node-timeout 5000\n";
        let node = |number| {
            let (port, bus) = Port::claim_with_bus()?;
            Ok(member(program, &format!("node{number}"), vec![port, bus], MORE))
        };
        (0..NODES).map(node).collect()
    }

    async fn probe(&self, server: &Server) -> io::Result<()> {
        resp::ping(server).await
    }

    /// Assigns a third of the slots to each node, and introduces the nodes to the first one.
    async fn join(&self, servers: &[Server]) -> io::Result<()> {
        for (server, node) in servers.iter().zip(0..) {
            let slots = (0..SLOTS).filter(|slot| slot * NODES / SLOTS == node).map(|slot| slot.to_string());
            let slots: Vec<_> = slots.collect();
            let mut add = vec!["CLUSTER", "ADDSLOTS"];
            add.extend(slots.iter().map(String::as_str));
            // Each node gets a different epoch. Nodes with equal epochs need time to resolve the
            // conflict.
            let epoch = (node + 1).to_string();
            resp::ask(server, &[&add, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]]).await?;
            let port = server.address().port().to_string();
            resp::ask(&servers[0], &[&["CLUSTER", "MEET", "127.0.0.1", &port]]).await?;
        }
        Ok(())
    }

    /// Succeeds when every node reports that it knows all nodes and that all slots are served.
    async fn health(&self, servers: &[Server]) -> io::Result<()> {
        for server in servers {
            let info = resp::ask(server, &[&["CLUSTER", "INFO"]]).await?.concat();
            let whole = ["cluster_state:ok\r", "cluster_slots_ok:16384\r", "cluster_known_nodes:3\r"];
            expect_reply(whole.iter().all(|line| info.contains(line)), &info)?;
        }
        Ok(())
    }

    fn url(&self, servers: &[Server]) -> String {
        let addresses: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }
}
