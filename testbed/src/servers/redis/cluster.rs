//! A cluster of three primaries.

use std::io;

use async_trait::async_trait;

use super::{Brand, agreed, member, resp};
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

    /// Gives each node its third of the slots, and makes the nodes known to the first.
    async fn join(&self, servers: &[Server]) -> io::Result<()> {
        for (server, node) in servers.iter().zip(0..) {
            let slots = (0..SLOTS).filter(|slot| slot * NODES / SLOTS == node).map(|slot| slot.to_string());
            let slots: Vec<_> = slots.collect();
            let mut add = vec!["CLUSTER", "ADDSLOTS"];
            add.extend(slots.iter().map(String::as_str));
            // Each node gets an epoch of its own. With equal epochs the nodes take a while to agree.
            let epoch = (node + 1).to_string();
            resp::ask(server, &[&add, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]]).await?;
            let port = server.address().port().to_string();
            resp::ask(&servers[0], &[&["CLUSTER", "MEET", "127.0.0.1", &port]]).await?;
        }
        Ok(())
    }

    /// Good when every node says that it knows all nodes and that all slots are served.
    async fn health(&self, servers: &[Server]) -> io::Result<()> {
        for server in servers {
            let info = resp::ask(server, &[&["CLUSTER", "INFO"]]).await?.concat();
            let whole = ["cluster_state:ok\r", "cluster_slots_ok:16384\r", "cluster_known_nodes:3\r"];
            agreed(whole.iter().all(|line| info.contains(line)), &info)?;
        }
        Ok(())
    }

    fn url(&self, servers: &[Server]) -> String {
        let addresses: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }
}
