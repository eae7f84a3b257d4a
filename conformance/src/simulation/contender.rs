//! One contender: asks for locks again and again, and holds them carelessly.

mod asking;
mod detaching;

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use dlock_core::{Error, Guard, Kind, LockOptions, LostReason, Owner, driver::Info};
use fastrand::Rng;
use tokio::time::{Instant, advance, sleep};

use super::{NAMES, PERMITS, TTL, World, up_to};
use crate::history::{Rule, Stake};

const ROUNDS: usize = 5;

pub(super) struct Contender {
    world: Arc<World>,
    dice: Rng,
    /// Who enters again.
    me: Owner,
}

/// What a round is about.
struct Round {
    stake: Stake,
    client: usize,
    name: usize,
    /// Of a permit.
    limit: u32,
    options: LockOptions,
    ttl: Duration,
    owned: bool,
}

impl Contender {
    pub(super) fn new(world: Arc<World>, dice: Rng) -> Self {
        Self { world, dice, me: Owner::new() }
    }

    pub(super) async fn live(mut self) {
        for _ in 0..ROUNDS {
            sleep(up_to(&mut self.dice, TTL / 4)).await;
            let (client, name) =
                (self.dice.usize(..self.world.clients.len()), self.dice.usize(..NAMES.len()));
            let kinds = self.world.clients[client].locks.info().kinds;
            let kind = kinds[self.dice.usize(..kinds.len())];
            let limit = if kind == Kind::Permit { self.dice.u32(2..=PERMITS) } else { 1 };
            let (options, ttl) = self.options();
            let stake = match kind {
                Kind::Permit => self.world.history.invokes_permit(NAMES[name], limit, ttl),
                _ => self.world.history.invokes(NAMES[name], kind, ttl),
            };
            // A semaphore knows no owners.
            let owned = kind != Kind::Permit && self.dice.u8(..3) == 0;
            let round = Round { stake, client, name, limit, options, ttl, owned };
            let lock = self.lock(&round, kind);
            if let Some(guard) = self.acquire(&*lock, &round.options).await {
                self.granted(stake, &guard);
                self.hold(round, kind, guard).await;
            }
        }
    }

    fn granted(&self, stake: Stake, guard: &Guard) {
        self.world.history.granted(stake, guard.token(), Instant::now() + guard.remaining());
    }

    /// Holds for a while and looks at the guard now and then. Uses what the lock protects even if the guard is lost.
    async fn hold(&mut self, round: Round, mut kind: Kind, mut guard: Guard) {
        let (world, stake) = (Arc::clone(&self.world), round.stake);
        let register = &world.registers[round.name];
        let mut base = None;
        for _ in 0..self.dice.usize(..6) {
            // Without tokens the counter cannot recognise a stale holder. Nor can it keep holders apart that hold together.
            if !matches!(kind, Kind::Read | Kind::Permit) && guard.token().is_some() {
                match base.take() {
                    None => {
                        base = register.read(guard.token());
                        if base.is_none() {
                            world.history.wrote(stake, 0, false);
                        }
                    }
                    Some(base) => world.history.wrote(stake, base, register.write(guard.token(), base)),
                }
            }
            match self.dice.u8(..40) {
                // Nobody in this process runs meanwhile.
                0 => advance(up_to(&mut self.dice, TTL * 2)).await,
                1..4 => sleep(up_to(&mut self.dice, TTL * 3)).await,
                4 if self.downgrades(&round, kind) => {
                    world.history.downgrades(stake);
                    kind = Kind::Read;
                    match guard.downgrade().await {
                        Ok(reader) => guard = reader,
                        Err(error) => return self.failed(stake, &error.into()),
                    }
                    world.tally.downgraded.fetch_add(1, Relaxed);
                }
                5..7 if !round.owned && self.info(&round).detaches => {
                    let Some(back) = self.detach(stake, guard).await else { return };
                    guard = back;
                }
                _ => {
                    let nap = up_to(&mut self.dice, TTL / 4);
                    tokio::select! {
                        biased;
                        reason = guard.lost() => world.history.lost(stake, reason),
                        () = sleep(nap) => {}
                    }
                }
            }
            self.look(stake, &guard).await;
        }
        if round.owned && self.dice.bool() {
            self.enter_again(&round, kind, guard).await;
        } else {
            self.leave(stake, guard).await;
        }
    }

    /// Whether the store can turn a hold of this kind into a read hold.
    fn downgrades(&self, round: &Round, kind: Kind) -> bool {
        self.info(round).downgrades.contains(&kind)
    }

    fn info(&self, round: &Round) -> &Info {
        self.world.clients[round.client].locks.info()
    }

    /// What the guard says now.
    async fn look(&self, stake: Stake, guard: &Guard) {
        let promised = Instant::now() + guard.remaining();
        if guard.is_lost() {
            self.world.history.lost(stake, guard.lost().await);
        } else {
            self.world.history.holds(stake, promised);
        }
    }

    /// Enters the lock that it holds once more, and releases the two guards in either order.
    async fn enter_again(&mut self, round: &Round, kind: Kind, outer: Guard) {
        let (world, stake) = (Arc::clone(&self.world), round.stake);
        let kinds = world.clients[round.client].locks.info().kinds;
        let kinds: Vec<_> = kinds.iter().filter(|kind| **kind != Kind::Permit).collect();
        let again = *kinds[self.dice.usize(..kinds.len())];
        let anew = world.history.invokes(NAMES[round.name], again, round.ttl);
        let inner = match self.lock(round, again).try_lock(&round.options).await {
            Ok(Some(inner)) => inner,
            Err(Error::Deadlock { .. }) if kind == Kind::Read && again != Kind::Read => {
                return self.leave(stake, outer).await;
            }
            // Its own hold may be over by now.
            outcome => {
                if !outer.is_lost() {
                    world.history.note(Rule::Reentry, format!("{outcome:?} instead of {outer:?}"));
                }
                return self.leave(stake, outer).await;
            }
        };
        if inner.id() != outer.id() {
            self.granted(anew, &inner);
            if !outer.is_lost() {
                world.history.note(Rule::Reentry, format!("{inner:?} instead of {outer:?}"));
            }
            self.leave(stake, outer).await;
            return self.leave(anew, inner).await;
        }
        world.tally.reentered.fetch_add(1, Relaxed);
        sleep(up_to(&mut self.dice, TTL / 10)).await;
        self.look(stake, &inner).await;
        if self.dice.bool() {
            drop(inner);
            self.leave(stake, outer).await;
        } else {
            if again == Kind::Read && self.downgrades(round, kind) {
                // The store follows by itself.
                world.history.downgrades(stake);
            }
            drop(outer);
            sleep(up_to(&mut self.dice, TTL / 10)).await;
            self.look(stake, &inner).await;
            self.leave(stake, inner).await;
        }
    }

    /// Lets go, in one of two ways.
    async fn leave(&mut self, stake: Stake, guard: Guard) {
        self.look(stake, &guard).await;
        let history = &self.world.history;
        history.releases(stake);
        if self.dice.u8(..3) == 0 {
            return drop(guard);
        }
        let lost = guard.lost_signal();
        if let Err(error) = guard.release().await {
            return self.failed(stake, &error);
        }
        if lost.is_lost() {
            history.lost(stake, LostReason::Expired);
        }
        history.released(stake);
    }

    fn failed(&self, stake: Stake, error: &Error) {
        if let Error::Lost { reason, .. } = error {
            self.world.history.lost(stake, *reason);
        }
    }
}
