//! The races that the build script plants in the copy of dlock-core. Each replaces code that occurs
//! once in a file. A test activates one of them.

/// A planted race.
pub(crate) struct Race {
    pub(crate) name: &'static str,
    pub(crate) file: &'static str,
    pub(crate) code: &'static str,
    /// The code with the race. `PLANTED` is replaced by a condition that is true if it is active.
    pub(crate) racy: &'static str,
}

pub(crate) const RACES: &[Race] = &[
    // A keeper that does not wait yet gets no notification of a dropped guard.
    Race {
        name: "a drop notifies only a keeper that waits",
        file: "engine/hold.rs",
        code: "        self.keeper_wake.notify_one();
        is_unguarded
",
        racy:
            "        if PLANTED { self.keeper_wake.notify_waiters() } else { self.keeper_wake.notify_one() }
        is_unguarded
",
    },
    // The last guard may end between the check and the count.
    Race {
        name: "a guard enters after the check",
        file: "engine/hold.rs",
        code: "        let side = Side::of(kind);
        match side {
            Side::Shared => state.shared += 1,
",
        racy: "        let side = Side::of(kind);
        if PLANTED {
            drop(state);
            state = self.state.lock();
        }
        match side {
            Side::Shared => state.shared += 1,
",
    },
    // The caller may leave between the grant and the reply.
    Race {
        name: "a grant without a caller is not released",
        file: "engine/keeper.rs",
        code: "                reply.send(Ok(Some(hold_ref))).ok();
                self.keep(claim, kept).await;
",
        racy: "                let unsent = reply.send(Ok(Some(hold_ref)));
                if PLANTED { std::mem::forget(unsent) } else { drop(unsent) }
                self.keep(claim, kept).await;
",
    },
    // The use may end between the check and the wait.
    Race {
        name: "a taker registers after the check",
        file: "engine/client.rs",
        code: "            freed.await;
",
        racy: "            if PLANTED {
                freed.set(self.freed.notified());
            }
            freed.await;
",
    },
    // A caller with a greater number may join first.
    Race {
        name: "a caller draws its number before it joins",
        file: "kit/batch.rs",
        code: "        round.next_number += 1;
",
        racy: "        round.next_number += 1;
        if PLANTED {
            drop(round);
            round = self.round.lock();
        }
",
    },
    // The waiter may look at the flag in between, and wait again.
    Race {
        name: "a waiter is notified before its flag is set",
        file: "kit/seats.rs",
        code: "        self.is_notified.store(true, Relaxed);
        self.notify.notify_one();
",
        racy: "        if PLANTED {
            self.notify.notify_one();
            self.is_notified.store(true, Relaxed);
            return;
        }
        self.is_notified.store(true, Relaxed);
        self.notify.notify_one();
",
    },
    // The waiter may leave between its notification and its request.
    Race {
        name: "a notified waiter leaves and notifies no other",
        file: "kit/seats.rs",
        code: "            if self.waiter.is_notified.load(Relaxed) {
                // The notification",
        racy: "            if !PLANTED && self.waiter.is_notified.load(Relaxed) {
                // The notification",
    },
    // Another caller may have opened the connection while this one waited for its turn.
    Race {
        name: "a caller opens a connection without a second look",
        file: "kit/link.rs",
        code: "        if let Some(live) = self.if_open() {
            return Ok(live);
        }
        if self.has_worked",
        racy: "        if !PLANTED && let Some(live) = self.if_open() {
            return Ok(live);
        }
        if self.has_worked",
    },
    // The connection may have been replaced since the request failed.
    Race {
        name: "an error ends whichever connection is open",
        file: "kit/link.rs",
        code: "            current.number == live.number && ",
        racy: "            (PLANTED || current.number == live.number) && ",
    },
    // Another caller may send a read in between.
    Race {
        name: "a read is recorded after the look for others",
        file: "kit/shared_read.rs",
        code: "        // No caller waits for these reads, and their runtimes may have ended.
",
        racy: "        if PLANTED {
            drop(in_flight);
            in_flight = self.in_flight.lock();
        }
        // No caller waits for these reads, and their runtimes may have ended.
",
    },
    // Another claim may be granted one of the locks in between.
    Race {
        name: "several locks are granted after the check",
        file: "stores/memory.rs",
        code: "        let granted = requests.into_iter().map(|request| {
",
        racy: "        if PLANTED {
            drop(queues);
            queues = self.queues.lock();
        }
        let granted = requests.into_iter().map(|request| {
",
    },
];
