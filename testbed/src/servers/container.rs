//! A server in a container, on the host's network, so that clients can reach the addresses that a cluster or a Sentinel
//! announces.

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

/// Where the server's files are, in the container.
const HOME: &str = "/dlock";

/// The share of the processors that a server competes with: twice what a process outside of containers has. Servers do little, and
/// clients give up a call after a third of a ttl. With more, some servers that start leave nothing to the tests of stores without one.
const SHARES: i64 = 2048;

/// Whether a container may have a control group of its own under the root. Otherwise Docker puts all containers into one group, and
/// the kernel gives to all of them together only what it gives to one process outside: beside busy programs servers then answer
/// after seconds. Where systemd keeps the groups, their names are its own.
static HAS_CGROUPFS: LazyLock<bool> = LazyLock::new(|| {
    let driver = Command::new("docker").args(["info", "--format", "{{.CgroupDriver}}"]).output();
    driver.is_ok_and(|told| told.stdout.trim_ascii() == b"cgroupfs")
});

/// Whether servers keep their files in the fixture's folder, so that they are on the disk, or in the memory, where the tests have
/// theirs. The engine must see that folder, and what a server leaves there belongs to root.
static SHARES_FILES: LazyLock<bool> = LazyLock::new(|| {
    let is_here = env::var("DOCKER_HOST").map_or(true, |host| host == "unix:///var/run/docker.sock");
    is_here && rustix::process::geteuid().is_root()
});

/// An image to run servers from. Docker has it already.
#[derive(Clone, Debug)]
pub(super) struct ServerImage {
    name: String,
    tag: String,
}

impl ServerImage {
    /// # Errors
    /// If Docker does not have it.
    pub(super) fn here(image: &str) -> io::Result<Self> {
        let (name, tag) =
            image.rsplit_once(':').ok_or_else(|| io::Error::other(format!("image {image} has no tag")))?;
        docker(&["image", "inspect", image])?;
        Ok(Self { name: name.to_owned(), tag: tag.to_owned() })
    }

    /// # Errors
    /// If Docker neither has it nor can pull it.
    pub(super) fn pulled(image: &str) -> io::Result<Self> {
        Self::here(image).or_else(|_| {
            docker(&["pull", "--quiet", image])?;
            Self::here(image)
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
        // The recipe's probe asks the servers.
        Vec::new()
    }

    fn entrypoint(&self) -> Option<&str> {
        // The official entrypoint changes the user, who then cannot write to the files that the server was given.
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
    pub(super) async fn start(image: &ServerImage, folder: &Path, member: &Member) -> io::Result<Self> {
        let owner = std::process::id().to_string();
        let name = format!("dlock-test-{owner}-{}", member.ports[0].number());
        // Write this first, so that the folder's shell can end the container from its beginning.
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
                    (config.cgroup_parent, config.cpu_shares) = (Some("/".to_owned()), Some(SHARES));
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
        // Not the library's `stop`, which lets the server shut down in order.
        docker(&["kill", "--signal", "KILL", &self.name])?;
        docker(&["wait", &self.name])
    }

    /// Docker gives up where the kernel cannot freeze the process at that moment, for example because it forks to write its
    /// data to disk. It is then asked again.
    pub(super) async fn pause(&self) -> io::Result<()> {
        let mut tries = 1..=5;
        loop {
            match self.inner.pause().await {
                Err(error) if tries.next().is_some() && format!("{error:?}").contains("unable to freeze") => {
                }
                paused => return paused.map_err(io::Error::other),
            }
        }
    }

    pub(super) async fn resume(&self) -> io::Result<()> {
        self.inner.unpause().await.map_err(io::Error::other)
    }

    /// Whether the server has ended by itself.
    pub(super) async fn has_ended(&self) -> io::Result<bool> {
        Ok(!self.inner.is_running().await.map_err(io::Error::other)?)
    }

    pub(super) async fn log(&self) -> io::Result<String> {
        let log = self.inner.stdout_to_vec().await.map_err(io::Error::other)?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }
}

/// Runs Docker's command.
pub(super) fn docker(arguments: &[&str]) -> io::Result<()> {
    let done = Command::new("docker").args(arguments).output();
    let done = done.map_err(|error| io::Error::other(format!("docker: {error}")))?;
    if done.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(format!("docker {}: {}", arguments[0], told.trim().replace('\n', " "))))
}
