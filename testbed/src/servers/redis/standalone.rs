//! A single server.

use std::io;

use async_trait::async_trait;

use super::{Brand, member, resp};
use crate::servers::{
    port::Port,
    recipe::{Member, Recipe, STANDALONE},
    server::Server,
};

#[derive(Debug)]
pub(super) struct Standalone(pub(super) Brand);

#[async_trait]
impl Recipe for Standalone {
    fn package(&self) -> &'static str {
        self.0.name()
    }

    fn flavour(&self) -> &'static str {
        STANDALONE
    }

    fn members(&self, program: &str) -> io::Result<Vec<Member>> {
        Ok(vec![member(program, "server", vec![Port::claim()?], "")])
    }

    async fn probe(&self, server: &Server) -> io::Result<()> {
        resp::ping(server).await
    }

    fn url(&self, servers: &[Server]) -> String {
        format!("redis://{}", servers[0].address())
    }
}
