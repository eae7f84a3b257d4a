//! What servers are run from: an image, or a program of this machine.

use std::{
    collections::BTreeMap,
    env, io,
    process::{Command, Stdio},
    sync::{LazyLock, Mutex, PoisonError},
};

use super::container::{self, ServerImage};

/// A line of `images/official`, which `scripts/stores` reads, too.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: &'static str,
    /// The name of the server's program, in the image and on this machine.
    pub(super) program: &'static str,
    image: &'static str,
    /// Whether it is a version that this machine's package is not, or has no package. The program of this machine is then not used.
    is_foreign: bool,
}

/// What runs a server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Host {
    Container,
    Process,
}

/// Where servers can be run.
#[derive(Debug)]
pub(super) enum Site {
    Container(ServerImage),
    Process,
}

impl Package {
    /// # Panics
    /// If no line has this name.
    pub(super) fn named(name: &str) -> &'static Self {
        static ALL: LazyLock<Vec<Package>> =
            LazyLock::new(|| include_str!("../../images/official").lines().map(Package::of).collect());
        ALL.iter().find(|package| package.name == name).expect("each store has a line in images/official")
    }

    fn of(line: &'static str) -> Self {
        let words: Vec<_> = line.split(' ').collect();
        let [name, image, debian, program, old @ ..] = &words[..] else {
            panic!("images/official: not a line of four or five words: {line}")
        };
        Self { name, program, image, is_foreign: !old.is_empty() || *debian == "-" }
    }

    /// What may run its servers, the best first. Without the program of this machine if another version is asked for.
    pub(super) fn hosts(&self) -> &'static [Host] {
        if self.is_foreign || env::var_os(self.image_variable()).is_some() {
            &[Host::Container]
        } else {
            &[Host::Container, Host::Process]
        }
    }

    /// Prepares to run its servers.
    ///
    /// # Errors
    /// If they cannot be run; the error says what is missing.
    pub(super) fn site(&self, host: Host) -> io::Result<Site> {
        match host {
            Host::Container => self.image().map(Site::Container),
            Host::Process => {
                let program = self.program;
                let mut version = Command::new(program);
                let version = version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
                version.map_err(|error| io::Error::other(format!("{program}: {error}")))?;
                Ok(Site::Process)
            }
        }
    }

    /// The environment variable with the image to run its servers from.
    fn image_variable(&self) -> String {
        format!("DLOCK_TEST_{}_IMAGE", self.name.to_uppercase())
    }

    /// The image that the environment names, else the one that `scripts/stores` built, else the official one. They are
    /// pulled if need be.
    ///
    /// # Errors
    /// If Docker does not answer. That there is a `docker` command proves nothing, because it is only the client.
    fn image(&self) -> io::Result<ServerImage> {
        // Search once for each process: without a registry the search takes a while to fail.
        static FOUND: Mutex<BTreeMap<&'static str, Result<ServerImage, String>>> =
            Mutex::new(BTreeMap::new());
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        let search = || self.search().map_err(|error| error.to_string());
        found.entry(self.name).or_insert_with(search).clone().map_err(io::Error::other)
    }

    fn search(&self) -> io::Result<ServerImage> {
        container::docker(&["info"])?;
        if let Ok(named) = env::var(self.image_variable()) {
            return ServerImage::pulled(&named);
        }
        let built = format!("localhost/dlock-test-{}:built", self.name);
        ServerImage::here(&built).or_else(|_| ServerImage::pulled(self.image))
    }
}
