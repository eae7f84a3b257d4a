//! The state that the claims of one client share.

mod renewals;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use dlock_core::{ClaimId, Result, driver::Info};

use crate::{
    bell::Bells,
    connection::{Access, Connection, Tx, thread::Thread},
    queue::{ClientIdentity, QueueRow},
};
pub(crate) use renewals::Renewals;

/// Number of a client's attempts for each attempt that also removes expired claims of other locks.
/// The query takes some hundredths of a millisecond, so most attempts do without it.
const ATTEMPTS_PER_SWEEP: u32 = 8;

/// Client of a detached claim in the file. No client has this id, and no FIFO has its name. So the
/// client is never found dead, also not by a dlock that does not support detached claims.
pub(crate) const NO_CLIENT: ClaimId = ClaimId::from_bytes([0; 16]);

/// The state that the claims of one client share.
pub(crate) struct Client {
    pub(crate) me: ClientIdentity,
    pub(crate) bells: Bells,
    pub(crate) connection: Connection,
    pub(crate) info: Info,
    /// Number of attempts of this client.
    pub(crate) attempts: AtomicU32,
    pub(crate) thread: Thread,
}

impl Client {
    pub(crate) async fn begin(&self, access: Access) -> Result<Tx<'_>> {
        self.connection.begin(access).await
    }

    /// Counts an attempt, and returns whether it also removes expired claims of other locks. This
    /// is the case for the first attempt of a client, and then for every eighth.
    pub(crate) fn count_attempt(&self) -> bool {
        self.attempts.fetch_add(1, Relaxed).is_multiple_of(ATTEMPTS_PER_SWEEP)
    }

    /// Commits a transaction, then rings the bells of the claims that its changes concern. They are
    /// also rung after an error, because the transaction may have been committed nevertheless.
    pub(crate) async fn commit(&self, tx: Tx<'_>, to_ring: Vec<QueueRow>) -> Result<()> {
        let result = tx.commit().await;
        self.bells.ring(to_ring.into_iter().map(|row| (row.client, row.entry.id)));
        result
    }

    /// Removes the claims of dead clients, and then the FIFOs of these clients. The FIFO comes
    /// last, because it shows that the client is dead, and must exist until the claims have been
    /// removed.
    pub(crate) async fn remove_dead(&self, dead: &[ClaimId]) -> Result<()> {
        let (mut tx, mut to_ring) = (self.begin(Access::Write).await?, Vec::new());
        for client in dead {
            tx.remove_client(*client, &mut to_ring).await?;
        }
        self.commit(tx, to_ring).await?;
        dead.iter().for_each(|client| self.bells.remove_fifo(*client));
        Ok(())
    }
}
