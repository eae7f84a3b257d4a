//! Redis and Valkey servers for tests, in four [flavours](Flavour), and the faults a server can do. A few
//! lines over the usual length, most of them what its users read.
//!
//! An address comes from an environment variable, `DLOCK_TEST_REDIS_URL`, `DLOCK_TEST_REDIS_TLS_URL`, `…_SENTINEL_URL`,
//! `…_CLUSTER_URL`, and the same with `REDIS5`, `REDIS6` and `VALKEY`. Else the servers run in containers where Docker
//! answers, from the image that `DLOCK_TEST_REDIS_IMAGE` names if it is set; else the fixture runs `redis-server` or
//! `valkey-server` itself, with the same files. `scripts/stores up` provides what is missing. Either way they listen on
//! 127.0.0.1 only, on ports of their own, and end with the test binary, also when it is killed.
//!
//! ```no_run
//! use dlock_conformance::stores::{self, Brand, Data, Flavour};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = stores::start(Brand::Redis, Flavour::Standalone).await.map_err(|gone| gone.reason)?;
//! println!("{}", redis.url()); // redis://127.0.0.1:23456
//! for server in redis.servers() {
//!     server.kill().await?;
//!     server.start(Data::Kept).await?;
//! }
//! # Ok(())
//! # }
//! ```

mod container;
mod folder;
mod port;
mod process;
mod resp;
mod server;
mod topology;

use std::{env, io, path::Path, sync::LazyLock, time::Duration};

use tokio::runtime::{Builder, Runtime};

use crate::Unreachable;
use folder::Folder;
use topology::Topology;

pub use crate::Data;
pub use server::Server;

/// The longest that servers may take until they answer, a machine that is busy with other tests included.
const READY: Duration = Duration::from_secs(60);

/// Whose server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Brand {
    /// Redis.
    Redis,
    /// Redis 5, which knows no TLS.
    Redis5,
    /// Redis 6.0, whose users cannot be as in [`Flavour::Tls`].
    Redis6,
    /// Valkey, its fork.
    Valkey,
}

impl Brand {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Redis, Self::Redis5, Self::Redis6, Self::Valkey];

    /// In lower case, as `DLOCK_REQUIRE` says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redis5 => "redis5",
            Self::Redis6 => "redis6",
            Self::Valkey => "valkey",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Redis | Self::Redis5 | Self::Redis6 => "redis-server",
            Self::Valkey => "valkey-server",
        }
    }

    /// The environment variable that says which image its servers are run from.
    fn image_variable(self) -> String {
        format!("DLOCK_TEST_{}_IMAGE", self.name().to_uppercase())
    }

    /// What may run its servers, the best first. Not the program of this machine where another version is asked for.
    fn hosts(self) -> &'static [Host] {
        match self {
            Self::Redis5 | Self::Redis6 => &[Host::Container],
            _ if env::var_os(self.image_variable()).is_some() => &[Host::Container],
            Self::Redis | Self::Valkey => &[Host::Container, Host::Process],
        }
    }
}

/// How servers are set up, and the URL that names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One server: `redis://host:port`.
    Standalone,
    /// One server that speaks TLS and knows one user: `rediss://user:password@host:port`, with a
    /// [certificate authority](Running::ca) of its own.
    Tls,
    /// A primary, its replica and one Sentinel, in this order: `redis+sentinel://host:port/dlock`.
    Sentinel,
    /// Three primaries: `redis-cluster://host:port,host:port,host:port`.
    Cluster,
}

impl Flavour {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Standalone, Self::Tls, Self::Sentinel, Self::Cluster];

    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Tls => "tls",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }

    /// The environment variable that says where such a store is.
    pub fn variable(self, brand: Brand) -> String {
        let brand = brand.name().to_uppercase();
        match self {
            Self::Standalone => format!("DLOCK_TEST_{brand}_URL"),
            _ => format!("DLOCK_TEST_{brand}_{}_URL", self.name().to_uppercase()),
        }
    }
}

/// Finds or starts a store. One is meant to serve all cases of a test binary.
///
/// # Errors
/// [`Unreachable`] by the brand's name, with everything that was tried.
///
/// # Cancel safety
/// Dropping the future ends what it started, in the background.
pub async fn start(brand: Brand, flavour: Flavour) -> Result<Running, Unreachable> {
    let variable = flavour.variable(brand);
    if let Ok(url) = env::var(&variable) {
        return Ok(Running { url, found: None });
    }
    let mut tried = vec![format!("{variable} is not set")];
    for host in brand.hosts().iter().copied() {
        match on_own_runtime(async move { Started::new(brand, flavour, host).await }).await {
            Ok(started) => return Ok(Running { url: started.topology.url(), found: Some(started) }),
            Err(error) => tried.push(error.to_string()),
        }
    }
    let reason = format!(
        "there is no {} {}: {}; try `scripts/stores up`",
        brand.name(),
        flavour.name(),
        tried.join("; ")
    );
    Err(Unreachable { name: brand.name().to_owned(), reason })
}

/// A store that answers. Dropping it ends the servers that were started for it, and waits for their end.
#[derive(Debug)]
pub struct Running {
    url: String,
    /// Nothing where the address came from the environment.
    found: Option<Started>,
}

impl Running {
    /// What a dlock client is to be given. Holds a password with [`Flavour::Tls`].
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificate of the authority to trust with [`Flavour::Tls`], in PEM.
    pub fn ca(&self) -> Option<&Path> {
        self.found.as_ref()?.topology.ca.as_deref()
    }

    /// The servers to do harm to, in the order that [`Flavour`] says. None where the address came from the environment.
    pub fn servers(&self) -> &[Server] {
        self.found.as_ref().map_or(&[], |started| &started.topology.servers)
    }

    /// Waits until all servers answer and agree that all is well: after a fault, that it is healed.
    ///
    /// # Errors
    /// When they do not within a minute, with what they say.
    ///
    /// # Cancel safety
    /// Only asks.
    pub async fn ready(&self) -> io::Result<()> {
        match &self.found {
            Some(started) => started.topology.ready().await,
            None => Ok(()),
        }
    }
}

/// What runs a server.
#[derive(Clone, Copy, Debug)]
enum Host {
    Container,
    Process,
}

/// Servers, and what ends them.
#[derive(Debug)]
struct Started {
    // Dropped first: the servers are gone before their children are waited for.
    _folder: Folder,
    topology: Topology,
}

impl Started {
    async fn new(brand: Brand, flavour: Flavour, host: Host) -> io::Result<Self> {
        let site = server::Site::new(brand, host)?;
        let folder = Folder::new()?;
        let topology = Topology::start(&site, flavour, &folder).await?;
        Ok(Self { _folder: folder, topology })
    }
}

/// Runs a future where it outlives the runtime of the case that asks: connections to Docker belong to a runtime.
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
