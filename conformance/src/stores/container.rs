//! A server in a container, on the host's network: what a cluster or a Sentinel announces is what clients reach.

use std::{
    collections::BTreeMap,
    env, fs, io,
    mem::ManuallyDrop,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use testcontainers::{ContainerAsync, Image, ImageExt, core::WaitFor, runners::AsyncRunner};

use super::{Brand, server::Recipe};
use crate::Data;

/// Where the server's files are, in the container.
const HOME: &str = "/dlock";

/// An image to run servers from.
#[derive(Clone, Debug)]
pub(super) struct ServerImage {
    name: String,
    tag: String,
}

impl ServerImage {
    /// The image that the environment names, else the one that `scripts/stores` built, else the official one. They are
    /// pulled if need be.
    ///
    /// # Errors
    /// Where Docker does not answer. A `docker` command may be a mere client, so it is asked.
    pub(super) fn find(brand: Brand) -> io::Result<Self> {
        // Once: where there is no registry, it takes a while to find out.
        static FOUND: Mutex<BTreeMap<Brand, Result<ServerImage, String>>> = Mutex::new(BTreeMap::new());
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        let image =
            found.entry(brand).or_insert_with(|| Self::search(brand).map_err(|error| error.to_string()));
        image.clone().map_err(io::Error::other)
    }

    fn search(brand: Brand) -> io::Result<Self> {
        docker(&["info"])?;
        if let Ok(named) = env::var(brand.image_variable()) {
            return Self::pulled(&named);
        }
        let name = brand.name();
        let built = format!("localhost/dlock-test-{name}");
        if docker(&["image", "inspect", &format!("{built}:built")]).is_ok() {
            return Ok(Self { name: built, tag: "built".to_owned() });
        }
        let mut table = include_str!("../../images/official").lines().map(|line| line.split(' '));
        let line = table.find_map(|mut line| (line.next() == Some(name)).then_some(line)?.next());
        Self::pulled(line.ok_or_else(|| io::Error::other("no official image is known"))?)
    }

    fn pulled(image: &str) -> io::Result<Self> {
        let (name, tag) =
            image.rsplit_once(':').ok_or_else(|| io::Error::other(format!("image {image} has no tag")))?;
        docker(&["image", "inspect", image]).or_else(|_| docker(&["pull", "--quiet", image]))?;
        Ok(Self { name: name.to_owned(), tag: tag.to_owned() })
    }
}

impl Image for ServerImage {
    fn name(&self) -> &str {
        &self.name
    }

    fn tag(&self) -> &str {
        &self.tag
    }

    fn ready_conditions(&self) -> Vec<WaitFor> {
        // The topology asks the servers.
        Vec::new()
    }

    fn entrypoint(&self) -> Option<&str> {
        // The official one changes the user, and then cannot write what it was given.
        Some("sh")
    }
}

#[derive(Debug)]
pub(super) struct Container {
    name: String,
    folder: PathBuf,
    // Its own end needs the runtime it was made on; the folder's watch removes the container without.
    inner: ManuallyDrop<ContainerAsync<ServerImage>>,
}

impl Container {
    pub(super) async fn start(image: &ServerImage, folder: &Path, recipe: &Recipe) -> io::Result<Self> {
        let owner = std::process::id().to_string();
        let name = format!("dlock-test-{owner}-{}", recipe.port.number());
        // First, so that the container has an end from its beginning.
        fs::write(folder.join("container"), &name)?;
        let mut command = vec!["-c", include_str!("serve.sh"), "serve.sh"];
        command.extend(recipe.command.iter().map(String::as_str));
        let mut request = image
            .clone()
            .with_container_name(&name)
            .with_label("dlock.test", owner)
            .with_network("host")
            .with_working_dir(HOME)
            .with_cmd(command);
        for (file, content) in &recipe.files {
            request = request.with_copy_to(format!("{HOME}/{file}"), content.clone().into_bytes());
        }
        let inner = ManuallyDrop::new(request.start().await.map_err(io::Error::other)?);
        Ok(Self { name, folder: folder.to_owned(), inner })
    }

    pub(super) async fn start_again(&self, data: Data) -> io::Result<()> {
        if !self.has_ended().await? {
            return Err(io::Error::other("the server runs already"));
        }
        if data == Data::Lost {
            let lost = self.folder.join("lost");
            fs::write(&lost, "")?;
            docker(&["cp", &lost.to_string_lossy(), &format!("{}:{HOME}/lost", self.name)])?;
        }
        self.inner.start().await.map_err(io::Error::other)
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        // Not the library's `stop`, which asks the server nicely first.
        docker(&["kill", "--signal", "KILL", &self.name])?;
        docker(&["wait", &self.name])
    }

    pub(super) async fn pause(&self) -> io::Result<()> {
        self.inner.pause().await.map_err(io::Error::other)
    }

    pub(super) async fn resume(&self) -> io::Result<()> {
        self.inner.unpause().await.map_err(io::Error::other)
    }

    /// Whether it has ended unasked.
    pub(super) async fn has_ended(&self) -> io::Result<bool> {
        Ok(!self.inner.is_running().await.map_err(io::Error::other)?)
    }

    pub(super) async fn log(&self) -> io::Result<String> {
        let log = self.inner.stdout_to_vec().await.map_err(io::Error::other)?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }
}

/// Runs Docker's command.
fn docker(arguments: &[&str]) -> io::Result<()> {
    let done = Command::new("docker").args(arguments).output();
    let done = done.map_err(|error| io::Error::other(format!("docker: {error}")))?;
    if done.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(format!("docker {}: {}", arguments[0], told.trim().replace('\n', " "))))
}
