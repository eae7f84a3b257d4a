//! The store as its users and the engine see it.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
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
    config::SqliteConfig,
    connection::{Access, Connection, PATIENCE, Tx},
    error::{self, STORE},
    files,
    gate::Gate,
    host, inspect, keys,
    queue::{QueueRow, Signature},
    schema::{self, Site},
    thread::Thread,
};

/// `sqlite:relative.db` and `sqlite:///absolute.db`.
pub const DRIVER: Driver = Driver { schemes: &[STORE], connect: |url| Box::pin(connect(url)) };

/// How long a connecting client waits while other clients make or open the file. It may wait longer than a call, because it
/// holds no lock yet that it could lose meanwhile.
const OPENING: Duration = Duration::from_secs(30);

/// One in so many of a client's attempts also removes expired claims of other locks. Looking for them takes some
/// hundredths of a millisecond, so most attempts do not.
const SWEEP_EVERY: u32 = 8;

/// A client of the store in one file. Clones share one client, which ends when the last clone and the last of its claims
/// are dropped.
#[derive(Clone)]
pub struct SqliteBackend {
    shared: Arc<Client>,
}

/// What the claims of one client share.
pub(crate) struct Client {
    pub(crate) me: Signature,
    pub(crate) bells: Bells,
    connection: Connection,
    info: Info,
    /// How many attempts this client has made.
    asked: AtomicU32,
    pub(crate) thread: Thread,
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
            shared: Arc::new(Client { me, bells, connection, info, asked: AtomicU32::new(0), thread }),
        };
        let dead = backend.shared.bells.some_dead();
        if !dead.is_empty() {
            let shared = Arc::clone(&backend.shared);
            match backend.shared.thread.run(async move { shared.bury(&dead).await }).await {
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

impl Client {
    pub(crate) async fn begin(&self, access: Access) -> Result<Tx<'_>> {
        self.connection.begin(access).await
    }

    /// Counts an attempt, and tells whether it also removes expired claims of other locks: the first of a client does,
    /// and then every eighth.
    pub(crate) fn sweeps(&self) -> bool {
        self.asked.fetch_add(1, Relaxed) % SWEEP_EVERY == 0
    }

    /// Commits a transaction, then rings the claims that its changes concern. It rings them after an error too, because the
    /// transaction may have been committed all the same.
    pub(crate) async fn commit(&self, tx: Tx<'_>, bells: Vec<QueueRow>) -> Result<()> {
        let outcome = tx.commit().await;
        self.bells.ring(bells.into_iter().map(|place| (place.client, place.entry.id)));
        outcome
    }

    /// Removes the claims of dead clients, and then the FIFOs of these clients. In this order: the FIFO is what shows that a
    /// client is dead, so it must be there until the claims are gone.
    pub(crate) async fn bury(&self, dead: &[ClaimId]) -> Result<()> {
        let (mut tx, mut bells) = (self.begin(Access::Write).await?, Vec::new());
        for client in dead {
            tx.bury_client(*client, &mut bells).await?;
        }
        self.commit(tx, bells).await?;
        dead.iter().for_each(|client| self.bells.take_down(*client));
        Ok(())
    }
}

fn info(path: &Path) -> Info {
    Info::new(STORE, format!("{STORE}:{}", path.display()))
        .kinds(keys::KINDS)
        .tokens(true)
        .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
        // With a shorter ttl, commits on a busy disk would often take longer than the ttl.
        .ttl(Duration::from_millis(10)..=Duration::from_secs(10 * 365 * 24 * 3600))
}

async fn connect(url: StoreUrl) -> Result<Store> {
    let config = SqliteConfig::from_url(&url)?;
    SqliteBackend::connect(config).await.map(SqliteBackend::into_store)
}
