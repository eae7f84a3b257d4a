//! The connection pooler pgbouncer, in front of a server of a test.

use std::io;

use async_trait::async_trait;
use dlock_conformance::Unreachable;

use super::{PASSWORD, USER, probe, url};
use crate::servers::{
    Running,
    port::Port,
    recipe::{Member, Recipe},
    server::Server,
};

/// When the pooler takes a session from a client and assigns it to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// At the end of the client's connection.
    Session,
    /// At the end of each transaction. Each client can use the prepared statements of its own
    /// connection.
    Transaction,
    /// At the end of each transaction. Prepared statements belong to the server's sessions, as in
    /// versions of pgbouncer before 1.21.
    TransactionWithoutStatements,
}

/// Starts a pooler in front of the first of the servers, which must not come from the environment.
///
/// # Errors
/// [`Unreachable`] with the name `pgbouncer`, and a reason that lists every attempt.
///
/// # Cancel safety
/// Dropping the future stops the pooler that it has started, in the background.
pub async fn pool(server: &Running, pooling: Pooling) -> Result<Running, Unreachable> {
    let Some(server) = server.servers().first() else {
        let reason = "a pooler needs a server of its own, and the environment names another".to_owned();
        return Err(Unreachable { name: PACKAGE.to_owned(), reason });
    };
    crate::servers::start(Pgbouncer { server: server.address().port(), pooling }).await
}

const PACKAGE: &str = "pgbouncer";

#[derive(Debug)]
struct Pgbouncer {
    /// Port of the server.
    server: u16,
    pooling: Pooling,
}

#[async_trait]
impl Recipe for Pgbouncer {
    fn package(&self) -> &'static str {
        PACKAGE
    }

    fn flavour(&self) -> &'static str {
        match self.pooling {
            Pooling::Session => "session",
            Pooling::Transaction => "transaction",
            Pooling::TransactionWithoutStatements => "without_statements",
        }
    }

    fn members(&self, program: &str) -> io::Result<Vec<Member>> {
        let port = Port::claim()?;
        let mode = if self.pooling == Pooling::Session { "session" } else { "transaction" };
        let statements = if self.pooling == Pooling::Transaction { 100 } else { 0 };
        // With `Session` each connection of a client keeps a session.
        let sessions = if self.pooling == Pooling::Session { 900 } else { 20 };
        // The pooler refuses to run as root. It changes to an unprivileged user after it has read its
        // files.
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n\
             [pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={}\nunix_socket_dir=\n\
             auth_type=scram-sha-256\nauth_file=users.txt\npool_mode={mode}\n\
             max_prepared_statements={statements}\nmax_client_conn=1000\ndefault_pool_size={sessions}\n",
            self.server,
            port.number()
        );
        let command = "chmod o+x . .. && chmod o+r users.txt pgbouncer.ini\n\
             [ \"$(id -u)\" = 0 ] && user='--user nobody'\n\
             exec \"$0\" $user pgbouncer.ini";
        Ok(vec![Member {
            name: "pooler".to_owned(),
            command: ["sh", "-c", command, program].map(str::to_owned).to_vec(),
            files: vec![("pgbouncer.ini", config), ("users.txt", format!("\"{USER}\" \"{PASSWORD}\"\n"))],
            data: "",
            ports: vec![port],
        }])
    }

    async fn probe(&self, server: &Server) -> io::Result<()> {
        probe(server, false).await
    }

    fn url(&self, servers: &[Server]) -> String {
        url(servers.iter(), "")
    }
}
