//! Requests of many callers that share few calls.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use dlock_interleavings::{
    Result,
    driver::{Batch, Batcher, StoreErrors},
    runner::{Time, explore},
};
use tokio::time::Instant;

use crate::{drop_after, finish, yield_randomly};

const TTL: Duration = Duration::from_secs(30);

/// Time in which a caller gets its reply, if no other one is dropped: that in which the leader
/// collects requests, and as much for a caller that begins the next round.
const PROMPT: Duration = Duration::from_millis(40);

/// A store that returns each request plus a thousand.
#[derive(Default)]
struct Store {
    calls: AtomicUsize,
}

impl Batch for Store {
    type Request = u64;
    type Reply = u64;
    type Group = ();

    fn group(&self, _: &u64) {}

    fn max_size(&self) -> usize {
        3
    }

    async fn send_one(&self, request: &u64) -> Result<u64> {
        self.calls.fetch_add(1, SeqCst);
        yield_randomly(2).await;
        Ok(request + 1000)
    }

    async fn send_many(&self, requests: &[Arc<u64>]) -> Result<Vec<Option<u64>>> {
        self.calls.fetch_add(1, SeqCst);
        yield_randomly(2).await;
        Ok(requests.iter().map(|request| Some(**request + 1000)).collect())
    }
}

/// Five callers send a request each.
pub(crate) async fn callers() {
    let batcher = Arc::new(Batcher::new(StoreErrors::new("table"), Store::default()));
    let tasks: Vec<_> = (0..5)
        .map(|request: u64| {
            let batcher = Arc::clone(&batcher);
            tokio::spawn(async move {
                yield_randomly(3).await;
                let started = Instant::now();
                let reply = batcher.submit(Arc::new(request), TTL).await.expect("the store replies");
                assert_eq!(reply, request + 1000, "the reply to another caller");
                assert!(started.elapsed() <= PROMPT, "a caller was forgotten: {:?}", started.elapsed());
            })
        })
        .collect();
    finish(tasks).await;
    let calls = batcher.batch().calls.load(SeqCst);
    assert!(calls <= 5, "{calls} calls for five requests");
}

#[test]
fn each_caller_gets_its_own_reply_in_time() {
    explore(Time::WhenIdle, callers);
}

/// Callers are dropped at any step, among them leaders and senders, while time passes at any step.
pub(crate) async fn dropped_callers() {
    let batcher = Arc::new(Batcher::new(StoreErrors::new("table"), Store::default()));
    let tasks: Vec<_> = (0..6)
        .map(|request: u64| {
            let batcher = Arc::clone(&batcher);
            tokio::spawn(async move {
                let reply = batcher.submit(Arc::new(request), TTL);
                let reply =
                    if request.is_multiple_of(2) { drop_after(15, reply).await } else { Some(reply.await) };
                if let Some(reply) = reply {
                    assert_eq!(
                        reply.expect("the store replies"),
                        request + 1000,
                        "the reply to another caller"
                    );
                }
            })
        })
        .collect();
    finish(tasks).await;
}

#[test]
fn callers_get_their_replies_whichever_callers_are_dropped() {
    explore(Time::WhenIdle, dropped_callers);
    explore(Time::Anytime, dropped_callers);
}
