//! The store as its users and the engine see it.

use std::{
    fmt,
    path::Path,
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Kind, LockName, LockState, Result,
    driver::{Backend, Claim, Driver, Info, Inspect, Request, Store, StoreUrl},
};
use tokio::time::Instant;

use crate::{
    bell::{Bells, Dir},
    claim::SqliteClaim,
    client::Client,
    config::SqliteConfig,
    connection::{
        Connection, PATIENCE,
        schema::{self, Site},
        thread::Thread,
    },
    error::{self, STORE},
    files,
    gate::Gate,
    host, inspect, keys,
    queue::Signature,
};

/// `sqlite:relative.db` and `sqlite:///absolute.db`.
pub const DRIVER: Driver = Driver { schemes: &[STORE.store()], connect: |url| Box::pin(connect(url)) };

/// How long a connecting client waits while other clients make or open the file. It may wait longer than a call, because it
/// holds no lock yet that it could lose meanwhile.
const OPENING: Duration = Duration::from_secs(30);

/// A client of the store in one file. Clones share one client, which ends when the last clone and the last of its claims
/// are dropped.
#[derive(Clone)]
pub struct SqliteBackend {
    client: Arc<Client>,
}

impl SqliteBackend {
    /// Connects to the store in a file, and makes it if there is none.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a path that cannot be a store's;
    /// [`Refused`](dlock_core::Error::Refused) and [`Unavailable`](dlock_core::Error::Unavailable) from SQLite.
    ///
    /// # Cancel safety
    /// Safe. After the future was dropped, the file may be there.
    pub async fn connect(config: SqliteConfig) -> Result<Self> {
        let path = config.resolve()?;
        files::make(&path)?;
        let circle = files::check(&path)?;
        let thread = Thread::start()?;
        let me = Signature { id: ClaimId::random(), pid: std::process::id(), host: host::name() };
        if path.metadata().is_ok_and(|found| found.len() > 0) && !Dir::path_of(&path).exists() {
            let (path, limit) = (path.clone(), Instant::now() + PATIENCE);
            thread.run(async move { schema::check(&path, limit).await }).await?;
        }
        let bells = Dir::open(&path, &circle)?.map(Arc::new);
        let gate = Gate::new(bells.clone(), &path);
        let site = Site { path: path.clone(), gate, bells: bells.clone(), me: me.id };
        let connection = thread.run_within(OPENING + PATIENCE * 2, async move {
            let connection = Connection::new(site);
            connection.open(OPENING).await.map(|()| connection)
        });
        let connection = connection.await?;
        let (bells, info) = (Bells::new(bells, me.id, thread.handle()), info(&path));
        let backend = Self {
            client: Arc::new(Client { me, bells, connection, info, asked: AtomicU32::new(0), thread }),
        };
        let dead = backend.client.bells.some_dead();
        if !dead.is_empty() {
            let client = Arc::clone(&backend.client);
            match backend.client.thread.run(async move { client.bury(&dead).await }).await {
                // The file is busy. Clients that wait for locks of the dead clients remove those claims later.
                Err(error) if error::is_busy(&error) => {}
                outcome => outcome?,
            }
        }
        Ok(backend)
    }

    /// The store with all its abilities.
    pub fn into_store(self) -> Store {
        Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self))
    }
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteBackend").field(&self.client.info.identity).finish()
    }
}

impl Backend for SqliteBackend {
    fn info(&self) -> &Info {
        &self.client.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(SqliteClaim::new(Arc::clone(&self.client), request))
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
        .kinds(keys::KINDS)
        .tokens(true)
        .detaches(true)
        .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
        // With a shorter ttl, commits on a busy disk would often take longer than the ttl.
        .ttl(Duration::from_millis(10)..=Duration::from_secs(10 * 365 * 24 * 3600))
}

async fn connect(url: StoreUrl) -> Result<Store> {
    let config = SqliteConfig::from_url(&url)?;
    SqliteBackend::connect(config).await.map(SqliteBackend::into_store)
}
