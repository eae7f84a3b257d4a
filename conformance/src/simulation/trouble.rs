//! The troubles between the clients and their store.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use dlock_core::driver::pretend_suspend;
use fastrand::Rng;
use tokio::time::{advance, sleep};

use super::{LONGEST_TROUBLE, NAMES, TTL, World, up_to};
use crate::wrap::Switch;

/// Makes one trouble after the other. Each ends before the next begins.
pub(super) async fn make(world: &World, mut dice: Rng, breaks: bool) {
    loop {
        sleep(up_to(&mut dice, TTL)).await;
        let client = &world.clients[dice.usize(..world.clients.len())];
        // One line of those to several members, or all of them.
        let lines = match dice.usize(..=client.lines.len()) {
            all if all == client.lines.len() => &client.lines[..],
            one => &client.lines[one..=one],
        };
        match dice.u8(..11) {
            0..3 => lines.iter().for_each(Switch::freeze),
            3..5 => lines.iter().for_each(Switch::cut),
            5..7 => lines.iter().for_each(Switch::lose_answers),
            // The whole process stops and goes on.
            7 => advance(up_to(&mut dice, TTL * 2)).await,
            // The machine is suspended: timers stand still, the stores' clocks do not.
            8 => {
                let span = up_to(&mut dice, TTL * 2);
                pretend_suspend(span);
                world.history.suspended(span);
            }
            _ if breaks => {
                let name = NAMES[dice.usize(..NAMES.len())];
                let one = world.history.breaks(name);
                if let Ok(robbed) = client.locks.force_release(name).await {
                    world.tally.broken.fetch_add(usize::from(robbed), Relaxed);
                    world.history.broken(one, robbed);
                }
            }
            _ => {}
        }
        // Mostly a blip, sometimes longer than a ttl.
        let most = if dice.u8(..4) == 0 { LONGEST_TROUBLE } else { TTL / 2 };
        sleep(up_to(&mut dice, most)).await;
        lines.iter().for_each(Switch::connect);
        sleep(Duration::from_millis(1)).await;
    }
}
