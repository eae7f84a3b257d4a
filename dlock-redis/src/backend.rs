//! The store as its users and the engine see it.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use dlock_core::{
    Kind, LockName, LockState, Result,
    driver::{Backend, Claim, Driver, Gathering, Info, Inspect, Request, Store, StoreUrl},
};

use crate::{
    claim::RedisClaim,
    config::{Dialect, RedisConfig},
    connection::Connection,
    error::STORE,
    inspect,
    keys::Keys,
    redlock,
    renewal::Renewals,
    script::{PLAIN_RENEW, RENEW},
    server,
};

/// `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://`, `redis-cluster://` and `redis+redlock://`.
pub const DRIVER: Driver = Driver {
    schemes: &["redis", "rediss", "redis+unix", "redis+sentinel", "redis-cluster", "redis+redlock"],
    connect: |url| Box::pin(connect(url)),
};

/// A client of a Redis or Valkey. Clones are the same client; its connections end with the last of them and of their
/// claims.
#[derive(Clone)]
pub struct RedisBackend {
    shared: Arc<Shared>,
}

/// What the claims of one client share.
pub(crate) struct Shared {
    pub(crate) config: RedisConfig,
    pub(crate) connection: Arc<Connection>,
    pub(crate) renewals: Gathering<Renewals>,
    pub(crate) info: Info,
}

impl RedisBackend {
    /// Connects.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a certificate that cannot be read;
    /// [`Refused`](dlock_core::Error::Refused) for a password that is wrong or a server that is too old;
    /// [`Unavailable`](dlock_core::Error::Unavailable) if it cannot be reached within the time of a command.
    ///
    /// # Cancel safety
    /// Safe: dropping the future ends the attempt.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        let connection = Arc::new(Connection::open(&config).await?);
        server::check(&connection).await?;
        Ok(Self::on(connection, config))
    }

    /// Connects when it is first asked, unless it is a cluster.
    pub(crate) fn later(config: RedisConfig) -> Result<Self> {
        Ok(Self::on(Arc::new(Connection::later(&config)?), config))
    }

    fn on(connection: Arc<Connection>, config: RedisConfig) -> Self {
        let script = if config.dialect == Dialect::Plain { &PLAIN_RENEW } else { &RENEW };
        let (renewals, info) = (Renewals::new(Arc::clone(&connection), script), info(&config));
        let renewals = Gathering::new(STORE, renewals);
        Self { shared: Arc::new(Shared { config, connection, renewals, info }) }
    }

    /// The store with all its abilities.
    pub fn into_store(self) -> Store {
        Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self))
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisBackend").field(&self.shared.info.identity).finish()
    }
}

impl Backend for RedisBackend {
    fn info(&self) -> &Info {
        &self.shared.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(RedisClaim::new(Arc::clone(&self.shared), request))
    }
}

#[async_trait]
impl Inspect for RedisBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        inspect::inspect(&self.shared, name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        inspect::list(&self.shared, prefix).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        inspect::force_release(&self.shared, name).await
    }
}

impl Shared {
    pub(crate) fn keys(&self, name: &LockName) -> Keys {
        let of = if self.connection.is_cluster() { Keys::on_cluster } else { Keys::new };
        of(&self.config.prefix, name)
    }
}

fn info(config: &RedisConfig) -> Info {
    let plain = config.dialect == Dialect::Plain;
    let info = Info::new(STORE.store(), config.identity());
    // A mutex is a hash like Redisson's, and no read lock of Redisson's can take its place.
    if plain {
        return info;
    }
    info.kinds(&[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write]).tokens(true).downgrades(&[Kind::Write])
}

async fn connect(url: StoreUrl) -> Result<Store> {
    if url.scheme() == "redis+redlock" {
        return redlock::connect(url).await;
    }
    let config = RedisConfig::from_url(&url)?;
    RedisBackend::connect(config).await.map(RedisBackend::into_store)
}
