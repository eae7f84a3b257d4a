//! PostgreSQL servers, and the connection pooler pgbouncer.

mod pooler;

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

pub use pooler::{Pooling, pool};

/// Major version of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The oldest version that dlock supports.
    V14,
    /// Version 16.
    V16,
    /// The version of Debian's stable release, which most tests use.
    V17,
    /// Version 18.
    V18,
}

impl Version {
    /// All versions.
    pub const ALL: [Self; 4] = [Self::V14, Self::V16, Self::V17, Self::V18];

    /// Name in lower case, as in `DLOCK_REQUIRE`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V14 => "postgres14",
            Self::V16 => "postgres16",
            Self::V17 => "postgres",
            Self::V18 => "postgres18",
        }
    }
}

/// Configuration of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One server: `postgres://user:password@host:port/database`.
    Standalone,
    /// The same with the default settings for durability, so each commit waits for the disk. For
    /// benchmarks, with `TMPDIR` on a disk.
    Durable,
    /// One server that accepts only connections with TLS. It has its own [certificate
    /// authority](Running::ca).
    Tls,
    /// A primary and a standby that replicates it asynchronously, in this order. The URL names the
    /// standby first.
    Replicated,
}

/// Finds or starts a server.
///
/// # Errors
/// [`Unreachable`] with the name of the version, and a reason that lists every attempt.
///
/// # Cancel safety
/// Dropping the future stops the server that it has started, in the background.
pub async fn start(version: Version, flavour: Flavour) -> Result<Running, Unreachable> {
    super::start(Postgres { version, flavour, has_own_disk: false }).await
}

/// Finds or starts one server with a [disk](Server::fill_disk) of its own.
///
/// # Errors
/// As [`start`].
///
/// # Cancel safety
/// As [`start`].
pub async fn start_with_disk(version: Version) -> Result<Running, Unreachable> {
    super::start(Postgres { version, flavour: Flavour::Standalone, has_own_disk: true }).await
}

#[derive(Debug)]
struct Postgres {
    version: Version,
    flavour: Flavour,
    has_own_disk: bool,
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

impl Postgres {
    /// Returns the settings of a server.
    fn config(&self, port: &Port) -> String {
        let mut config = format!(
            "port={}\nlisten_addresses='127.0.0.1'\nunix_socket_directories=''\nmax_connections=1000\n\
             shared_buffers=32MB\nlog_min_messages=fatal\n",
            port.number()
        );
        if self.flavour != Flavour::Durable {
            // Commits do not wait for the disk, because other tests may keep it busy. The data of a
            // commit survives `kill -9` in the kernel's cache, and no test cuts the power.
            config.push_str("fsync=off\nfull_page_writes=off\n");
        }
        if self.flavour == Flavour::Tls {
            config.push_str(&format!("ssl=on\nssl_cert_file='{CERTIFICATE}'\nssl_key_file='{KEY}'\n"));
        }
        config
    }

    /// Returns a server whose data directory `install` creates in the folder `data`.
    fn member(&self, program: &str, name: &str, port: Port, install: &str) -> io::Result<Member> {
        let access = if self.flavour == Flavour::Tls { "hostssl" } else { "host" };
        let rights = ["all", "replication"]
            .map(|database| format!("{access} {database} all 127.0.0.1/32 scram-sha-256\n"))
            .concat();
        let mut files =
            vec![("password", PASSWORD.to_owned()), ("server.cnf", self.config(&port)), ("hba.cnf", rights)];
        if self.flavour == Flavour::Tls {
            files.extend(certificates::new()?);
        }
        // The server refuses to run as root, so root runs it as the user of the package. That user
        // must reach the data directory, whose files and configuration the server owns.
        let command = format!(
            "if [ \"$(id -u)\" = 0 ]; then\n\
                 chmod o+x . ..\n\
                 mkdir -p data && chown postgres data && chmod 700 data\n\
                 user='setpriv --reuid=postgres --regid=postgres --init-groups'\n\
             fi\n\
             cp password password.copy && chmod o+r password.copy\n\
             [ -e data/installed ] || {{ rm -rf data/*; {install} >install.log 2>&1 && touch data/installed; }} || \
             {{ tail -n 3 install.log; exit 1; }}\n\
             for file in server.cnf hba.cnf *.pem *.key; do\n\
                 [ -e \"$file\" ] && cp \"$file\" data && chown --reference=data \"data/$file\" && chmod 600 \"data/$file\"\n\
             done\n\
             exec $user \"$0\" -D data -c config_file=data/server.cnf -c hba_file=data/hba.cnf"
        );
        Ok(Member {
            name: name.to_owned(),
            command: ["sh", "-c", &command, program].map(str::to_owned).to_vec(),
            files,
            data: "data",
            ports: vec![port],
        })
    }
}

/// Returns the command that creates an empty data directory.
fn initdb() -> String {
    format!(
        "$user \"${{0%/*}}/initdb\" --pgdata=data --no-sync --encoding=UTF8 --locale=C --username={USER} \
         --pwfile=password.copy --auth=scram-sha-256"
    )
}

/// Returns the command that copies the data directory of a primary, once the primary is up.
fn base_backup(primary: u16) -> String {
    format!(
        "until PGPASSWORD=\"$(cat password)\" $user \"${{0%/*}}/pg_basebackup\" --pgdata=data --no-sync \
         --write-recovery-conf --checkpoint=fast --host=127.0.0.1 --port={primary} --username={USER}; \
         do rm -rf data/*; sleep 0.2; done"
    )
}

#[async_trait]
impl Recipe for Postgres {
    fn package(&self) -> &'static str {
        self.version.name()
    }

    fn flavour(&self) -> &'static str {
        match self.flavour {
            Flavour::Standalone if self.has_own_disk => "with_disk",
            Flavour::Standalone => STANDALONE,
            Flavour::Durable => "durable",
            Flavour::Tls => "tls",
            Flavour::Replicated => "replicated",
        }
    }

    fn members(&self, program: &str) -> io::Result<Vec<Member>> {
        let port = Port::claim()?;
        let primary = port.number();
        let mut members = vec![self.member(program, "server", port, &initdb())?];
        if self.flavour == Flavour::Replicated {
            members.push(self.member(program, "standby", Port::claim()?, &base_backup(primary))?);
        }
        Ok(members)
    }

    async fn probe(&self, server: &Server) -> io::Result<()> {
        probe(server, self.flavour == Flavour::Tls).await
    }

    fn has_own_disks(&self) -> bool {
        self.has_own_disk
    }

    fn url(&self, servers: &[Server]) -> String {
        let tls = if self.flavour == Flavour::Tls { "?tls=on" } else { "" };
        url(servers.iter().rev(), tls)
    }
}

/// Returns the URL of servers, or of poolers in front of servers.
fn url<'s>(servers: impl Iterator<Item = &'s Server>, params: &str) -> String {
    let hosts: Vec<_> = servers.map(|server| server.address().to_string()).collect();
    format!("postgres://{USER}:s3cret%3A%2F@{}/{DATABASE}{params}", hosts.join(","))
}

/// Begins a login without TLS. A server that is still starting, or that recovers, replies with
/// another error than one that requires TLS.
async fn probe(server: &Server, requires_tls: bool) -> io::Result<()> {
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
    if reply[0] == AUTHENTICATION || requires_tls && refuses_plain {
        Ok(())
    } else {
        Err(io::Error::other("the server accepts no logins yet"))
    }
}
