//! Doorbells made of FIFOs.

use std::{
    collections::HashMap,
    fs::File,
    io::{ErrorKind, Write},
    sync::{Arc, Weak},
    time::Duration,
};

use dlock_core::ClaimId;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use tokio::{io::Interest, net::unix::pipe, runtime::Handle};

use super::{BellDir, ClaimBells, Liveness};

/// Length of an id in bytes.
const ID_LEN: usize = 16;

/// Maximum length of one read or write in bytes. Up to this size POSIX guarantees that a write to a
/// FIFO is executed completely or not at all, and that writes of several processes do not mix.
const ATOMIC_LEN: usize = 4096;

/// Suffix of a FIFO's name until the FIFO has its reader.
const UNFINISHED_SUFFIX: &str = ".new";

/// Age from which an unfinished FIFO belongs to a client that has died. Creating a FIFO takes a
/// millisecond.
const ABANDONED_AGE: Duration = Duration::from_secs(60);

/// This client's own FIFO.
pub(super) struct Fifo {
    dir: Arc<BellDir>,
    name: String,
    /// Open for reading until this client ends. Also open for writing, because without any writer a
    /// read would return an end of file.
    file: File,
}

impl Fifo {
    /// Creates the FIFO of client `me`, which all users of the store may write, and starts its
    /// pump.
    #[expect(clippy::disallowed_methods, reason = "the client's one hint pump, on the client's own thread")]
    pub(super) fn make(
        dir: &Arc<BellDir>,
        me: ClaimId,
        runtime: &Handle,
        claims: &Arc<ClaimBells>,
    ) -> Option<Self> {
        let name = name(me);
        // The FIFO gets its final name once it has its reader. A FIFO that has this name and no
        // reader means that the client is dead.
        let unfinished = format!("{name}{UNFINISHED_SUFFIX}");
        let open = || {
            let file = dir.make_fifo(&unfinished)?;
            let _entered = runtime.enter();
            let reader = pipe::Receiver::from_file(file.try_clone()?)?;
            dir.rename(&unfinished, &name).map(|()| (file, reader))
        };
        let Ok((file, reader)) = open() else {
            dir.remove(&unfinished);
            return None;
        };
        runtime.spawn(pump(reader, Arc::clone(claims)));
        Some(Self { dir: Arc::clone(dir), name, file })
    }

    /// Returns whether other clients find this FIFO under its name.
    pub(super) fn is_in_place(&self) -> bool {
        self.dir.is_in_place() && self.dir.contains(&self.name, &self.file)
    }
}

/// Reads ids of claims from the FIFO and rings their bells.
async fn pump(fifo: pipe::Receiver, claims: Arc<ClaimBells>) {
    let mut buffer = [0; ATOMIC_LEN];
    while fifo.readable().await.is_ok() {
        match fifo.try_read(&mut buffer) {
            // After a full buffer, ids may be missing because the FIFO itself may have been full.
            // After an incomplete id, all ids that follow are broken too.
            Ok(read) if read == ATOMIC_LEN || read % ID_LEN != 0 => claims.ring_all(),
            Ok(read) => {
                let (ids, _) = buffer[..read].as_chunks::<ID_LEN>();
                ids.iter().for_each(|id| claims.ring(ClaimId::from_bytes(*id)));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Writes the ids of claims into the FIFO of their client.
pub(super) fn ring(dir: &BellDir, client: ClaimId, claims: &[u8]) {
    let Ok(mut fifo) = open(dir, client) else { return };
    for claims in claims.chunks(ATOMIC_LEN) {
        // If the FIFO is full, its reader rings the bells of all its claims anyway.
        if fifo.write(claims).is_err() {
            return;
        }
    }
}

/// A watch of another client, which reports the client's death.
pub(crate) struct ClientWatch(pipe::Sender);

impl ClientWatch {
    /// Waits until the client is dead. Never returns if that cannot be detected.
    pub(crate) async fn died(&self) {
        // The kernel reports an error on the write end of a FIFO when its last reader has closed
        // it.
        if self.0.ready(Interest::ERROR).await.is_err() {
            std::future::pending().await
        }
    }
}

/// The watches of other clients. All claims of this client that wait for the same client share one
/// watch.
pub(super) struct ClientWatches {
    runtime: Handle,
    watches: Mutex<HashMap<ClaimId, Weak<ClientWatch>>>,
}

impl ClientWatches {
    pub(super) fn new(runtime: &Handle) -> Self {
        Self { runtime: runtime.clone(), watches: Mutex::default() }
    }

    pub(super) fn watch(&self, dir: &BellDir, client: ClaimId) -> Option<Arc<ClientWatch>> {
        let mut watches = self.watches.lock();
        if let Some(watch) = watches.get(&client).and_then(Weak::upgrade) {
            return Some(watch);
        }
        watches.retain(|_, watch| watch.strong_count() > 0);
        let _entered = self.runtime.enter();
        let watch = Arc::new(ClientWatch(pipe::Sender::from_file(open(dir, client).ok()?).ok()?));
        watches.insert(client, Arc::downgrade(&watch));
        Some(watch)
    }
}

/// Returns the state of a client, according to its FIFO.
pub(super) fn liveness(dir: &BellDir, client: ClaimId) -> Liveness {
    dir.liveness(&name(client))
}

/// Returns the clients that have a FIFO, and the names of unfinished FIFOs.
pub(super) fn clients(dir: &BellDir) -> (Vec<ClaimId>, Vec<String>) {
    let (clients, others): (Vec<_>, Vec<_>) = dir.names().into_iter().partition(|name| id(name).is_some());
    let unfinished = others.into_iter().filter(|name| name.ends_with(UNFINISHED_SUFFIX));
    (clients.iter().filter_map(|name| id(name)).collect(), unfinished.collect())
}

/// Removes an unfinished FIFO if its client has died before it finished the FIFO.
pub(super) fn remove_unfinished(dir: &BellDir, name: &str) {
    if dir.age(name).is_some_and(|age| age > ABANDONED_AGE) {
        dir.remove(name);
    }
}

pub(super) fn remove(dir: &BellDir, client: ClaimId) {
    dir.remove(&name(client));
}

/// Opens a client's FIFO for writing. Fails with `ENXIO` if it has no reader.
fn open(dir: &BellDir, client: ClaimId) -> std::io::Result<File> {
    dir.open_fifo(&name(client), OFlags::WRONLY)
}

fn name(client: ClaimId) -> String {
    client.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn id(file: &str) -> Option<ClaimId> {
    let digits = (file.len() == 2 * ID_LEN && file.is_ascii()).then_some(file)?;
    let mut bytes = [0; ID_LEN];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
    }
    let client = ClaimId::from_bytes(bytes);
    // The number in another notation, such as upper case, is not the FIFO of that client.
    (name(client) == file).then_some(client)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_that_a_client_makes_is_its_fifo() {
        let made = "6d5e8b1c3f2a4c5d9e8f0123456789ab";
        assert_eq!(id(made).map(name).as_deref(), Some(made));
        for other in [&made.to_uppercase(), &made.replace("6d", "+d"), &made[1..], "", &"é".repeat(16)] {
            assert_eq!(id(other), None, "{other}");
        }
    }
}
