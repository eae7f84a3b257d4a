//! Tests of the batcher, with a store that echoes numbers.

use super::*;
use futures_util::{
    future::{BoxFuture, join_all},
    poll,
};
use std::{
    future::pending,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(30);
const STORE: StoreErrors = StoreErrors::new("table");

/// Replies to each number with that number. Records how many numbers were in each call.
#[derive(Default)]
struct Echo {
    calls: Mutex<Vec<usize>>,
    max_size: AtomicUsize,
    /// Numbers for which a call for several replies `None`.
    unanswered: Vec<u64>,
    /// Duration of a call for one number.
    single_call_time: Duration,
    /// Whether a call for several numbers never ends.
    shared_calls_hang: bool,
    is_down: bool,
}

impl Echo {
    fn record(&self, count: usize) {
        self.calls.lock().push(count);
    }
}

impl Batch for Echo {
    type Request = u64;
    type Reply = u64;
    type Group = u64;

    fn group(&self, request: &u64) -> u64 {
        request / 1000
    }

    fn max_size(&self) -> usize {
        self.max_size.load(Relaxed)
    }

    async fn send_one(&self, request: &u64) -> Result<u64> {
        self.record(1);
        if !self.single_call_time.is_zero() {
            sleep(self.single_call_time).await;
        }
        if self.is_down { Err(STORE.unavailable("down")) } else { Ok(*request) }
    }

    async fn send_many(&self, requests: &[Arc<u64>]) -> Result<Vec<Option<u64>>> {
        self.record(requests.len());
        if self.shared_calls_hang {
            pending::<()>().await;
        }
        if self.is_down {
            return Err(STORE.unavailable("down"));
        }
        let reply = |number: u64| Some(number).filter(|number| !self.unanswered.contains(number));
        Ok(requests.iter().map(|request| reply(**request)).collect())
    }
}

fn batcher(max_size: usize, echo: Echo) -> Batcher<Echo> {
    echo.max_size.store(max_size, Relaxed);
    Batcher::new(STORE, echo)
}

impl Batcher<Echo> {
    fn submit_boxed(&self, request: u64, ttl: Duration) -> BoxFuture<'_, Result<u64>> {
        Box::pin(self.submit(Arc::new(request), ttl))
    }

    /// Sizes of all calls until now, the largest first.
    fn calls(&self) -> Vec<usize> {
        let mut calls = self.batch.calls.lock().clone();
        calls.sort_unstable_by(|a, b| b.cmp(a));
        calls
    }

    async fn submit_all(&self, requests: impl Iterator<Item = u64>) -> Vec<Result<u64>> {
        join_all(requests.map(|request| self.submit_boxed(request, TTL))).await
    }

    fn is_empty(&self) -> bool {
        self.round.lock().callers.is_empty()
    }
}

fn replies(results: Vec<Result<u64>>) -> Vec<u64> {
    results.into_iter().map(|result| result.expect("a reply")).collect()
}

