//! A store without doorbells. Waiters poll the file, and the claims of a dead client end with their
//! ttl.

use std::{future::pending, sync::Arc};

use dlock_core::ClaimId;
use tokio::runtime::Handle;

use super::{BellDir, ClaimBells, Liveness};

pub(super) enum Fifo {}

impl Fifo {
    pub(super) fn make(_: &Arc<BellDir>, _: ClaimId, _: &Handle, _: &Arc<ClaimBells>) -> Option<Self> {
        None
    }

    pub(super) fn is_in_place(&self) -> bool {
        match *self {}
    }
}

/// A watch of another client, which is never created on this system.
pub(crate) struct ClientWatch;

impl ClientWatch {
    pub(crate) async fn died(&self) {
        pending().await
    }
}

pub(super) struct ClientWatches;

impl ClientWatches {
    pub(super) fn new(_: &Handle) -> Self {
        Self
    }

    pub(super) fn watch(&self, _: &BellDir, _: ClaimId) -> Option<Arc<ClientWatch>> {
        None
    }
}

pub(super) fn liveness(_: &BellDir, _: ClaimId) -> Liveness {
    Liveness::Unknown
}

pub(super) fn clients(_: &BellDir) -> (Vec<ClaimId>, Vec<String>) {
    (Vec::new(), Vec::new())
}

pub(super) fn remove_unfinished(_: &BellDir, _: &str) {}

pub(super) fn ring(_: &BellDir, _: ClaimId, _: &[u8]) {}

pub(super) fn remove(_: &BellDir, _: ClaimId) {}
