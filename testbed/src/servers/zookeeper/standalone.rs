//! A single server.

use std::io;

use async_trait::async_trait;

use super::{NAME, member, words};
use crate::servers::{
    port::Port,
    recipe::{Member, Recipe, STANDALONE},
    server::Server,
};

/// Flavour of a server with further lines of configuration.
const CONFIGURED: &str = "configured";

#[derive(Debug, Default)]
pub(super) struct Standalone {
    /// Lines that are added to the server's configuration. A line overrides an earlier one.
    pub(super) lines: &'static str,
}

#[async_trait]
impl Recipe for Standalone {
    fn package(&self) -> &'static str {
        NAME
    }

    fn flavour(&self) -> &'static str {
        if self.lines.is_empty() { STANDALONE } else { CONFIGURED }
    }

    fn members(&self, _program: &str) -> io::Result<Vec<Member>> {
        Ok(vec![member("server", vec![Port::claim()?], self.lines)])
    }

    async fn probe(&self, server: &Server) -> io::Result<()> {
        words::mode(server.address()).await.map(drop)
    }

    fn url(&self, servers: &[Server]) -> String {
        format!("zk://{}", servers[0].address())
    }
}
