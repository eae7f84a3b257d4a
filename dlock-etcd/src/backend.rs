//! The backend and its capabilities, and the driver for the URL schemes `etcd` and `etcds`.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Contender, Kind, LockName, LockState, Result,
    driver::{AttemptAll, Backend, Claim, Driver, Info, Inspect, Request, Store, StoreUrl, Watch},
};

use crate::{
    claim::{self, EtcdClaim},
    client::{ATTEMPTS_IN_FLIGHT, Client, RELEASES_IN_FLIGHT, REPEATS_IN_FLIGHT},
    config::EtcdConfig,
    connection::Connection,
    error::STORE,
    inspect,
    session::{KEEP_ALIVES_PER_TTL, Session},
    wake::ObservedQueue,
};

/// Driver for URLs with the schemes `etcd` and `etcds`.
pub const DRIVER: Driver = Driver::new(&["etcd", "etcds"], |url| Box::pin(connect(url)));

async fn connect(url: StoreUrl) -> Result<Store> {
    EtcdBackend::connect(EtcdConfig::from_url(&url)?).await.map(EtcdBackend::into_store)
}

/// A client of an etcd cluster. Clones share one connection, one lease and one stream of watches.
#[derive(Clone)]
pub struct EtcdBackend {
    client: Arc<Client>,
}

const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];

/// Minimum ttl. A call may take a third of it, and during a call the cluster writes to disk.
const MIN_TTL: Duration = Duration::from_millis(100);

/// Maximum time for which a hold can be detached, or taken without renewals.
const MAX_HOLD: Duration = Info::MAX_TTL;

impl EtcdBackend {
    /// Connects, and opens the client's session.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a file that cannot be read,
    /// [`Refused`](dlock_core::Error::Refused) for a wrong or missing login, and
    /// [`Unavailable`](dlock_core::Error::Unavailable) if no member replies in time, or if the
    /// cluster has no quorum for twice the timeout.
    ///
    /// # Cancel safety
    /// Safe. Dropping the future ends the attempt. A lease may stay until its ttl is over.
    pub async fn connect(config: EtcdConfig) -> Result<Self> {
        let connection = Arc::new(Connection::new(&config)?);
        let open = Session::open(Arc::clone(&connection), config.session, config.timeout);
        let session = Arc::new(open.await?);
        let granted = session.granted_ttl();
        let info = Info::new(STORE.store(), config.identity())
            .kinds(KINDS)
            .tokens(true)
            .detaches(true)
            .locks_per_step(claim::MAX_LOCKS_PER_STEP)
            .attempts_in_flight(ATTEMPTS_IN_FLIGHT)
            .repeats_in_flight(REPEATS_IN_FLIGHT)
            .releases_in_flight(RELEASES_IN_FLIGHT)
            .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
            .ttl(MIN_TTL..=granted - granted / KEEP_ALIVES_PER_TTL)
            .session(granted, MIN_TTL..=MAX_HOLD);
        Ok(Self { client: Arc::new(Client::new(config, info, connection, session)) })
    }

    /// Returns the store with [`Inspect`].
    pub fn into_store(self) -> Store {
        Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self))
    }
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdBackend").field(&self.client.info.identity).finish()
    }
}

#[async_trait]
impl Backend for EtcdBackend {
    fn info(&self) -> &Info {
        &self.client.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(EtcdClaim::new(Arc::clone(&self.client), request))
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        claim::attempt_all(&self.client, requests).await
    }

    fn watch(&self, name: &LockName) -> Option<Box<dyn Watch>> {
        Some(Box::new(ObservedQueue::new(&self.client, name)?))
    }

    async fn close(&self) {
        // If no member replies, the lease expires by itself.
        let _ = STORE.with_timeout(self.client.config.timeout, self.client.session.close()).await;
    }
}

#[async_trait]
impl Inspect for EtcdBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        inspect::inspect(&self.client, name).await
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Contender>> {
        inspect::holder(&self.client, name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        inspect::list(&self.client, prefix).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        inspect::force_release(&self.client, name).await
    }
}
