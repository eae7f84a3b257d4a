//! How servers are configured and joined in each flavour, and when they are ready.

use std::{fs, io, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::{
    Flavour,
    folder::Folder,
    poll,
    port::Port,
    server::{Login, Recipe, Server, Site},
};

/// What Sentinel calls the primary.
const PRIMARY: &str = "dlock";

/// The password has what a URL must escape.
const LOGIN: Login = ("dlock", "s3cret:/with@odd#signs");
const LOGIN_IN_URL: &str = "dlock:s3cret%3A%2Fwith%40odd%23signs";

/// What all have in common. Appending to a file is enough: what was handed to the kernel outlives `kill -9`.
const COMMON: &str = "bind 127.0.0.1\ndir .\nsave \"\"\nappendonly yes\nrepl-diskless-sync-delay 0\n";

/// The servers of one flavour.
#[derive(Debug)]
pub(super) struct Topology {
    pub(super) servers: Vec<Server>,
    pub(super) ca: Option<PathBuf>,
    flavour: Flavour,
    /// Of the port that speaks TLS.
    tls: Option<Port>,
    /// Of the cluster's own connections: only kept, so that nobody else takes them.
    _buses: Vec<Port>,
}

impl Topology {
    /// Starts the servers and waits until they are [ready](Self::ready).
    pub(super) async fn start(site: &Site, flavour: Flavour, folder: &Folder) -> io::Result<Self> {
        let mut topology = Self { servers: Vec::new(), ca: None, flavour, tls: None, _buses: Vec::new() };
        match flavour {
            Flavour::Standalone => {
                let recipe = Recipe::new(site, "server", "")?;
                topology.servers.push(Server::new(site, folder, recipe).await?);
            }
            Flavour::Tls => topology.start_tls(site, folder).await?,
            Flavour::Sentinel => topology.start_sentinel(site, folder).await?,
            Flavour::Cluster => topology.start_cluster(site, folder).await?,
        }
        topology.ready().await?;
        Ok(topology)
    }

    pub(super) fn url(&self) -> String {
        let addresses: Vec<_> = self.servers.iter().map(|server| server.address().to_string()).collect();
        match (self.flavour, &self.tls) {
            (Flavour::Sentinel, _) => format!("redis+sentinel://{}/{PRIMARY}", addresses[2]),
            (Flavour::Cluster, _) => format!("redis-cluster://{}", addresses.join(",")),
            (_, Some(port)) => format!("rediss://{LOGIN_IN_URL}@127.0.0.1:{}", port.number()),
            _ => format!("redis://{}", addresses[0]),
        }
    }

    /// Waits until all servers answer, a Sentinel sees a replica it may promote, and a cluster says that it is whole.
    pub(super) async fn ready(&self) -> io::Result<()> {
        for server in &self.servers {
            server.answers().await?;
        }
        match self.flavour {
            Flavour::Standalone | Flavour::Tls => Ok(()),
            Flavour::Sentinel => poll(|| self.sees_a_replica()).await,
            Flavour::Cluster => poll(|| self.is_whole()).await,
        }
    }

    async fn start_tls(&mut self, site: &Site, folder: &Folder) -> io::Result<()> {
        let (ca, certificate, key) = certificates().map_err(io::Error::other)?;
        let port = Port::claim()?;
        let (user, password) = LOGIN;
        let more = format!(
            "tls-port {}\ntls-ca-cert-file ca.pem\ntls-cert-file server.pem\ntls-key-file server.key\n\
             tls-auth-clients no\nuser default off\nuser {user} on >{password} ~* &* +@all\n",
            port.number(),
        );
        let path = folder.path().join("ca.pem");
        fs::write(&path, &ca)?;
        let mut recipe = Recipe::new(site, "server", &more)?;
        recipe.files.extend([("ca.pem", ca), ("server.pem", certificate), ("server.key", key)]);
        recipe.login = Some(LOGIN);
        self.servers.push(Server::new(site, folder, recipe).await?);
        self.ca = Some(path);
        self.tls = Some(port);
        Ok(())
    }

    async fn start_sentinel(&mut self, site: &Site, folder: &Folder) -> io::Result<()> {
        let recipe = Recipe::new(site, "primary", "")?;
        let primary = format!("127.0.0.1 {}", recipe.port.number());
        self.servers.push(Server::new(site, folder, recipe).await?);
        let recipe = Recipe::new(site, "replica", &format!("replicaof {primary}\n"))?;
        self.servers.push(Server::new(site, folder, recipe).await?);
        // Sentinel learns of the replica when it asks the primary, at once and then every ten seconds.
        poll(|| self.feeds_a_replica()).await?;

        let port = Port::claim()?;
        let config = format!(
            "port {}\nbind 127.0.0.1\ndir .\nsentinel monitor {PRIMARY} {primary} 1\n\
             sentinel down-after-milliseconds {PRIMARY} 2000\nsentinel failover-timeout {PRIMARY} 5000\n",
            port.number(),
        );
        let command = [site.program, "server.conf", "--sentinel"].map(str::to_owned).to_vec();
        let recipe = Recipe {
            name: "sentinel".to_owned(),
            command,
            files: vec![("server.conf", config)],
            port,
            login: None,
        };
        self.servers.push(Server::new(site, folder, recipe).await?);
        Ok(())
    }

    async fn feeds_a_replica(&self) -> io::Result<()> {
        let replication = self.servers[0].ask(&["INFO", "replication"]).await?.concat();
        agreed(replication.contains("state=online"), &replication)
    }

    async fn sees_a_replica(&self) -> io::Result<()> {
        let sentinel = &self.servers[2];
        let master = sentinel.ask(&["INFO", "sentinel"]).await?.concat();
        agreed(master.contains("status=ok,"), &master)?;
        let replicas = sentinel.ask(&["SENTINEL", "REPLICAS", PRIMARY]).await?;
        let is = |key, value| replicas.chunks(2).any(|pair| pair[0] == key && pair[1] == value);
        agreed(is("flags", "slave") && is("master-link-status", "ok"), &replicas.join(" "))
    }

    async fn start_cluster(&mut self, site: &Site, folder: &Folder) -> io::Result<()> {
        const NODES: u16 = 3;
        const SLOTS: u16 = 16_384;
        for node in 0..NODES {
            let (port, bus) = Port::claim_with_bus()?;
            let more = "cluster-enabled yes\ncluster-announce-ip 127.0.0.1\ncluster-node-timeout 5000\n";
            let recipe = Recipe::at(port, site, &format!("node{node}"), more);
            self.servers.push(Server::new(site, folder, recipe).await?);
            self._buses.push(bus);
        }
        for (server, node) in self.servers.iter().zip(0..) {
            server.answers().await?;
            let slots = (0..SLOTS).filter(|slot| slot * NODES / SLOTS == node).map(|slot| slot.to_string());
            let slots: Vec<_> = slots.collect();
            let mut add = vec!["CLUSTER", "ADDSLOTS"];
            add.extend(slots.iter().map(String::as_str));
            server.ask(&add).await?;
            // Each its own, or the nodes take a while to agree who is right.
            server.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(node + 1).to_string()]).await?;
            let port = server.address().port().to_string();
            self.servers[0].ask(&["CLUSTER", "MEET", "127.0.0.1", &port]).await?;
        }
        Ok(())
    }

    async fn is_whole(&self) -> io::Result<()> {
        for server in &self.servers {
            let info = server.ask(&["CLUSTER", "INFO"]).await?.concat();
            let whole = ["cluster_state:ok\r", "cluster_slots_ok:16384\r", "cluster_known_nodes:3\r"];
            agreed(whole.iter().all(|line| info.contains(line)), &info)?;
        }
        Ok(())
    }
}

impl Recipe {
    /// A server with the common configuration and `more`.
    fn new(site: &Site, name: &str, more: &str) -> io::Result<Self> {
        Ok(Self::at(Port::claim()?, site, name, more))
    }

    fn at(port: Port, site: &Site, name: &str, more: &str) -> Self {
        let config = format!("port {}\n{COMMON}{more}", port.number());
        let command = [site.program, "server.conf"].map(str::to_owned).to_vec();
        let files = vec![("server.conf", config)];
        Self { name: name.to_owned(), command, files, port, login: None }
    }
}

/// Not ready as long as a server says otherwise.
fn agreed(agreed: bool, told: &str) -> io::Result<()> {
    if agreed { Ok(()) } else { Err(io::Error::other(told.split_whitespace().collect::<Vec<_>>().join(" "))) }
}

/// A certificate authority's certificate, a server's, and the server's key, in PEM.
fn certificates() -> Result<(String, String, String), rcgen::Error> {
    let mut params = CertificateParams::new([])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let ca = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let server = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    Ok((ca, server.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
}
