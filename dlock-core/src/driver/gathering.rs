//! Gathering: combines requests of many callers into few calls to the store. Over the usual length with its tests.
//!
//! The first caller leads. It waits a moment for others, divides all requests into chunks, and tells one caller of each
//! chunk to send the call for that chunk. There is no task for this. A caller waits for another only for a limited time: if
//! the leader, or the caller that sends a chunk, stands still or ends with its runtime, the others send their own requests.

use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{Failures, Result};

/// How long the leader waits for others; and the shortest ttl that is gathered, of which that wait is a hundredth.
const MOMENT: Duration = Duration::from_millis(20);
const LEAST_TTL: Duration = Duration::from_secs(2);

/// How long the others wait for the leader before each sends its own request. The leader's runtime may have ended or stand
/// still.
const PATIENCE: Duration = Duration::from_millis(60);

/// How to send requests of which one call to the store can answer many.
pub trait Batch: Send + Sync {
    /// What a caller asks about, such as the record of a held claim.
    type Request: Send + Sync;
    /// What it is told, such as whether the claim was renewed.
    type Answer: Send;
    /// Requests of different groups never go into one call. The group is the slot of a cluster, for example, or `()`.
    type Group: Eq + Hash + Send;

    /// The group of a request.
    fn group(&self, request: &Self::Request) -> Self::Group;

    /// The most requests in one call. A call of this size must not delay the store's other clients.
    fn most(&self) -> usize;

    /// Asks about one. Bounds its own I/O.
    fn ask_one(&self, request: &Self::Request) -> impl Future<Output = Result<Self::Answer>> + Send;

    /// Sends several requests in one call. Returns an answer to each, in the same order. Bounds its own I/O. `None` stands
    /// for a request that this call could not answer; its caller then sends it alone. If one bad request may have made the
    /// store refuse the whole call, return `None` for all.
    fn ask_all(
        &self,
        requests: &[Arc<Self::Request>],
    ) -> impl Future<Output = Result<Vec<Option<Self::Answer>>>> + Send;
}

/// Gathers the requests of one client's claims into few calls.
///
/// ```
/// use dlock_core::{Result, driver::{Batch, Failures, Gathering}};
/// use std::{sync::Arc, time::Duration};
///
/// struct Renewals; // and a connection
///
/// impl Batch for Renewals {
///     type Request = u64;
///     type Answer = bool;
///     type Group = ();
///
///     fn group(&self, _: &u64) {}
///     fn most(&self) -> usize { 200 }
///     async fn ask_one(&self, row: &u64) -> Result<bool> {
///         Ok(*row > 0) // UPDATE … WHERE row = ?
///     }
///     async fn ask_all(&self, rows: &[Arc<u64>]) -> Result<Vec<Option<bool>>> {
///         Ok(rows.iter().map(|row| Some(**row > 0)).collect()) // UPDATE … WHERE row IN (?, ?, …)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let renewals = Gathering::new(Failures::of("table"), Renewals);
/// assert!(renewals.ask(Arc::new(7), Duration::from_secs(30)).await?);
/// # Ok(()) }
/// ```
pub struct Gathering<B: Batch> {
    failures: Failures,
    batch: B,
    meeting: Mutex<Meeting<B>>,
}

struct Meeting<B: Batch> {
    /// The callers that gather now, the leader first. `None` if there is no leader.
    callers: Option<Vec<Caller<B>>>,
    next: u64,
}

struct Caller<B: Batch> {
    number: u64,
    request: Arc<B::Request>,
    ttl: Duration,
    since: Instant,
    told: oneshot::Sender<Told<B>>,
}

/// What a caller is told.
enum Told<B: Batch> {
    Answer(Result<B::Answer>),
    /// Send the call for this chunk, your own request included. Your own answer then arrives on the receiver.
    Ask(Vec<Caller<B>>, oneshot::Receiver<Self>),
}

impl<B: Batch> Gathering<B> {
    /// A gathering for one client of a store.
    pub fn new(failures: Failures, batch: B) -> Self {
        Self { failures, batch, meeting: Mutex::new(Meeting { callers: None, next: 0 }) }
    }

    /// What sends the requests to the store.
    pub fn batch(&self) -> &B {
        &self.batch
    }

