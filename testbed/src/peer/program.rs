//! The programs that can be peers: what there is, how it is built, and how it is started.

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{atomic::AtomicUsize, mpsc},
    thread,
    time::Duration,
};

use dlock_conformance::Unreachable;

use super::{Peer, PeerKind, lines::Lines};

/// The exit status of a `build` that lacks a tool.
const MISSING: i32 = 75;

/// The longest that a peer may take until it is connected, a busy machine included.
const READY: Duration = Duration::from_secs(60);

/// A peer's source, and its version if there may be several.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    folder: &'static str,
    version: Option<&'static str>,
}

impl Program {
    /// The newest Redisson.
    pub const REDISSON: Self = Self { folder: "redisson", version: Some("4.7.0") };
    /// An old Redisson, which publishes to the same channels as the newest.
    pub const REDISSON_3: Self = Self { folder: "redisson", version: Some("3.13.6") };
    /// redis-py's `Lock`: the plain dialect, in Python.
    pub const REDIS_PY: Self = Self { folder: "redis-py", version: None };
    /// Redsync: the plain dialect, in Go.
    pub const REDSYNC: Self = Self { folder: "redsync", version: None };

    /// Curator's locks on ZooKeeper.
    pub const CURATOR: Self = Self { folder: "curator", version: Some("5.9.0") };
    /// kazoo's locks on ZooKeeper, with the names of Curator's nodes.
    pub const KAZOO: Self = Self { folder: "kazoo", version: None };
    /// The locks of etcd's Go client.
    pub const ETCD_GO: Self = Self { folder: "etcd-go", version: None };
    /// `etcdctl lock`.
    pub const ETCDCTL: Self = Self { folder: "etcdctl", version: None };

    /// Redisson of another version.
    pub const fn redisson(version: &'static str) -> Self {
        Self { folder: "redisson", version: Some(version) }
    }

    /// What it is, for people: `redisson 4.7.0`.
    pub fn name(&self) -> String {
        [self.folder].into_iter().chain(self.version).collect::<Vec<_>>().join(" ")
    }

    /// The word of `DLOCK_REQUIRE` that makes it one that must be there.
    pub fn word(&self) -> &'static str {
        self.folder
    }

    /// Builds it, or finds it built: into `peers` in cargo's target folder.
    ///
    /// # Errors
    /// [`Unreachable`] if a tool or the network is missing, by its [`word`](Self::word).
    ///
    /// # Panics
    /// If everything is there and it does not build.
    pub fn build(&self) -> Result<Built, Unreachable> {
        let name = self.name();
        let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"));
        let peers = target.join("peers");
        let out = peers.join(name.replace(' ', "-"));
        let output = alone(&peers, &out, || {
            let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(self.folder).join("build");
            Command::new(build).arg(out.canonicalize()?).args(self.version).stdin(Stdio::null()).output()
        });
        // A shell that is missing, too.
        let output = output.map_err(|error| self.unreachable(&error.to_string()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        match output {
            Output { status, .. } if status.success() => Ok(Built { name, run: out.join("run") }),
            Output { status, .. } if status.code() == Some(MISSING) => {
                Err(self.unreachable(said.lines().last().unwrap_or_default()))
            }
            Output { status, .. } => panic!("the peer {name} does not build ({status}): {said}"),
        }
    }

    fn unreachable(&self, why: &str) -> Unreachable {
        Unreachable { name: self.folder.to_owned(), reason: format!("there is no {}: {why}", self.name()) }
    }
}

/// Does something to a folder while no other process does.
fn alone<T>(peers: &Path, out: &Path, act: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
    fs::create_dir_all(out)?;
    let file = File::create(peers.join("lock"))?;
    file.lock()?;
    // Unlocked by closing it.
    act()
}

/// A peer that can be started.
#[derive(Clone, Debug)]
pub struct Built {
    name: String,
    run: PathBuf,
}

impl Built {
    /// What it is, for people: `redisson 4.7.0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts it as one process, as a client of a store. `ttl` is how long its locks stay when it dies.
    ///
    /// # Panics
    /// If it does not connect.
    pub fn start(&self, url: &str, ttl: Duration) -> Peer {
        let mut command = Command::new(&self.run);
        command.args([url, &ttl.as_millis().to_string()]);
        // Libraries talk to people there.
        let log = File::options().create(true).append(true).open(self.run.with_file_name("log"));
        if let Ok(log) = log {
            command.stderr(log);
        }
        Peer::start(&self.name, command)
    }
}

impl Peer {
    pub(super) fn start(name: &str, mut command: Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("the peer {name} does not start: {error}"));
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are pipes");
        };
        let (sender, first) = mpsc::channel();
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = String::new();
            let read = output.read_line(&mut line);
            // Nobody waits for it once that was too long.
            let _ = sender.send(read.map(|_| (line, output)));
        });
        let (line, output) = match first.recv_timeout(READY) {
            Ok(Ok((line, output))) if line.starts_with("ready") => (line, output),
            other => {
                // It may have ended already.
                let _ = child.kill();
                let said = other.map(|read| read.map(|(line, _)| line));
                panic!(
                    "the peer {name} does not connect within {READY:?}, but says {said:?}; its log may say more"
                );
            }
        };
        let words: Vec<_> = line.split_whitespace().collect();
        let kinds =
            PeerKind::ALL.into_iter().filter(|kind| words.contains(&kind.to_string().as_str())).collect();
        let (lines, contenders) = (Lines::new(input, output), AtomicUsize::new(1));
        Self { name: name.to_owned(), child, kinds, lines, contenders }
    }
}
