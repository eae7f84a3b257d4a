//! PostgreSQL servers.

use std::io;

use async_trait::async_trait;
use dlock_conformance::Unreachable;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    Running,
    certificates::{self, CERTIFICATE, KEY},
    port::Port,
    recipe::{Member, Recipe, STANDALONE},
    server::Server,
};

/// Configuration of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One server: `postgres://user:password@host:port/database`.
    Standalone,
    /// One server that accepts only connections with TLS. It has its own [certificate
    /// authority](Running::ca).
    Tls,
}

/// Finds or starts a server.
///
/// # Errors
/// [`Unreachable`] with the name `postgres`, and a reason that lists every attempt.
///
/// # Cancel safety
/// Dropping the future stops the server that it has started, in the background.
pub async fn start(flavour: Flavour) -> Result<Running, Unreachable> {
    super::start(Postgres { flavour }).await
}

#[derive(Debug)]
struct Postgres {
    flavour: Flavour,
}

const USER: &str = "dlock";
const PASSWORD: &str = "s3cret:/";
const DATABASE: &str = "postgres";

/// Version 3.0 of the protocol, in the first message of a client.
const PROTOCOL: u32 = 3 << 16;

/// First byte of the message with which a server that is up requests a password.
const AUTHENTICATION: u8 = b'R';

/// Code of the error with which a server that is up refuses a login without TLS.
const NO_SUCH_ACCESS: &[u8] = b"C28000";

#[async_trait]
impl Recipe for Postgres {
    fn package(&self) -> &'static str {
        "postgres"
    }

    fn flavour(&self) -> &'static str {
        match self.flavour {
            Flavour::Standalone => STANDALONE,
            Flavour::Tls => "tls",
        }
    }

    fn members(&self, program: &str) -> io::Result<Vec<Member>> {
        let port = Port::claim()?;
        // Commits do not wait for the disk, because other tests may keep it busy. The data of a
        // commit survives `kill -9` in the kernel's cache, and no test cuts the power.
        let mut config = format!(
            "port={}\nlisten_addresses='127.0.0.1'\nunix_socket_directories=''\nmax_connections=1000\n\
             shared_buffers=32MB\nfsync=off\nfull_page_writes=off\nlog_min_messages=fatal\n",
            port.number()
        );
        let mut files = vec![("password", PASSWORD.to_owned())];
        let mut access = "host";
        if self.flavour == Flavour::Tls {
            access = "hostssl";
            config.push_str(&format!("ssl=on\nssl_cert_file='{CERTIFICATE}'\nssl_key_file='{KEY}'\n"));
            files.extend(certificates::new()?);
        }
        files.push(("server.cnf", config));
        files.push(("hba.cnf", format!("{access} all all 127.0.0.1/32 scram-sha-256\n")));
        // The server refuses to run as root, so root runs it as the user of the package. That user
        // must reach the data directory, whose files and configuration the server owns.
        let command = format!(
            "if [ \"$(id -u)\" = 0 ]; then\n\
                 chmod o+x . ..\n\
                 mkdir -p data && chown postgres data\n\
                 user='setpriv --reuid=postgres --regid=postgres --init-groups'\n\
             fi\n\
             cp password password.copy && chmod o+r password.copy\n\
             [ -e data/installed ] || {{ rm -rf data/*; $user \"${{0%/*}}/initdb\" --pgdata=data --no-sync --encoding=UTF8 \
             --locale=C --username={USER} --pwfile=password.copy --auth=scram-sha-256 >install.log 2>&1 && touch data/installed; }} || \
             {{ tail -n 3 install.log; exit 1; }}\n\
             for file in server.cnf hba.cnf *.pem *.key; do\n\
                 [ -e \"$file\" ] && cp \"$file\" data && chown --reference=data \"data/$file\" && chmod 600 \"data/$file\"\n\
             done\n\
             exec $user \"$0\" -D data -c config_file=data/server.cnf -c hba_file=data/hba.cnf"
        );
        Ok(vec![Member {
            name: "server".to_owned(),
            command: ["sh", "-c", &command, program].map(str::to_owned).to_vec(),
            files,
            data: "data",
            ports: vec![port],
        }])
    }

    /// Begins a login without TLS. A server that is still starting, or that recovers, replies with
    /// another error than one that requires TLS.
    async fn probe(&self, server: &Server) -> io::Result<()> {
        let parameters = format!("user\0{USER}\0database\0{DATABASE}\0\0");
        let length = u32::try_from(parameters.len() + 8).unwrap_or(u32::MAX);
        let mut message = [length.to_be_bytes(), PROTOCOL.to_be_bytes()].concat();
        message.extend(parameters.as_bytes());
        let mut stream = TcpStream::connect(server.address()).await?;
        stream.write_all(&message).await?;
        let mut reply = vec![stream.read_u8().await?];
        if reply[0] != AUTHENTICATION {
            // After an error the server closes the connection.
            stream.read_to_end(&mut reply).await?;
        }
        let refuses_plain = reply.split(|byte| *byte == 0).any(|field| field == NO_SUCH_ACCESS);
        if reply[0] == AUTHENTICATION || self.flavour == Flavour::Tls && refuses_plain {
            Ok(())
        } else {
            Err(io::Error::other("the server accepts no logins yet"))
        }
    }

    fn url(&self, servers: &[Server]) -> String {
        let tls = if self.flavour == Flavour::Tls { "?tls=on" } else { "" };
        format!("postgres://{USER}:s3cret%3A%2F@{}/{DATABASE}{tls}", servers[0].address())
    }
}