    /// Sends a request together with those of others that ask at the same time. The answer comes up to 20 ms later than it
    /// would alone, so a caller with a ttl below 2 s sends its request alone. After `ttl` the answer would be worthless. So
    /// after a quarter of it a caller no longer waits for the one that sends its chunk, and sends its own request.
    ///
    /// # Errors
    /// Those of the store's call. If a call for many fails, each of its callers gets the error.
    ///
    /// # Cancel safety
    /// Safe. If this caller leads or sends a chunk, the others wait as they would for one that stands still, and nothing
    /// else happens to them. This caller's own request may have been sent.
    pub async fn ask(&self, request: Arc<B::Request>, ttl: Duration) -> Result<B::Answer> {
        if ttl < LEAST_TTL {
            return self.batch.ask_one(&request).await;
        }
        let (number, leads, mut told) = self.enter(&request, ttl);
        let mut next = if leads {
            sleep(MOMENT).await;
            let all = self.meeting().callers.take();
            self.share_out(all.unwrap_or_default());
            hear(ttl, told).await
        } else {
            match timeout(PATIENCE, &mut told).await {
                Ok(next) => next.ok(),
                Err(_) if self.withdraw(number) => None,
                Err(_) => hear(ttl, told).await,
            }
        };
        loop {
            match next {
                Some(Told::Answer(outcome)) => return outcome,
                Some(Told::Ask(chunk, told)) => {
                    self.ask_chunk(chunk).await;
                    next = told.await.ok();
                }
                // The caller that was to send the chunk is gone with its runtime, or stands still with it. Or the call
                // could not answer this request.
                None => return self.batch.ask_one(&request).await,
            }
        }
    }

    /// Joins the callers that gather. `true` if this caller is the first, and so leads.
    fn enter(&self, request: &Arc<B::Request>, ttl: Duration) -> (u64, bool, oneshot::Receiver<Told<B>>) {
        let (told, hears) = oneshot::channel();
        let since = Instant::now();
        let mut meeting = self.meeting();
        let number = meeting.next;
        meeting.next += 1;
        let caller = Caller { number, request: Arc::clone(request), ttl, since, told };
        let leads = match &mut meeting.callers {
            Some(all) if all.first().is_some_and(|leader| since < leader.since + PATIENCE) => {
                all.push(caller);
                false
            }
            // A leader that has not made chunks by now never will. Dropping the senders tells the callers that wait for it.
            callers => {
                *callers = Some(vec![caller]);
                true
            }
        };
        (number, leads, hears)
    }

    /// Leaves the callers that gather. `false` if the chunks have been made already.
    fn withdraw(&self, number: u64) -> bool {
        let mut meeting = self.meeting();
        let Some(all) = &mut meeting.callers else { return false };
        let place = all.iter().position(|caller| caller.number == number);
        place.map(|place| all.remove(place)).is_some()
    }

    fn meeting(&self) -> MutexGuard<'_, Meeting<B>> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the chunks, and tells one caller of each to send it.
    fn share_out(&self, mut all: Vec<Caller<B>>) {
        // The caller with the least time left sends the chunk, and its request goes first.
        all.sort_by_key(|caller| caller.since + caller.ttl);
        let mut groups: HashMap<B::Group, Vec<Caller<B>>> = HashMap::new();
        for caller in all {
            groups.entry(self.batch.group(&caller.request)).or_default().push(caller);
        }
        for mut group in groups.into_values() {
            while !group.is_empty() {
                let rest = group.split_off(group.len().min(self.batch.most().max(1)));
                let mut chunk = std::mem::replace(&mut group, rest);
                let (told, hears) = oneshot::channel();
                let asks = std::mem::replace(&mut chunk[0].told, told);
                asks.send(Told::Ask(chunk, hears)).ok();
            }
        }
    }

    /// Sends the call for a chunk, and gives each caller its answer.
    async fn ask_chunk(&self, chunk: Vec<Caller<B>>) {
        let (requests, mut told): (Vec<_>, Vec<_>) =
            chunk.into_iter().map(|caller| (caller.request, caller.told)).unzip();
        if let ([request], Some(told)) = (&requests[..], told.pop_if(|_| requests.len() == 1)) {
            told.send(Told::Answer(self.batch.ask_one(request).await)).ok();
            return;
        }
        match self.batch.ask_all(&requests).await {
            Ok(answers) => {
                // Where there is no answer, the sender is dropped, and so the caller sends its own request. This caller
                // does not do that for it: its own answer would wait until then.
                for (answer, told) in answers.into_iter().zip(told) {
                    if let Some(answer) = answer {
                        told.send(Told::Answer(Ok(answer))).ok();
                    }
                }
            }
            Err(error) => {
                let error = self.failures.retell(&error);
                told.into_iter().for_each(|told| drop(told.send(Told::Answer(Err(error.error())))));
            }
        }
    }
}

