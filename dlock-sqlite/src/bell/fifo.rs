//! Doorbells out of FIFOs.

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

/// What is written or read at once: whole or not at all, and never interleaved, because POSIX says so up to this size.
const ATOMIC: usize = 4096;

/// The end of the name of a FIFO that is being made.
const UNREAD: &str = ".new";

/// How long that may take, which is no more than a millisecond. Who takes longer rings nobody and is not rung.
const UNFINISHED: Duration = Duration::from_secs(60);

/// This client's own FIFO.
pub(super) struct Fifo {
    dir: Arc<Dir>,
    name: String,
    /// Open for reading until this client ends, and for writing too, so that it never reads an end.
    file: File,
}

impl Fifo {
    /// Makes the FIFO of client `me`, open to those who share the store, and starts its pump.
    pub(super) fn make(dir: &Arc<Dir>, me: ClaimId, runtime: &Handle, claims: &Arc<Claims>) -> Option<Self> {
        let name = name(me);
        // Under its own name it is never seen without its reader.
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

    /// Whether others find it where they look.
    pub(super) fn is_in_place(&self) -> bool {
        self.dir.is_in_place() && self.dir.holds(&self.name, &self.file)
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
pub(super) fn ring(dir: &Dir, client: ClaimId, claims: &[u8]) {
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

/// What a client's FIFO says of it.
pub(super) fn reader(dir: &Dir, client: ClaimId) -> Reader {
    dir.reader(&name(client))
}

/// The clients that have a FIFO, and the names of those FIFOs that were never finished.
pub(super) fn clients(dir: &Dir) -> (Vec<ClaimId>, Vec<String>) {
    let (clients, others): (Vec<_>, Vec<_>) = dir.names().into_iter().partition(|name| id(name).is_some());
    let unfinished = others.into_iter().filter(|name| name.ends_with(UNREAD));
    (clients.iter().filter_map(|name| id(name)).collect(), unfinished.collect())
}

/// Removes the FIFO of a client that died while it made it.
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
