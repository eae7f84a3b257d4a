//! Hints for the observers of a RedLock, from all members that send hints.

use async_trait::async_trait;
use futures_util::future::select_all;

use crate::{
    contract::{Store, Watch},
    model::LockName,
};

/// Returns the watch of a lock, or `None` if no member has one.
pub(super) fn of_members(members: &[Store], name: &LockName) -> Option<Box<dyn Watch>> {
    let watches: Vec<_> = members.iter().filter_map(|member| member.backend.watch(name)).collect();
    if watches.is_empty() { None } else { Some(Box::new(AnyMember(watches))) }
}

/// The watches of the members that have one. Never empty.
struct AnyMember(Vec<Box<dyn Watch>>);

#[async_trait]
impl Watch for AnyMember {
    async fn changed(&mut self) {
        select_all(self.0.iter_mut().map(|watch| watch.changed())).await;
    }
}
