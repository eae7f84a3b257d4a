//! Detaches a contender's hold, and later resumes or releases it.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use dlock_core::{Error, Guard, LostReason, Ticket, driver::Moment};
use tokio::time::{Instant, sleep};

use super::Contender;
use crate::{
    history::AcquisitionId,
    simulation::{LONGEST_FAULT, TTL, up_to},
};

impl Contender {
    /// Detaches the hold. Some time later, perhaps too late, resumes or releases it in any client.
    /// Returns the guard if the contender has one afterwards.
    pub(super) async fn detach(&mut self, acquisition: AcquisitionId, guard: Guard) -> Option<Guard> {
        let lasting = TTL / 10 + up_to(&mut self.dice, TTL * 4);
        self.run.history.changes(acquisition);
        // Counts the time of a suspension too, as the store does.
        let end = Moment::now().after(lasting);
        let ticket = match guard.detach(lasting).await {
            Ok(ticket) => ticket,
            Err(error) if matches!(error.error(), Error::Lost { .. }) => {
                self.failed(acquisition, &error.into());
                return None;
            }
            Err(error) => return Some(error.into_guard()),
        };
        if self.run.clients[0].switches.len() > 1 {
            // Two ttls later, because a member that missed the detachment keeps the last renewal.
            let until = end.after(TTL * 2);
            let mut parts_until = self.run.parts_until.lock();
            *parts_until = Some(match *parts_until {
                Some(other) if other.since(until) > Duration::ZERO => other,
                _ => until,
            });
        }
        self.run.history.detached(acquisition, Instant::now() + end.remaining());
        self.run.tally.detached.fetch_add(1, Relaxed);
        sleep(up_to(&mut self.dice, lasting * 5 / 4)).await;
        let outcome = if self.dice.bool() {
            self.resume(acquisition, &ticket).await
        } else {
            self.release(acquisition, &ticket).await.map(|()| None)
        };
        match outcome {
            Ok(Some(guard)) => Some(guard),
            // A member of a majority that missed the release keeps the claim until its time ends.
            Ok(None) if self.run.clients[0].switches.len() > 1 => {
                sleep(end.remaining()).await;
                None
            }
            Ok(None) | Err(Error::Lost { .. }) => None,
            // The hold ends by itself, a ttl after the last renewal, which the longest fault may
            // have delayed. It must have ended before the store is checked for residue.
            Err(_) => {
                sleep(end.remaining() + LONGEST_FAULT + TTL * 3 / 2).await;
                None
            }
        }
    }

    async fn resume(&mut self, acquisition: AcquisitionId, ticket: &Ticket) -> Result<Option<Guard>, Error> {
        let client = self.dice.usize(..self.run.clients.len());
        let history = &self.run.history;
        history.changes(acquisition);
        let guard = self.run.clients[client].locks.resume(ticket).await?;
        history.holds(acquisition, Instant::now() + guard.remaining());
        Ok(Some(guard))
    }

    async fn release(&mut self, acquisition: AcquisitionId, ticket: &Ticket) -> Result<(), Error> {
        let client = self.dice.usize(..self.run.clients.len());
        let history = &self.run.history;
        history.releases(acquisition);
        let result = self.run.clients[client].locks.release(ticket).await;
        match &result {
            Ok(()) => history.released(acquisition),
            Err(Error::Lost { .. }) => history.lost(acquisition, LostReason::Deleted),
            Err(_) => {}
        }
        result
    }
}
