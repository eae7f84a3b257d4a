//! The connections that all claims of a client share. One is for commands, one waits for replicas,
//! and one is for messages.

mod breaker;
mod commands;
mod dial;
mod gather;
pub(crate) mod server;
mod socket;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{
    Error, Result,
    driver::{Link, LiveConnection, Moment, Retries},
};
use futures_util::future::{BoxFuture, FutureExt as _};
use parking_lot::Mutex;
use redis::{
    Cmd, Pipeline, PushInfo, PushKind, RedisError, Value,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    config::{PubSub, RedisConfig, Replicas},
    error::{self, STORE},
    scripts::{Call, millis},
    wake::Notifications,
};

use breaker::Breaker;
use commands::{CommandConnection, CommandConnector};
pub(crate) use dial::Dialer;

/// A client's connections. On a cluster, the client crate makes one to each node, which serves
/// commands and messages.
pub(crate) struct Connection {
    dialer: Arc<Dialer>,
    commands: Link<CommandConnector>,
    /// For a cluster, whose connections the client crate makes.
    breaker: Breaker,
    /// For `WAIT`, which blocks every later command on its connection. Renewals must not be
    /// blocked.
    confirmations: Link<CommandConnector>,
    /// Whether the server had replicas according to its last reply.
    has_replicas: AtomicBool,
    /// Time of the last reply to a command.
    last_reply_at: Mutex<Option<Moment>>,
    /// Number of connections to nodes of a cluster that have broken. The client crate may have sent
    /// a command again by itself after such a break.
    breaks: Arc<AtomicU64>,
    pub(crate) notifications: Arc<Notifications>,
    /// The command that publishes wake-ups. `SPUBLISH` where Redisson uses it, which is on a
    /// cluster of servers of version 7 or later.
    pub(crate) publish: &'static str,
}

/// The result of a command or script.
pub(crate) struct Sent {
    /// The reply to the last command sent. After an error that is not the server's reply, the command
    /// may or may not have been executed.
    pub(crate) result: Result<Value>,
    /// Whether the command may have been sent more than once. An earlier one may have been
    /// executed.
    pub(crate) maybe_repeated: bool,
    /// Whether a connection broke before the reply, so that the server may still execute the
    /// command.
    pub(crate) is_broken: bool,
}

/// A command that failed because of its connection.
struct Failure {
    error: Error,
    /// Whether the command should be sent once more, on another connection.
    may_repeat: bool,
    /// Whether the connection broke before the reply.
    is_broken: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, may_repeat: false, is_broken: false }
    }
}

impl Connection {
    pub(crate) async fn open(config: &RedisConfig) -> Result<Self> {
        let connection = Self::lazy(config)?;
        let dialer = Arc::clone(&connection.dialer);
        if !dialer.is_cluster() {
            connection.commands.live().await?;
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
        let mut cluster = dialer.cluster(push).await?;
        let sharded = match dialer.pubsub() {
            PubSub::Auto => {
                let probe = redis::cmd("PUBSUB").arg("SHARDNUMSUB").to_owned();
                let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
                cluster.route_command(probe, anywhere).await.and_then(Value::extract_error).is_ok()
            }
            configured => configured == PubSub::Sharded,
        };
        let publish = if sharded { "SPUBLISH" } else { "PUBLISH" };
        let notifications = Notifications::of_cluster(cluster.clone(), messages, sharded, dialer.limit());
        let commands = CommandConnector::of_cluster(dialer, cluster);
        Ok(Self { commands, notifications, publish, ..connection })
    }

    /// Creates a connection to one server that is opened when it is first needed.
    pub(crate) fn lazy(config: &RedisConfig) -> Result<Self> {
        let dialer = Arc::new(Dialer::new(config.clone())?);
        let notifications = Notifications::of_server(Arc::clone(&dialer), config.events);
        Ok(Self {
            breaker: Breaker::new(),
            commands: CommandConnector::lazy(Arc::clone(&dialer), Some(Arc::clone(&notifications))),
            confirmations: CommandConnector::lazy(Arc::clone(&dialer), None),
            dialer,
            has_replicas: AtomicBool::new(false),
            last_reply_at: Mutex::default(),
            breaks: Arc::default(),
            notifications,
            publish: "PUBLISH",
        })
    }

    /// Runs a script.
    ///
    /// # Errors
    /// Unless the server has refused the script, it may or may not have run.
    pub(crate) async fn run(&self, call: &Call) -> Result<Value> {
        self.run_tracked(call).await.result
    }

    /// Runs a script, and reports whether it may have run twice, or may still run.
    pub(crate) async fn run_tracked(&self, call: &Call) -> Sent {
        let breaks = self.breaks.load(Relaxed);
        let mut sent = self.send(call.by_hash()).await;
        if matches!(&sent.result, Err(error) if error::is_no_script(error)) {
            // Boxed because it is rare, and would make every call's future larger.
            let in_full = Box::pin(async { self.send(&call.in_full()).await }).await;
            sent = Sent {
                result: in_full.result,
                maybe_repeated: sent.maybe_repeated || in_full.maybe_repeated,
                is_broken: sent.is_broken || in_full.is_broken,
            };
        }
        let has_node_broken = self.breaks.load(Relaxed) != breaks;
        sent.maybe_repeated |= has_node_broken;
        sent.is_broken |= has_node_broken;
        sent
    }

    /// Sends a command.
    ///
    /// # Errors
    /// Unless the server has refused the command, it may or may not have been executed.
    pub(crate) async fn query(&self, cmd: &Cmd) -> Result<Value> {
        self.send(cmd).await.result
    }

    /// Sends a command once. Returns `None` after an error or without a reply. A failure is not
    /// recorded, and affects no other command.
    ///
    /// Boxed because the futures of the client crate are large, and this one is a part of others.
    pub(crate) fn query_once(&self, cmd: Cmd) -> BoxFuture<'_, Option<Value>> {
        let reply = async move {
            let mut live = self.commands.live().await.ok()?;
            live.connection.send(&cmd, self.dialer.limit()).await.ok()
        };
        reply.boxed()
    }

