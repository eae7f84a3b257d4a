//! One server, and the faults that tests can cause in it.

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
    folder::Folder,
    on_own_runtime,
    package::Site,
    poll,
    port::Port,
    process::Process,
    recipe::{Member, Recipe},
};

/// A server that tests may kill or pause. [`Running`](super::Running) ends it.
///
/// # Cancel safety
/// Once begun, a fault is carried out even if its future is dropped.
#[derive(Clone, Debug)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    recipe: Arc<dyn Recipe>,
    folder: PathBuf,
    ports: Vec<Port>,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Container(Box<Container>),
    Process(Process),
}

impl Server {
    /// Starts a server. It does not answer yet.
    pub(super) async fn new(
        site: &Site,
        folder: &Folder,
        member: Member,
        recipe: &Arc<dyn Recipe>,
    ) -> io::Result<Self> {
        let folder = folder.server(&member.name)?;
        // Of a container, too: who runs the tests may want to read them.
        for (name, content) in &member.files {
            fs::write(folder.join(name), content)?;
        }
        let body = match site {
            Site::Container(image) => {
                Body::Container(Box::new(Container::start(image, &folder, &member).await?))
            }
            Site::Process => Body::Process(Process::start(&folder, &member)?),
        };
        let recipe = Arc::clone(recipe);
        Ok(Self { inner: Arc::new(Inner { recipe, folder, ports: member.ports, body }) })
    }

    /// The address at which it answers without TLS, even if it has another port with TLS.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port(0)))
    }

    /// One of its ports, in the order of the recipe.
    pub(super) fn port(&self, number: usize) -> u16 {
        self.inner.ports[number].number()
    }

    /// A file of the recipe, as it was given to the server.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.inner.folder.join(name)
    }

    /// Ends it as `kill -9` does.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&self) -> io::Result<()> {
        let server = self.clone();
        on_own_runtime(async move {
            match &server.inner.body {
                Body::Container(container) => container.kill(),
                Body::Process(process) => process.kill(),
            }
        })
        .await
    }

    /// Starts it after [`kill`](Self::kill), on the same ports, and waits until it answers.
    ///
    /// # Errors
    /// When it runs, or does not answer within a minute.
    pub async fn start(&self, data: Data) -> io::Result<()> {
        let server = self.clone();
        on_own_runtime(async move {
            match &server.inner.body {
                Body::Container(container) => container.start_again(data).await?,
                Body::Process(process) => process.start_again(data)?,
            }
            server.answers().await
        })
        .await
    }

    /// Freezes it: its connections stay open, and it answers nothing.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn pause(&self) -> io::Result<()> {
        let server = self.clone();
        on_own_runtime(async move {
            match &server.inner.body {
                Body::Container(container) => container.pause().await,
                Body::Process(process) => process.signal(Signal::STOP),
            }
        })
        .await
    }

    /// Lets it go on after [`pause`](Self::pause).
    ///
    /// # Errors
    /// When it does not run.
    pub async fn resume(&self) -> io::Result<()> {
        let server = self.clone();
        on_own_runtime(async move {
            match &server.inner.body {
                Body::Container(container) => container.resume().await,
                Body::Process(process) => process.signal(Signal::CONT),
            }
        })
        .await
    }

    /// Waits until it answers.
    pub(super) async fn answers(&self) -> io::Result<()> {
        poll(|| self.answer_or_end()).await
    }

    /// # Errors
    /// `BrokenPipe` if the server has ended, with the last lines that it printed.
    async fn answer_or_end(&self) -> io::Result<()> {
        match self.inner.recipe.probe(self).await {
            Ok(()) => return Ok(()),
            Err(error) if !self.has_ended().await? => return Err(error),
            Err(_) => {}
        }
        let log = match &self.inner.body {
            Body::Container(container) => container.log().await?,
            Body::Process(process) => process.log()?,
        };
        let tail: Vec<_> = log.lines().rev().take(3).collect();
        let told = tail.into_iter().rev().collect::<Vec<_>>().join(" | ");
        Err(io::Error::new(io::ErrorKind::BrokenPipe, format!("the server ended and said: {told}")))
    }

    async fn has_ended(&self) -> io::Result<bool> {
        match &self.inner.body {
            Body::Container(container) => container.has_ended().await,
            Body::Process(process) => process.has_ended(),
        }
    }
}
