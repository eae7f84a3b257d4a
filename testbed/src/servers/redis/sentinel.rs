//! A primary, its replica, and a Sentinel that monitors them.

use std::io;

use async_trait::async_trait;

use super::{Brand, expect_reply, member, resp};
use crate::servers::{
    poll,
    port::Port,
    recipe::{Member, Recipe},
    server::Server,
};

pub(super) const FLAVOUR: &str = "sentinel";

/// Name of the primary at the Sentinel.
const PRIMARY: &str = "dlock";

#[derive(Debug)]
pub(super) struct Sentinel(pub(super) Brand);

#[async_trait]
impl Recipe for Sentinel {
    fn package(&self) -> &'static str {
        self.0.name()
    }

    fn flavour(&self) -> &'static str {
        FLAVOUR
    }

    fn members(&self, program: &str) -> io::Result<Vec<Member>> {
        let primary = Port::claim()?;
        let follow = format!("replicaof 127.0.0.1 {}\n", primary.number());
        let sentinel = Port::claim()?;
        let config = format!("port {}\nbind 127.0.0.1\ndir .\n", sentinel.number());
        Ok(vec![
            member(program, "primary", vec![primary], ""),
            member(program, "replica", vec![Port::claim()?], &follow),
            Member {
                name: "sentinel".to_owned(),
                command: [program, "server.conf", "--sentinel"].map(str::to_owned).to_vec(),
                files: vec![("server.conf", config)],
                data: "",
                ports: vec![sentinel],
            },
        ])
    }

    async fn probe(&self, server: &Server) -> io::Result<()> {
        resp::ping(server).await
    }

    /// Makes the Sentinel monitor the primary, after the replica has connected to the primary. The
    /// Sentinel queries the primary for replicas at once, and then only every ten seconds.
    async fn join(&self, servers: &[Server]) -> io::Result<()> {
        let (primary, sentinel) = (&servers[0], &servers[2]);
        poll(async || {
            let replication = resp::ask(primary, &[&["INFO", "replication"]]).await?.concat();
            expect_reply(replication.contains("state=online"), &replication)
        })
        .await?;
        let port = primary.address().port().to_string();
        let monitor = ["SENTINEL", "MONITOR", PRIMARY, "127.0.0.1", &port, "1"];
        let down_after = ["SENTINEL", "SET", PRIMARY, "down-after-milliseconds", "2000"];
        let failover_timeout = ["SENTINEL", "SET", PRIMARY, "failover-timeout", "5000"];
        resp::ask(sentinel, &[&monitor, &down_after, &failover_timeout]).await.map(drop)
    }

    /// Succeeds when the Sentinel reports a primary, and a replica that it may promote.
    async fn health(&self, servers: &[Server]) -> io::Result<()> {
        let sentinel = &servers[2];
        let master = resp::ask(sentinel, &[&["INFO", "sentinel"]]).await?.concat();
        expect_reply(master.contains("status=ok,"), &master)?;
        let replicas = resp::ask(sentinel, &[&["SENTINEL", "REPLICAS", PRIMARY]]).await?;
        let has = |key, value| replicas.chunks(2).any(|pair| pair[0] == key && pair[1] == value);
        expect_reply(has("flags", "slave") && has("master-link-status", "ok"), &replicas.join(" "))
    }

    fn url(&self, servers: &[Server]) -> String {
        format!("redis+sentinel://{}/{PRIMARY}", servers[2].address())
    }
}
