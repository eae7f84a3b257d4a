//! The backend: its capabilities, its claims and the inspection of its locks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock::{
    Contender, Kind, LockName, LockState, Result, Token,
    driver::{Backend, Claim, Driver, Info, Inspect, Moment, Request, Store, StoreUrl, Turn, turn},
};

use crate::{
    claim::FolderClaim,
    config::FolderConfig,
    error::{self, STORE},
    table::{Folder, KINDS, Table},
};

/// The driver of `folder:` URLs, such as `folder:/srv/locks`.
pub const DRIVER: Driver = Driver::new(&[STORE], |url| Box::pin(connect(url)));

async fn connect(url: StoreUrl) -> Result<Store> {
    Ok(FolderBackend::connect(&FolderConfig::from_url(&url)?)?.into_store())
}

/// A client of the store in a folder. Clones are the same client.
#[derive(Clone, Debug)]
pub struct FolderBackend(Arc<Client>);

/// State that all claims of a client share.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) folder: Folder,
    /// Maximum duration of one call.
    pub(crate) timeout: Duration,
    info: Info,
}

impl FolderBackend {
    /// Opens the folder. Creates it if it does not exist.
    ///
    /// # Errors
    /// [`Refused`](dlock::Error::Refused) if the folder cannot be created or read.
    pub fn connect(config: &FolderConfig) -> Result<Self> {
        let folder = Folder::open(&config.folder)?;
        // The canonical path, so that two spellings of one folder have the same identity.
        let info = Info::new(STORE, format!("{STORE}:{}", folder.path().display()))
            .kinds(KINDS)
            .tokens(true)
            .detaches(true)
            .downgrades(&[Kind::Mutex, Kind::Fair, Kind::Write])
            // A step takes at most a third of the ttl. On a busy disk it needs the 100 ms that the
            // shortest ttl allows.
            .ttl(Duration::from_millis(300)..=Duration::from_secs(365 * 24 * 3600));
        Ok(Self(Arc::new(Client { folder, timeout: config.timeout, info })))
    }

    /// Returns the store with all its capabilities.
    pub fn into_store(self) -> Store {
        Store::new(Arc::new(self.clone())).with_inspect(Arc::new(self))
    }

    /// Runs `read` on a blocking thread, for at most the timeout.
    async fn inspect_with<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Folder, Moment) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (client, deadline) = (Arc::clone(&self.0), Moment::now().after(self.0.timeout * 9 / 10));
        let reading = tokio::task::spawn_blocking(move || read(&client.folder, deadline));
        match tokio::time::timeout(self.0.timeout, reading).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(error::timed_out()),
        }
    }
}

impl Backend for FolderBackend {
    fn info(&self) -> &Info {
        &self.0.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        Box::new(FolderClaim { client: Arc::clone(&self.0), request, ticket: None })
    }
}

#[async_trait]
impl Inspect for FolderBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockState>> {
        let name = name.clone();
        self.inspect_with(move |folder, deadline| {
            folder.step(&name, deadline, |table| {
                (Some(state(table, name.clone())).filter(|state| !state.is_free()), false)
            })
        })
        .await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockState>> {
        let prefix = prefix.to_owned();
        self.inspect_with(move |folder, deadline| {
            let states = folder.each(deadline, |table| {
                let names = table.rows.iter().map(|row| row.name.clone());
                let mut names: Vec<_> = names.filter(|name| name.as_str().starts_with(&prefix)).collect();
                names.sort();
                names.dedup();
                names.into_iter().map(|name| state(table, name)).collect::<Vec<_>>()
            })?;
            let mut states: Vec<_> = states.into_iter().flatten().collect();
            states.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(states)
        })
        .await
    }

    async fn force_release(&self, name: &LockName) -> Result<bool> {
        let name = name.clone();
        self.inspect_with(move |folder, deadline| {
            folder.step(&name, deadline, |table| {
                let queue = table.queue(&name);
                let before = table.rows.len();
                table.rows.retain(|row| row.name != name || turn(&queue, row.entry.id) != Turn::Mine);
                let held = table.rows.len() < before;
                (held, held)
            })
        })
        .await
    }
}

/// Returns the holders and the queue of a lock.
fn state(table: &Table, name: LockName) -> LockState {
    let queue = table.queue(&name);
    let mut state = LockState::new(name);
    for row in table.rows.iter().filter(|row| row.name == state.name) {
        let left = row.expires.saturating_sub(table.now);
        let contender = Contender::new(row.entry.id.to_string(), row.entry.kind).ttl_left(left).who(&row.who);
        match turn(&queue, row.entry.id) {
            Turn::Mine => state.holders.push(contender.token(Token::new(row.number))),
            _ => state.queue.push(contender),
        }
    }
    state
}
