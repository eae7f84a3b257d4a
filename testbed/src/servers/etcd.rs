//! etcd, alone, with TLS, or as a cluster of three: one recipe, and what only etcd's servers can be asked.

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

/// How many members there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One: `etcd://host:port`.
    Standalone,
    /// One that speaks TLS, has a [certificate authority](Running::ca) of its own, and wants a certificate of that
    /// authority from its clients, which is [`client`]: `etcds://host:port`.
    Tls,
    /// Three: `etcd://host:port,host:port,host:port`.
    Cluster,
    /// One with a snapshot: when it starts with its data, it keeps a copy of them, and when it starts without, it is restored from
    /// that copy.
    Restored,
    /// The same, restored with a revision that is far ahead of that of the snapshot.
    RestoredAhead,
}

/// Finds or starts etcd. One is meant to serve all cases of a suite.
///
/// # Errors
/// [`Unreachable`] by the name `etcd`, with everything that was tried.
///
/// # Cancel safety
/// Dropping the future ends in the background the servers that it started.
pub async fn start(flavour: Flavour) -> Result<Running, Unreachable> {
    super::start(Etcd { flavour, lines: None }).await
}

/// The same for three members, and the lines between them, which can be cut.
///
/// # Errors
/// As [`start`].
///
/// # Cancel safety
/// As [`start`].
pub async fn start_with_lines() -> Result<(Running, Lines), Unreachable> {
    let lines = Lines::default();
    let recipe = Etcd { flavour: Flavour::Cluster, lines: Some(lines.clone()) };
    super::start(recipe).await.map(|running| (running, lines))
}

/// What a member of a cluster says of itself at one of its paths, such as `/metrics`.
///
/// # Errors
/// If it does not answer.
pub async fn ask(server: &Server, path: &str) -> io::Result<String> {
    http::get(server.address(), path).await
}

/// The certificate and the key that the server of [`Flavour::Tls`] takes from a client: its own.
pub fn client(server: &Server) -> [PathBuf; 2] {
    [server.file(CERTIFICATE), server.file(KEY)]
}

#[derive(Debug)]
struct Etcd {
    flavour: Flavour,
    lines: Option<Lines>,
}

/// The ports of a member: where it answers clients, where it answers other members, and where clients speak TLS, or where the
/// [`Lines`] begin that lead to it.
const PORTS: usize = 3;

#[async_trait]
impl Recipe for Etcd {
    fn package(&self) -> &'static str {
        "etcd"
    }

    fn flavour(&self) -> &'static str {
        match self.flavour {
            Flavour::Cluster if self.lines.is_some() => "cluster_with_lines",
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
        // Where the others reach a member.
        let reached = if self.lines.is_some() { 2 } else { 1 };
        for (place, ports) in ports.iter().enumerate() {
            let Some(lines) = &self.lines else { break };
            lines.lead(place, ports[reached].number(), ports[1].number())?;
        }
        let peers: Vec<_> =
            ports.iter().zip(0..).map(|(ports, at)| format!("m{at}={}", url(&ports[reached]))).collect();
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
            .map(|(ports, at)| member(program, &script, at, ports, reached, &peers));
        let mut members: Vec<_> = members.collect();
        if self.flavour == Flavour::Tls {
            members.iter_mut().try_for_each(speak_tls)?;
        }
        Ok(members)
    }

    async fn probe(&self, server: &Server) -> io::Result<()> {
        // Whether it is healthy, the others decide too.
        http::get(server.address(), "/version").await.map(drop)
    }

    /// Good when every member has a leader and can write.
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

/// Runs etcd without waiting for the disk, if it can (from 3.5 on). No test cuts the power.
const UNSYNCED: &str = r#"exec "$0" $("$0" --help 2>&1 | grep -o -m 1 -e --unsafe-no-fsync) "$@""#;

/// Keeps a copy of the data, or restores them from it with those options of the server that say who it is.
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

fn member(program: &str, script: &str, at: usize, ports: Vec<Port>, reached: usize, peers: &str) -> Member {
    let (clients, others) = (url(&ports[0]), url(&ports[1]));
    let name = format!("m{at}");
    let options = [
        ("name", name.as_str()),
        ("data-dir", "data"),
        ("listen-client-urls", &clients),
        ("advertise-client-urls", &clients),
        ("listen-peer-urls", &others),
        ("initial-advertise-peer-urls", &url(&ports[reached])),
        ("initial-cluster", peers),
        ("initial-cluster-token", "dlock"),
        // Tokens that expire during a test.
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

/// Lets a member speak TLS at its third port.
fn speak_tls(member: &mut Member) -> io::Result<()> {
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
