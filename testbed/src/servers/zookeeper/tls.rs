//! A single server with TLS at a second port. Clients must present a certificate.

use std::io;

use async_trait::async_trait;

use super::{NAME, member, words};
use crate::servers::{
    certificates::{self, CA, CERTIFICATE, KEY},
    port::Port,
    recipe::{Member, Recipe},
    server::Server,
};

pub(super) const FLAVOUR: &str = "tls";

/// File with the server's private key and certificate, the format that the server expects.
const STORE: &str = "store.pem";

#[derive(Debug)]
pub(super) struct Tls;

#[async_trait]
impl Recipe for Tls {
    fn package(&self) -> &'static str {
        NAME
    }

    fn flavour(&self) -> &'static str {
        FLAVOUR
    }

    fn members(&self, _program: &str) -> io::Result<Vec<Member>> {
        let ports = vec![Port::claim()?, Port::claim()?];
        let files = certificates::new()?;
        let [_, (_, certificate), (_, key)] = &files;
        let store = format!("{key}{certificate}");
        let lines = format!(
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             secureClientPort={}\nsecureClientPortAddress=127.0.0.1\n\
             ssl.keyStore.location={STORE}\nssl.keyStore.type=PEM\nssl.trustStore.location={CA}\nssl.trustStore.type=PEM\n",
            ports[1].number()
        );
        let mut member = member("server", ports, &lines);
        member.files.push((STORE, store));
        member.files.extend(files);
        Ok(vec![member])
    }

    async fn probe(&self, server: &Server) -> io::Result<()> {
        words::mode(server.address()).await.map(drop)
    }

    fn url(&self, servers: &[Server]) -> String {
        format!("zk://127.0.0.1:{}", servers[0].port(1))
    }
}

/// Returns the URL parameters of a client. They contain the authority, and the server's own
/// certificate and key.
pub(super) fn params(server: &Server) -> String {
    let file = |name| server.file(name).display().to_string();
    format!("tls=on&ca={}&cert={}&key={}", file(CA), file(CERTIFICATE), file(KEY))
}
