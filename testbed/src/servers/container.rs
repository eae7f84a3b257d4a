//! A server in a container. It uses the host's network, so that clients can connect to the
//! addresses that a cluster or a Sentinel announces.

use std::{
    env, fs, io,
    mem::ManuallyDrop,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use dlock_conformance::Data;
use testcontainers::{
    ContainerAsync, Image, ImageExt,
    core::{Mount, WaitFor},
    runners::AsyncRunner,
};

use super::recipe::Member;

/// Folder of the server's files in the container.
const HOME: &str = "/dlock";

/// CPU shares of a server, twice those of a process outside of containers.
///
/// Servers use little CPU time, and clients abandon a call after a third of a ttl. With more
/// shares, a few servers that start would starve the tests of stores without a server.
const CPU_SHARES: i64 = 2048;

/// Whether each container can have its own control group below the root.
///
/// By default Docker puts all containers into one group, and the kernel gives that group as much
/// CPU time as a single process outside. On a busy machine the servers then reply only after
/// seconds. This is not possible if systemd manages the groups, because it has other names for
/// them.
static HAS_CGROUPFS: LazyLock<bool> = LazyLock::new(|| {
    let driver = Command::new("docker").args(["info", "--format", "{{.CgroupDriver}}"]).output();
    driver.is_ok_and(|output| output.stdout.trim_ascii() == b"cgroupfs")
});

/// Whether the servers' files are in the fixture's folder, and therefore on the same file system
/// (disk or memory) as the tests' own files.
///
/// This requires an engine that can mount the folder, and a test binary that runs as root, because
/// the files belong to root.
static SHARES_FILES: LazyLock<bool> = LazyLock::new(|| {
    let is_local = env::var("DOCKER_HOST").map_or(true, |host| host == "unix:///var/run/docker.sock");
    is_local && rustix::process::geteuid().is_root()
});

/// An image that Docker has already.
#[derive(Clone, Debug)]
pub(super) struct ServerImage {
    name: String,
    tag: String,
}

impl ServerImage {
    /// # Errors
    /// If Docker does not have the image.
    pub(super) fn local(image: &str) -> io::Result<Self> {
        let (name, tag) =
            image.rsplit_once(':').ok_or_else(|| io::Error::other(format!("image {image} has no tag")))?;
        docker(&["image", "inspect", image])?;
        Ok(Self { name: name.to_owned(), tag: tag.to_owned() })
    }

    /// Pulls the image unless Docker has it.
    ///
    /// # Errors
    /// If Docker cannot pull the image.
    pub(super) fn pulled(image: &str) -> io::Result<Self> {
        Self::local(image).or_else(|_| {
            docker(&["pull", "--quiet", image])?;
            Self::local(image)
        })
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
        // The recipe probes the servers.
        Vec::new()
    }

    fn entrypoint(&self) -> Option<&str> {
        // The official entrypoint changes to a user who cannot write to the files of the recipe.
        Some("sh")
    }
}

#[derive(Debug)]
pub(super) struct Container {
    name: String,
    folder: PathBuf,
    // Not dropped, because that needs the runtime on which it was created. The folder's shell
    // removes the container.
    inner: ManuallyDrop<ContainerAsync<ServerImage>>,
}

impl Container {
    pub(super) async fn start(image: &ServerImage, folder: &Path, member: &Member) -> io::Result<Self> {
        let owner = std::process::id().to_string();
        let name = format!("dlock-test-{owner}-{}", member.ports[0].number());
        // Written before the start, so that the folder's shell can remove the container at any
        // time.
        fs::write(folder.join("container"), &name)?;
        let mut command = vec!["-c", include_str!("serve.sh"), "serve.sh", member.data];
        command.extend(member.command.iter().map(String::as_str));
        let mut request = image
            .clone()
            .with_container_name(&name)
            .with_label("dlock.test", owner)
            .with_network("host")
            .with_working_dir(HOME)
            .with_cmd(command)
            .with_host_config_modifier(|config| {
                if *HAS_CGROUPFS {
                    (config.cgroup_parent, config.cpu_shares) = (Some("/".to_owned()), Some(CPU_SHARES));
                }
            });
        if *SHARES_FILES {
            request = request.with_mount(Mount::bind_mount(folder.to_string_lossy(), HOME));
        } else {
            for (file, content) in &member.files {
                request = request.with_copy_to(format!("{HOME}/{file}"), content.clone().into_bytes());
            }
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
            if !*SHARES_FILES {
                docker(&["cp", &lost.to_string_lossy(), &format!("{}:{HOME}/lost", self.name)])?;
            }
        }
        self.inner.start().await.map_err(io::Error::other)
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        // The library's `stop` would let the server shut down in order.
        docker(&["kill", "--signal", "KILL", &self.name])?;
        docker(&["wait", &self.name])
    }

    /// Suspends the server.
    ///
    /// Docker fails if the kernel cannot freeze the process, for example while it forks to write
    /// its data to disk. The request is then repeated.
    pub(super) async fn pause(&self) -> io::Result<()> {
        let mut retries = 1..=5;
        loop {
            match self.inner.pause().await {
                Err(error)
                    if retries.next().is_some() && format!("{error:?}").contains("unable to freeze") => {}
                result => return result.map_err(io::Error::other),
            }
        }
    }

    pub(super) async fn resume(&self) -> io::Result<()> {
        self.inner.unpause().await.map_err(io::Error::other)
    }

    /// Returns whether the server has ended.
    pub(super) async fn has_ended(&self) -> io::Result<bool> {
        Ok(!self.inner.is_running().await.map_err(io::Error::other)?)
    }

    pub(super) async fn log(&self) -> io::Result<String> {
        let log = self.inner.stdout_to_vec().await.map_err(io::Error::other)?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }
}

/// Runs a `docker` command.
pub(super) fn docker(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("docker").args(arguments).output();
    let output = output.map_err(|error| io::Error::other(format!("docker: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("docker {}: {}", arguments[0], message.trim().replace('\n', " "))))
}
