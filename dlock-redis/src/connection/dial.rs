//! Opens connections to one server, to the master among several hosts or behind Sentinels, or to a
//! cluster.

use std::time::Duration;

use dlock_core::{
    Error, Result,
    driver::{Address, Login, Pems, Tls},
};
use redis::{
    ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, TlsMode,
    aio::{AsyncPushSender, PubSub},
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use tokio::time::timeout;

use super::{CommandConnection, commands::ServerConnection, server, socket};
use crate::{
    config::{self, RedisConfig, Topology},
    error::{self, STORE},
};

/// Idle time after which TCP probes whether the other end of a connection still exists.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// Opens connections to the server that accepts writes.
///
/// Files of certificates and passwords are read for each connection, because they are replaced
/// before they expire. For a cluster they are read once, because the client crate makes its
/// connections.
pub(crate) struct Dialer {
    config: RedisConfig,
}

impl Dialer {
    /// # Errors
    /// For a file that cannot be read now. If a file cannot be read later, for example while it is
    /// being replaced, connecting fails with a transient error.
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

    /// Opens a connection for commands, to a server or a cluster.
    pub(crate) async fn command_connection(&self) -> Result<CommandConnection> {
        if self.is_cluster() {
            // The messages of this connection are dropped.
            let cluster = self.cluster(|_| Ok::<(), std::convert::Infallible>(())).await;
            return cluster.map(CommandConnection::Cluster);
        }
        self.commands().await.map(CommandConnection::Server)
    }

    /// Opens a connection for commands, to the server or to the current master.
    async fn commands(&self) -> Result<ServerConnection> {
        self.bounded(async {
            let server = self.server().await?;
            let explain = |error| server.explain(error);
            let mut connection = server.open().await.map_err(explain)?;
            let mut name = redis::cmd("CLIENT");
            name.arg("SETNAME").arg(&self.config.client_name);
            match connection.send(&name).await {
                // A user without the right to set a name works without a name.
                Err(error) if error::is_broken(&error) => Err(explain(error)),
                _ => Ok(connection),
            }
        })
        .await
    }

    /// Opens a connection for messages, to the same server.
    pub(crate) async fn messages(&self) -> Result<PubSub> {
        self.bounded(async {
            let server = self.server().await?;
            server.open_for_messages().await.map_err(|error| server.explain(error))
        })
        .await
    }

    /// Connects to a cluster. The connections are for commands and for messages, which are passed
    /// to `messages`.
    pub(crate) async fn cluster(&self, messages: impl AsyncPushSender) -> Result<ClusterConnection> {
        // The client crate queries all nodes of the URL at the same time, and then connects to all
        // nodes of the cluster. A node that does not reply must not use up the time of both steps.
        let share = self.limit() / 3;
        let nodes = self.config.hosts.iter().map(|host| self.address(host));
        let mut builder = ClusterClientBuilder::new(nodes.collect::<Vec<_>>())
            .use_protocol(ProtocolVersion::RESP3)
            .push_sender(messages)
            .tcp_settings(self.tcp())
            .connection_timeout(share)
            .response_timeout(
                self.limit() + self.config.replicas.map_or(Duration::ZERO, |wanted| wanted.timeout),
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

    async fn server(&self) -> Result<Target> {
        let address = match &self.config.topology {
            Topology::Sentinel { master } => self.address(&self.sentinels_master(master).await?),
            Topology::Listed => self.address(&self.listed_master().await?),
            Topology::Socket { path } => ConnectionAddr::Unix(path.clone()),
            Topology::Single | Topology::Cluster => self.address(&self.config.hosts[0]),
        };
        self.target(address, self.login()?.set_db(self.config.db))
    }

    fn login(&self) -> Result<RedisConnectionInfo> {
        settings(&self.config.login).map_err(|error| STORE.as_transient(&error))
    }

    /// Queries the hosts one after the other, and returns the first that reports the role `master`.
    async fn listed_master(&self) -> Result<Address> {
        let mut last_error = None;
        for host in &self.config.hosts {
            let request = async {
                let server = self.target(self.address(host), self.login()?)?;
                let info = server.query::<String>(redis::cmd("INFO").arg("replication")).await;
                info.map_err(|error| server.explain(error))
            };
            match self.in_share(host, request).await {
                Ok(info) if server::is_master(&info) => return Ok(host.clone()),
                Ok(_) => {
                    let replica = format!("`{host}` is a replica, and no other host is the master");
                    last_error = last_error.or(Some(STORE.unavailable(replica)));
                }
                Err(error) => last_error = Some(permanent_or_newer(last_error, error)),
            }
        }
        Err(last_error.expect("a configuration has at least one host"))
    }

    /// Bounds a request to one of several hosts by an equal share of the time limit, so that a host
    /// that does not reply leaves time for the others.
    async fn in_share<T>(&self, host: &Address, request: impl Future<Output = Result<T>>) -> Result<T> {
        let share = self.limit() / u32::try_from(self.config.hosts.len() + 1).unwrap_or(u32::MAX);
        timeout(share, request).await.unwrap_or_else(|_| Err(STORE.at_host(host, STORE.timed_out(share))))
    }

    /// Queries the Sentinels one after the other, and returns the first master that one of them
    /// reports.
    async fn sentinels_master(&self, master: &str) -> Result<Address> {
        let mut query = redis::cmd("SENTINEL");
        query.arg("get-master-addr-by-name").arg(master);
        let mut last_error = None;
        for host in &self.config.hosts {
            let request = async {
                let login = settings(&self.config.sentinel_login);
                let login = login.map_err(|error| STORE.as_transient(&error))?;
                let sentinel = self.target(self.address(host), login)?;
                let found = sentinel.query::<Option<(String, u16)>>(&query).await;
                found.map_err(|error| error::explain_sentinel(host, error))
            };
            match self.in_share(host, request).await {
                Ok(Some((host, port))) => return Ok(Address { host, port }),
                Ok(None) => {
                    let unknown = format!("Sentinel `{host}` knows no master `{master}`");
                    last_error = Some(STORE.refused(unknown));
                }
                Err(error) => last_error = Some(permanent_or_newer(last_error, error)),
            }
        }
        Err(last_error.expect("a configuration has at least one host"))
    }

    fn target(&self, address: ConnectionAddr, settings: RedisConnectionInfo) -> Result<Target> {
        let info = address.into_connection_info().map_err(error::explain)?;
        let settings = settings.set_lib_name("dlock", env!("CARGO_PKG_VERSION"));
        let info = info.set_redis_settings(settings).set_tcp_settings(self.tcp());
        let certificates = self.config.tls.as_ref().map(certificates).transpose();
        let certificates = certificates.map_err(|error| STORE.as_transient(&error))?;
        Ok(Target { info, certificates })
    }

    /// Returns the options of a TCP connection.
    ///
    /// On Linux, the kernel closes a connection whose other end acknowledges nothing for longer
    /// than a command may take. Otherwise a delayed command could arrive after the release that
    /// follows it, and waiters would wait for messages on a dead connection.
    ///
    /// Nagle's algorithm is off. On a link with some latency, it would delay each command until the
    /// previous one is acknowledged.
    fn tcp(&self) -> TcpSettings {
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_IDLE / 5);
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

/// A server, with all that is needed to connect to it. Connecting has no timeout, because the caller
/// bounds it.
struct Target {
    info: ConnectionInfo,
    certificates: Option<TlsCertificates>,
}

impl Target {
    /// Opens a connection for commands.
    async fn open(&self) -> RedisResult<ServerConnection> {
        ServerConnection::open(&self.info, self.certificates.as_ref()).await
    }

    /// Opens a connection for messages.
    async fn open_for_messages(&self) -> RedisResult<PubSub> {
        let socket = socket::connect(&self.info, self.certificates.as_ref()).await?;
        PubSub::new(self.info.redis_settings(), socket).await
    }

    /// Sends a command through a connection of its own.
    async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> RedisResult<T> {
        let reply = self.open().await?.send(cmd).await?.extract_error()?;
        Ok(redis::from_redis_value(reply)?)
    }

    /// Adds the server's address to the error of a request.
    fn explain(&self, error: RedisError) -> Error {
        STORE.at_host(self.info.addr(), error::explain(error))
    }
}

/// Returns the error to report after requests to two hosts have failed: a permanent error takes
/// precedence, because an operator has to act on it. Otherwise the newer error is returned.
fn permanent_or_newer(older: Option<Error>, newer: Error) -> Error {
    older.filter(|error| !error.is_transient()).unwrap_or(newer)
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
        // Fails only if another thread has installed a provider first, which can be used as well.
        rustls::crypto::ring::default_provider().install_default().ok();
    }
    let Pems { ca, client_cert } = tls.read()?;
    let client_tls = client_cert.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Ok(TlsCertificates { client_tls, root_cert: ca })
}
