//! The store as its users and the engine see it.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Kind, LockName, LockState, Result,
    driver::{Backend, Claim, Driver, Info, Inspect, Request, Store, StoreUrl},
};

use crate::{
    claim::MysqlClaim,
    client::Client,
    config::{Mode, MysqlConfig},
    connection::Connection,
    error::STORE,
    inspect,
    keys::KINDS,
    named::{Named, NamedClaim},
};

/// `mysql://` and `mariadb://`, which mean the same.
pub const DRIVER: Driver = Driver { schemes: &["mysql", "mariadb"], connect: |url| Box::pin(connect(url)) };

/// A client of a MySQL or MariaDB store. Clones are the same client. Its sessions end when the last clone and the last claim are
/// dropped.
#[derive(Clone)]
pub struct MysqlBackend {
    client: Arc<Client>,
    /// Where locks are named locks of the server.
    named: Option<Arc<Named>>,
}

impl MysqlBackend {
    /// Connects, and makes the tables if they are not there.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a file that cannot be read;
    /// [`Refused`](dlock_core::Error::Refused) for a wrong password, a database that is not there, missing rights, or tables of a
    /// later version; [`Unwritable`](dlock_core::Error::Unwritable) if no host takes writes;
    /// [`Unavailable`](dlock_core::Error::Unavailable) if none can be reached within the time of a call.
    ///
    /// # Cancel safety
    /// Safe. After the future was dropped, the tables may be there.
    pub async fn connect(config: MysqlConfig) -> Result<Self> {
        let connection = Connection::open(&config).await?;
        let info = info(&config);
        let client = Arc::new(Client::new(connection, &config, info));
        let named = match config.mode {
            Mode::Queue => None,
            Mode::Session(names) => {
                Some(Arc::new(Named::new(config, names, Arc::clone(&client.connection))?))
            }
        };
        Ok(Self { client, named })
    }

    /// The store with all its abilities.
    pub fn into_store(self) -> Store {
        let store = Store::new(Arc::new(self.clone()));
        store.with_inspect(Arc::new(self))
    }
}

impl fmt::Debug for MysqlBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlBackend").field(&self.client.info.identity).finish()
    }
}

impl Backend for MysqlBackend {
    fn info(&self) -> &Info {
        &self.client.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        match &self.named {
            None => Box::new(MysqlClaim::new(Arc::clone(&self.client), request)),
            Some(named) => Box::new(NamedClaim::new(Arc::clone(named), request)),
        }
    }
}

#[async_trait]
impl Inspect for MysqlBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        match &self.named {
            Some(named) => named.inspect(name).await,
            None => inspect::inspect(&self.client, name).await,
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        match &self.named {
            Some(named) => named.list(prefix).await,
            None => inspect::list(&self.client, prefix).await,
        }
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        match &self.named {
            Some(named) => named.force_release(name).await,
            None => inspect::force_release(&self.client, name).await,
        }
    }
}

/// The longest ttl of a named lock: the server takes silence for no longer than a year.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn info(config: &MysqlConfig) -> Info {
    if config.mode != Mode::Queue {
        // The server counts whole seconds.
        return Info::new(STORE.store(), config.identity())
            .kinds(&[Kind::Mutex, Kind::Fair])
            .tokens(true)
            .ttl(Duration::from_secs(1)..=YEAR);
    }
    Info::new(STORE.store(), config.identity())
        .kinds(KINDS)
        .tokens(true)
        .detaches(true)
        // So that an attempt waits for few others, and none for longer than a call may take.
        .attempts_in_flight(config.connections * 8)
        .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
        // With a shorter ttl, commits on a busy disk would often take longer than the ttl.
        .ttl(Duration::from_millis(10)..=Duration::from_secs(10 * 365 * 24 * 3600))
}

async fn connect(url: StoreUrl) -> Result<Store> {
    let config = MysqlConfig::from_url(&url)?;
    MysqlBackend::connect(config).await.map(MysqlBackend::into_store)
}
