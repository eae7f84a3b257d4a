//! The bugs that the build script plants in the copy of dlock-core. Most of them are races. Each
//! replaces code that occurs once in a file. A test activates one of them.

/// A planted bug.
pub(crate) struct Bug {
    pub(crate) name: &'static str,
    pub(crate) file: &'static str,
    pub(crate) code: &'static str,
    /// The code with the bug. `PLANTED` is replaced by a condition that is true if it is active.
    pub(crate) replacement: &'static str,
}

pub(crate) const BUGS: &[Bug] = &[
    // A keeper that does not wait yet gets no notification of a dropped guard.
    Bug {
        name: "a drop notifies only a keeper that waits",
        file: "engine/hold.rs",
        code: "        self.keeper_wake.notify_one();
        is_unguarded
",
        replacement:
            "        if PLANTED { self.keeper_wake.notify_waiters() } else { self.keeper_wake.notify_one() }
        is_unguarded
",
    },
    // The last guard may end between the check and the count.
    Bug {
        name: "a guard enters after the check",
        file: "engine/hold.rs",
        code: "        let side = Side::of(kind);
        match side {
            Side::Shared => state.shared += 1,
",
        replacement: "        let side = Side::of(kind);
        if PLANTED {
            drop(state);
            state = self.state.lock();
        }
        match side {
            Side::Shared => state.shared += 1,
",
    },
    // The caller may leave between the grant and the reply.
    Bug {
        name: "a grant without a caller is not released",
        file: "engine/keeper.rs",
        code: "                reply.send(Ok(Some(hold_ref))).ok();
                return Some(Granted",
        replacement: "                let unsent = reply.send(Ok(Some(hold_ref)));
                if PLANTED { std::mem::forget(unsent) } else { drop(unsent) }
                return Some(Granted",
    },
    // The use may end between the check and the wait.
    Bug {
        name: "a taker registers after the check",
        file: "engine/client.rs",
        code: "            freed.await;
",
        replacement: "            if PLANTED {
                freed.set(self.freed.notified());
            }
            freed.await;
",
    },
    // A caller with a greater number may join first.
    Bug {
        name: "a caller draws its number before it joins",
        file: "kit/batch.rs",
        code: "        round.next_number += 1;
",
        replacement: "        round.next_number += 1;
        if PLANTED {
            drop(round);
            round = self.round.lock();
        }
",
    },
    // The waiter may look at the flag in between, and wait again.
    Bug {
        name: "a waiter is notified before its flag is set",
        file: "kit/seats.rs",
        code: "        self.is_notified.store(true, Relaxed);
        self.notify.notify_one();
",
        replacement: "        if PLANTED {
            self.notify.notify_one();
            self.is_notified.store(true, Relaxed);
            return;
        }
        self.is_notified.store(true, Relaxed);
        self.notify.notify_one();
",
    },
    // The waiter may leave between its notification and its request.
    Bug {
        name: "a notified waiter leaves and notifies no other",
        file: "kit/seats.rs",
        code: "            if self.waiter.is_notified.load(Relaxed) {
                // The notification",
        replacement: "            if !PLANTED && self.waiter.is_notified.load(Relaxed) {
                // The notification",
    },
    // Another caller may have opened the connection while this one waited for its turn.
    Bug {
        name: "a caller opens a connection without a second look",
        file: "kit/link.rs",
        code: "        if let Some(live) = self.if_open() {
            return Ok(live);
        }
        if self.has_replied",
        replacement: "        if !PLANTED && let Some(live) = self.if_open() {
            return Ok(live);
        }
        if self.has_replied",
    },
    // The connection may have been replaced since the request failed.
    Bug {
        name: "an error ends whichever connection is open",
        file: "kit/link.rs",
        code: "            current.number == live.number && ",
        replacement: "            (PLANTED || current.number == live.number) && ",
    },
    // Another caller may send a read in between.
    Bug {
        name: "a read is recorded after the look for others",
        file: "kit/shared_read.rs",
        code: "        // No caller waits for these reads, and their runtimes may have ended.
",
        replacement: "        if PLANTED {
            drop(in_flight);
            in_flight = self.in_flight.lock();
        }
        // No caller waits for these reads, and their runtimes may have ended.
",
    },
    // Another claim may be granted one of the locks in between.
    Bug {
        name: "several locks are granted after the check",
        file: "stores/memory.rs",
        code: "        let granted = requests.into_iter().map(|request| {
",
        replacement: "        if PLANTED {
            drop(queues);
            queues = self.queues.lock();
        }
        let granted = requests.into_iter().map(|request| {
",
    },
    // The reply may take long, and the store counts from the request.
    Bug {
        name: "a deadline counts from the reply",
        file: "engine/hold.rs",
        code: "            limits: Limits::new(terms, grant, times.sent),
",
        replacement:
            "            limits: Limits::new(terms, grant, if PLANTED { times.arrived } else { times.sent }),
",
    },
    Bug {
        name: "a majority has one member less",
        file: "stores/redlock.rs",
        code: "        self.members.len() / 2 + 1
",
        replacement: "        self.members.len() / 2 + usize::from(!PLANTED)
",
    },
    Bug {
        name: "a semaphore has one permit more",
        file: "contract/queue.rs",
        code: "            let waits = held_permits(queue.iter()) <= at;
",
        replacement: "            let waits = held_permits(queue.iter()) + usize::from(PLANTED) <= at;
",
    },
    Bug {
        name: "a reader shares the lock with a writer",
        file: "model/kind.rs",
        code: "        self == Self::Read && other == Self::Read
",
        replacement: "        self == Self::Read && (PLANTED || other == Self::Read)
",
    },
    Bug {
        name: "a hold is downgraded before its exclusive guard ends",
        file: "engine/hold.rs",
        code: "state.is_downgradable && state.exclusive == 0 && ",
        replacement: "state.is_downgradable && (PLANTED || state.exclusive == 0) && ",
    },
    Bug {
        name: "a hold does not stay taken",
        file: "engine/hold.rs",
        code: "        taken_until.filter(|_| self.loss().is_none())
",
        replacement: "        taken_until.filter(|_| !PLANTED && self.loss().is_none())
",
    },
    Bug {
        name: "a client ends before its keepers",
        file: "engine/client.rs",
        code: "        self.tasks.wait().await;
",
        replacement: "        if !PLANTED {
            self.tasks.wait().await;
        }
",
    },
    Bug {
        name: "a loss is not announced",
        file: "engine/hold.rs",
        code: "        if let Some(token) = self.lost_token.get() {
",
        replacement: "        if let Some(token) = self.lost_token.get().filter(|_| !PLANTED) {
",
    },
    // The loss may be recorded before the token exists.
    Bug {
        name: "a token does not look for an earlier loss",
        file: "engine/hold.rs",
        code: "        if self.state.lock().lost.is_some() {
            token.cancel();
",
        replacement: "        if !PLANTED && self.state.lock().lost.is_some() {
            token.cancel();
",
    },
    Bug {
        name: "callers get the replies of others",
        file: "kit/batch.rs",
        code: "            Ok(replies) => {
",
        replacement: "            Ok(replies) => {
                if PLANTED {
                    channels.reverse();
                }
",
    },
    Bug {
        name: "observers are not notified",
        file: "stores/memory.rs",
        code: "            && self.holds(name, id)
        {
            changes.send_replace(());
",
        replacement: "            && self.holds(name, id)
            && !PLANTED
        {
            changes.send_replace(());
",
    },
];
