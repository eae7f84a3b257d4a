//! The store as its users and the engine see it.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Backend, Claim, ClaimId, Driver, Info, Inspect, Kind, LockName, LockState, Request, Result, Store,
    StoreUrl,
};

use crate::{
    bell::Bells,
    claim::SqliteClaim,
    config::SqliteConfig,
    connection::{Access, Connection, Tx},
    error::STORE,
    host, inspect,
    queue::{Client, Place},
    thread::Thread,
};

/// `sqlite:relative.db` and `sqlite:///absolute.db`.
pub const DRIVER: Driver = Driver { schemes: &[STORE], connect: |url| Box::pin(connect(url)) };

/// A client of the store in one file. Clones are the same client; it ends with the last of them and of their claims.
#[derive(Clone)]
pub struct SqliteBackend {
    shared: Arc<Shared>,
}

/// What the claims of one client share.
pub(crate) struct Shared {
    pub(crate) me: Client,
    pub(crate) bells: Bells,
    connection: Connection,
    info: Info,
    pub(crate) thread: Thread,
}

impl SqliteBackend {
    /// Connects to the store in a file, and makes it if there is none.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a path that cannot be a store's;
    /// [`Store`](dlock_core::Error::Store) and [`Unavailable`](dlock_core::Error::Unavailable) from SQLite.
    ///
    /// # Cancel safety
    /// Safe: the file may have been made.
    pub async fn connect(config: SqliteConfig) -> Result<Self> {
        let connection = Connection::new(config.resolve()?);
        let thread = Thread::start()?;
        let connection = thread.run(async move {
            connection.begin(Access::Read).await?.commit().await?;
            Ok(connection)
        });
        let connection = connection.await?;
        // Now that it is there: under the one name that all links lead to.
        let path = connection.path().canonicalize().unwrap_or_else(|_| connection.path().to_owned());
        let me = Client { id: ClaimId::random(), pid: std::process::id(), host: host::name() };
        let (bells, info) = (Bells::new(&path, me.id, thread.handle()), info(&path));
        let backend = Self { shared: Arc::new(Shared { me, bells, connection, info, thread }) };
        for dead in backend.shared.bells.dead() {
            let shared = Arc::clone(&backend.shared);
            backend.shared.thread.run(async move { shared.bury(dead).await }).await?;
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
        f.debug_tuple("SqliteBackend").field(&self.shared.info.identity).finish()
    }
}

impl Backend for SqliteBackend {
    fn info(&self) -> &Info {
        &self.shared.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(SqliteClaim::new(Arc::clone(&self.shared), request))
    }
}

#[async_trait]
impl Inspect for SqliteBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        let (shared, name) = (Arc::clone(&self.shared), name.clone());
        self.shared.thread.run(async move { inspect::inspect(&shared, &name).await }).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let (shared, prefix) = (Arc::clone(&self.shared), prefix.to_owned());
        self.shared.thread.run(async move { inspect::list(&shared, &prefix).await }).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        let (shared, name) = (Arc::clone(&self.shared), name.clone());
        self.shared.thread.run(async move { inspect::force_release(&shared, &name).await }).await
    }
}

impl Shared {
    pub(crate) async fn begin(&self, access: Access) -> Result<Tx<'_>> {
        self.connection.begin(access).await
    }

    /// Makes a transaction so, and rings those whom it concerns: also if it is unknown whether it is so.
    pub(crate) async fn commit(&self, tx: Tx<'_>, bells: Vec<Place>) -> Result<()> {
        let outcome = tx.commit().await;
        self.bells.ring(bells.into_iter().map(|place| (place.client, place.entry.id)));
        outcome
    }

    /// Removes the claims of a client that is dead, and then what shows that it is.
    pub(crate) async fn bury(&self, dead: ClaimId) -> Result<()> {
        let (mut tx, mut bells) = (self.begin(Access::Write).await?, Vec::new());
        tx.bury_client(dead, &mut bells).await?;
        self.commit(tx, bells).await?;
        self.bells.take_down(dead);
        Ok(())
    }
}

fn info(path: &Path) -> Info {
    Info {
        store: STORE,
        identity: format!("{STORE}:{}", path.display()),
        kinds: Kind::ALL,
        tokens: true,
        downgrades: true,
        // The shortest that a busy disk does not outlast at every commit.
        ttl: Duration::from_millis(10)..=Duration::from_secs(10 * 365 * 24 * 3600),
    }
}

async fn connect(url: StoreUrl) -> Result<Store> {
    let config = SqliteConfig::from_url(&url)?;
    SqliteBackend::connect(config).await.map(SqliteBackend::into_store)
}
