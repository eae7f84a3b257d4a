//! Servers for tests, and the faults that tests can cause in them.
//!
//! A store is a recipe: its package, the members that it consists of, how to ask one whether it answers,
//! how to join them, and the URL. This file and its siblings do what all stores share: they find an image or a program, run
//! the members, wait for them, harm them, and end them. Each store has a file or a folder with its recipes:
//! [`etcd`], [`mysql`], [`redis`], [`zookeeper`].
//!
//! The address of a store comes from an environment variable if it is set: `DLOCK_TEST_REDIS_URL`, or for another flavour
//! `DLOCK_TEST_REDIS_CLUSTER_URL`. Else the servers run in containers where Docker answers, from the image that
//! `DLOCK_TEST_REDIS_IMAGE` names if it is set. Else the fixture runs the server's program itself, with the same files.
//! `scripts/stores up` provides what is missing. Either way the servers listen on 127.0.0.1 only, on ports of their own, and
//! end with the test binary, also when it is killed.
//!
//! ```no_run
//! use dlock_testbed::servers::{Data, redis::{self, Brand, Flavour}};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = redis::start(Brand::Redis, Flavour::Standalone).await.map_err(|gone| gone.reason)?;
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
pub mod etcd;
mod folder;
pub mod mysql;
mod package;
mod port;
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

pub use dlock_conformance::Data;
pub use server::Server;

/// The longest that servers may take until they answer, even on a machine that is busy with other tests.
const READY: Duration = Duration::from_secs(60);

/// Finds or starts a store: what the `start` of each store's folder calls.
async fn start(recipe: impl Recipe) -> Result<Running, Unreachable> {
    let variable = recipe::variable(recipe.package(), recipe.flavour());
    if let Ok(url) = env::var(&variable) {
        return Ok(Running { url, found: None });
    }
    let mut tried = vec![format!("{variable} is not set")];
    let (package, recipe) = (Package::named(recipe.package()), Arc::new(recipe) as Arc<dyn Recipe>);
    for host in package.hosts().iter().copied() {
        let recipe = Arc::clone(&recipe);
        match on_own_runtime(async move { Started::new(recipe, package, host).await }).await {
            Ok(started) => {
                return Ok(Running { url: started.recipe.url(&started.servers), found: Some(started) });
            }
            Err(error) => tried.push(error.to_string()),
        }
    }
    let name = package.name;
    let reason =
        format!("there is no {name} {}: {}; try `scripts/stores up`", recipe.flavour(), tried.join("; "));
    Err(Unreachable { name: name.to_owned(), reason })
}

/// A store that answers. Dropping it ends the servers that were started for it, and waits for their end.
#[derive(Debug)]
pub struct Running {
    url: String,
    /// Nothing where the address came from the environment.
    found: Option<Started>,
}

impl Running {
    /// The URL for a dlock client. Holds a password if the store has users.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificate of the authority that a client must trust, in PEM, where the store speaks TLS.
    pub fn ca(&self) -> Option<PathBuf> {
        self.servers().first().map(|server| server.file(certificates::CA)).filter(|path| path.exists())
    }

    /// The servers, to kill or pause them, in the order of the recipe. None if the address came from the environment.
    pub fn servers(&self) -> &[Server] {
        self.found.as_ref().map_or(&[], |started| &started.servers)
    }

    /// The first server, which a test may harm. `None` if the address came from the environment, since nobody may harm those
    /// servers: then the test returns, and is reported as [ignored](dlock_conformance::ignore()).
    pub fn own_server(&self) -> Option<&Server> {
        let own = self.servers().first();
        if own.is_none() {
            dlock_conformance::ignore("the test needs servers of its own, and the environment names others");
        }
        own
    }

    /// Waits until all servers answer and agree that the store is well. After a fault, this waits until the store has
    /// recovered.
    ///
    /// # Errors
    /// When they do not within a minute, with what they say.
    ///
    /// # Cancel safety
    /// Only asks.
    pub async fn ready(&self) -> io::Result<()> {
        match &self.found {
            Some(started) => started.ready().await,
            None => Ok(()),
        }
    }
}

/// Servers, and what ends them.
#[derive(Debug)]
struct Started {
    // Dropped first: this ends the servers, and only then are their child processes waited for.
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
        // Wait for all of them, even if one fails: no server may start after the folder has ended the others.
        let servers = join_all(starting).await.into_iter().collect::<io::Result<_>>()?;
        let started = Self { _folder: folder, servers, recipe };
        started.answer().await?;
        started.recipe.join(&started.servers).await?;
        started.ready().await?;
        Ok(started)
    }

    async fn answer(&self) -> io::Result<()> {
        for server in &self.servers {
            server.answers().await?;
        }
        Ok(())
    }

    async fn ready(&self) -> io::Result<()> {
        self.answer().await?;
        poll(|| self.recipe.health(&self.servers)).await
    }
}

/// Runs a future on a runtime that outlives the case. Connections to Docker belong to the runtime that made them.
async fn on_own_runtime<T: Send + 'static>(
    future: impl Future<Output = io::Result<T>> + Send + 'static,
) -> io::Result<T> {
    static OWN: LazyLock<io::Result<Runtime>> =
        LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build());
    let runtime = OWN.as_ref().map_err(|error| io::Error::other(error.to_string()))?;
    runtime.spawn(future).await.map_err(io::Error::other)?
}

/// Asks again and again until there is an answer, or says what the last failure was.
async fn poll<F>(ask: impl Fn() -> F + Send + Sync) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + Send,
{
    const PAUSE: Duration = Duration::from_millis(20);
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    let asking = async {
        loop {
            match ask().await {
                Ok(()) => break Ok(()),
                // The server has ended: asking is in vain.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break Err(error),
                Err(error) => last = error,
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    match tokio::time::timeout(READY, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(io::Error::other(format!("not ready after {}s: {last}", READY.as_secs()))),
    }
}
