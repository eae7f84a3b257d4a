//! The connection for commands, to a server or a cluster, and how it is opened and reopened.

use std::{
    io,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use dlock_core::{
    Result,
    driver::{CallCounter, Connect, Link},
};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, Pipeline, RedisResult, TlsCertificates, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster_async::ClusterConnection,
    cluster_routing::SingleNodeRoutingInfo,
};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{Dialer, gather::Gather, socket};
use crate::{error::STORE, wake::Notifications};

/// A connection for commands.
#[derive(Clone)]
pub(crate) enum CommandConnection {
    Server(ServerConnection),
    Cluster(ClusterConnection),
}

/// A connection to one server, whose clones share one socket. It ends with its last clone.
#[derive(Clone)]
pub(crate) struct ServerConnection {
    connection: MultiplexedConnection,
    in_flight: CallCounter,
    /// The task of the client crate that writes the commands and reads the replies.
    _driver: Arc<AbortOnDropHandle<()>>,
}

/// Opens connections for commands.
pub(crate) struct CommandConnector {
    dialer: Arc<Dialer>,
    /// Notified when a connection was reopened. The new connection may lead to another server, and
    /// the messages must then come from that server.
    notifications: Option<Arc<Notifications>>,
}

impl CommandConnector {
    /// Creates a link that is connected when it is first needed.
    pub(crate) fn lazy(dialer: Arc<Dialer>, notifications: Option<Arc<Notifications>>) -> Link<Self> {
        Link::new(STORE, dialer.limit(), Self { dialer, notifications })
    }

    /// Creates a link to a cluster that is already connected.
    pub(crate) fn of_cluster(dialer: Arc<Dialer>, cluster: ClusterConnection) -> Link<Self> {
        let limit = dialer.limit();
        let connector = Self { dialer, notifications: None };
        Link::with_connection(STORE, limit, connector, CommandConnection::Cluster(cluster))
    }
}

impl Connect for CommandConnector {
    type Connection = CommandConnection;

    async fn connect(&self) -> Result<CommandConnection> {
        self.dialer.command_connection().await
    }

    fn reconnected(&self, since: Instant) {
        if let Some(notifications) = &self.notifications {
            notifications.note_reopened(since);
        }
    }

    fn reconnects_itself(&self, connection: &CommandConnection) -> bool {
        matches!(connection, CommandConnection::Cluster(_))
    }
}

impl ServerConnection {
    /// Connects to a server. Sets no timeout for replies. Each caller sets the timeout of its
    /// command, and these differ.
    #[expect(
        clippy::disallowed_methods,
        reason = "the driver of a connection of the client crate, which would otherwise spawn it itself"
    )]
    pub(crate) async fn open(
        info: &ConnectionInfo,
        certificates: Option<&TlsCertificates>,
    ) -> RedisResult<Self> {
        let in_flight = CallCounter::default();
        let socket = Gather::new(socket::connect(info, certificates).await?, in_flight.clone());
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let opened = MultiplexedConnection::new_with_config(info.redis_settings(), socket, config);
        let (connection, driver) = opened.await?;
        let driver = Arc::new(AbortOnDropHandle::new(tokio::spawn(driver)));
        Ok(Self { connection, in_flight, _driver: driver })
    }

    /// Sends a command, and waits for the reply.
    pub(crate) async fn send(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let _counted = self.in_flight.count();
        self.connection.send_packed_command(cmd).await
    }

    async fn send_all(&mut self, all: &Pipeline) -> RedisResult<Vec<Value>> {
        let _counted = self.in_flight.count();
        self.connection.send_packed_commands(all, 0, all.len()).await
    }
}

impl CommandConnection {
    /// Sends a command, and waits for the reply for at most `limit`.
    pub(crate) async fn send(&mut self, cmd: &Cmd, limit: Duration) -> RedisResult<Value> {
        let reply = match self {
            Self::Server(server) => in_time(limit, pin!(server.send(cmd))).await?,
            Self::Cluster(cluster) => in_time(limit, pin!(cluster.req_packed_command(cmd))).await?,
        };
        reply.extract_error()
    }

    /// Sends all commands through one connection, on a cluster to `node`, and waits for all replies
    /// for at most `limit`.
    pub(crate) async fn send_all(
        &mut self,
        all: Pipeline,
        node: Option<SingleNodeRoutingInfo>,
        limit: Duration,
    ) -> RedisResult<Vec<Value>> {
        match self {
            Self::Server(server) => in_time(limit, pin!(server.send_all(&all))).await,
            Self::Cluster(cluster) => {
                let count = all.len();
                let node = node.unwrap_or(SingleNodeRoutingInfo::Random);
                in_time(limit, pin!(cluster.route_pipeline(all, 0, count, node))).await
            }
        }
    }
}

/// Waits at most `limit` for the reply to a call. The call is pinned, because the futures of the
/// client crate are large, and each function that takes one by value copies it.
async fn in_time<T>(limit: Duration, call: Pin<&mut impl Future<Output = RedisResult<T>>>) -> RedisResult<T> {
    timeout(limit, call).await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}
