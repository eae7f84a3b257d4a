//! Makes connections: to the one server, to the master among several hosts or behind Sentinels, to a cluster. A few lines over
//! the usual length: one way for each topology.

use std::time::Duration;

use dlock_core::{
    Error, Result,
    driver::{Address, Login, Pems, Tls},
};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, TlsCertificates, TlsMode,
    aio::{AsyncPushSender, MultiplexedConnection, PubSub},
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use tokio::time::timeout;

use super::{line::Line, server};
use crate::{
    config::{self, RedisConfig, Topology},
    error::{self, STORE},
};

/// How long a connection may be silent before TCP asks whether the other end is there.
const QUIET: Duration = Duration::from_secs(15);

/// Knows how to reach the server that takes writes. Files of certificates and passwords are read for each connection, because
/// they are replaced before they expire. For a cluster they are read once, because the client crate makes its connections.
pub(crate) struct Dial {
    config: RedisConfig,
}

impl Dial {
    /// # Errors
    /// For a file that cannot be read now. If a file cannot be read later, perhaps because it is just being replaced, the store is
    /// unavailable for that long.
    pub(crate) fn new(config: RedisConfig) -> Result<Self> {
        config.tls.as_ref().map(certificates).transpose()?;
        settings(&config.login)?;
        settings(&config.sentinel_login)?;
        Ok(Self { config })
    }

    pub(crate) fn pubsub(&self) -> config::PubSub {
        self.config.pubsub
    }

    pub(crate) fn limit(&self) -> Duration {
        self.config.timeout
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.config.topology == Topology::Cluster
    }

    pub(crate) fn db(&self) -> i64 {
        self.config.db
    }

    /// A connection for commands, to a server or a cluster.
    pub(crate) async fn line(&self) -> Result<Line> {
        if self.is_cluster() {
            // Nobody listens to this connection's messages.
            return self.cluster(|_| Ok::<(), std::convert::Infallible>(())).await.map(Line::Cluster);
        }
        self.commands().await.map(Line::Server)
    }

    /// A connection for commands, to a server or to the master of the moment.
    async fn commands(&self) -> Result<MultiplexedConnection> {
        self.bounded(async {
            let client = self.server().await?;
            let explain = |error| explain_of(&client, error);
            // No time-out for answers here: the caller that sends a command sets one, and not all are the same.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.limit()))
                .set_response_timeout(None);
            let connection = client.get_multiplexed_async_connection_with_config(&config).await;
            let mut connection = connection.map_err(explain)?;
            let mut name = redis::cmd("CLIENT");
            name.arg("SETNAME").arg(&self.config.client_name);
            match connection.send_packed_command(&name).await {
                // A user who may not set a name works without one.
                Err(error) if error::is_broken(&error) => Err(explain(error)),
                _ => Ok(connection),
            }
        })
        .await
    }

    /// A connection for messages, to the same server.
    pub(crate) async fn messages(&self) -> Result<PubSub> {
        self.bounded(async {
            let client = self.server().await?;
            client.get_async_pubsub().await.map_err(|error| explain_of(&client, error))
        })
        .await
    }

    /// A cluster's connections, for commands and for messages, which go to `messages`.
    pub(crate) async fn cluster(&self, messages: impl AsyncPushSender) -> Result<ClusterConnection> {
        // The client crate asks the nodes of the URL, all at the same time, and then connects to all nodes of the cluster. A node
        // that hangs must not use up the time of both steps.
        let share = self.limit() / 3;
        let nodes = self.config.hosts.iter().map(|host| self.address(host));
        let mut builder = ClusterClientBuilder::new(nodes.collect::<Vec<_>>())
            .use_protocol(ProtocolVersion::RESP3)
            .push_sender(messages)
            .tcp_settings(self.tcp())
            .connection_timeout(share)
            .response_timeout(
                self.limit() + self.config.replicas.map_or(Duration::ZERO, |wanted| wanted.within),
            );
        let login = settings(&self.config.login)?;
        if let Some(user) = login.username() {
            builder = builder.username(user);
        }
        if let Some(password) = login.password() {
            builder = builder.password(password);
        }
        if let Some(tls) = &self.config.tls {
            builder = builder.tls(TlsMode::Secure).certs(certificates(tls)?);
        }
        let client: ClusterClient = builder.build().map_err(error::explain)?;
        self.bounded(async { client.get_async_connection().await.map_err(error::explain) }).await
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        STORE.with_timeout(self.limit(), call).await
    }

    async fn server(&self) -> Result<Client> {
        let address = match &self.config.topology {
            Topology::Sentinel { master } => self.address(&self.master(master).await?),
            Topology::Listed => self.address(&self.writable().await?),
            Topology::Socket { path } => ConnectionAddr::Unix(path.clone()),
            Topology::Single | Topology::Cluster => self.address(&self.config.hosts[0]),
        };
        self.client(address, self.login()?.set_db(self.config.db))
    }

    fn login(&self) -> Result<RedisConnectionInfo> {
        settings(&self.config.login).map_err(|error| STORE.as_transient(&error))
    }

