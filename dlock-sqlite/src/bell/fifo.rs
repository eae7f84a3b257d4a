//! Doorbells out of FIFOs.

use std::{
    collections::HashMap,
    fs::{DirBuilder, File, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use dlock_core::ClaimId;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, mknodat},
    io::Errno,
};
use tokio::{io::Interest, net::unix::pipe, runtime::Handle};

use super::Claims;

/// The bytes of an id.
const ID: usize = 16;

/// What is written or read at once: whole or not at all, and never interleaved, because POSIX says so up to this size.
const ATOMIC: usize = 4096;

/// The end of the name of a FIFO that is being made.
const UNREAD: &str = "new";

/// How long that may take, which is no more than a millisecond. Who takes longer rings nobody and is not rung.
const UNFINISHED: Duration = Duration::from_secs(60);

/// This client's own FIFO.
pub(super) struct Fifo {
    path: PathBuf,
    /// Open for reading until this client ends, and for writing too, so that it never reads an end.
    file: File,
}

impl Fifo {
    /// Makes the FIFO of client `me`, open to those to whom the store in the file `store` is, and starts its pump.
    pub(super) fn make(
        dir: &Path,
        store: &Path,
        me: ClaimId,
        runtime: &Handle,
        claims: &Arc<Claims>,
    ) -> Option<Self> {
        let mode = store.metadata().ok()?.mode();
        // Only who may both read and write the file: a reader could take rings away.
        let others = mode & 0o044 & (mode << 1);
        let made = DirBuilder::new().mode(0o700 | others | others >> 1 | others >> 2).create(dir);
        if made.is_err_and(|error| error.kind() != ErrorKind::AlreadyExists) {
            return None;
        }
        let path = path(dir, me);
        // Under its own name it is never seen without its reader.
        let unread = path.with_extension(UNREAD);
        mknodat(CWD, &unread, FileType::Fifo, Mode::from_raw_mode(0o600 | others | others >> 1), 0).ok()?;
        let open = || {
            let file = OpenOptions::new().read(true).write(true).custom_flags(nonblocking()).open(&unread)?;
            let _entered = runtime.enter();
            let reader = pipe::Receiver::from_file(file.try_clone()?)?;
            std::fs::rename(&unread, &path).map(|()| (file, reader))
        };
        let Ok((file, reader)) = open() else {
            std::fs::remove_file(unread).ok();
            return None;
        };
        runtime.spawn(pump(reader, Arc::clone(claims)));
        Some(Self { path, file })
    }

    /// Whether others find it where they look.
    pub(super) fn is_in_place(&self) -> bool {
        let found = self.path.metadata().map(|found| (found.dev(), found.ino()));
        let own = self.file.metadata().map(|own| (own.dev(), own.ino()));
        found.is_ok_and(|found| own.is_ok_and(|own| found == own))
    }
}

/// The pump: rings the bells of the claims whose ids come in.
async fn pump(fifo: pipe::Receiver, claims: Arc<Claims>) {
    let mut buffer = [0; ATOMIC];
    while fifo.readable().await.is_ok() {
        match fifo.try_read(&mut buffer) {
            // A full buffer: the FIFO itself may have been full, and rings may be missing. A broken id: so is the next.
            Ok(read) if read == ATOMIC || read % ID != 0 => claims.ring_all(),
            Ok(read) => {
                let (ids, _) = buffer[..read].as_chunks::<ID>();
                ids.iter().for_each(|id| claims.ring(ClaimId::from_bytes(*id)));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Writes ids of claims into the FIFO of their client.
pub(super) fn ring(dir: &Path, client: ClaimId, claims: &[u8]) {
    let Ok(mut fifo) = open(dir, client) else { return };
    for claims in claims.chunks(ATOMIC) {
        // A full FIFO has its reader ring all its claims.
        if fifo.write(claims).is_err() {
            return;
        }
    }
}

/// Ends when a client does.
pub(crate) struct Watch(pipe::Sender);

impl Watch {
    /// Ends when the client is dead; never if that cannot be learnt.
    pub(crate) async fn over(&self) {
        // The kernel reports an error on a FIFO's write end when the last reader goes.
        if self.0.ready(Interest::ERROR).await.is_err() {
            std::future::pending().await
        }
    }
}

/// The watches of this client, one for each other client, however many claims wait for it.
pub(super) struct Watches {
    runtime: Handle,
    known: Mutex<HashMap<ClaimId, Weak<Watch>>>,
}

impl Watches {
    pub(super) fn new(runtime: &Handle) -> Self {
        Self { runtime: runtime.clone(), known: Mutex::default() }
    }

    pub(super) fn watch(&self, dir: &Path, client: ClaimId) -> Option<Arc<Watch>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = known.get(&client).and_then(Weak::upgrade) {
            return Some(watch);
        }
        known.retain(|_, watch| watch.strong_count() > 0);
        let _entered = self.runtime.enter();
        let watch = Arc::new(Watch(pipe::Sender::from_file(open(dir, client).ok()?).ok()?));
        known.insert(client, Arc::downgrade(&watch));
        Some(watch)
    }
}

/// Whether a client has a FIFO and nobody reads it.
pub(super) fn is_unread(dir: &Path, client: ClaimId) -> bool {
    open(dir, client).is_err_and(|error| error.raw_os_error() == Some(Errno::NXIO.raw_os_error()))
}

/// Removes what clients left that died while they made their FIFO.
pub(super) fn sweep(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        let unfinished = entry.path().extension().is_some_and(|extension| extension == UNREAD);
        if unfinished && age().is_some_and(|age| age > UNFINISHED) {
            std::fs::remove_file(entry.path()).ok();
        }
    }
}

/// The clients that have a FIFO.
pub(super) fn clients(dir: &Path) -> impl Iterator<Item = ClaimId> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| id(entry.file_name().to_str()?))
}

pub(super) fn remove(dir: &Path, client: ClaimId) {
    std::fs::remove_file(path(dir, client)).ok();
}

/// Opens a client's FIFO for writing; `ENXIO` if nobody reads it.
fn open(dir: &Path, client: ClaimId) -> std::io::Result<File> {
    OpenOptions::new().write(true).custom_flags(nonblocking()).open(path(dir, client))
}

fn nonblocking() -> i32 {
    OFlags::NONBLOCK.bits().cast_signed()
}

fn path(dir: &Path, client: ClaimId) -> PathBuf {
    let name: String = client.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    dir.join(name)
}

fn id(name: &str) -> Option<ClaimId> {
    let digits = (name.len() == 2 * ID && name.is_ascii()).then_some(name)?;
    let mut bytes = [0; ID];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(ClaimId::from_bytes(bytes))
}
