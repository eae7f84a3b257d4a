//! No doorbells. Waiters look into the file at short intervals, and a dead client's claims end with their ttl.

use std::{future::pending, sync::Arc};

use dlock_core::ClaimId;
use tokio::runtime::Handle;

use super::{Claims, Dir, Reader};

pub(super) enum Fifo {}

impl Fifo {
    pub(super) fn make(_: &Arc<Dir>, _: ClaimId, _: &Handle, _: &Arc<Claims>) -> Option<Self> {
        None
    }

    pub(super) fn is_in_place(&self) -> bool {
        match *self {}
    }
}

/// Would watch a client until it dies; never made here.
pub(crate) struct Watch;

impl Watch {
    pub(crate) async fn over(&self) {
        pending().await
    }
}

pub(super) struct Watches;

impl Watches {
    pub(super) fn new(_: &Handle) -> Self {
        Self
    }

    pub(super) fn watch(&self, _: &Dir, _: ClaimId) -> Option<Arc<Watch>> {
        None
    }
}

pub(super) fn reader(_: &Dir, _: ClaimId) -> Reader {
    Reader::Unknown
}

pub(super) fn clients(_: &Dir) -> (Vec<ClaimId>, Vec<String>) {
    (Vec::new(), Vec::new())
}

pub(super) fn sweep(_: &Dir, _: &str) {}

pub(super) fn ring(_: &Dir, _: ClaimId, _: &[u8]) {}

pub(super) fn remove(_: &Dir, _: ClaimId) {}
