//! The connections that all claims of a client share: one for commands, one to wait for replicas, one for messages in the hub.
//! A few lines over the usual length: only this file knows whether a command was sent twice, and what replicas have.

mod breaker;
mod dial;
mod line;
pub(crate) mod server;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{
    Error, Result,
    driver::{Link, LiveConnection, Moment},
};
use futures_util::future::{BoxFuture, FutureExt as _};
use redis::{
    Cmd, Pipeline, PushInfo, PushKind, RedisError, Value,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    config::{PubSub, RedisConfig, Replicas},
    error::{self, STORE},
    listen::Hub,
    scripts::{Call, millis},
};

use breaker::Breaker;
pub(crate) use dial::Dial;
use line::{Line, Lines};

/// A client's connections. On a cluster, one of each to a node.
pub(crate) struct Connection {
    dial: Arc<Dial>,
    commands: Link<Lines>,
    /// For a cluster, whose connections the client crate makes.
    breaker: Breaker,
    /// For `WAIT`, which holds up every later command on its connection. Renewals must not be held up.
    confirmations: Link<Lines>,
    /// Whether the server had replicas when it was last asked.
    replicas: AtomicBool,
    /// When a server last answered a command.
    answered: Mutex<Option<Moment>>,
    /// How many connections to nodes of a cluster have broken. The client crate may then have sent a command again by itself.
    breaks: Arc<AtomicU64>,
    pub(crate) hub: Arc<Hub>,
    /// The command that publishes wake-ups. It is `SPUBLISH` where Redisson uses that: on a cluster of servers from 7 on.
    pub(crate) publish: &'static str,
}

impl Connection {
    pub(crate) async fn open(config: &RedisConfig) -> Result<Self> {
        let connection = Self::later(config)?;
        let dial = Arc::clone(&connection.dial);
        if !dial.is_cluster() {
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
        let mut cluster = dial.cluster(push).await?;
        let sharded = match dial.pubsub() {
            PubSub::Auto => {
                let probe = redis::cmd("PUBSUB").arg("SHARDNUMSUB").to_owned();
                let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
                cluster.route_command(probe, anywhere).await.and_then(Value::extract_error).is_ok()
            }
            given => given == PubSub::Sharded,
        };
        let publish = if sharded { "SPUBLISH" } else { "PUBLISH" };
        let hub = Hub::of_cluster(cluster.clone(), messages, sharded, dial.limit());
        Ok(Self { commands: Lines::of_cluster(dial, cluster), hub, publish, ..connection })
    }

    /// A connection to one server that is opened when it is first needed.
    pub(crate) fn later(config: &RedisConfig) -> Result<Self> {
        let dial = Arc::new(Dial::new(config.clone())?);
        let hub = Hub::of_server(Arc::clone(&dial), config.events);
        Ok(Self {
            breaker: Breaker::new(),
            commands: Lines::later(Arc::clone(&dial), Some(Arc::clone(&hub))),
            confirmations: Lines::later(Arc::clone(&dial), None),
            dial,
            replicas: AtomicBool::new(false),
            answered: Mutex::default(),
            breaks: Arc::default(),
            hub,
            publish: "PUBLISH",
        })
    }

    /// Runs a script.
    ///
    /// # Errors
    /// After any error but the server's refusal, the script may or may not have run.
    pub(crate) async fn run(&self, call: &Call) -> Result<Value> {
        self.run_and_tell(call).await.map(|(answer, _)| answer)
    }

    /// Runs a script, and tells whether it may have run twice. The answer is then that of the second run.
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
    /// After any error but the server's refusal, the command may or may not have been done.
    pub(crate) async fn query(&self, cmd: &Cmd) -> Result<Value> {
        self.send(cmd, &mut false).await
    }

    /// Sends a command once. `None` if there is no answer, or an error. That is noted nowhere, and no other command is affected.
    /// Boxed, because the futures of the client crate are deep, and this one is a part of others.
    pub(crate) fn query_once(&self, cmd: Cmd) -> BoxFuture<'_, Option<Value>> {
        let sent = async move {
            let mut live = self.commands.live().await.ok()?;
            live.connection.send(&cmd, self.dial.limit()).await.ok()
        };
        sent.boxed()
    }

    /// Sends a command, and sets `twice` if it was sent a second time.
    async fn send(&self, cmd: &Cmd, twice: &mut bool) -> Result<Value> {
        let limit = self.dial.limit();
        let mut again = true;
        loop {
            let mut live = self.commands.live().await?;
            self.breaker.admit(cmd)?;
            let error = match live.connection.send(cmd, limit).await {
                Err(error) if self.is_cluster() && !error.is_timeout() && error::is_unreachable(&error) => {
                    self.breaker.note_failure(cmd, error::explain(error))
                }
                Err(error) if error.is_timeout() => {
                    again = false;
                    STORE.timed_out(limit)
                }
                Err(error) if error::is_broken(&error) => error::explain(error),
                outcome => {
                    self.note_answer();
                    self.breaker.note_answer(cmd);
                    return outcome.map_err(error::explain);
                }
            };
            let error = self.commands.give_up(&live, error);
            // The command is sent once more, because often only the next command notices that an idle connection has ended.
            // All commands of this crate may be done twice.
            if !std::mem::take(&mut again) {
                return Err(error);
            }
            *twice = true;
        }
    }

