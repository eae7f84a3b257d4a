//! etcd servers, with one recipe for all flavours, and requests that only etcd's servers answer.

mod http;
mod lines;

use std::{io, path::PathBuf};

use async_trait::async_trait;
use dlock_conformance::Unreachable;

use super::{
    Running,
    certificates::{self, CA, CERTIFICATE, KEY},
    port::Port,
    recipe::{Member, Recipe, STANDALONE},
    server::Server,
};
pub use lines::Lines;

/// Number and configuration of the members, with the form of the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One member: `etcd://host:port`.
    Standalone,
    /// One member with TLS: `etcds://host:port`. It has its own [certificate
    /// authority](Running::ca). Clients must present a certificate of that authority, such as
    /// [`client`].
    Tls,
    /// Three members: `etcd://host:port,host:port,host:port`.
    Cluster,
    /// One member with a snapshot. A start with the data updates the snapshot, and a start without
    /// the data restores it.
    Restored,
    /// As [`Restored`](Self::Restored), with a restored revision far ahead of that of the snapshot.
    RestoredAhead,
}

/// Finds or starts etcd. All cases of a suite can share it.
///
/// # Errors
/// [`Unreachable`] with the name `etcd`, and a reason that lists every attempt.
///
/// # Cancel safety
/// Dropping the future stops the servers that it has started, in the background.
pub async fn start(flavour: Flavour) -> Result<Running, Unreachable> {
    super::start(Etcd::new(flavour)).await
}

/// Finds or starts three members, each with a [disk](Server::hang_disk) of its own.
///
/// # Errors
/// As [`start`].
///
/// # Cancel safety
/// As [`start`].
pub async fn start_with_disks() -> Result<Running, Unreachable> {
    super::start(Etcd { own_disks: true, ..Etcd::new(Flavour::Cluster) }).await
}

/// Finds or starts three members, and returns the connections between them, which a test can cut.
///
/// # Errors
/// As [`start`].
///
/// # Cancel safety
/// As [`start`].
pub async fn start_with_lines() -> Result<(Running, Lines), Unreachable> {
    let lines = Lines::default();
    let recipe = Etcd { lines: Some(lines.clone()), ..Etcd::new(Flavour::Cluster) };
    super::start(recipe).await.map(|running| (running, lines))
}

/// Finds or starts one member with these options in addition, for example `--max-txn-ops=16`.
///
/// # Errors
/// As [`start`].
///
/// # Cancel safety
/// As [`start`].
pub async fn start_with(options: &'static [&'static str]) -> Result<Running, Unreachable> {
    super::start(Etcd { options, ..Etcd::new(Flavour::Standalone) }).await
}

/// Returns a member's reply to a GET request for a path such as `/metrics`.
///
/// # Errors
/// If the member does not reply, or replies with an error.
pub async fn ask(server: &Server, path: &str) -> io::Result<String> {
    http::get(server.address(), path).await
}

/// Returns the files of a certificate and key that the server of [`Flavour::Tls`] accepts from
/// clients. They are the server's own.
pub fn client(server: &Server) -> [PathBuf; 2] {
    [server.file(CERTIFICATE), server.file(KEY)]
}

#[derive(Debug)]
struct Etcd {
    flavour: Flavour,
    lines: Option<Lines>,
    own_disks: bool,
    /// Options that are added to the command of each member.
    options: &'static [&'static str],
}

impl Etcd {
    fn new(flavour: Flavour) -> Self {
        Self { flavour, lines: None, own_disks: false, options: &[] }
    }
}

/// Number of ports of a member. The first is for clients, the second for other members. The third
/// is for clients with TLS, or for the proxy of [`Lines`] in front of the second.
const PORTS: usize = 3;

