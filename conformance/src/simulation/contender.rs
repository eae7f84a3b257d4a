//! A contender that requests locks again and again, and holds them carelessly.

mod acquiring;
mod detaching;

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use dlock_core::{Error, Guard, Kind, LockOptions, LostReason, Owner, driver::Info};
use fastrand::Rng;
use tokio::time::{Instant, advance, sleep};

use super::{NAMES, PERMITS, Run, TTL, up_to};
use crate::history::{AcquisitionId, Rule};

const ROUNDS: usize = 5;

pub(super) struct Contender {
    run: Arc<Run>,
    dice: Rng,
    /// Owner for re-entry.
    owner: Owner,
}

/// Parameters of one round.
struct Round {
    acquisition: AcquisitionId,
    client: usize,
    name: usize,
    /// Number of permits. 1 for the other kinds.
    limit: u32,
    options: LockOptions,
    ttl: Duration,
    owned: bool,
}

impl Contender {
    pub(super) fn new(run: Arc<Run>, dice: Rng) -> Self {
        Self { run, dice, owner: Owner::new() }
    }

    pub(super) async fn run_rounds(mut self) {
        for _ in 0..ROUNDS {
            sleep(up_to(&mut self.dice, TTL / 4)).await;
            let (client, name) = (self.dice.usize(..self.run.clients.len()), self.dice.usize(..NAMES.len()));
            let kinds = self.run.clients[client].locks.info().kinds;
            let kind = kinds[self.dice.usize(..kinds.len())];
            let limit = if kind == Kind::Permit { self.dice.u32(2..=PERMITS) } else { 1 };
            let (options, ttl) = self.options();
            let acquisition = match kind {
                Kind::Permit => self.run.history.invokes_permit(NAMES[name], limit, ttl),
                _ => self.run.history.invokes(NAMES[name], kind, ttl),
            };
            // A semaphore has no owners.
            let owned = kind != Kind::Permit && self.dice.u8(..3) == 0;
            let round = Round { acquisition, client, name, limit, options, ttl, owned };
            let lock = self.lock(&round, kind);
            if let Some(guard) = self.acquire(&*lock, &round.options).await {
                self.granted(acquisition, &guard);
                self.use_guard(round, kind, guard).await;
            }
        }
    }

    fn granted(&self, acquisition: AcquisitionId, guard: &Guard) {
        self.run.history.granted(acquisition, guard.token(), Instant::now() + guard.remaining());
    }

    /// Holds the lock for some time and checks the guard in between. Uses the protected counter
    /// even if the guard is lost.
    async fn use_guard(&mut self, round: Round, mut kind: Kind, mut guard: Guard) {
        let (run, acquisition) = (Arc::clone(&self.run), round.acquisition);
        let register = &run.registers[round.name];
        let mut base = None;
        for _ in 0..self.dice.usize(..6) {
            // The counter needs tokens to recognise a stale holder, and it cannot separate holders
            // that hold together.
            if !matches!(kind, Kind::Read | Kind::Permit) && guard.token().is_some() {
                match base.take() {
                    None => {
                        base = register.read(guard.token());
                        if base.is_none() {
                            run.history.wrote(acquisition, 0, false);
                        }
                    }
                    Some(base) => run.history.wrote(acquisition, base, register.write(guard.token(), base)),
                }
            }
            match self.dice.u8(..40) {
                // No task of this process runs during the advance.
                0 => advance(up_to(&mut self.dice, TTL * 2)).await,
                1..4 => sleep(up_to(&mut self.dice, TTL * 3)).await,
                4 if self.downgrades(&round, kind) => {
                    run.history.downgrades(acquisition);
                    kind = Kind::Read;
                    match guard.downgrade().await {
                        Ok(reader) => guard = reader,
                        Err(error) => return self.failed(acquisition, &error.into()),
                    }
                    run.tally.downgraded.fetch_add(1, Relaxed);
                }
                5..7 if !round.owned && self.info(&round).detaches => {
                    let Some(resumed) = self.detach(acquisition, guard).await else { return };
                    guard = resumed;
                }
                _ => {
                    let pause = up_to(&mut self.dice, TTL / 4);
                    tokio::select! {
                        biased;
                        reason = guard.lost() => run.history.lost(acquisition, reason),
                        () = sleep(pause) => {}
                    }
                }
            }
            self.record_state(acquisition, &guard).await;
        }
        if round.owned && self.dice.bool() {
            self.enter_again(&round, kind, guard).await;
        } else {
            self.leave(acquisition, guard).await;
        }
    }

