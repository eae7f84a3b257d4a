//! A single server.

use std::io;

use async_trait::async_trait;

use super::{NAME, member, words};
use crate::servers::{
    port::Port,
    recipe::{Member, Recipe, STANDALONE},
    server::Server,
};

#[derive(Debug)]
pub(super) struct Standalone;

#[async_trait]
impl Recipe for Standalone {
    fn package(&self) -> &'static str {
        NAME
    }

    fn flavour(&self) -> &'static str {
        STANDALONE
    }

    fn members(&self, _program: &str) -> io::Result<Vec<Member>> {
        Ok(vec![member("server", vec![Port::claim()?], "")])
    }

    async fn probe(&self, server: &Server) -> io::Result<()> {
        words::mode(server.address()).await.map(drop)
    }

    fn url(&self, servers: &[Server]) -> String {
        format!("zk://{}", servers[0].address())
    }
}