/// Waits for what a caller is told, for a limited time: the one that sends the chunk may stand still, and this caller needs
/// time to send its own request.
async fn hear<B: Batch>(ttl: Duration, told: oneshot::Receiver<Told<B>>) -> Option<Told<B>> {
    timeout(ttl / 4, told).await.ok()?.ok()
}

impl<B: Batch> fmt::Debug for Gathering<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gathered = self.meeting().callers.as_ref().map_or(0, Vec::len);
        write!(f, "Gathering({} of {gathered} callers)", self.failures.store())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{
        future::{BoxFuture, join_all},
        poll,
    };
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    const TTL: Duration = Duration::from_secs(30);
    const STORE: Failures = Failures::of("table");

    /// Answers each number with that number. Remembers how many numbers were in each call.
    #[derive(Default)]
    struct Echo {
        calls: Mutex<Vec<usize>>,
        most: AtomicUsize,
        /// The numbers for which a call for many answers `None`.
        unknown: Vec<u64>,
        /// How long a call for one number takes.
        alone_takes: Duration,
        is_away: bool,
    }

    impl Echo {
        fn note(&self, count: usize) {
            self.calls.lock().unwrap().push(count);
        }
    }

    impl Batch for Echo {
        type Request = u64;
        type Answer = u64;
        type Group = u64;

        fn group(&self, request: &u64) -> u64 {
            request / 1000
        }

        fn most(&self) -> usize {
            self.most.load(Relaxed)
        }

        async fn ask_one(&self, request: &u64) -> Result<u64> {
            self.note(1);
            if !self.alone_takes.is_zero() {
                sleep(self.alone_takes).await;
            }
            if self.is_away { Err(STORE.unavailable("away")) } else { Ok(*request) }
        }

        async fn ask_all(&self, requests: &[Arc<u64>]) -> Result<Vec<Option<u64>>> {
            self.note(requests.len());
            if self.is_away {
                return Err(STORE.unavailable("away"));
            }
            Ok(requests.iter().map(|one| Some(**one).filter(|one| !self.unknown.contains(one))).collect())
        }
    }

    fn gathering(most: usize, echo: Echo) -> Gathering<Echo> {
        echo.most.store(most, Relaxed);
        Gathering::new(STORE, echo)
    }

    impl Gathering<Echo> {
        fn asked(&self, request: u64, ttl: Duration) -> BoxFuture<'_, Result<u64>> {
            Box::pin(self.ask(Arc::new(request), ttl))
        }

        /// The sizes of all calls until now, the largest first.
        fn calls(&self) -> Vec<usize> {
            let mut calls = self.batch.calls.lock().unwrap().clone();
            calls.sort_unstable_by(|a, b| b.cmp(a));
            calls
        }

        async fn ask_for(&self, requests: impl Iterator<Item = u64>) -> Vec<Result<u64>> {
            join_all(requests.map(|request| self.asked(request, TTL))).await
        }

        fn is_empty(&self) -> bool {
            self.meeting().callers.is_none()
        }
    }

    fn answers(outcomes: Vec<Result<u64>>) -> Vec<u64> {
        outcomes.into_iter().map(|outcome| outcome.expect("an answer")).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_many_become_few_calls_and_each_gets_its_own_answer() {
        let (gathering, start) = (gathering(4, Echo::default()), Instant::now());
        assert_eq!(answers(gathering.ask_for(0..10).await), Vec::from_iter(0..10));
        assert_eq!(gathering.calls(), [4, 4, 2]);
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
        assert!(gathering.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_two_groups_are_never_in_one_call() {
        let gathering = gathering(100, Echo::default());
        let asked = [1, 2, 3, 1001, 1002, 2001];
        assert_eq!(answers(gathering.ask_for(asked.into_iter()).await), asked);
        assert_eq!(gathering.calls(), [3, 2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_with_little_time_asks_alone_at_once() {
        let (gathering, start) = (gathering(100, Echo::default()), Instant::now());
        let short = LEAST_TTL - Duration::from_millis(1);
        assert_eq!(gathering.asked(7, short).await.unwrap(), 7);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn where_the_leader_stands_still_the_others_ask_for_themselves() {
        let (gathering, start) = (gathering(100, Echo::default()), Instant::now());
        let mut leader = gathering.asked(0, TTL);
        assert!(poll!(&mut leader).is_pending());
        assert_eq!(answers(gathering.ask_for(1..4).await), [1, 2, 3]);
        assert_eq!(gathering.calls(), [1, 1, 1]);
        assert!(start.elapsed() < TTL / 10, "{:?}", start.elapsed());
        assert_eq!(leader.await.unwrap(), 0, "the leader gets no answer when it goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn where_the_leader_has_gone_the_next_caller_leads() {
        let gathering = gathering(100, Echo::default());
        let mut leader = gathering.asked(0, TTL);
        assert!(poll!(&mut leader).is_pending());
        drop(leader);
        assert_eq!(answers(gathering.ask_for(1..3).await), [1, 2]);
        assert_eq!(answers(gathering.ask_for(3..6).await), [3, 4, 5]);
        assert_eq!(gathering.calls(), [3, 1, 1]);
        assert!(gathering.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_for_a_leader_that_was_replaced_ask_for_themselves() {
        let gathering = gathering(100, Echo::default());
        let (mut leader, mut waiting) = (gathering.asked(0, TTL), gathering.asked(1, TTL));
        assert!(poll!(&mut leader).is_pending() && poll!(&mut waiting).is_pending());
        tokio::time::advance(PATIENCE).await;
        let mut next = gathering.asked(2, TTL);
        assert!(poll!(&mut next).is_pending(), "the next caller does not lead");
        assert_eq!(waiting.await.unwrap(), 1);
        assert_eq!(next.await.unwrap(), 2);
        assert_eq!(leader.await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn where_the_sender_of_a_chunk_stands_still_the_others_ask_in_time() {
        let (gathering, start) = (gathering(100, Echo::default()), Instant::now());
        // The caller with the least time left sends the call of a chunk. Here that is not the leader.
        let (mut leader, mut asks) = (gathering.asked(0, TTL * 2), gathering.asked(1, TTL));
        assert!(poll!(&mut leader).is_pending() && poll!(&mut asks).is_pending());
        let waiting = gathering.asked(2, TTL * 2);
        let (first, second) = tokio::join!(leader, waiting);
        assert_eq!((first.unwrap(), second.unwrap()), (0, 2));
        assert_eq!(gathering.calls(), [1, 1]);
        assert!(start.elapsed() < TTL, "{:?}", start.elapsed());
        assert_eq!(asks.await.unwrap(), 1, "the sender of the call gets no answer when it goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_call_for_many_cannot_answer_is_asked_alone() {
        let gathering = gathering(100, Echo { unknown: vec![1, 3], ..Echo::default() });
        assert_eq!(answers(gathering.ask_for(0..4).await), [0, 1, 2, 3]);
        assert_eq!(gathering.calls(), [4, 1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_sender_of_a_chunk_does_not_wait_for_requests_that_are_asked_alone() {
        let gathering = gathering(100, Echo { unknown: vec![1], alone_takes: TTL, ..Echo::default() });
        let start = Instant::now();
        // The caller with less time left sends the chunk.
        let sends = async { (gathering.asked(0, TTL).await.unwrap(), start.elapsed()) };
        let ((answer, elapsed), alone) = tokio::join!(sends, gathering.asked(1, TTL * 2));
        assert_eq!((answer, alone.unwrap()), (0, 1));
        assert!(elapsed < TTL / 10, "{elapsed:?}");
        assert_eq!(gathering.calls(), [2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn every_caller_is_told_that_the_call_for_all_has_failed() {
        let gathering = gathering(100, Echo { is_away: true, ..Echo::default() });
        for outcome in gathering.ask_for(0..3).await {
            assert!(outcome.expect_err("away").is_transient());
        }
        assert_eq!(gathering.calls(), [3]);
    }
}
