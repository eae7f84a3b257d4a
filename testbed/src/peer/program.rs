//! The programs that can be peers, and how they are built and started.

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

/// Exit status of a `build` script that lacks a tool.
const TOOL_MISSING: i32 = 75;

/// Maximum time until a peer has connected, on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Source of a peer, and its version if several can be built.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    folder: &'static str,
    version: Option<&'static str>,
}

impl Program {
    /// The newest supported Redisson.
    pub const REDISSON: Self = Self { folder: "redisson", version: Some("4.7.0") };
    /// An old Redisson with the same channels as the newest.
    pub const REDISSON_3: Self = Self { folder: "redisson", version: Some("3.13.6") };
    /// redis-py's `Lock`, which uses the plain dialect, in Python.
    pub const REDIS_PY: Self = Self { folder: "redis-py", version: None };
    /// Redsync, which uses the plain dialect, in Go.
    pub const REDSYNC: Self = Self { folder: "redsync", version: None };

    /// Curator's locks on ZooKeeper.
    pub const CURATOR: Self = Self { folder: "curator", version: Some("5.9.0") };
    /// kazoo's locks on ZooKeeper, with node names as in Curator.
    pub const KAZOO: Self = Self { folder: "kazoo", version: None };
    /// The locks of etcd's Go client.
    pub const ETCD_GO: Self = Self { folder: "etcd-go", version: None };
    /// `etcdctl lock`.
    pub const ETCDCTL: Self = Self { folder: "etcdctl", version: None };

    /// Advisory locks of PostgreSQL in `psql`, with keys of the rule `hashtext`.
    pub const PSQL: Self = Self { folder: "psql", version: None };

    /// Redisson of another version.
    pub const fn redisson(version: &'static str) -> Self {
        Self { folder: "redisson", version: Some(version) }
    }

    /// Returns name and version, for messages: `redisson 4.7.0`.
    pub fn name(&self) -> String {
        [self.folder].into_iter().chain(self.version).collect::<Vec<_>>().join(" ")
    }

    /// Name in `DLOCK_REQUIRE`.
    pub fn word(&self) -> &'static str {
        self.folder
    }

    /// Builds the program below `peers` in cargo's target folder, unless an earlier run has built
    /// it.
    ///
    /// # Errors
    /// [`Unreachable`] with the program's [`word`](Self::word), if a tool or the network is
    /// missing.
    ///
    /// # Panics
    /// If the build fails for another reason.
    pub fn build(&self) -> Result<Built, Unreachable> {
        let name = self.name();
        let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"));
        let peers = target.join("peers");
        let out = peers.join(name.replace(' ', "-"));
        let output = exclusively(&peers, &out, || {
            let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(self.folder).join("build");
            Command::new(build).arg(out.canonicalize()?).args(self.version).stdin(Stdio::null()).output()
        });
        // For example because there is no shell.
        let output = output.map_err(|error| self.unreachable(&error.to_string()))?;
        let message = String::from_utf8_lossy(&output.stderr);
        match output {
            Output { status, .. } if status.success() => Ok(Built { name, run: out.join("run") }),
            Output { status, .. } if status.code() == Some(TOOL_MISSING) => {
                Err(self.unreachable(message.lines().last().unwrap_or_default()))
            }
            Output { status, .. } => panic!("the peer {name} does not build ({status}): {message}"),
        }
    }

    fn unreachable(&self, reason: &str) -> Unreachable {
        Unreachable { name: self.folder.to_owned(), reason: format!("there is no {}: {reason}", self.name()) }
    }
}

/// Runs `build` while no other process builds a peer. Creates the folder `out`.
fn exclusively<T>(
    peers: &Path,
    out: &Path,
    build: impl FnOnce() -> std::io::Result<T>,
) -> std::io::Result<T> {
    fs::create_dir_all(out)?;
    let file = File::create(peers.join("lock"))?;
    file.lock()?;
    // Closing the file unlocks it.
    build()
}

/// A peer that has been built.
#[derive(Clone, Debug)]
pub struct Built {
    name: String,
    run: PathBuf,
}

impl Built {
    /// Name and version, for messages: `redisson 4.7.0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts a process that connects to a store. `ttl` is the time after which its locks expire if
    /// the process is killed.
    ///
    /// # Panics
    /// If the process does not connect.
    pub fn start(&self, url: &str, ttl: Duration) -> Peer {
        let mut command = Command::new(&self.run);
        command.args([url, &ttl.as_millis().to_string()]);
        // Client libraries log to standard error.
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
        let (sender, first_line) = mpsc::channel();
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = String::new();
            let read = output.read_line(&mut line);
            // Fails if the receiver has timed out.
            let _ = sender.send(read.map(|_| (line, output)));
        });
        let (line, output) = match first_line.recv_timeout(READY_TIMEOUT) {
            Ok(Ok((line, output))) if line.starts_with("ready") => (line, output),
            other => {
                // Fails if the process has ended already.
                let _ = child.kill();
                let output = other.map(|read| read.map(|(line, _)| line));
                panic!(
                    "the peer {name} does not connect within {READY_TIMEOUT:?}, but says {output:?}; its log may say more"
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
