//! A store for a test binary, and a client that sends single commands.
#![allow(dead_code, reason = "each test binary uses a part of it")]

#[cfg(feature = "tracing")]
pub(crate) mod log;
pub(crate) mod nodes;
pub(crate) mod relay;

use std::time::Duration;

use dlock_conformance::or_ignore;
use dlock_core::{
    ClaimId, Kind, LockName, LockOptions, Locks, Result, Wait,
    driver::{Attempt, Claim, Request, Store},
};
use dlock_redis::DRIVER;
use dlock_testbed::servers::{
    Running, Server,
    redis::{Brand, Flavour, start},
};
use futures_util::StreamExt;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, aio::MultiplexedConnection};

/// The kinds that Redisson supports too.
pub(crate) const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

/// Connects a client to the store of a URL.
pub(crate) async fn connect(url: &str) -> Result<Store> {
    DRIVER.connect(url.parse()?).await
}

/// A server for a test, and a connection for single commands.
pub(crate) struct Bench {
    pub(crate) running: Running,
    pub(crate) raw: MultiplexedConnection,
}

impl Bench {
    /// Starts a server for a test. `None` if there is no Redis and none is required.
    pub(crate) async fn new() -> Option<Self> {
        let running = or_ignore(start(Brand::Redis, Flavour::Standalone).await)?;
        let raw = raw(running.url()).await;
        Some(Self { running, raw })
    }

    /// Connects a new client, like one in another process.
    pub(crate) async fn locks(&self, params: &str) -> Locks {
        let url = format!("{}?{params}", self.running.url());
        let store = connect(&url).await.expect("the server is running");
        Locks::new(store).with_defaults(LockOptions::new().ttl(Duration::from_secs(30)))
    }

    /// Connects a new client, and returns its store without the engine.
    pub(crate) async fn store(&self, params: &str) -> Store {
        connect(&format!("{}?{params}", self.running.url())).await.expect("the server is running")
    }

    /// Returns the reply to a command.
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &str) -> T {
        parse_command(command)
            .query_async(&mut self.raw.clone())
            .await
            .unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Returns the number of calls of a command.
    pub(crate) async fn calls(&self, command: &str) -> u64 {
        let stats: String = self.query("INFO commandstats").await;
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")).map(str::to_owned));
        line.map_or(0, |line| line.split(',').next().expect("a number").parse().expect("a number"))
    }

    /// Returns all keys in order, except those of labels.
    pub(crate) async fn all_keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.query("KEYS *").await;
        keys.retain(|key| !key.contains("dlock_who:"));
        keys.sort_unstable();
        keys
    }

    /// Ends all subscriptions and sends a command, in one step. No client can subscribe again
    /// before the command.
    pub(crate) async fn unsubscribe_and_send(&self, command: &str) {
        unsubscribe_and_send(&mut self.raw.clone(), command).await;
    }

    /// Waits until a client subscribes to a channel.
    pub(crate) async fn wait_for_subscriber(&self, channel: &str) {
        let subscribed = async {
            while self.query::<(String, u64)>(&format!("PUBSUB NUMSUB {channel}")).await.1 == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("no client subscribes", subscribed).await;
    }

    /// Returns the first two numbers of the server's version.
    pub(crate) async fn version(&self) -> (u32, u32) {
        let info: String = self.query("INFO server").await;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).expect("a version");
        let mut numbers = version.split('.').map(|number| number.parse().expect("numbers"));
        numbers.next().zip(numbers.next()).expect("two numbers")
    }

    /// Sends a command, and ignores its reply.
    pub(crate) async fn send(&self, command: &str) {
        self.query::<redis::Value>(command).await;
    }
}

/// Starts servers that a test may damage. `None` if there are none and none are required.
pub(crate) async fn servers(flavour: Flavour) -> Option<Running> {
    let running = or_ignore(start(Brand::Redis, flavour).await)?;
    running.own_server()?;
    Some(running)
}

/// Returns a server's reply to a command.
pub(crate) async fn query<T: FromRedisValue>(server: &Server, command: &str) -> T {
    let mut raw = raw(&format!("redis://{}", server.address())).await;
    parse_command(command).query_async(&mut raw).await.unwrap_or_else(|error| panic!("{command}: {error}"))
}

