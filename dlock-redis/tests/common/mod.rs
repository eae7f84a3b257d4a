//! A store for a test binary, and a plain client beside dlock's. A few lines over the usual length: most test binaries use it.
#![allow(dead_code, reason = "each test binary uses a part")]

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

/// The kinds that Redisson has too.
pub(crate) const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

/// A client of the store that a URL names.
pub(crate) async fn connect(url: &str) -> Result<Store> {
    (DRIVER.connect)(url.parse()?).await
}

/// One server for a test, and a connection that speaks to it by hand.
pub(crate) struct Bench {
    pub(crate) running: Running,
    pub(crate) raw: MultiplexedConnection,
}

impl Bench {
    /// A server for a test; `None` if there is no Redis and none is required.
    pub(crate) async fn new() -> Option<Self> {
        let running = or_ignore(start(Brand::Redis, Flavour::Standalone).await)?;
        let raw = raw(running.url()).await;
        Some(Self { running, raw })
    }

    /// A new client, as from another process.
    pub(crate) async fn locks(&self, params: &str) -> Locks {
        let url = format!("{}?{params}", self.running.url());
        let store = connect(&url).await.expect("the server is there");
        Locks::new(store).with_defaults(LockOptions::new().ttl(Duration::from_secs(30)))
    }

    /// A new client's store, as the engine sees it.
    pub(crate) async fn store(&self, params: &str) -> Store {
        connect(&format!("{}?{params}", self.running.url())).await.expect("the server is there")
    }

    /// The answer to a command.
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &str) -> T {
        words(command)
            .query_async(&mut self.raw.clone())
            .await
            .unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// How often a command was called.
    pub(crate) async fn calls(&self, command: &str) -> u64 {
        let stats: String = self.ask("INFO commandstats").await;
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")).map(str::to_owned));
        line.map_or(0, |line| line.split(',').next().expect("a number").parse().expect("a number"))
    }

    /// All keys in order, without those that say who holds.
    pub(crate) async fn all_keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask("KEYS *").await;
        keys.retain(|key| !key.contains("dlock_who:"));
        keys.sort_unstable();
        keys
    }

    /// Ends all subscriptions and sends a command, in one step, so that nobody can subscribe anew in between.
    pub(crate) async fn unheard(&self, command: &str) {
        unheard(&mut self.raw.clone(), command).await;
    }

    /// Waits until somebody listens to a channel.
    pub(crate) async fn until_heard(&self, channel: &str) {
        let heard = async {
            while self.ask::<(String, u64)>(&format!("PUBSUB NUMSUB {channel}")).await.1 == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("nobody listens", heard).await;
    }

    /// The first two numbers of the server's version.
    pub(crate) async fn version(&self) -> (u32, u32) {
        let about: String = self.ask("INFO server").await;
        let version = about.lines().find_map(|line| line.strip_prefix("redis_version:")).expect("a version");
        let mut numbers = version.split('.').map(|number| number.parse().expect("numbers"));
        numbers.next().zip(numbers.next()).expect("two of them")
    }

    /// Sends a command.
    pub(crate) async fn tell(&self, command: &str) {
        self.ask::<redis::Value>(command).await;
    }
}

/// Servers that a test may do harm to; `None` if there are none and none are required.
pub(crate) async fn servers(flavour: Flavour) -> Option<Running> {
    let running = or_ignore(start(Brand::Redis, flavour).await)?;
    running.own_server()?;
    Some(running)
}

/// A server's answer to a command.
pub(crate) async fn ask<T: FromRedisValue>(server: &Server, command: &str) -> T {
    let mut raw = raw(&format!("redis://{}", server.address())).await;
    words(command).query_async(&mut raw).await.unwrap_or_else(|error| panic!("{command}: {error}"))
}

