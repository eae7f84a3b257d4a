//! What goes wrong between the clients and their store.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use fastrand::Rng;
use tokio::time::{advance, sleep};

use super::{NAMES, TTL, World, up_to};

/// Makes one trouble after the other. Each ends before the next begins.
pub(super) async fn make(world: &World, mut dice: Rng, breaks: bool) {
    loop {
        sleep(up_to(&mut dice, TTL)).await;
        let (locks, switch) = &world.clients[dice.usize(..world.clients.len())];
        match dice.u8(..10) {
            0..3 => switch.freeze(),
            3..5 => switch.cut(),
            5..7 => switch.lose_answers(),
            // The whole process stops and goes on.
            7 => advance(up_to(&mut dice, TTL * 2)).await,
            _ if breaks => {
                let name = NAMES[dice.usize(..NAMES.len())];
                let one = world.history.breaks(name);
                if let Ok(robbed) = locks.force_release(name).await {
                    world.tally.broken.fetch_add(usize::from(robbed), Relaxed);
                    world.history.broken(one, robbed);
                }
            }
            _ => {}
        }
        // Mostly a blip, sometimes longer than a ttl.
        let most = if dice.u8(..4) == 0 { TTL * 5 / 2 } else { TTL / 2 };
        sleep(up_to(&mut dice, most)).await;
        switch.connect();
        sleep(Duration::from_millis(1)).await;
    }
}