    /// Asks each host in turn whether it is the master. The first that says so is taken.
    async fn writable(&self) -> Result<Address> {
        let mut last = None;
        for host in &self.config.hosts {
            let asked = async {
                let client = self.client(self.address(host), self.login()?)?;
                let server = client.get_multiplexed_async_connection_with_config(&unbounded()).await;
                let explain = |error| explain_of(&client, error);
                let mut server = server.map_err(explain)?;
                let about = redis::cmd("INFO").arg("replication").query_async::<String>(&mut server).await;
                about.map_err(explain)
            };
            match self.in_share(host, asked).await {
                Ok(about) if server::is_master(&about) => return Ok(host.clone()),
                Ok(_) => {
                    let replica = format!("`{host}` is a replica, and no other host is the master");
                    last = last.or(Some(STORE.unavailable(replica)));
                }
                Err(error) => last = last.filter(|last| !Error::is_transient(last)).or(Some(error)),
            }
        }
        Err(last.expect("a configuration has at least one host"))
    }

    /// Bounds a request to one of several hosts: a host that is down must not use up the time of the others.
    async fn in_share<T>(&self, host: &Address, asked: impl Future<Output = Result<T>>) -> Result<T> {
        let share = self.limit() / u32::try_from(self.config.hosts.len() + 1).unwrap_or(u32::MAX);
        timeout(share, asked).await.unwrap_or_else(|_| Err(STORE.at_host(host, STORE.timed_out(share))))
    }

    /// Asks the Sentinels in turn for the master. The first that names one is believed.
    async fn master(&self, master: &str) -> Result<Address> {
        let mut last = None;
        for host in &self.config.hosts {
            let asked = async {
                let login = settings(&self.config.sentinel_login);
                let login = login.map_err(|error| STORE.as_transient(&error))?;
                let client = self.client(self.address(host), login)?;
                let explain = |error| error::explain_sentinel(host, error);
                let sentinel = client.get_multiplexed_async_connection_with_config(&unbounded()).await;
                let mut sentinel = sentinel.map_err(explain)?;
                let mut ask = redis::cmd("SENTINEL");
                ask.arg("get-master-addr-by-name").arg(master);
                ask.query_async::<Option<(String, u16)>>(&mut sentinel).await.map_err(explain)
            };
            match self.in_share(host, asked).await {
                Ok(Some((host, port))) => return Ok(Address { host, port }),
                Ok(None) => {
                    let unknown = format!("Sentinel `{host}` knows no master `{master}`");
                    last = Some(STORE.refused(unknown));
                }
                Err(error) => last = last.filter(|last| !Error::is_transient(last)).or(Some(error)),
            }
        }
        Err(last.expect("a configuration has at least one host"))
    }

    fn client(&self, address: ConnectionAddr, settings: RedisConnectionInfo) -> Result<Client> {
        let info = address.into_connection_info().map_err(error::explain)?;
        let settings = settings.set_lib_name("dlock", env!("CARGO_PKG_VERSION"));
        let info = info.set_redis_settings(settings).set_tcp_settings(self.tcp());
        match &self.config.tls {
            Some(tls) => {
                let now = certificates(tls).map_err(|error| STORE.as_transient(&error))?;
                Client::build_with_tls(info, now)
            }
            None => Client::open(info),
        }
        .map_err(error::explain)
    }

    /// On Linux, the kernel gives up a connection whose other end acknowledges nothing for longer than a command may take.
    /// Otherwise a command that is still on its way could arrive behind the release that follows, and waiters would wait for
    /// messages that cannot come.
    ///
    /// Without Nagle's delay: on a link of some length a command would wait until the one before it is acknowledged.
    fn tcp(&self) -> TcpSettings {
        let keepalive = TcpKeepalive::new().with_time(QUIET).with_interval(QUIET / 5);
        let settings = TcpSettings::default().set_keepalive(keepalive).set_nodelay(true);
        #[cfg(target_os = "linux")]
        let settings = settings.set_user_timeout(self.limit());
        settings
    }

    fn address(&self, Address { host, port }: &Address) -> ConnectionAddr {
        match self.config.tls {
            Some(_) => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            None => ConnectionAddr::Tcp(host.clone(), *port),
        }
    }
}

/// The error of a server that the client connects to.
fn explain_of(client: &Client, error: RedisError) -> Error {
    STORE.at_host(client.get_connection_info().addr(), error::explain(error))
}

/// No time-outs by the client crate, whose defaults are shorter than ours. The caller bounds the call.
fn unbounded() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

fn settings(login: &Login) -> Result<RedisConnectionInfo> {
    let mut settings = RedisConnectionInfo::default();
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password.read()?);
    }
    Ok(settings)
}

fn certificates(tls: &Tls) -> Result<TlsCertificates> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread has installed one first, which is as good.
        rustls::crypto::ring::default_provider().install_default().ok();
    }
    let Pems { ca, client_cert: own } = tls.read()?;
    let own = own.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Ok(TlsCertificates { client_tls: own, root_cert: ca })
}