/// Waits until the replica has all that the primary has written.
pub(crate) async fn replicated(primary: &Server) {
    let mut raw = raw(&format!("redis://{}", primary.address())).await;
    words("SET marker 1").exec_async(&mut raw).await.expect("writable");
    let replicas: u32 = words("WAIT 1 5000").query_async(&mut raw).await.expect("answered");
    assert_eq!(replicas, 1, "the replica does not follow");
}

/// As [`Bench::unheard`], on any server.
pub(crate) async fn unheard(raw: &mut MultiplexedConnection, command: &str) {
    let mut both = redis::pipe();
    both.atomic().add_command(words("CLIENT KILL TYPE pubsub")).add_command(words(command));
    both.exec_async(raw).await.unwrap_or_else(|error| panic!("{command}: {error}"));
}

/// A connection for commands by hand.
pub(crate) async fn raw(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("a URL");
    // The client crate's time-out of half a second is short for a busy machine, and a WAIT may take longer.
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(10)))
        .set_response_timeout(Some(Duration::from_secs(30)));
    client.get_multiplexed_async_connection_with_config(&patient).await.expect("the server is there")
}

/// A command of words with blanks between.
pub(crate) fn words(command: &str) -> Cmd {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().expect("a command"));
    words.for_each(|word| {
        cmd.arg(word);
    });
    cmd
}

/// A name that nobody else uses.
pub(crate) fn unique() -> String {
    format!("t-{}", ClaimId::random())
}

/// A claim without the engine, so that each step is one call, and its owner.
pub(crate) fn claim(store: &Store, name: &str, kind: Kind, ttl: u64, wait: Wait) -> (Box<dyn Claim>, String) {
    let name = LockName::new(name).expect("a legal name");
    let request = Request::new(name, kind, Duration::from_millis(ttl)).wait(wait);
    let owner = format!("{}:0", request.id);
    (store.backend.claim(request), owner)
}

/// The token of an attempt. Fails if the attempt was not granted.
pub(crate) fn granted(attempt: Result<Attempt>) -> u64 {
    match attempt {
        Ok(Attempt::Granted(grant)) => grant.token.expect("Redis has tokens").get(),
        other => panic!("should be granted: {other:?}"),
    }
}

/// When to ask again after an attempt. Fails unless the lock was busy.
pub(crate) fn busy(attempt: Result<Attempt>) -> Duration {
    match attempt {
        Ok(Attempt::Busy { retry_in }) => retry_in,
        other => panic!("should be busy: {other:?}"),
    }
}

/// All that an error and its sources say, to people (`Display`) and in logs (`Debug`).
pub(crate) fn shown(error: &dyn std::error::Error) -> String {
    let mut all = format!("{error}\n{error:?}\n");
    if let Some(source) = error.source() {
        all += &shown(source);
    }
    all
}

/// Awaits what must end soon.
pub(crate) async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(5), wait).await.unwrap_or_else(|_| panic!("{what}"))
}

/// Listens to the messages of a channel from now on.
pub(crate) struct Ear(redis::aio::PubSub);

impl Ear {
    pub(crate) async fn on(url: &str, channel: &str) -> Self {
        let mut ear =
            redis::Client::open(url).expect("a URL").get_async_pubsub().await.expect("the server is there");
        ear.subscribe(channel).await.expect("nothing forbids it");
        Self(ear)
    }

    /// The next message.
    pub(crate) async fn next(&mut self) -> String {
        let mut messages = self.0.on_message();
        let message = soon("nothing was published", messages.next()).await.expect("connected");
        message.get_payload().expect("text")
    }

    /// Whether nothing was published before now.
    pub(crate) async fn is_silent(&mut self, bench: &Bench) -> bool {
        // Messages of a channel come in order: `end` comes behind all that was published before.
        let channel: Vec<String> = bench.ask("PUBSUB CHANNELS *").await;
        for channel in channel {
            bench.tell(&format!("PUBLISH {channel} end")).await;
        }
        self.next().await == "end"
    }
}
