//! Doorbells made of FIFOs.

use std::{
    collections::HashMap,
    fs::File,
    io::{ErrorKind, Write},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use dlock_core::ClaimId;
use rustix::fs::OFlags;
use tokio::{io::Interest, net::unix::pipe, runtime::Handle};

use super::{Claims, Dir, Reader};

/// The bytes of an id.
const ID: usize = 16;

/// The most that is written or read at once. POSIX promises up to this size that a write to a FIFO is done whole or not
/// at all, and that writes of several processes do not mix.
const ATOMIC: usize = 4096;

/// The suffix of a FIFO's name while it is being made.
const UNREAD: &str = ".new";

/// The age from which an unfinished FIFO counts as left behind by a client that died. Making one takes a millisecond.
const UNFINISHED: Duration = Duration::from_secs(60);

/// This client's own FIFO.
pub(super) struct Fifo {
    dir: Arc<Dir>,
    name: String,
    /// Open for reading until this client ends. Open for writing too: without any writer, reading would give an end of file.
    file: File,
}

impl Fifo {
    /// Makes the FIFO of client `me`, which all users of the store may write, and starts its pump.
    #[expect(clippy::disallowed_methods, reason = "the client's one hint pump, on the client's own thread")]
    pub(super) fn make(dir: &Arc<Dir>, me: ClaimId, runtime: &Handle, claims: &Arc<Claims>) -> Option<Self> {
        let name = name(me);
        // It gets its own name when it has its reader. Under that name without a reader it would mean that the client is
        // dead.
        let unread = format!("{name}{UNREAD}");
        let open = || {
            let file = dir.make_fifo(&unread)?;
            let _entered = runtime.enter();
            let reader = pipe::Receiver::from_file(file.try_clone()?)?;
            dir.rename(&unread, &name).map(|()| (file, reader))
        };
        let Ok((file, reader)) = open() else {
            dir.remove(&unread);
            return None;
        };
        runtime.spawn(pump(reader, Arc::clone(claims)));
        Some(Self { dir: Arc::clone(dir), name, file })
    }

    /// Whether other clients find this FIFO under its name.
    pub(super) fn is_in_place(&self) -> bool {
        self.dir.is_in_place() && self.dir.holds(&self.name, &self.file)
    }
}

/// The pump: reads ids of claims from the FIFO and rings their bells.
async fn pump(fifo: pipe::Receiver, claims: Arc<Claims>) {
    let mut buffer = [0; ATOMIC];
    while fifo.readable().await.is_ok() {
        match fifo.try_read(&mut buffer) {
            // After a full buffer the FIFO itself may have been full, so that rings are missing. After a part of an id all
            // following ids are broken too.
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
pub(super) fn ring(dir: &Dir, client: ClaimId, claims: &[u8]) {
    let Ok(mut fifo) = open(dir, client) else { return };
    for claims in claims.chunks(ATOMIC) {
        // If the FIFO is full, its reader rings all its claims anyway.
        if fifo.write(claims).is_err() {
            return;
        }
    }
}

/// Watches a client until it dies.
pub(crate) struct Watch(pipe::Sender);

impl Watch {
    /// Ends when the client is dead. Never ends if that cannot be seen.
    pub(crate) async fn over(&self) {
        // The kernel reports an error on the write end of a FIFO when its last reader has closed it.
        if self.0.ready(Interest::ERROR).await.is_err() {
            std::future::pending().await
        }
    }
}

/// The watches of this client: one for each client that is watched, however many claims wait for that client.
pub(super) struct Watches {
    runtime: Handle,
    known: Mutex<HashMap<ClaimId, Weak<Watch>>>,
}

impl Watches {
    pub(super) fn new(runtime: &Handle) -> Self {
        Self { runtime: runtime.clone(), known: Mutex::default() }
    }

    pub(super) fn watch(&self, dir: &Dir, client: ClaimId) -> Option<Arc<Watch>> {
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

/// Whether a client lives, as its FIFO says.
pub(super) fn reader(dir: &Dir, client: ClaimId) -> Reader {
    dir.reader(&name(client))
}

/// The clients that have a FIFO, and the names of FIFOs that are not finished.
pub(super) fn clients(dir: &Dir) -> (Vec<ClaimId>, Vec<String>) {
    let (clients, others): (Vec<_>, Vec<_>) = dir.names().into_iter().partition(|name| id(name).is_some());
    let unfinished = others.into_iter().filter(|name| name.ends_with(UNREAD));
    (clients.iter().filter_map(|name| id(name)).collect(), unfinished.collect())
}

/// Removes a FIFO that is not finished, if its client has died while it made it.
pub(super) fn sweep(dir: &Dir, unfinished: &str) {
    if dir.age(unfinished).is_some_and(|age| age > UNFINISHED) {
        dir.remove(unfinished);
    }
}

pub(super) fn remove(dir: &Dir, client: ClaimId) {
    dir.remove(&name(client));
}

/// Opens a client's FIFO for writing; `ENXIO` if nobody reads it.
fn open(dir: &Dir, client: ClaimId) -> std::io::Result<File> {
    dir.open_fifo(&name(client), OFlags::WRONLY)
}

fn name(client: ClaimId) -> String {
    client.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn id(name: &str) -> Option<ClaimId> {
    let digits = (name.len() == 2 * ID && name.is_ascii()).then_some(name)?;
    let mut bytes = [0; ID];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(ClaimId::from_bytes(bytes))
}
