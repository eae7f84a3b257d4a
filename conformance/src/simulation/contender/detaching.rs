//! How a contender lets a hold go on without it, and gets it back or gives it back.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use dlock_core::{Error, Guard, LostReason, Ticket, driver::Moment};
use tokio::time::{Instant, sleep};

use super::Contender;
use crate::{
    history::Stake,
    simulation::{LONGEST_TROUBLE, TTL, up_to},
};

impl Contender {
    /// Detaches the hold. Some time later, perhaps too late, takes it back or releases it, in any client. Returns the guard
    /// if there is one.
    pub(super) async fn detach(&mut self, stake: Stake, guard: Guard) -> Option<Guard> {
        let lasting = TTL / 10 + up_to(&mut self.dice, TTL * 4);
        self.world.history.changes(stake);
        // Counts the time of a suspend too, as the store does.
        let end = Moment::now().after(lasting);
        let ticket = match guard.detach(lasting).await {
            Ok(ticket) => ticket,
            Err(error) if matches!(error.error(), Error::Lost { .. }) => {
                self.failed(stake, &error.into());
                return None;
            }
            Err(error) => return Some(error.into_guard()),
        };
        if self.world.clients[0].lines.len() > 1 {
            // Of a ttl longer: a member that missed the detachment has the last renewal.
            let until = end.after(TTL * 2);
            let mut parts_until = self.world.parts_until.lock().expect("no contender panicked");
            *parts_until = Some(match *parts_until {
                Some(other) if other.since(until) > Duration::ZERO => other,
                _ => until,
            });
        }
        self.world.history.detached(stake, Instant::now() + end.remaining());
        self.world.tally.detached.fetch_add(1, Relaxed);
        sleep(up_to(&mut self.dice, lasting * 5 / 4)).await;
        let outcome = if self.dice.bool() {
            self.take_back(stake, &ticket).await
        } else {
            self.give_back(stake, &ticket).await.map(|()| None)
        };
        match outcome {
            Ok(Some(guard)) => Some(guard),
            // A member of a majority that never heard of the release keeps the claim until its time is over.
            Ok(None) if self.world.clients[0].lines.len() > 1 => {
                sleep(end.remaining()).await;
                None
            }
            Ok(None) | Err(Error::Lost { .. }) => None,
            // It ends by itself, a ttl after the last renewal, which the longest trouble may have held up. Nothing of it may
            // be left when everybody has gone.
            Err(_) => {
                sleep(end.remaining() + LONGEST_TROUBLE + TTL * 3 / 2).await;
                None
            }
        }
    }

    async fn take_back(&mut self, stake: Stake, ticket: &Ticket) -> Result<Option<Guard>, Error> {
        let client = self.dice.usize(..self.world.clients.len());
        let history = &self.world.history;
        history.changes(stake);
        let guard = self.world.clients[client].locks.resume(ticket).await?;
        history.holds(stake, Instant::now() + guard.remaining());
        Ok(Some(guard))
    }

    async fn give_back(&mut self, stake: Stake, ticket: &Ticket) -> Result<(), Error> {
        let client = self.dice.usize(..self.world.clients.len());
        let history = &self.world.history;
        history.releases(stake);
        let told = self.world.clients[client].locks.release(ticket).await;
        match &told {
            Ok(()) => history.released(stake),
            Err(Error::Lost { .. }) => history.lost(stake, LostReason::Taken),
            Err(_) => {}
        }
        told
    }
}
