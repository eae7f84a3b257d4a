//! The driver, and the client of one file.

use std::{
    fmt,
    path::Path,
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Kind, LockName, LockState, Result,
    driver::{Backend, Batcher, Claim, Driver, Info, Inspect, Request, Store, StoreUrl},
};
use tokio::time::Instant;

use crate::{
    bell::{BellDir, Bells},
    check_in::Place,
    claim::SqliteClaim,
    client::{Client, Renewals},
    config::SqliteConfig,
    connection::{
        Connection, LOCK_TIMEOUT,
        schema::{self, StoreFile},
        thread::Thread,
    },
    error::{self, STORE},
    files,
    gate::Gate,
    host, inspect, keys,
    queue::ClientIdentity,
};

/// The driver for URLs such as `sqlite:relative.db` and `sqlite:///absolute.db`.
pub const DRIVER: Driver = Driver::new(&[STORE.store()], |url| Box::pin(connect(url)));

/// Time for which a connecting client waits while other clients create or open the file. It exceeds
/// the timeout of a call, because the client has no lock yet that it could lose during the wait.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of the store in one file. Clones share one client, which ends when the last clone and
/// the last claim are dropped.
#[derive(Clone)]
pub struct SqliteBackend {
    client: Arc<Client>,
    renewals: Arc<Batcher<Renewals>>,
}

impl SqliteBackend {
    /// Connects to the store in a file, and creates the file if it does not exist.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) if there cannot be a store at the path,
    /// or if the file must not be used as one. [`Refused`](dlock_core::Error::Refused) and
    /// [`Unavailable`](dlock_core::Error::Unavailable) for errors of SQLite.
    ///
    /// # Cancel safety
    /// Safe. The file may exist after the future was dropped.
    pub async fn connect(config: SqliteConfig) -> Result<Self> {
        let path = config.resolve()?;
        files::make(&path)?;
        let users = files::check(&path)?;
        let thread = Thread::start(&path)?;
        let me = ClientIdentity { id: ClaimId::random(), pid: std::process::id(), host: host::name() };
        if path.metadata().is_ok_and(|found| found.len() > 0) && !BellDir::path_of(&path).exists() {
            let (path, deadline) = (path.clone(), Instant::now() + LOCK_TIMEOUT);
            thread.run(async move { schema::check(&path, deadline).await }).await?;
        }
        let bells = BellDir::open(&path, &users)?.map(Arc::new);
        let gate = Gate::new(bells.clone(), &path);
        let file = StoreFile { path: path.clone(), gate, bells: bells.clone(), me: me.id };
        let connection = thread.run_within(OPEN_TIMEOUT + LOCK_TIMEOUT * 2, async move {
            let connection = Connection::new(file);
            connection.open(OPEN_TIMEOUT).await.map(|()| connection)
        });
        let connection = connection.await?;
        let (bells, info) = (Bells::new(bells, me.id, thread.handle()), info(&path));
        let client = Arc::new(Client { me, bells, connection, info, attempts: AtomicU32::new(0), thread });
        let renewals = Arc::new(Batcher::new(STORE, Renewals(Arc::clone(&client))));
        let backend = Self { client, renewals };
        let dead = backend.client.bells.find_dead_clients();
        if !dead.is_empty() {
            let client = Arc::clone(&backend.client);
            match backend.client.thread.run(async move { client.remove_dead(&dead).await }).await {
                // The claims of the dead clients are removed later by clients that wait for them.
                Err(error) if error::is_busy(&error) => {}
                result => result?,
            }
        }
        Ok(backend)
    }

    /// Returns the store with its inspection.
    pub fn into_store(self) -> Store {
        Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self))
    }
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteBackend").field(&self.client.info.identity).finish()
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    fn info(&self) -> &Info {
        &self.client.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(SqliteClaim::new(Arc::clone(&self.client), Arc::clone(&self.renewals), request))
    }

    /// Reads the wall clock of the host, which all clients of the file share.
    async fn clock(&self) -> Result<Duration> {
        Ok(host::clock::since_1970())
    }
}

#[async_trait]
impl Inspect for SqliteBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        let (client, name) = (Arc::clone(&self.client), name.clone());
        self.client.thread.run(async move { inspect::inspect(&client, &name).await }).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let (client, prefix) = (Arc::clone(&self.client), prefix.to_owned());
        self.client.thread.run(async move { inspect::list(&client, &prefix).await }).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        let (client, name) = (Arc::clone(&self.client), name.clone());
        self.client.thread.run(async move { inspect::force_release(&client, &name).await }).await
    }
}

fn info(path: &Path) -> Info {
    Info::new(STORE.store(), format!("{}:{}", STORE.store(), path.display()))
        .driver_data(Place::new(path))
        .kinds(keys::KINDS)
        .tokens(true)
        .detaches(true)
        .clock(true)
        .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
        // A file has one writer at a time. More transactions would only delay the renewals, which wait
        // for their turn behind them.
        .attempts_in_flight(32)
        .releases_in_flight(32)
        // Commits on a busy disk would often take longer than a shorter ttl.
        .ttl(Duration::from_millis(10)..=Info::MAX_TTL)
}

async fn connect(url: StoreUrl) -> Result<Store> {
    let config = SqliteConfig::from_url(&url)?;
    SqliteBackend::connect(config).await.map(SqliteBackend::into_store)
}
