//! One server, and the faults that tests can inject into it.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use dlock_conformance::Data;
use rustix::process::Signal;

use super::{
    container::Container,
    disk,
    folder::Folder,
    on_own_runtime,
    package::Site,
    poll,
    port::Port,
    process::Process,
    recipe::{Member, Recipe},
};

/// A server that tests may kill or pause. [`Running`](super::Running) stops it.
///
/// # Cancel safety
/// A fault that has begun is completed even if its future is dropped.
#[derive(Clone, Debug)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    recipe: Arc<dyn Recipe>,
    folder: PathBuf,
    ports: Vec<Port>,
    instance: Instance,
}

#[derive(Debug)]
enum Instance {
    Container(Box<Container>),
    Process(Process),
}

impl Server {
    /// Starts a server, without waiting until it accepts requests.
    pub(super) async fn new(
        site: &Site,
        folder: &Folder,
        member: Member,
        recipe: &Arc<dyn Recipe>,
    ) -> io::Result<Self> {
        let folder = folder.server(&member.name)?;
        if recipe.has_own_disks() {
            disk::mount(&folder)?;
        }
        // Also for a container that gets copies of the files, for people who examine a failure.
        for (name, content) in &member.files {
            fs::write(folder.join(name), content)?;
        }
        let instance = match site {
            Site::Container(image) => {
                Instance::Container(Box::new(Container::start(image, &folder, &member).await?))
            }
            Site::Process => Instance::Process(Process::start(&folder, &member)?),
        };
        let recipe = Arc::clone(recipe);
        Ok(Self { inner: Arc::new(Inner { recipe, folder, ports: member.ports, instance }) })
    }

    /// Address for connections without TLS. A server with TLS has a second port for TLS.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port(0)))
    }

    /// Returns a port of the server, by its index in the recipe.
    pub(super) fn port(&self, number: usize) -> u16 {
        self.inner.ports[number].number()
    }

    /// Returns the path of one of the recipe's files.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.inner.folder.join(name)
    }

    /// Kills the server, as `kill -9` does.
    ///
    /// # Errors
    /// If the server is not running.
    pub async fn kill(&self) -> io::Result<()> {
        let server = self.clone();
        on_own_runtime(async move {
            match &server.inner.instance {
                Instance::Container(container) => container.kill(),
                Instance::Process(process) => process.kill(),
            }
        })
        .await
    }

    /// Restarts the server on the same ports after [`kill`](Self::kill), and waits until it accepts
    /// requests.
    ///
    /// # Errors
    /// If the server is running, or does not accept requests within a minute.
    pub async fn start(&self, data: Data) -> io::Result<()> {
        let server = self.clone();
        on_own_runtime(async move {
            match &server.inner.instance {
                Instance::Container(container) => container.start_again(data).await?,
                Instance::Process(process) => process.start_again(data)?,
            }
            server.wait_until_up().await
        })
        .await
    }

    /// Suspends the server. Its connections stay open, and it does not reply.
    ///
    /// # Errors
    /// If the server is not running.
    pub async fn pause(&self) -> io::Result<()> {
        let server = self.clone();
        on_own_runtime(async move {
            match &server.inner.instance {
                Instance::Container(container) => container.pause().await,
                Instance::Process(process) => process.signal(Signal::STOP),
            }
        })
        .await
    }

    /// Lets the server continue after [`pause`](Self::pause).
    ///
    /// # Errors
    /// If the server is not running.
    pub async fn resume(&self) -> io::Result<()> {
        let server = self.clone();
        on_own_runtime(async move {
            match &server.inner.instance {
                Instance::Container(container) => container.resume().await,
                Instance::Process(process) => process.signal(Signal::CONT),
            }
        })
        .await
    }

    /// Makes every write of the server to its disk wait until [`recover_disk`](Self::recover_disk).
    /// The server continues to run, and to reply to requests that need no disk.
    ///
    /// # Errors
    /// If the server has no file system of its own.
    pub fn hang_disk(&self) -> io::Result<()> {
        disk::hang(&self.inner.folder)
    }

    /// Completes the writes that wait since [`hang_disk`](Self::hang_disk).
    ///
    /// # Errors
    /// If the disk does not hang.
    pub fn recover_disk(&self) -> io::Result<()> {
        disk::recover(&self.inner.folder)
    }

    /// Leaves no free space on the server's disk until [`empty_disk`](Self::empty_disk).
    ///
    /// # Errors
    /// If the server has no file system of its own.
    pub fn fill_disk(&self) -> io::Result<()> {
        disk::fill(&self.inner.folder)
    }

    /// Returns the space that [`fill_disk`](Self::fill_disk) has taken.
    ///
    /// # Errors
    /// If the disk was not filled.
    pub fn empty_disk(&self) -> io::Result<()> {
        disk::empty(&self.inner.folder)
    }

    /// Waits until the server accepts requests.
    ///
    /// # Errors
    /// If the server ends, or does not accept requests within a minute.
    pub(super) async fn wait_until_up(&self) -> io::Result<()> {
        poll(|| self.probe()).await
    }

    /// Probes the server once.
    ///
    /// # Errors
    /// `BrokenPipe` with the last lines of the server's log, if the server has ended. Otherwise the
    /// error of the probe.
    async fn probe(&self) -> io::Result<()> {
        match self.inner.recipe.probe(self).await {
            Ok(()) => return Ok(()),
            Err(error) if !self.has_ended().await? => return Err(error),
            Err(_) => {}
        }
        let log = match &self.inner.instance {
            Instance::Container(container) => container.log().await?,
            Instance::Process(process) => process.log()?,
        };
        let tail: Vec<_> = log.lines().rev().take(3).collect();
        let last_lines = tail.into_iter().rev().collect::<Vec<_>>().join(" | ");
        Err(io::Error::new(io::ErrorKind::BrokenPipe, format!("the server ended and said: {last_lines}")))
    }

    async fn has_ended(&self) -> io::Result<bool> {
        match &self.inner.instance {
            Instance::Container(container) => container.has_ended().await,
            Instance::Process(process) => process.has_ended(),
        }
    }
}
