//! What the claims of one client share.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use dlock_core::{ClaimId, Result, driver::Info};

use crate::{
    bell::Bells,
    connection::{Access, Connection, Tx, thread::Thread},
    queue::{QueueRow, Signature},
};

/// One in so many of a client's attempts also removes expired claims of other locks. Looking for them takes some
/// hundredths of a millisecond, so most attempts do not.
const SWEEP_EVERY: u32 = 8;

/// In the file, the client of a detached claim. No client has this id and no FIFO its name. So nobody finds this client dead,
/// also not a dlock that does not know detached claims.
pub(crate) const NOBODY: ClaimId = ClaimId::from_bytes([0; 16]);

/// What the claims of one client share.
pub(crate) struct Client {
    pub(crate) me: Signature,
    pub(crate) bells: Bells,
    pub(crate) connection: Connection,
    pub(crate) info: Info,
    /// How many attempts this client has made.
    pub(crate) asked: AtomicU32,
    pub(crate) thread: Thread,
}

impl Client {
    pub(crate) async fn begin(&self, access: Access) -> Result<Tx<'_>> {
        self.connection.begin(access).await
    }

    /// Counts an attempt, and tells whether it also removes expired claims of other locks: the first of a client does,
    /// and then every eighth.
    pub(crate) fn sweeps(&self) -> bool {
        self.asked.fetch_add(1, Relaxed).is_multiple_of(SWEEP_EVERY)
    }

    /// Commits a transaction, then rings the claims that its changes concern. It rings them after an error too, because the
    /// transaction may have been committed all the same.
    pub(crate) async fn commit(&self, tx: Tx<'_>, bells: Vec<QueueRow>) -> Result<()> {
        let outcome = tx.commit().await;
        self.bells.ring(bells.into_iter().map(|place| (place.client, place.entry.id)));
        outcome
    }

    /// Removes the claims of dead clients, and then the FIFOs of these clients. In this order: the FIFO is what shows that a
    /// client is dead, so it must be there until the claims are gone.
    pub(crate) async fn bury(&self, dead: &[ClaimId]) -> Result<()> {
        let (mut tx, mut bells) = (self.begin(Access::Write).await?, Vec::new());
        for client in dead {
            tx.bury_client(*client, &mut bells).await?;
        }
        self.commit(tx, bells).await?;
        dead.iter().for_each(|client| self.bells.take_down(*client));
        Ok(())
    }
}