    /// Renews the hold that was just granted, and waits until a replica has the renewal, and so the grant. Where there is no
    /// replica, none is waited for.
    ///
    /// One pipeline on one connection: `WAIT` counts only that connection's writes, and after a failover another server answers.
    /// A renewal, because it creates nothing if it arrives late, behind a release.
    ///
    /// # Errors
    /// When no replica answers in time: the lock is then not granted.
    pub(crate) async fn confirm(&self, renewal: &Call, key: &str, wanted: Replicas) -> Result<Value> {
        let limit = self.dial.limit() + wanted.within;
        // Unless replicas are known of, the first round waits for none, and only learns whether there are any: `WAIT` for replicas
        // that do not exist takes its full time. On a cluster each node has its own, so that nothing is known beforehand.
        let are_known = !self.is_cluster() && self.replicas.load(Relaxed);
        let mut count = if are_known { wanted.count } else { 0 };
        loop {
            let mut all = redis::pipe();
            all.add_command(renewal.in_full());
            all.cmd("WAIT").arg(count).arg(millis(wanted.within)).cmd("INFO").arg("replication");
            let mut live = self.confirmations.live().await?;
            let node = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master));
            let answers = live.connection.send_all(all, Some(node), limit).await;
            let answers = match answers.and_then(|answers| Value::Array(answers).extract_error()) {
                Ok(answers) => answers,
                Err(error) => return Err(given_up(&self.confirmations, &live, error, limit)),
            };
            self.confirmations.note_answer();
            let answers = redis::from_redis_value(answers).map_err(|_| STORE.unexpected_reply("WAIT"))?;
            let (answer, acknowledged, about): (Value, u32, String) = answers;
            let are_there = server::has_replicas(&about);
            self.replicas.store(are_there, Relaxed);
            // One replica is enough, as for Redisson.
            if acknowledged > 0 || !are_there {
                return Ok(answer);
            }
            if count > 0 {
                return Err(STORE.unavailable("no replica has confirmed the lock in time; it is not granted"));
            }
            count = wanted.count;
        }
    }

    /// One entry for each server that may have keys: a slot of each master of a cluster, or `None` for the one server. Slots and
    /// not addresses, because a cluster may not tell its nodes' addresses.
    pub(crate) async fn masters(&self) -> Result<Vec<Option<u16>>> {
        if !self.is_cluster() {
            return Ok(vec![None]);
        }
        let slots = self.query(redis::cmd("CLUSTER").arg("SLOTS")).await?;
        let garbled = |_| STORE.unexpected_reply("CLUSTER SLOTS");
        let slots: Vec<Vec<Value>> = redis::from_redis_value(slots).map_err(garbled)?;
        let mut masters = BTreeMap::new();
        for range in slots {
            let [first, _, Value::Array(master), ..] = &range[..] else {
                return Err(STORE.unexpected_reply("CLUSTER SLOTS"));
            };
            let id = master.get(2).ok_or_else(|| STORE.unexpected_reply("CLUSTER SLOTS"))?;
            let id: String = redis::from_redis_value_ref(id).map_err(garbled)?;
            masters.entry(id).or_insert(redis::from_redis_value_ref::<u16>(first).map_err(garbled)?);
        }
        Ok(masters.into_values().map(Some).collect())
    }

    /// Sends a command to the node of a cluster that has this slot; without a slot, to the server.
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
        let line = self.commands.live().await?.connection;
        let Line::Cluster(mut cluster) = line else { return self.query(cmd).await };
        let call = cluster.route_command(cmd.clone(), RoutingInfo::SingleNode(node));
        let limit = self.dial.limit();
        let answer = timeout(limit, call).await.map_err(|_| STORE.timed_out(limit))?;
        answer.and_then(Value::extract_error).map_err(error::explain)
    }

    /// Sends commands to the node of a cluster that has this slot; without a slot, to the server. If the server refuses a command,
    /// its error is among the answers.
    pub(crate) async fn query_all_at(&self, all: Pipeline, slot: Option<u16>) -> Result<Vec<Value>> {
        let limit = self.dial.limit();
        let mut live = self.commands.live().await?;
        let answers = live.connection.send_all(all, slot.map(master_of), limit).await;
        answers.map_err(|error| given_up(&self.commands, &live, error, limit))
    }

    fn note_answer(&self) {
        self.commands.note_answer();
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some(Moment::now());
    }

    /// Whether the server has answered a command within this time. On a cluster that says nothing about a single node.
    pub(crate) fn has_answered_within(&self, limit: Duration) -> bool {
        let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_cluster() && answered.is_some_and(|at| at.elapsed() < limit)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.dial.is_cluster()
    }
}

fn master_of(slot: u16) -> SingleNodeRoutingInfo {
    SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master))
}

/// The error of a call. If the connection broke or the answer is late, the connection is not used again.
fn given_up(link: &Link<Lines>, live: &LiveConnection<Line>, error: RedisError, limit: Duration) -> Error {
    let (late, broken) = (error.is_timeout(), error::is_broken(&error));
    let error = if late { STORE.timed_out(limit) } else { error::explain(error) };
    if late || broken { link.give_up(live, error) } else { error }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