    /// Returns whether the store can downgrade a hold of this kind.
    fn downgrades(&self, round: &Round, kind: Kind) -> bool {
        self.info(round).downgrades.contains(&kind)
    }

    fn info(&self, round: &Round) -> &Info {
        self.run.clients[round.client].locks.info()
    }

    /// Records the current state of the guard.
    async fn record_state(&self, acquisition: AcquisitionId, guard: &Guard) {
        let promised = Instant::now() + guard.remaining();
        if guard.is_lost() {
            self.run.history.lost(acquisition, guard.lost().await);
        } else {
            self.run.history.holds(acquisition, promised);
        }
    }

    /// Re-enters the held lock, and releases the two guards in either order.
    async fn enter_again(&mut self, round: &Round, kind: Kind, outer: Guard) {
        let (run, acquisition) = (Arc::clone(&self.run), round.acquisition);
        let kinds = run.clients[round.client].locks.info().kinds;
        let kinds: Vec<_> = kinds.iter().filter(|kind| **kind != Kind::Permit).collect();
        let kind_again = *kinds[self.dice.usize(..kinds.len())];
        let second_acquisition = run.history.invokes(NAMES[round.name], kind_again, round.ttl);
        let inner = match self.lock(round, kind_again).try_lock(&round.options).await {
            Ok(Some(inner)) => inner,
            Err(Error::Deadlock { .. }) if kind == Kind::Read && kind_again != Kind::Read => {
                return self.leave(acquisition, outer).await;
            }
            // The outer hold may have ended by now.
            outcome => {
                if !outer.is_lost() {
                    run.history.note(Rule::Reentry, format!("{outcome:?} instead of {outer:?}"));
                }
                return self.leave(acquisition, outer).await;
            }
        };
        if inner.id() != outer.id() {
            self.granted(second_acquisition, &inner);
            if !outer.is_lost() {
                run.history.note(Rule::Reentry, format!("{inner:?} instead of {outer:?}"));
            }
            self.leave(acquisition, outer).await;
            return self.leave(second_acquisition, inner).await;
        }
        run.tally.reentered.fetch_add(1, Relaxed);
        sleep(up_to(&mut self.dice, TTL / 10)).await;
        self.record_state(acquisition, &inner).await;
        if self.dice.bool() {
            drop(inner);
            self.leave(acquisition, outer).await;
        } else {
            if kind_again == Kind::Read && self.downgrades(round, kind) {
                // The engine downgrades the hold in the store by itself.
                run.history.downgrades(acquisition);
            }
            drop(outer);
            sleep(up_to(&mut self.dice, TTL / 10)).await;
            self.record_state(acquisition, &inner).await;
            self.leave(acquisition, inner).await;
        }
    }

    /// Releases or drops the guard.
    async fn leave(&mut self, acquisition: AcquisitionId, guard: Guard) {
        self.record_state(acquisition, &guard).await;
        let history = &self.run.history;
        history.releases(acquisition);
        if self.dice.u8(..3) == 0 {
            return drop(guard);
        }
        let lost = guard.lost_signal();
        if let Err(error) = guard.release().await {
            return self.failed(acquisition, &error);
        }
        if lost.is_lost() {
            history.lost(acquisition, LostReason::Expired);
        }
        history.released(acquisition);
    }

    fn failed(&self, acquisition: AcquisitionId, error: &Error) {
        if let Error::Lost { reason, .. } = error {
            self.run.history.lost(acquisition, *reason);
        }
    }
}