#[tokio::test(start_paused = true)]
async fn requests_of_many_become_few_calls_and_each_gets_its_own_answer() {
    let (batcher, start) = (batcher(4, Echo::default()), Instant::now());
    assert_eq!(replies(batcher.submit_all(0..10).await), Vec::from_iter(0..10));
    assert_eq!(batcher.calls(), [4, 4, 2]);
    assert!(start.elapsed() < LEADER_TIMEOUT, "{:?}", start.elapsed());
    assert!(batcher.is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_of_two_groups_are_never_in_one_call() {
    let batcher = batcher(100, Echo::default());
    let requests = [1, 2, 3, 1001, 1002, 2001];
    assert_eq!(replies(batcher.submit_all(requests.into_iter()).await), requests);
    assert_eq!(batcher.calls(), [3, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_little_time_sends_its_request_alone_at_once() {
    let (batcher, start) = (batcher(100, Echo::default()), Instant::now());
    let short = MIN_TTL - Duration::from_millis(1);
    assert_eq!(batcher.submit_boxed(7, short).await.unwrap(), 7);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn if_the_leader_is_suspended_another_caller_sends_the_requests_of_all() {
    let (batcher, start) = (batcher(100, Echo::default()), Instant::now());
    // The leader has the least time left, and would send if it had divided the requests.
    let mut leader = batcher.submit_boxed(0, TTL / 2);
    assert!(poll!(&mut leader).is_pending());
    assert_eq!(replies(batcher.submit_all(1..4).await), [1, 2, 3]);
    assert_eq!(batcher.calls(), [4]);
    assert!(start.elapsed() < TTL / 100, "{:?}", start.elapsed());
    assert_eq!(leader.await.unwrap(), 0, "the leader gets no reply when it continues");
    assert!(batcher.is_empty());
}

#[tokio::test(start_paused = true)]
async fn callers_that_a_busy_runtime_polls_late_make_no_more_calls() {
    const CALLERS: u64 = 1000;
    for is_leader_first in [true, false] {
        let batcher = batcher(200, Echo::default());
        let mut all: Vec<_> = (0..CALLERS).map(|request| batcher.submit_boxed(request, TTL)).collect();
        for caller in &mut all {
            assert!(poll!(caller).is_pending());
        }
        // The runtime is busy with other tasks until all timers of the round are due.
        tokio::time::advance(LEADER_TIMEOUT * 2).await;
        if !is_leader_first {
            all.reverse();
        }
        let mut replies = replies(join_all(all).await);
        replies.sort_unstable();
        assert_eq!(replies, Vec::from_iter(0..CALLERS));
        assert_eq!(batcher.calls(), [200; 5], "calls if the leader continues first: {is_leader_first}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_request_of_a_dropped_leader_is_not_sent() {
    let batcher = batcher(100, Echo::default());
    let mut leader = batcher.submit_boxed(0, TTL);
    assert!(poll!(&mut leader).is_pending());
    drop(leader);
    assert_eq!(replies(batcher.submit_all(1..3).await), [1, 2]);
    assert_eq!(replies(batcher.submit_all(3..6).await), [3, 4, 5]);
    assert_eq!(batcher.calls(), [3, 2]);
    assert!(batcher.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_joins_an_overdue_round_closes_it_at_once() {
    let batcher = batcher(100, Echo::default());
    let (mut leader, mut waiting) = (batcher.submit_boxed(0, TTL), batcher.submit_boxed(1, TTL));
    assert!(poll!(&mut leader).is_pending() && poll!(&mut waiting).is_pending());
    tokio::time::advance(LEADER_TIMEOUT).await;
    let start = Instant::now();
    assert_eq!(batcher.submit_boxed(2, TTL).await.unwrap(), 2);
    assert!(start.elapsed() < COLLECT_TIME, "{:?}", start.elapsed());
    assert_eq!(waiting.await.unwrap(), 1);
    assert_eq!(leader.await.unwrap(), 0);
    assert_eq!(batcher.calls(), [3]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_continues_late_does_not_end_the_round_of_another() {
    let batcher = batcher(100, Echo::default());
    let mut late = batcher.submit_boxed(0, TTL);
    assert!(poll!(&mut late).is_pending());
    assert_eq!(batcher.submit_boxed(1, TTL).await.unwrap(), 1);
    let mut next = batcher.submit_boxed(2, TTL);
    assert!(poll!(&mut next).is_pending());
    assert_eq!(late.await.unwrap(), 0);
    assert_eq!(replies(join_all([next, batcher.submit_boxed(3, TTL)]).await), [2, 3]);
    assert_eq!(batcher.calls(), [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn if_the_sender_of_a_chunk_is_suspended_the_others_send_in_time() {
    let (batcher, start) = (batcher(100, Echo::default()), Instant::now());
    // The caller with the least time left is the sender of a chunk. In this test that is not
    // the leader.
    let (mut leader, mut sender) = (batcher.submit_boxed(0, TTL * 2), batcher.submit_boxed(1, TTL));
    assert!(poll!(&mut leader).is_pending() && poll!(&mut sender).is_pending());
    let waiting = batcher.submit_boxed(2, TTL * 2);
    let (first, second) = tokio::join!(leader, waiting);
    assert_eq!((first.unwrap(), second.unwrap()), (0, 2));
    assert_eq!(batcher.calls(), [1, 1]);
    assert!(start.elapsed() < TTL, "{:?}", start.elapsed());
    assert_eq!(sender.await.unwrap(), 1, "the sender gets no reply when it continues");
}

#[tokio::test(start_paused = true)]
async fn a_caller_waits_for_a_shared_call_that_hangs_for_a_quarter_of_its_ttl() {
    let batcher = batcher(100, Echo { shared_calls_hang: true, ..Echo::default() });
    let start = Instant::now();
    // The caller with the least time left is the sender.
    let sender = timeout(TTL * 2, batcher.submit_boxed(0, TTL / 2));
    let caller = async |request, ttl| {
        let reply = batcher.submit_boxed(request, ttl).await;
        (reply.expect("sent alone"), start.elapsed())
    };
    let (sender, first, second) = tokio::join!(sender, caller(1, TTL), caller(2, TTL * 2));
    assert!(sender.is_err(), "the sender has given its own call up");
    for ((reply, elapsed), (request, ttl)) in [(first, (1, TTL)), (second, (2, TTL * 2))] {
        assert_eq!(reply, request);
        let longest = ttl / 4 + 2 * LEADER_TIMEOUT;
        assert!((ttl / 4..=longest).contains(&elapsed), "{elapsed:?} with a ttl of {ttl:?}");
    }
    assert_eq!(batcher.calls(), [3, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn callers_that_arrive_within_20_ms_share_a_call() {
    let ms = Duration::from_millis;
    for (span, calls) in [(ms(18), &[2][..]), (ms(23), &[1, 1][..])] {
        let batcher = batcher(100, Echo::default());
        let later = async {
            sleep(span).await;
            batcher.submit_boxed(1, TTL).await
        };
        let (first, second) = tokio::join!(batcher.submit_boxed(0, TTL), later);
        assert_eq!(replies(vec![first, second]), [0, 1]);
        assert_eq!(batcher.calls(), calls, "the callers arrived {span:?} apart");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_a_shared_call_cannot_answer_is_sent_alone() {
    let batcher = batcher(100, Echo { unanswered: vec![1, 3], ..Echo::default() });
    assert_eq!(replies(batcher.submit_all(0..4).await), [0, 1, 2, 3]);
    assert_eq!(batcher.calls(), [4, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn the_sender_of_a_chunk_does_not_wait_for_requests_that_are_sent_alone() {
    let batcher = batcher(100, Echo { unanswered: vec![1], single_call_time: TTL, ..Echo::default() });
    let start = Instant::now();
    // The caller with less time left is the sender.
    let sender = async { (batcher.submit_boxed(0, TTL).await.unwrap(), start.elapsed()) };
    let ((reply, elapsed), alone) = tokio::join!(sender, batcher.submit_boxed(1, TTL * 2));
    assert_eq!((reply, alone.unwrap()), (0, 1));
    assert!(elapsed < TTL / 10, "{elapsed:?}");
    assert_eq!(batcher.calls(), [2, 1]);
}

#[tokio::test(start_paused = true)]
async fn every_caller_gets_the_error_of_a_shared_call() {
    let batcher = batcher(100, Echo { is_down: true, ..Echo::default() });
    for result in batcher.submit_all(0..3).await {
        assert!(result.expect_err("down").is_transient());
    }
    assert_eq!(batcher.calls(), [3]);
}