    /// Sends a command, and once more if the connection breaks. Often only the next command notices
    /// that an idle connection has ended. All commands of this crate may be executed twice.
    async fn send(&self, cmd: &Cmd) -> Sent {
        let (mut retries, mut is_broken) = (Retries::default(), false);
        loop {
            let outcome = self.try_send(cmd).await;
            is_broken |= matches!(&outcome, Err(Failure { is_broken: true, .. }));
            match outcome {
                Err(failure) if failure.may_repeat && retries.after_break() => {}
                outcome => {
                    let result = outcome.unwrap_or_else(|failure| Err(failure.error));
                    return Sent { result, maybe_repeated: retries.maybe_executed(), is_broken };
                }
            }
        }
    }

    /// Sends a command once. `Ok` is the server's reply, which may be an error.
    async fn try_send(&self, cmd: &Cmd) -> std::result::Result<Result<Value>, Failure> {
        let limit = self.dialer.limit();
        let mut live = self.commands.live().await?;
        self.breaker.admit(cmd)?;
        let reply = live.connection.send(cmd, limit).await;
        // A server that replies with an error does not execute the command later.
        let is_broken = matches!(&reply, Err(error) if error.code().is_none());
        let (error, may_repeat) = match reply {
            Err(error) if error.is_timeout() => (STORE.timed_out(limit), false),
            Err(error) if self.is_cluster() && error::is_unreachable(&error) => {
                (self.breaker.note_failure(cmd, error::explain(error)), true)
            }
            Err(error) if error::is_broken(&error) => (error::explain(error), true),
            reply => {
                self.note_reply();
                self.breaker.note_reply(cmd);
                return Ok(reply.map_err(error::explain));
            }
        };
        Err(Failure { error: self.commands.give_up(&live, error), may_repeat, is_broken })
    }