/// Waits until the replica has all data of the primary.
pub(crate) async fn replicated(primary: &Server) {
    let mut raw = raw(&format!("redis://{}", primary.address())).await;
    parse_command("SET marker 1").exec_async(&mut raw).await.expect("writable");
    let replicas: u32 = parse_command("WAIT 1 5000").query_async(&mut raw).await.expect("answered");
    assert_eq!(replicas, 1, "the replica does not follow");
}

/// Does the same as [`Bench::unsubscribe_and_send`], on any server.
pub(crate) async fn unsubscribe_and_send(raw: &mut MultiplexedConnection, command: &str) {
    let mut commands = redis::pipe();
    commands
        .atomic()
        .add_command(parse_command("CLIENT KILL TYPE pubsub"))
        .add_command(parse_command(command));
    commands.exec_async(raw).await.unwrap_or_else(|error| panic!("{command}: {error}"));
}

/// Opens a connection for single commands.
pub(crate) async fn raw(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("a URL");
    // The client crate's timeout of half a second is short for a busy machine, and a WAIT may take
    // longer.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(10)))
        .set_response_timeout(Some(Duration::from_secs(30)));
    client.get_multiplexed_async_connection_with_config(&config).await.expect("the server is running")
}

/// Returns a command. Its words are separated by blanks.
pub(crate) fn parse_command(command: &str) -> Cmd {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().expect("a command"));
    words.for_each(|word| {
        cmd.arg(word);
    });
    cmd
}

/// Returns a name that no other test uses.
pub(crate) fn unique() -> String {
    format!("t-{}", ClaimId::random())
}

/// Creates a claim without the engine, so that each step is one call. Returns it with the name of
/// its owner on the server.
pub(crate) fn claim(store: &Store, name: &str, kind: Kind, ttl: u64, wait: Wait) -> (Box<dyn Claim>, String) {
    let name = LockName::new(name).expect("a legal name");
    let request = Request::new(name, kind, Duration::from_millis(ttl)).wait(wait);
    let owner = format!("{}:0", request.id);
    (store.backend.claim(request), owner)
}

/// Returns the token of an attempt.
///
/// # Panics
/// If the attempt was not granted.
pub(crate) fn granted(attempt: Result<Attempt>) -> u64 {
    match attempt {
        Ok(Attempt::Granted(grant)) => grant.token.expect("Redis has tokens").get(),
        other => panic!("not granted: {other:?}"),
    }
}

/// Returns the time until the next attempt.
///
/// # Panics
/// If the lock was not busy.
pub(crate) fn busy(attempt: Result<Attempt>) -> Duration {
    match attempt {
        Ok(Attempt::Busy { retry_in }) => retry_in,
        other => panic!("not busy: {other:?}"),
    }
}

/// Returns the texts of an error and its sources, for people (`Display`) and for logs (`Debug`).
pub(crate) fn error_text(error: &dyn std::error::Error) -> String {
    let mut text = format!("{error}\n{error:?}\n");
    if let Some(source) = error.source() {
        text += &error_text(source);
    }
    text
}

/// Waits for a future for at most five seconds.
///
/// # Panics
/// With `problem` after that time.
pub(crate) async fn soon<T>(problem: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(5), wait).await.unwrap_or_else(|_| panic!("{problem}"))
}

/// A subscription to a channel.
pub(crate) struct Subscription(redis::aio::PubSub);

impl Subscription {
    pub(crate) async fn to(url: &str, channel: &str) -> Self {
        let mut subscription =
            redis::Client::open(url).expect("a URL").get_async_pubsub().await.expect("the server is running");
        subscription.subscribe(channel).await.expect("the user may subscribe");
        Self(subscription)
    }

    /// Waits for the next message.
    pub(crate) async fn next(&mut self) -> String {
        let mut messages = self.0.on_message();
        let message = soon("nothing was published", messages.next()).await.expect("connected");
        message.get_payload().expect("text")
    }

    /// Returns whether no message was published before this call.
    pub(crate) async fn is_silent(&mut self, bench: &Bench) -> bool {
        // Messages of a channel arrive in order, so `end` arrives after all earlier ones.
        let channels: Vec<String> = bench.query("PUBSUB CHANNELS *").await;
        for channel in channels {
            bench.send(&format!("PUBLISH {channel} end")).await;
        }
        self.next().await == "end"
    }
}
