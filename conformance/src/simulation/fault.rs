//! The faults between the clients and their store.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use dlock_core::driver::pretend_suspend;
use fastrand::Rng;
use tokio::time::{advance, sleep};

use super::{LONGEST_FAULT, NAMES, Run, TTL, up_to};
use crate::wrap::Switch;

/// Injects one fault after the other. Each ends before the next begins.
pub(super) async fn inject(run: &Run, mut dice: Rng, breaks: bool) {
    loop {
        sleep(up_to(&mut dice, TTL)).await;
        let client = &run.clients[dice.usize(..run.clients.len())];
        // The connection to one of several members, or all connections of the client.
        let switches = match dice.usize(..=client.switches.len()) {
            all if all == client.switches.len() => &client.switches[..],
            one => &client.switches[one..=one],
        };
        match dice.u8(..11) {
            0..3 => switches.iter().for_each(Switch::freeze),
            3..5 => switches.iter().for_each(Switch::cut),
            5..7 => switches.iter().for_each(Switch::lose_answers),
            // The whole process stalls.
            7 => advance(up_to(&mut dice, TTL * 2)).await,
            // The machine is suspended. Timers stand still, the clocks of the stores do not.
            8 => {
                let span = up_to(&mut dice, TTL * 2);
                pretend_suspend(span);
                run.history.suspended(span);
            }
            _ if breaks => {
                let name = NAMES[dice.usize(..NAMES.len())];
                let forced = run.history.breaks(name);
                if let Ok(had_holder) = client.locks.force_release(name).await {
                    run.tally.broken.fetch_add(usize::from(had_holder), Relaxed);
                    run.history.broken(forced, had_holder);
                }
            }
            _ => {}
        }
        // Mostly a short fault, sometimes longer than a ttl.
        let longest = if dice.u8(..4) == 0 { LONGEST_FAULT } else { TTL / 2 };
        sleep(up_to(&mut dice, longest)).await;
        switches.iter().for_each(Switch::connect);
        sleep(Duration::from_millis(1)).await;
    }
}
