//! The image or the local program from which servers run.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, io,
    process::{Command, Stdio},
    sync::LazyLock,
};

use dlock_conformance::Unreachable;
use parking_lot::Mutex;

use super::container::{self, ServerImage};

/// A line of `images/official`, which `scripts/stores` also reads.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: &'static str,
    /// Name of the server's program in the image and on this machine.
    pub(super) program: &'static str,
    image: &'static str,
    /// Whether no package of this machine has the required version. The local program is then not
    /// used.
    is_foreign: bool,
    /// Whether servers are started only if `DLOCK_REQUIRE` names the store, because its tests take
    /// long.
    is_on_request: bool,
}

/// Names of the stores whose servers are started on request, one in each line. `scripts/stores`
/// also reads them.
const ON_REQUEST: &str = include_str!("../../images/on-request");

/// Stores that this process has requested.
static REQUESTED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

/// Requests the servers of a store, as `DLOCK_REQUIRE` does, for a program that is not a test. The
/// store is one of `testbed/images/on-request`.
pub fn request(store: &'static str) {
    REQUESTED.lock().insert(store);
}

/// Way to run a server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Host {
    Container,
    Process,
}

/// A [`Host`] that is available, with what it needs.
#[derive(Debug)]
pub(super) enum Site {
    Container(ServerImage),
    Process,
}

impl Package {
    /// Returns the line with this name.
    ///
    /// # Panics
    /// If there is none.
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
        let is_foreign = !old.is_empty() || *debian == "-";
        let is_on_request = ON_REQUEST.lines().any(|store| store == *name);
        Self { name, program, image, is_foreign, is_on_request }
    }

    /// Checks that servers may be started: that the environment asks for them, or that their tests
    /// do not take long.
    ///
    /// # Errors
    /// If servers are started on request, and there was none.
    pub(super) fn check_requested(&self) -> Result<(), Unreachable> {
        let name = self.name;
        let reason = format!("it is tested only with DLOCK_REQUIRE={name}, because its tests take long");
        let unrequested = Unreachable { name: name.to_owned(), reason };
        let is_requested = env::var_os(self.image_variable()).is_some()
            || REQUESTED.lock().contains(name)
            || unrequested.is_required();
        if self.is_on_request && !is_requested { Err(unrequested) } else { Ok(()) }
    }

    /// Returns the possible hosts, the preferred one first. The local program is omitted if it
    /// would have the wrong version.
    pub(super) fn hosts(&self) -> &'static [Host] {
        if self.is_foreign || env::var_os(self.image_variable()).is_some() {
            &[Host::Container]
        } else {
            &[Host::Container, Host::Process]
        }
    }

    /// Prepares a host for the servers.
    ///
    /// # Errors
    /// If servers cannot run there. The error says what is missing.
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

    /// Returns the name of the environment variable with an image for the servers.
    fn image_variable(&self) -> String {
        format!("DLOCK_TEST_{}_IMAGE", self.name.to_uppercase())
    }

    /// Returns the image that the environment names. Without one, returns the image that
    /// `scripts/stores` has built, or else the official one. Pulls a named or official image if
    /// Docker does not have it.
    ///
    /// # Errors
    /// If Docker does not respond, or the image cannot be pulled.
    fn image(&self) -> io::Result<ServerImage> {
        // Once for each process, because the search fails slowly if the registry is unreachable.
        static FOUND: Mutex<BTreeMap<&'static str, Result<ServerImage, String>>> =
            Mutex::new(BTreeMap::new());
        let mut found = FOUND.lock();
        let search = || self.search().map_err(|error| error.to_string());
        found.entry(self.name).or_insert_with(search).clone().map_err(io::Error::other)
    }

    fn search(&self) -> io::Result<ServerImage> {
        // A `docker` command may be only a client without an engine.
        container::docker(&["info"])?;
        if let Ok(named) = env::var(self.image_variable()) {
            return ServerImage::pulled(&named);
        }
        let built = format!("localhost/dlock-test-{}:built", self.name);
        ServerImage::local(&built).or_else(|_| ServerImage::pulled(self.image))
    }
}
