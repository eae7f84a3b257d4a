//! No doorbells: waiters ask at short intervals, and a dead client's claims end with their ttl.

use std::{future::pending, path::Path, sync::Arc};

use dlock_core::ClaimId;
use tokio::runtime::Handle;

use super::Claims;

pub(super) enum Fifo {}

impl Fifo {
    pub(super) fn make(_: &Path, _: &Path, _: ClaimId, _: &Handle, _: &Arc<Claims>) -> Option<Self> {
        None
    }

    pub(super) fn is_in_place(&self) -> bool {
        match *self {}
    }
}

/// Ends when a client does.
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

    pub(super) fn watch(&self, _: &Path, _: ClaimId) -> Option<Arc<Watch>> {
        None
    }
}

pub(super) fn is_unread(_: &Path, _: ClaimId) -> bool {
    false
}

pub(super) fn sweep(_: &Path) {}

pub(super) fn clients(_: &Path) -> impl Iterator<Item = ClaimId> {
    std::iter::empty()
}

pub(super) fn ring(_: &Path, _: ClaimId, _: &[u8]) {}

pub(super) fn remove(_: &Path, _: ClaimId) {}