    /// Renews a hold that was just granted, and waits until a replica has the renewal and therefore
    /// the grant. Returns at once if the server has no replica.
    ///
    /// The call is one pipeline on one connection, because `WAIT` counts only the writes of its
    /// connection, and a new connection may lead to another server after a failover. It writes a
    /// renewal because a renewal that is executed late, after a release, creates nothing.
    ///
    /// # Errors
    /// If no replica confirms in time. The lock is then not granted.
    pub(crate) async fn confirm(&self, renewal: &Call, key: &str, wanted: Replicas) -> Result<Value> {
        let limit = self.dialer.limit() + wanted.timeout;
        // `WAIT` for replicas that do not exist takes its full time. Unless the server is known to
        // have replicas, the first round therefore waits for none, and only queries whether there
        // are any. On a cluster each node has its own replicas, so this is never known beforehand.
        let is_known = !self.is_cluster() && self.has_replicas.load(Relaxed);
        let mut count = if is_known { wanted.count } else { 0 };
        loop {
            let mut all = redis::pipe();
            all.add_command(renewal.in_full());
            all.cmd("WAIT").arg(count).arg(millis(wanted.timeout)).cmd("INFO").arg("replication");
            let mut live = self.confirmations.live().await?;
            let node = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master));
            let replies = live.connection.send_all(all, Some(node), limit).await;
            let replies = match replies.and_then(|replies| Value::Array(replies).extract_error()) {
                Ok(replies) => replies,
                Err(error) => return Err(give_up(&self.confirmations, &live, error, limit)),
            };
            self.confirmations.note_reply();
            let replies = redis::from_redis_value(replies).map_err(|_| STORE.unexpected_reply("WAIT"))?;
            let (renewed, acknowledged, info): (Value, u32, String) = replies;
            let has_replicas = server::has_replicas(&info);
            self.has_replicas.store(has_replicas, Relaxed);
            // One replica is enough, as for Redisson.
            if acknowledged > 0 || !has_replicas {
                return Ok(renewed);
            }
            if count > 0 {
                return Err(STORE.unavailable("no replica has confirmed the lock in time; it is not granted"));
            }
            count = wanted.count;
        }
    }

    /// Returns an entry for each server that may have keys. The entry is a slot of each master of a
    /// cluster, or `None` for a single server. It is not an address, because a cluster may not
    /// report the addresses of its nodes.
    pub(crate) async fn masters(&self) -> Result<Vec<Option<u16>>> {
        if !self.is_cluster() {
            return Ok(vec![None]);
        }
        let slots = self.query(redis::cmd("CLUSTER").arg("SLOTS")).await?;
        let unexpected = |_| STORE.unexpected_reply("CLUSTER SLOTS");
        let slots: Vec<Vec<Value>> = redis::from_redis_value(slots).map_err(unexpected)?;
        let mut masters = BTreeMap::new();
        for range in slots {
            let [first, _, Value::Array(master), ..] = &range[..] else {
                return Err(STORE.unexpected_reply("CLUSTER SLOTS"));
            };
            let id = master.get(2).ok_or_else(|| STORE.unexpected_reply("CLUSTER SLOTS"))?;
            let id: String = redis::from_redis_value_ref(id).map_err(unexpected)?;
            masters.entry(id).or_insert(redis::from_redis_value_ref::<u16>(first).map_err(unexpected)?);
        }
        Ok(masters.into_values().map(Some).collect())
    }

    /// Sends a command to the node of a cluster that has this slot. Without a slot, sends it to the
    /// server.
    pub(crate) async fn query_at(&self, cmd: &Cmd, slot: Option<u16>) -> Result<Value> {
        match slot {
            Some(slot) => self.query_node(cmd, master_of(slot)).await,
            None => self.query(cmd).await,
        }
    }

    /// Sends a command to the node of a cluster that has this key, or to the server.
    pub(crate) async fn query_node_of(&self, key: &str, cmd: &Cmd) -> Result<Value> {
        let route = Route::with_key(key, SlotAddr::Master);
        self.query_node(cmd, SingleNodeRoutingInfo::SpecificNode(route)).await
    }

    async fn query_node(&self, cmd: &Cmd, node: SingleNodeRoutingInfo) -> Result<Value> {
        let connection = self.commands.live().await?.connection;
        let CommandConnection::Cluster(mut cluster) = connection else { return self.query(cmd).await };
        let call = cluster.route_command(cmd.clone(), RoutingInfo::SingleNode(node));
        let limit = self.dialer.limit();
        let reply = timeout(limit, call).await.map_err(|_| STORE.timed_out(limit))?;
        reply.and_then(Value::extract_error).map_err(error::explain)
    }

    /// Sends commands to the node of a cluster that has this slot. Without a slot, sends them to
    /// the server. The replies include the server's errors.
    pub(crate) async fn query_all_at(&self, all: Pipeline, slot: Option<u16>) -> Result<Vec<Value>> {
        let limit = self.dialer.limit();
        let mut live = self.commands.live().await?;
        let replies = live.connection.send_all(all, slot.map(master_of), limit).await;
        replies.map_err(|error| give_up(&self.commands, &live, error, limit))
    }

    fn note_reply(&self) {
        self.commands.note_reply();
        *self.last_reply_at.lock() = Some(Moment::now());
    }

    /// Returns whether the server has replied to a command within this time. Always `false` on a
    /// cluster, where the reply of one node proves nothing about the others.
    pub(crate) fn has_replied_within(&self, limit: Duration) -> bool {
        let last_reply_at = *self.last_reply_at.lock();
        !self.is_cluster() && last_reply_at.is_some_and(|at| at.elapsed() < limit)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.dialer.is_cluster()
    }
}

fn master_of(slot: u16) -> SingleNodeRoutingInfo {
    SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master))
}

/// Converts the error of a call. Gives the connection up if it broke or the reply is late.
fn give_up(
    link: &Link<CommandConnector>,
    live: &LiveConnection<CommandConnection>,
    error: RedisError,
    limit: Duration,
) -> Error {
    let (is_late, is_broken) = (error.is_timeout(), error::is_broken(&error));
    let error = if is_late { STORE.timed_out(limit) } else { error::explain(error) };
    if is_late || is_broken { link.give_up(live, error) } else { error }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
