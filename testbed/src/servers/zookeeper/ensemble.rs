//! Three servers that elect a leader.

use std::{io, sync::Arc};

use async_trait::async_trait;
use dlock_conformance::Proxy;

use super::{NAME, member, words};
use crate::servers::{
    port::Port,
    recipe::{Member, Recipe},
    server::Server,
};

pub(super) const FLAVOUR: &str = "ensemble";

const SERVERS: usize = 3;

#[derive(Debug, Default)]
pub(super) struct Ensemble {
    /// Proxies through which the first server connects to the second and to the third server when
    /// it follows them.
    pub(super) links: Option<[Arc<Proxy>; SERVERS - 1]>,
    pub(super) own_disks: bool,
}

#[async_trait]
impl Recipe for Ensemble {
    fn package(&self) -> &'static str {
        NAME
    }

    fn flavour(&self) -> &'static str {
        FLAVOUR
    }

    fn members(&self, _program: &str) -> io::Result<Vec<Member>> {
        // Ports for clients, followers and elections.
        let ports =
            || [Port::claim(), Port::claim(), Port::claim()].into_iter().collect::<io::Result<Vec<_>>>();
        let all = (0..SERVERS).map(|_| ports()).collect::<io::Result<Vec<_>>>()?;
        let line =
            |number: usize, follow: u16, elect: u16| format!("server.{number}=127.0.0.1:{follow}:{elect}\n");
        let lines: String = all
            .iter()
            .zip(1..)
            .map(|(ports, number)| line(number, ports[1].number(), ports[2].number()))
            .collect();
        let mut own = line(1, all[0][1].number(), all[0][2].number());
        for (link, (ports, number)) in self.links.iter().flatten().zip(all.iter().zip(1..).skip(1)) {
            link.lead_to(([127, 0, 0, 1], ports[1].number()).into());
            own += &line(number, link.address().port(), ports[2].number());
        }
        let members = all.into_iter().zip(1..).map(|(ports, number)| {
            let lines = if number == 1 && self.links.is_some() { &own } else { &lines };
            let mut member = member(&format!("server{number}"), ports, lines);
            member.files.push(("myid", number.to_string()));
            member
        });
        Ok(members.collect())
    }

    fn has_own_disks(&self) -> bool {
        self.own_disks
    }

    /// Succeeds after the servers have elected a leader, because a server reports its mode only
    /// then.
    async fn probe(&self, server: &Server) -> io::Result<()> {
        words::mode(server.address()).await.map(drop)
    }

    fn url(&self, servers: &[Server]) -> String {
        let addresses: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
        format!("zk://{}", addresses.join(","))
    }
}
