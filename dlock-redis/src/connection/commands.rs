//! The connection for commands, to a server or a cluster, and how it is opened and reopened.

use std::{io, sync::Arc, time::Duration};

use dlock_core::{
    Result,
    driver::{Connect, Link},
};
use redis::{
    Cmd, Pipeline, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster_async::ClusterConnection,
    cluster_routing::SingleNodeRoutingInfo,
};
use tokio::time::{Instant, timeout};

use super::Dialer;
use crate::{error::STORE, wake::Notifications};

/// A connection for commands.
#[derive(Clone)]
pub(crate) enum CommandConnection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
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
        // Boxed because this future is large, is needed rarely, and is a part of the future of
        // every command.
        Box::pin(self.dialer.command_connection()).await
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

impl CommandConnection {
    /// Sends a command, and waits for the reply for at most `limit`.
    pub(crate) async fn send(&mut self, cmd: &Cmd, limit: Duration) -> RedisResult<Value> {
        let reply = match self {
            Self::Server(server) => in_time(limit, server.send_packed_command(cmd)).await?,
            Self::Cluster(cluster) => in_time(limit, cluster.req_packed_command(cmd)).await?,
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
        let count = all.len();
        match self {
            Self::Server(server) => in_time(limit, server.send_packed_commands(&all, 0, count)).await,
            Self::Cluster(cluster) => {
                let node = node.unwrap_or(SingleNodeRoutingInfo::Random);
                in_time(limit, cluster.route_pipeline(all, 0, count, node)).await
            }
        }
    }
}

async fn in_time<T>(limit: Duration, call: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(limit, call).await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}