#[async_trait]
impl Recipe for Etcd {
    fn package(&self) -> &'static str {
        "etcd"
    }

    fn flavour(&self) -> &'static str {
        match self.flavour {
            Flavour::Cluster if self.lines.is_some() => "cluster_with_lines",
            Flavour::Cluster if self.own_disks => "cluster_with_disks",
            Flavour::Standalone if !self.options.is_empty() => "configured",
            Flavour::Standalone => STANDALONE,
            Flavour::Tls => "tls",
            Flavour::Cluster => "cluster",
            Flavour::Restored => "restored",
            Flavour::RestoredAhead => "restored_ahead",
        }
    }

    fn members(&self, program: &str) -> io::Result<Vec<Member>> {
        let count = if self.flavour == Flavour::Cluster { 3 } else { 1 };
        let ports = (0..count).map(|_| (0..PORTS).map(|_| Port::claim()).collect());
        let ports: Vec<Vec<_>> = ports.collect::<io::Result<_>>()?;
        // Index of the port through which the other members connect.
        let peer_port = if self.lines.is_some() { 2 } else { 1 };
        for (index, ports) in ports.iter().enumerate() {
            let Some(lines) = &self.lines else { break };
            lines.forward(index, ports[peer_port].number(), ports[1].number())?;
        }
        let peers: Vec<_> = ports
            .iter()
            .zip(0..)
            .map(|(ports, index)| format!("m{index}={}", url(&ports[peer_port])))
            .collect();
        let peers = peers.join(",");
        let script = match self.flavour {
            Flavour::Restored => format!("{RESTORE}{UNSYNCED}"),
            Flavour::RestoredAhead => {
                format!("ahead='--bump-revision 1000000 --mark-compacted'; {RESTORE}{UNSYNCED}")
            }
            Flavour::Standalone | Flavour::Tls | Flavour::Cluster => UNSYNCED.to_owned(),
        };
        let members = ports
            .into_iter()
            .zip(0..)
            .map(|(ports, index)| member(program, &script, index, ports, peer_port, &peers));
        let mut members: Vec<_> = members.collect();
        let options = || self.options.iter().map(|option| (*option).to_owned());
        members.iter_mut().for_each(|member| member.command.extend(options()));
        if self.flavour == Flavour::Tls {
            members.iter_mut().try_for_each(enable_tls)?;
        }
        Ok(members)
    }

    fn has_own_disks(&self) -> bool {
        self.own_disks
    }

    async fn probe(&self, server: &Server) -> io::Result<()> {
        // Not `/health`, which depends on the other members.
        http::get(server.address(), "/version").await.map(drop)
    }

    /// Succeeds when every member has a leader and can write.
    async fn health(&self, servers: &[Server]) -> io::Result<()> {
        for server in servers {
            let health = http::get(server.address(), "/health").await?;
            if !health.contains("\"true\"") {
                return Err(io::Error::other(health));
            }
        }
        Ok(())
    }

    fn url(&self, servers: &[Server]) -> String {
        if self.flavour == Flavour::Tls {
            return format!("etcds://127.0.0.1:{}", servers[0].port(2));
        }
        let addresses: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
        format!("etcd://{}", addresses.join(","))
    }
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}

/// Runs etcd without waiting for the disk, which is possible from version 3.5 on. No test cuts the
/// power.
const UNSYNCED: &str = r#"exec "$0" $("$0" --help 2>&1 | grep -o -m 1 -e --unsafe-no-fsync) "$@""#;

/// Saves a copy of the data, or restores it. A restore needs those options of the server that
/// identify the member.
const RESTORE: &str = r#"
if [ -e data ]; then
    cp data/member/snap/db saved
elif [ -e saved ]; then
    for option in "$@"; do
        case $option in
        --name=* | --data-dir=* | --initial-advertise-peer-urls=* | --initial-cluster=* | --initial-cluster-token=*)
            same="$same $option" ;;
        esac
    done
    etcdutl snapshot restore saved --skip-hash-check $same $ahead || exit
fi
"#;

fn member(
    program: &str,
    script: &str,
    index: usize,
    ports: Vec<Port>,
    peer_port: usize,
    peers: &str,
) -> Member {
    let (client_url, peer_url) = (url(&ports[0]), url(&ports[1]));
    let name = format!("m{index}");
    let options = [
        ("name", name.as_str()),
        ("data-dir", "data"),
        ("listen-client-urls", &client_url),
        ("advertise-client-urls", &client_url),
        ("listen-peer-urls", &peer_url),
        ("initial-advertise-peer-urls", &url(&ports[peer_port])),
        ("initial-cluster", peers),
        ("initial-cluster-token", "dlock"),
        // Login tokens expire after three seconds, within the length of a test.
        ("auth-token-ttl", "3"),
        ("log-level", "warn"),
    ];
    let options = options.into_iter().map(|(option, value)| format!("--{option}={value}"));
    let command = ["sh", "-c", script, program].map(str::to_owned);
    Member {
        command: command.into_iter().chain(options).collect(),
        name: name.clone(),
        files: Vec::new(),
        data: "data",
        ports,
    }
}

/// Adds TLS at the member's third port.
fn enable_tls(member: &mut Member) -> io::Result<()> {
    let url = format!("https://127.0.0.1:{}", member.ports[2].number());
    for option in &mut member.command {
        if option.starts_with("--listen-client-urls") {
            option.push_str(&format!(",{url}"));
        }
    }
    let options = [("cert-file", CERTIFICATE), ("key-file", KEY), ("trusted-ca-file", CA)];
    member.command.extend(options.iter().map(|(option, file)| format!("--{option}={file}")));
    member.command.push("--client-cert-auth".to_owned());
    member.files.extend(certificates::new()?);
    Ok(())
}
