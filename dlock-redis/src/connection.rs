//! One connection for commands, shared by all claims of a client, opened again when it breaks. A few lines over the usual
//! length: what replicas have is asked of the connection that wrote it, and whether a command was sent twice is known here.

use std::{
    fmt, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::Result;
use redis::{
    Cmd, Pipeline, PushInfo, PushKind, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    config::{RedisConfig, Replicas},
    dial::Dial,
    error,
    hub::Hub,
    script::{Call, millis},
    server,
};

/// A client's connections: one for commands here, one for messages in the hub. On a cluster, one of each to a node.
pub(crate) struct Connection {
    dial: Arc<Dial>,
    /// Empty at first and after it broke.
    slot: Mutex<Option<Live>>,
    /// How often it was opened again. Held by whoever opens it, so that one does.
    dialing: tokio::sync::Mutex<u64>,
    /// Whether the server had replicas when that was last asked.
    replicas: AtomicBool,
    /// How many connections to nodes of a cluster have broken: its client then sends again by itself.
    breaks: Arc<AtomicU64>,
    pub(crate) hub: Arc<Hub>,
    /// The command that wakes: `SPUBLISH` where Redisson uses it, on a cluster of servers from 7 on.
    pub(crate) publish: &'static str,
}

#[derive(Clone)]
struct Live {
    number: u64,
    line: Line,
}

/// What commands go through.
#[derive(Clone)]
pub(crate) enum Line {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    pub(crate) async fn open(config: &RedisConfig) -> Result<Self> {
        let connection = Self::later(config)?;
        let dial = Arc::clone(&connection.dial);
        if !dial.is_cluster() {
            connection.live().await?;
            return Ok(connection);
        }
        let (sender, messages) = mpsc::unbounded_channel();
        let breaks = Arc::clone(&connection.breaks);
        let push = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                breaks.fetch_add(1, Relaxed);
            }
            sender.send(push)
        };
        let mut cluster = dial.cluster(push).await?;
        let probe = redis::cmd("PUBSUB").arg("SHARDNUMSUB").to_owned();
        let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        let sharded = cluster.route_command(probe, anywhere).await.and_then(Value::extract_error).is_ok();
        let publish = if sharded { "SPUBLISH" } else { "PUBLISH" };
        let hub = Hub::of_cluster(cluster.clone(), messages, sharded, dial.limit());
        let slot = Mutex::new(Some(Live { number: 0, line: Line::Cluster(cluster) }));
        Ok(Self { slot, hub, publish, ..connection })
    }

    /// A connection to one server that is opened when it is first needed.
    pub(crate) fn later(config: &RedisConfig) -> Result<Self> {
        let dial = Arc::new(Dial::new(config.clone())?);
        let hub = Hub::of_server(Arc::clone(&dial), config.events);
        Ok(Self {
            dial,
            slot: Mutex::new(None),
            dialing: tokio::sync::Mutex::new(0),
            replicas: AtomicBool::new(false),
            breaks: Arc::default(),
            hub,
            publish: "PUBLISH",
        })
    }

    /// Runs a script.
    ///
    /// # Errors
    /// Unless the server refused it, the script may or may not have run.
    pub(crate) async fn run(&self, call: &Call) -> Result<Value> {
        self.run_and_tell(call).await.map(|(answer, _)| answer)
    }

    /// Runs a script, and tells whether it may have run twice: then the answer is that of the second time.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) async fn run_and_tell(&self, call: &Call) -> Result<(Value, bool)> {
        let (before, mut twice) = (self.breaks.load(Relaxed), false);
        let answer = match self.send(call.by_hash(), &mut twice).await {
            Err(error) if error::is_no_script(&error) => self.send(&call.in_full(), &mut twice).await?,
            outcome => outcome?,
        };
        Ok((answer, twice || self.breaks.load(Relaxed) != before))
    }

    /// Sends a command.
    ///
    /// # Errors
    /// Unless the server refused it, it may or may not have been done.
    pub(crate) async fn query(&self, cmd: &Cmd) -> Result<Value> {
        self.send(cmd, &mut false).await
    }

    /// Sends a command, and notes it where it was sent twice.
    async fn send(&self, cmd: &Cmd, twice: &mut bool) -> Result<Value> {
        let limit = self.dial.limit();
        let mut again = true;
        loop {
            let Live { number, mut line } = self.live().await?;
            let error = match line.send(cmd, limit).await {
                Ok(value) => return Ok(value),
                Err(error) if error.is_timeout() => {
                    again = false;
                    error::late(limit)
                }
                Err(error) if error::is_broken(&error) => error::explain(error),
                Err(error) => return Err(error::explain(error)),
            };
            self.forget(number);
            // Once more, because an idle connection's end is often noticed by the next command only. All commands of
            // this crate may be done twice.
            if !std::mem::take(&mut again) {
                return Err(error);
            }
            *twice = true;
        }
    }

    /// Runs a script again that was just run, and waits until a replica has what it wrote, where there is one. All in one
    /// go: through a connection that was opened meanwhile nothing was written, and a server that took the other's place has
    /// other replicas.
    pub(crate) async fn confirm(&self, call: &Call, key: &str, wanted: Replicas) -> Result<Value> {
        let limit = self.dial.limit() + wanted.within;
        // Whoever waits for replicas where there are none waits in vain. Of a cluster, each node has its own.
        let are_known = !self.is_cluster() && self.replicas.load(Relaxed);
        let mut count = if are_known { wanted.count } else { 0 };
        loop {
            let mut all = redis::pipe();
            all.add_command(call.in_full());
            all.cmd("WAIT").arg(count).arg(millis(wanted.within)).cmd("INFO").arg("replication");
            let Live { number, mut line } = self.live().await?;
            let answers = match line.send_all(all, key, limit).await {
                Ok(answers) => answers,
                Err(error) => {
                    if error.is_timeout() || error::is_broken(&error) {
                        self.forget(number);
                    }
                    let late = error.is_timeout();
                    return Err(if late { error::late(limit) } else { error::explain(error) });
                }
            };
            let answers = redis::from_redis_value(answers).map_err(|_| error::garbled("WAIT"))?;
            let (answer, acknowledged, about): (Value, u32, String) = answers;
            let are_there = server::has_replicas(&about);
            self.replicas.store(are_there, Relaxed);
            // Any is enough, as for Redisson.
            if acknowledged > 0 || !are_there {
                return Ok(answer);
            }
            if count > 0 {
                return Err(error::unavailable(
                    "no replica has confirmed the lock in time; it is not granted",
                ));
            }
            count = wanted.count;
        }
    }

    /// Where keys may be: every master of a cluster, or the one server.
    pub(crate) async fn masters(&self) -> Result<Vec<Option<String>>> {
        if !self.is_cluster() {
            return Ok(vec![None]);
        }
        let slots = self.query(redis::cmd("CLUSTER").arg("SLOTS")).await?;
        let garbled = |_| error::garbled("CLUSTER SLOTS");
        let slots: Vec<Vec<Value>> = redis::from_redis_value(slots).map_err(garbled)?;
        let mut masters = Vec::new();
        for master in slots.into_iter().filter_map(|slot| slot.into_iter().nth(2)) {
            let Value::Array(master) = master else { return Err(error::garbled("CLUSTER SLOTS")) };
            let [host, port, ..] = &master[..] else { return Err(error::garbled("CLUSTER SLOTS")) };
            let host: String = redis::from_redis_value_ref(host).map_err(garbled)?;
            let port: u16 = redis::from_redis_value_ref(port).map_err(garbled)?;
            masters.push(Some(format!("{host}:{port}")));
        }
        masters.sort_unstable();
        masters.dedup();
        Ok(masters)
    }

    /// Sends a command to one node of a cluster, `host:port`; without a node, to the server.
    pub(crate) async fn query_at(&self, cmd: &Cmd, node: Option<&str>) -> Result<Value> {
        let Live { line, .. } = self.live().await?;
        let (Line::Cluster(mut cluster), Some(node)) = (line, node) else { return self.query(cmd).await };
        let (host, port) = node.rsplit_once(':').ok_or_else(|| error::garbled("CLUSTER SLOTS"))?;
        let port = port.parse().map_err(|_| error::garbled("CLUSTER SLOTS"))?;
        let route = SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port };
        let call = cluster.route_command(cmd.clone(), RoutingInfo::SingleNode(route));
        let limit = self.dial.limit();
        let answer = timeout(limit, call).await.map_err(|_| error::late(limit))?;
        answer.and_then(Value::extract_error).map_err(error::explain)
    }

    async fn live(&self) -> Result<Live> {
        if let Some(live) = self.slot().clone() {
            return Ok(live);
        }
        // Whoever dials has as long, so nobody stands in line for longer.
        let limit = self.dial.limit();
        let mut number = timeout(limit, self.dialing.lock()).await.map_err(|_| error::late(limit))?;
        if let Some(live) = self.slot().clone() {
            return Ok(live);
        }
        let line = Line::Server(self.dial.commands().await?);
        *number += 1;
        let live = Live { number: *number, line };
        *self.slot() = Some(live.clone());
        Ok(live)
    }

    fn forget(&self, number: u64) {
        // A cluster's connection mends itself.
        self.slot().take_if(|live| live.number == number && matches!(live.line, Line::Server(_)));
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Live>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.dial.is_cluster()
    }
}

impl Line {
    /// Sends a command, and waits so long for the answer.
    async fn send(&mut self, cmd: &Cmd, limit: Duration) -> RedisResult<Value> {
        let answer = match self {
            Self::Server(server) => in_time(limit, server.send_packed_command(cmd)).await?,
            Self::Cluster(cluster) => in_time(limit, cluster.req_packed_command(cmd)).await?,
        };
        answer.extract_error()
    }

    /// Sends commands to whoever has the key, all through one connection, and waits so long for all answers.
    async fn send_all(&mut self, all: Pipeline, key: &str, limit: Duration) -> RedisResult<Value> {
        let count = all.len();
        let answers = match self {
            Self::Server(server) => in_time(limit, server.send_packed_commands(&all, 0, count)).await?,
            Self::Cluster(cluster) => {
                let node = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master));
                in_time(limit, cluster.route_pipeline(all, 0, count, node)).await?
            }
        };
        Value::Array(answers).extract_error()
    }
}

async fn in_time<T>(limit: Duration, call: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(limit, call).await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
