//! Making connections: to the server, to the master that a Sentinel names, to a cluster.

use std::{fs, path::Path, time::Duration};

use dlock_core::{Error, Result};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, TlsCertificates, TlsMode,
    aio::{AsyncPushSender, MultiplexedConnection, PubSub},
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use tokio::time::timeout;

use crate::{
    config::{Login, RedisConfig, Tls, Topology},
    error,
};

/// How long nothing may come before the other end is asked whether it is there.
const QUIET: Duration = Duration::from_secs(15);

/// How to reach the server that may be written to. Reads the files of certificates once.
pub(crate) struct Dial {
    config: RedisConfig,
    certificates: Option<TlsCertificates>,
}

impl Dial {
    pub(crate) fn new(config: RedisConfig) -> Result<Self> {
        let certificates = config.tls.as_ref().map(certificates).transpose()?;
        Ok(Self { config, certificates })
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

    /// A connection for commands, to a server or to the master of the moment.
    pub(crate) async fn commands(&self) -> Result<MultiplexedConnection> {
        self.bounded(async {
            let client = self.server().await?;
            // Whoever sends a command keeps its time: not all have the same.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.limit()))
                .set_response_timeout(None);
            client.get_multiplexed_async_connection_with_config(&config).await.map_err(error::explain)
        })
        .await
    }

    /// A connection for messages, to the same server.
    pub(crate) async fn messages(&self) -> Result<PubSub> {
        self.bounded(async { self.server().await?.get_async_pubsub().await.map_err(error::explain) }).await
    }

    /// A cluster's connections, for commands and for messages, which go to `messages`.
    pub(crate) async fn cluster(&self, messages: impl AsyncPushSender) -> Result<ClusterConnection> {
        // The nodes of the URL are asked at once, then all that there are: one that hangs must not use up the time of both.
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
        if let Some(user) = &self.config.login.user {
            builder = builder.username(user);
        }
        if let Some(password) = &self.config.login.password {
            builder = builder.password(password);
        }
        if let Some(certificates) = &self.certificates {
            builder = builder.tls(TlsMode::Secure).certs(certificates.clone());
        }
        let client: ClusterClient = builder.build().map_err(error::explain)?;
        self.bounded(async { client.get_async_connection().await.map_err(error::explain) }).await
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        timeout(self.limit(), call).await.unwrap_or_else(|_| Err(error::late(self.limit())))
    }

    async fn server(&self) -> Result<Client> {
        let host = match &self.config.topology {
            Topology::Sentinel { master } => self.master(master).await?,
            Topology::Single | Topology::Cluster => self.config.hosts[0].clone(),
        };
        self.client(&host, settings(&self.config.login).set_db(self.config.db))
    }

    /// Asks the Sentinels in turn; the first that answers knows.
    async fn master(&self, master: &str) -> Result<(String, u16)> {
        let mut last = None;
        for host in &self.config.hosts {
            let asked = async {
                let client = self.client(host, settings(&self.config.sentinel_login))?;
                let explain = |error| error::explain_sentinel(host, error);
                // `share` bounds it; the client crate's own times would be less.
                let config =
                    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
                let sentinel = client.get_multiplexed_async_connection_with_config(&config).await;
                let mut sentinel = sentinel.map_err(explain)?;
                let mut ask = redis::cmd("SENTINEL");
                ask.arg("get-master-addr-by-name").arg(master);
                ask.query_async::<Option<(String, u16)>>(&mut sentinel).await.map_err(explain)
            };
            // One that is down must not use up the time of the others.
            let share = self.limit() / u32::try_from(self.config.hosts.len() + 1).unwrap_or(u32::MAX);
            match timeout(share, asked).await.unwrap_or_else(|_| Err(error::late(share))) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {
                    let unknown = format!("Sentinel `{}:{}` knows no master `{master}`", host.0, host.1);
                    last = Some(error::refused(unknown));
                }
                Err(error) => last = last.filter(|last| !Error::is_transient(last)).or(Some(error)),
            }
        }
        Err(last.expect("a configuration has at least one host"))
    }

    fn client(&self, host: &(String, u16), settings: RedisConnectionInfo) -> Result<Client> {
        let info = self.address(host).into_connection_info().map_err(error::explain)?;
        let info = info.set_redis_settings(settings).set_tcp_settings(self.tcp());
        match &self.certificates {
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
            None => Client::open(info),
        }
        .map_err(error::explain)
    }

    /// A connection whose other end is silent for longer than a command may take is given up: what is still on its way then
    /// must not arrive behind the release that follows, and nobody should wait for messages that cannot come.
    fn tcp(&self) -> TcpSettings {
        let keepalive = TcpKeepalive::new().with_time(QUIET).with_interval(QUIET / 5);
        let settings = TcpSettings::default().set_keepalive(keepalive);
        #[cfg(target_os = "linux")]
        let settings = settings.set_user_timeout(self.limit());
        settings
    }

    fn address(&self, (host, port): &(String, u16)) -> ConnectionAddr {
        match self.config.tls {
            Some(_) => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            None => ConnectionAddr::Tcp(host.clone(), *port),
        }
    }
}

fn settings(login: &Login) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default();
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password);
    }
    settings
}

fn certificates(tls: &Tls) -> Result<TlsCertificates> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread was faster, which is as good.
        rustls::crypto::ring::default_provider().install_default().ok();
    }
    let own = tls.own.as_ref().map(|(cert, key)| {
        Ok::<_, Error>(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
    });
    Ok(TlsCertificates { client_tls: own.transpose()?, root_cert: tls.ca.as_deref().map(read).transpose()? })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::InvalidConfig {
        reason: format!("`{}` cannot be read: {error}", path.display()),
    })
}
