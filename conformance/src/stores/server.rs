//! One server, and the faults it can do.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
    sync::Arc,
};

use rustix::process::Signal;

use super::{
    Brand, Host,
    container::{Container, ServerImage},
    folder::Folder,
    on_own_runtime, poll,
    port::Port,
    process::Process,
    resp,
};
use crate::Data;

/// A server that may be harmed. [`Running`](super::Running) ends it.
///
/// # Cancel safety
/// A fault that was begun is done, also when its future is dropped.
#[derive(Debug)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    port: Port,
    login: Option<Login>,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Container(Box<Container>),
    Process(Process),
}

/// User and password.
pub(super) type Login = (&'static str, &'static str);

/// What a server is made of.
#[derive(Debug)]
pub(super) struct Recipe {
    /// Unique among those of a folder.
    pub(super) name: String,
    pub(super) command: Vec<String>,
    pub(super) files: Vec<(&'static str, String)>,
    /// Where it answers in the clear.
    pub(super) port: Port,
    pub(super) login: Option<Login>,
}

/// Where servers can be run.
#[derive(Debug)]
pub(super) struct Site {
    /// The name of the server's program.
    pub(super) program: &'static str,
    image: Option<ServerImage>,
}

impl Site {
    /// # Errors
    /// Where they cannot.
    pub(super) fn new(brand: Brand, host: Host) -> io::Result<Self> {
        let program = brand.program();
        let image = match host {
            Host::Container => Some(ServerImage::find(brand)?),
            Host::Process => {
                let version = Command::new(program).arg("--version").stdout(Stdio::null()).status();
                version.map_err(|error| io::Error::other(format!("{program}: {error}")))?;
                None
            }
        };
        Ok(Self { program, image })
    }
}

impl Server {
    /// Starts a server. It does not answer yet.
    pub(super) async fn new(site: &Site, folder: &Folder, recipe: Recipe) -> io::Result<Self> {
        let folder = folder.server(&recipe.name)?;
        let body = match &site.image {
            Some(image) => Body::Container(Box::new(Container::start(image, &folder, &recipe).await?)),
            None => Body::Process(Process::start(&folder, &recipe)?),
        };
        Ok(Self { inner: Arc::new(Inner { port: recipe.port, login: recipe.login, body }) })
    }

    /// Where it answers in the clear, with [`Flavour::Tls`](super::Flavour::Tls) too.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.inner.port.number()))
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&self) -> io::Result<()> {
        let inner = Arc::clone(&self.inner);
        on_own_runtime(async move {
            match &inner.body {
                Body::Container(container) => container.kill(),
                Body::Process(process) => process.kill(),
            }
        })
        .await
    }

    /// Starts it after [`kill`](Self::kill), on the same port, and waits until it answers.
    ///
    /// # Errors
    /// When it runs, or does not answer within a minute.
    pub async fn start(&self, data: Data) -> io::Result<()> {
        let inner = Arc::clone(&self.inner);
        on_own_runtime(async move {
            match &inner.body {
                Body::Container(container) => container.start_again(data).await?,
                Body::Process(process) => process.start_again(data)?,
            }
            inner.answers().await
        })
        .await
    }

    /// Stops it in its tracks: its connections stay open, and nothing is answered.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn pause(&self) -> io::Result<()> {
        let inner = Arc::clone(&self.inner);
        on_own_runtime(async move {
            match &inner.body {
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
        let inner = Arc::clone(&self.inner);
        on_own_runtime(async move {
            match &inner.body {
                Body::Container(container) => container.resume().await,
                Body::Process(process) => process.signal(Signal::CONT),
            }
        })
        .await
    }

    /// Waits until it answers.
    pub(super) async fn answers(&self) -> io::Result<()> {
        self.inner.answers().await
    }

    /// Sends a command and returns the answer, nested lists made flat.
    pub(super) async fn ask(&self, command: &[&str]) -> io::Result<Vec<String>> {
        self.inner.ask(command).await
    }
}

impl Inner {
    async fn answers(&self) -> io::Result<()> {
        poll(|| self.answer_or_end()).await
    }

    /// # Errors
    /// `BrokenPipe`, with the last that the server said, when it has ended.
    async fn answer_or_end(&self) -> io::Result<()> {
        match self.ask(&["PING"]).await {
            Ok(_) => return Ok(()),
            Err(error) if !self.has_ended().await? => return Err(error),
            Err(_) => {}
        }
        let log = match &self.body {
            Body::Container(container) => container.log().await?,
            Body::Process(process) => process.log()?,
        };
        let tail: Vec<_> = log.lines().rev().take(3).collect();
        let told = tail.into_iter().rev().collect::<Vec<_>>().join(" | ");
        Err(io::Error::new(io::ErrorKind::BrokenPipe, format!("the server ended and said: {told}")))
    }

    async fn has_ended(&self) -> io::Result<bool> {
        match &self.body {
            Body::Container(container) => container.has_ended().await,
            Body::Process(process) => process.has_ended(),
        }
    }

    async fn ask(&self, command: &[&str]) -> io::Result<Vec<String>> {
        let port = self.port.number();
        match self.login {
            Some((user, password)) => resp::ask(port, &[&["AUTH", user, password], command]).await,
            None => resp::ask(port, &[command]).await,
        }
    }
}
