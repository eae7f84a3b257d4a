//! The late requests of a claim that has ended.
//!
//! The connection of an attempt or a resumption may break before its deadline. A driver does not
//! wait for the deadline, see [`Claim::late_for`](crate::contract::Claim::late_for). The store may
//! therefore execute the request after the claim has ended. Its hold or its place in the queue
//! would then belong to no client, and would stay in the store for a ttl.
//!
//! The keeper waits until the store refuses such a request, and removes what it has created.

use std::time::Duration;

use tokio::time::sleep;

use super::{Detachment, Keeper, release::FinalDetachment, release_until_forgotten};
use crate::{engine::observe, kit::Moment};

impl Keeper {
    /// Waits until the store refuses the late requests of an ended claim, and removes what they
    /// have created. `late_for` is the [time](crate::contract::Claim::late_for) until then. Does
    /// nothing if it is zero.
    ///
    /// If the claim has ended with a detachment, and has sent a resumption with the ticket of that
    /// detachment, a late copy of the resumption may have taken the hold from the ticket. The hold
    /// then returns to the ticket. The hold of a late attempt is released.
    pub(in crate::engine) async fn settle(
        &self,
        late_for: Duration,
        final_detachment: Option<FinalDetachment>,
    ) {
        let late_for = late_for.max(self.late_until.map(Moment::remaining).unwrap_or_default());
        if !late_for.is_zero() {
            // Boxed, because every keeper would otherwise reserve the memory of this rare future.
            Box::pin(self.settle_after(late_for, final_detachment)).await;
        }
    }

    async fn settle_after(&self, late_for: Duration, final_detachment: Option<FinalDetachment>) {
        sleep(late_for).await;
        // New claim objects, which know no ticket. The release of the old one would free a hold
        // that was detached.
        let claim = || self.client.store.backend.claim(self.request.clone());
        // If this claim never sent a resumption with the ticket, a hold under its id comes from a
        // late attempt, so it is released and not returned to the ticket.
        let Detachment { resumed_from, resumed_by_renewal, .. } = self.detachment();
        let is_resumed = |ticket| [resumed_from, resumed_by_renewal].contains(&Some(ticket));
        if let Some(FinalDetachment { until, ticket }) = final_detachment
            && is_resumed(ticket)
            && !until.has_passed()
        {
            self.hand_back(claim().as_mut(), ticket, until.remaining()).await;
        }
        // The claim of a late attempt lasts for its ttl, also after a detachment for a longer time.
        release_until_forgotten(claim().as_mut(), self.info(), self.request.ttl, |error| {
            observe::failed(self, "release", &error);
        })
        .await;
    }
}
