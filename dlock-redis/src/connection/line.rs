//! A line is a connection for commands: to a server or a cluster. It is opened here, and opened again when it breaks.

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

use super::Dial;
use crate::{error::STORE, listen::Hub};

/// A connection for commands.
#[derive(Clone)]
pub(crate) enum Line {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Opens lines.
pub(crate) struct Lines {
    dial: Arc<Dial>,
    /// Told when a line was opened again. It may lead to another server, and messages must then come from there too.
    listeners: Option<Arc<Hub>>,
}

impl Lines {
    /// A line that is opened when it is first needed.
    pub(crate) fn later(dial: Arc<Dial>, listeners: Option<Arc<Hub>>) -> Link<Self> {
        Link::new(STORE, dial.limit(), Self { dial, listeners })
    }

    /// A line to a cluster that is connected already.
    pub(crate) fn of_cluster(dial: Arc<Dial>, cluster: ClusterConnection) -> Link<Self> {
        Link::with_connection(STORE, dial.limit(), Self { dial, listeners: None }, Line::Cluster(cluster))
    }
}

impl Connect for Lines {
    type Connection = Line;

    async fn connect(&self) -> Result<Line> {
        // Boxed: it is rare and deep, and a part of the future of every command.
        Box::pin(self.dial.line()).await
    }

    fn reconnected(&self, since: Instant) {
        if let Some(listeners) = &self.listeners {
            listeners.commands_moved(since);
        }
    }

    fn reconnects_itself(&self, line: &Line) -> bool {
        matches!(line, Line::Cluster(_))
    }
}

impl Line {
    /// Sends a command, and waits for the answer, for `limit` at most.
    pub(crate) async fn send(&mut self, cmd: &Cmd, limit: Duration) -> RedisResult<Value> {
        let answer = match self {
            Self::Server(server) => in_time(limit, server.send_packed_command(cmd)).await?,
            Self::Cluster(cluster) => in_time(limit, cluster.req_packed_command(cmd)).await?,
        };
        answer.extract_error()
    }

    /// Sends commands, all through one connection, and waits for all answers, for `limit` at most. On a cluster they go to `node`.
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
