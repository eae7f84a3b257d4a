//! Interleavings of the components with shared state. These are locks, with their holds and keepers,
//! and the parts of the kit that the claims of a client share.
//!
//! Each case is a function that runs in many interleavings. `planted.rs` runs the same cases with a
//! race in the code, which they must find. `DLOCK_INTERLEAVINGS` is the number of seeds.

mod batch;
mod composites;
mod link;
mod locks;
mod planted;
mod seats;
mod shared_read;

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use tokio::task::JoinHandle;

/// Lets other threads continue a random number of times, at most `max`.
async fn yield_randomly(max: usize) {
    use shuttle::rand::Rng as _;
    for _ in 0..shuttle::rand::thread_rng().gen_range(0..=max) {
        tokio::task::yield_now().await;
    }
}

/// Waits for all tasks.
async fn finish(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("the task does not panic");
    }
}

/// Drops a future after a random number of steps, unless it ends before.
async fn drop_after<T>(max: usize, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        value = future => Some(value),
        () = yield_randomly(max) => None,
    }
}

/// The order of events of an execution.
#[derive(Clone, Default)]
struct Order(Arc<AtomicUsize>);

impl Order {
    /// Returns the position of the next event.
    fn next(&self) -> usize {
        self.0.fetch_add(1, SeqCst)
    }
}

/// The times for which the guards of one lock were held.
#[derive(Clone, Default)]
struct Claims {
    order: Order,
    claimed: Arc<Mutex<Vec<Claimed>>>,
}

/// The time for which one guard was held, as positions of events.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Claimed {
    from: usize,
    to: usize,
    /// Holders may hold several guards at the same time.
    holder: usize,
}

impl Claims {
    fn record(&self, holder: usize, from: usize, to: usize) {
        self.claimed.lock().expect("no panic").push(Claimed { from, to, holder });
    }

    /// Checks that no two holders held a guard at the same time.
    fn check(&self) {
        let mut claimed = self.claimed.lock().expect("no panic").clone();
        claimed.sort_unstable();
        for (at, first) in claimed.iter().enumerate() {
            let during = claimed[at + 1..].iter().take_while(|second| second.from < first.to);
            for second in during.filter(|second| second.to > second.from) {
                assert_eq!(
                    first.holder, second.holder,
                    "two guards were held at the same time: {claimed:#?}"
                );
            }
        }
    }

    /// Checks that no more guards were held at the same time than this.
    fn check_limit(&self, limit: usize) {
        let claimed = self.claimed.lock().expect("no panic").clone();
        for at in claimed.iter().map(|claimed| claimed.from) {
            let holders = claimed.iter().filter(|other| other.from <= at && at < other.to);
            let holders: HashSet<_> = holders.map(|claimed| claimed.holder).collect();
            assert!(holders.len() <= limit, "{} guards at position {at}: {claimed:#?}", holders.len());
        }
    }
}
