//! A single server with TLS and one user. A second port without TLS is for the probe.

use std::io;

use async_trait::async_trait;

use super::{Brand, member, resp};
use crate::servers::{
    certificates::{self, CA, CERTIFICATE, KEY},
    port::Port,
    recipe::{Member, Recipe},
    server::Server,
};

pub(super) const FLAVOUR: &str = "tls";

const USER: &str = "dlock";
/// Password with characters that must be escaped in a URL.
const PASSWORD: &str = "s3cret:/with@odd#signs";
const PASSWORD_IN_URL: &str = "s3cret%3A%2Fwith%40odd%23signs";

#[derive(Debug)]
pub(super) struct Tls(pub(super) Brand);

#[async_trait]
impl Recipe for Tls {
    fn package(&self) -> &'static str {
        self.0.name()
    }

    fn flavour(&self) -> &'static str {
        FLAVOUR
    }

    fn members(&self, program: &str) -> io::Result<Vec<Member>> {
        let (clear, tls) = (Port::claim()?, Port::claim()?);
        let more = format!(
            "tls-port {}\ntls-ca-cert-file {CA}\ntls-cert-file {CERTIFICATE}\ntls-key-file {KEY}\n\
             tls-auth-clients no\nuser default off\nuser {USER} on >{PASSWORD} ~* &* +@all\n",
            tls.number(),
        );
        let mut member = member(program, "server", vec![clear, tls], &more);
        member.files.extend(certificates::new()?);
        Ok(vec![member])
    }

    async fn probe(&self, server: &Server) -> io::Result<()> {
        resp::ask(server, &[&["AUTH", USER, PASSWORD], &["PING"]]).await.map(drop)
    }

    fn url(&self, servers: &[Server]) -> String {
        format!("rediss://{USER}:{PASSWORD_IN_URL}@127.0.0.1:{}", servers[0].port(1))
    }
}
