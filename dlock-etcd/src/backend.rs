//! The store as its users and the engine see it.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Kind, LockName, LockState, Result,
    driver::{AttemptAll, Backend, Claim, Driver, Info, Inspect, Request, Store, StoreUrl},
};

use crate::{
    claim::{self, EtcdClaim},
    client::{ATTEMPTS_IN_FLIGHT, BEATS, Client, Session},
    config::EtcdConfig,
    connection::Connection,
    error::STORE,
    inspect,
};

/// `etcd://` and `etcds://`.
pub const DRIVER: Driver = Driver { schemes: &["etcd", "etcds"], connect: |url| Box::pin(connect(url)) };

async fn connect(url: StoreUrl) -> Result<Store> {
    EtcdBackend::connect(EtcdConfig::from_url(&url)?).await.map(EtcdBackend::into_store)
}

/// A client of an etcd cluster. Clones are the same client: one connection, one lease, one stream of watches.
#[derive(Clone)]
pub struct EtcdBackend {
    client: Arc<Client>,
}

const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit];

/// The shortest ttl. A call may take a third of it, and a cluster writes to disk meanwhile.
const LEAST_TTL: Duration = Duration::from_millis(100);

/// The longest time for which a hold can be detached, or taken without renewals.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

impl EtcdBackend {
    /// Connects, and opens the client's session.
    ///
    /// # Errors
    /// [`InvalidConfig`](dlock_core::Error::InvalidConfig) for a file that cannot be read;
    /// [`Refused`](dlock_core::Error::Refused) for a login that is wrong or missing;
    /// [`Unavailable`](dlock_core::Error::Unavailable) if no member answers in time, or the cluster has no quorum.
    ///
    /// # Cancel safety
    /// Safe: dropping the future ends the attempt. A lease may stay until its time is over.
    pub async fn connect(config: EtcdConfig) -> Result<Self> {
        let connection = Arc::new(Connection::new(&config)?);
        let open = Session::open(Arc::clone(&connection), config.session);
        let session = Arc::new(STORE.with_timeout(config.timeout, open).await?);
        let granted = session.granted();
        let info = Info::new(STORE.store(), config.identity())
            .kinds(KINDS)
            .tokens(true)
            .detaches(true)
            .locks_per_step(claim::MOST_TOGETHER)
            .attempts_in_flight(ATTEMPTS_IN_FLIGHT)
            .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
            .ttl(LEAST_TTL..=granted - granted / BEATS)
            .session(granted, LEAST_TTL..=LONGEST);
        Ok(Self { client: Arc::new(Client::new(config, info, connection, session)) })
    }

    /// The store with all its abilities.
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

    async fn close(&self) {
        // If nobody answers, the lease ends by itself.
        let _ = STORE.with_timeout(self.client.config.timeout, self.client.session.close()).await;
    }
}

#[async_trait]
impl Inspect for EtcdBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        inspect::inspect(&self.client, name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        inspect::list(&self.client, prefix).await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        inspect::force_release(&self.client, name).await
    }
}
