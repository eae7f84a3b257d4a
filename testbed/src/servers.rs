//! Servers for tests, and the faults that tests can inject into them.
//!
//! Each store has a recipe: its package, its servers, a probe for one server, the steps that make
//! one store of the servers, and the URL. The modules [`etcd`], [`mysql`], [`postgres`], [`redis`]
//! and [`zookeeper`] contain the recipes. The code that all stores share finds an image or a program,
//! and then starts, probes, faults and stops the servers.
//!
//! The URL of a store comes from an environment variable, if it is set: `DLOCK_TEST_REDIS_URL`, or
//! for another flavour `DLOCK_TEST_REDIS_CLUSTER_URL`. Otherwise the servers run in containers,
//! from the image that `DLOCK_TEST_REDIS_IMAGE` names if it is set. Without Docker the fixture runs
//! the server's program, with the same files. `scripts/stores up` provides what is missing. The
//! servers listen only on 127.0.0.1, on unused ports. They end with the test binary, even if it is
//! killed.
//!
//! ```no_run
//! use dlock_testbed::servers::{
//!     Data,
//!     redis::{self, Brand, Flavour},
//! };
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = redis::start(Brand::Redis, Flavour::Standalone).await.map_err(|unreachable| unreachable.reason)?;
//! println!("{}", redis.url()); // redis://127.0.0.1:23456
//! for server in redis.servers() {
//!     server.kill().await?;
//!     server.start(Data::Kept).await?;
//! }
//! # Ok(())
//! # }
//! ```

mod certificates;
mod container;
mod disk;
pub mod etcd;
mod folder;
pub mod mysql;
mod package;
mod port;
pub mod postgres;
mod process;
mod recipe;
pub mod redis;
mod server;
pub mod zookeeper;

use std::{
    env, io,
    path::PathBuf,
    sync::{Arc, LazyLock},
    time::Duration,
};

use dlock_conformance::Unreachable;
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};

use folder::Folder;
use package::{Host, Package};
use recipe::Recipe;

pub use disk::{check_own_disks, trial_with_disks};
pub use dlock_conformance::Data;
pub use package::request;
pub use server::Server;

/// Maximum time until servers accept requests, on a machine that is busy with other tests.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Finds or starts a store. The `start` function of each store's module calls this.
async fn start(recipe: impl Recipe) -> Result<Running, Unreachable> {
    let variable = recipe::variable(recipe.package(), recipe.flavour());
    if let Ok(url) = env::var(&variable) {
        return Ok(Running { url, started: None });
    }
    let mut attempts = vec![format!("{variable} is not set")];
    let (package, recipe) = (Package::named(recipe.package()), Arc::new(recipe) as Arc<dyn Recipe>);
    package.check_requested()?;
    for host in package.hosts().iter().copied() {
        let recipe = Arc::clone(&recipe);
        match on_own_runtime(async move { Started::new(recipe, package, host).await }).await {
            Ok(started) => {
                return Ok(Running { url: started.recipe.url(&started.servers), started: Some(started) });
            }
            Err(error) => attempts.push(error.to_string()),
        }
    }
    let name = package.name;
    let reason =
        format!("there is no {name} {}: {}; try `scripts/stores up`", recipe.flavour(), attempts.join("; "));
    Err(Unreachable { name: name.to_owned(), reason })
}

/// A store that accepts requests. Dropping it stops the servers that were started for it, and waits
/// until they have ended.
#[derive(Debug)]
pub struct Running {
    url: String,
    /// `None` if the URL comes from the environment.
    started: Option<Started>,
}

impl Running {
    /// URL for dlock clients. Contains a password if the store has users.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// File with the PEM certificate of the authority that clients must trust, if the store has
    /// TLS.
    pub fn ca(&self) -> Option<PathBuf> {
        self.servers().first().map(|server| server.file(certificates::CA)).filter(|path| path.exists())
    }

    /// Servers in the order of the recipe. Empty if the URL comes from the environment.
    pub fn servers(&self) -> &[Server] {
        self.started.as_ref().map_or(&[], |started| &started.servers)
    }

    /// Returns the first server, into which a test may inject faults.
    ///
    /// Returns `None` if the URL comes from the environment, because tests must not harm external
    /// servers. The test must then return, and is reported as
    /// [ignored](dlock_conformance::ignore()).
    pub fn own_server(&self) -> Option<&Server> {
        let own = self.servers().first();
        if own.is_none() {
            dlock_conformance::ignore("the test needs servers of its own, and the environment names others");
        }
        own
    }

    /// Waits until all servers accept requests and the store works. After a fault, waits until the
    /// store has recovered.
    ///
    /// # Errors
    /// If that takes more than a minute. The error contains the last failure.
    ///
    /// # Cancel safety
    /// Sends only queries.
    pub async fn ready(&self) -> io::Result<()> {
        match &self.started {
            Some(started) => started.ready().await,
            None => Ok(()),
        }
    }
}

/// Started servers, and the folder that stops them.
#[derive(Debug)]
struct Started {
    // Declared first so that it drops first. It stops the servers before the drop of `servers`
    // waits for their child processes.
    _folder: Folder,
    servers: Vec<Server>,
    recipe: Arc<dyn Recipe>,
}

impl Started {
    async fn new(recipe: Arc<dyn Recipe>, package: &'static Package, host: Host) -> io::Result<Self> {
        let site = package.site(host)?;
        let folder = Folder::new()?;
        let members = recipe.members(package.program)?;
        let starting = members.into_iter().map(|member| Server::new(&site, &folder, member, &recipe));
        // Waits for all starts, even if one fails. No server may start after the folder has stopped
        // the others.
        let servers = join_all(starting).await.into_iter().collect::<io::Result<_>>()?;
        let started = Self { _folder: folder, servers, recipe };
        started.wait_until_up().await?;
        started.recipe.join(&started.servers).await?;
        started.ready().await?;
        Ok(started)
    }

    async fn wait_until_up(&self) -> io::Result<()> {
        for server in &self.servers {
            server.wait_until_up().await?;
        }
        Ok(())
    }

    async fn ready(&self) -> io::Result<()> {
        self.wait_until_up().await?;
        poll(|| self.recipe.health(&self.servers)).await
    }
}

/// Runs a future on a runtime that outlives the test. Connections to Docker belong to the runtime
/// on which they were opened.
async fn on_own_runtime<T: Send + 'static>(
    future: impl Future<Output = io::Result<T>> + Send + 'static,
) -> io::Result<T> {
    static RUNTIME: LazyLock<io::Result<Runtime>> =
        LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build());
    let runtime = RUNTIME.as_ref().map_err(|error| io::Error::other(error.to_string()))?;
    runtime.spawn(future).await.map_err(io::Error::other)?
}

/// Repeats a request until it succeeds.
///
/// # Errors
/// `BrokenPipe` from the request at once, because the server has ended. After [`READY_TIMEOUT`] the
/// last failure.
async fn poll<F>(request: impl Fn() -> F + Send + Sync) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + Send,
{
    const POLL_INTERVAL: Duration = Duration::from_millis(20);
    let mut last_error = io::Error::from(io::ErrorKind::TimedOut);
    let attempts = async {
        loop {
            match request().await {
                Ok(()) => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break Err(error),
                Err(error) => last_error = error,
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match tokio::time::timeout(READY_TIMEOUT, attempts).await {
        Ok(result) => result,
        Err(_) => {
            Err(io::Error::other(format!("not ready after {}s: {last_error}", READY_TIMEOUT.as_secs())))
        }
    }
}
