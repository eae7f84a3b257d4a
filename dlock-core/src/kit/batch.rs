//! The batcher: combines the requests of many callers into few calls to the store.
//!
//! The first caller of a round is its leader. It waits 20 ms for other callers, divides all
//! requests into chunks, and chooses one caller of each chunk as its sender. The sender makes the
//! call for the whole chunk. There is no background task. A caller waits for another only for a
//! limited time. If the leader is suspended, or its task or runtime has ended, another caller
//! divides the requests. If a sender is suspended or has ended, the callers of its chunk send their
//! own requests.
//!
//! A caller cannot know whether the leader has ended or waits for its turn in a busy runtime. The
//! caller that takes over therefore divides the whole round, as the leader would. If every caller
//! sent its own request instead, a busy client would have even more work.

use std::{collections::HashMap, fmt, hash::Hash, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::StoreErrors;
use crate::model::Result;

/// Time that the leader waits for more callers.
const COLLECT_TIME: Duration = Duration::from_millis(20);

/// Minimum ttl of a batched request. [`COLLECT_TIME`] is one percent of it.
const MIN_TTL: Duration = Duration::from_secs(2);

/// Maximum time that the other callers wait for the leader before one of them divides the round in
/// its place. The leader's runtime may be blocked or may have ended.
const LEADER_TIMEOUT: Duration = Duration::from_millis(60);

/// Requests of which the store can answer many in one call.
pub trait Batch: Send + Sync {
    /// Request of one caller, such as the record of a held claim.
    type Request: Send + Sync;
    /// Reply to one caller, such as whether the claim was renewed.
    type Reply: Send;
    /// Requests of different groups never share a call. The group is the slot of a cluster, for
    /// example, or `()`.
    type Group: Eq + Hash + Send;

    /// Returns the group of a request.
    fn group(&self, request: &Self::Request) -> Self::Group;

    /// Returns the maximum number of requests in one call. A call of this size must not delay the
    /// store's other clients.
    fn max_size(&self) -> usize;

    /// Sends one request alone. Must bound its own I/O.
    fn send_one(&self, request: &Self::Request) -> impl Future<Output = Result<Self::Reply>> + Send;

    /// Sends several requests in one call. Must bound its own I/O. Returns a reply to each request,
    /// in the same order.
    ///
    /// `None` means that this call has no result for a request. The caller of that request then
    /// sends it alone. Return `None` for all requests if the store may have rejected the whole call
    /// because of one invalid request.
    fn send_many(
        &self,
        requests: &[Arc<Self::Request>],
    ) -> impl Future<Output = Result<Vec<Option<Self::Reply>>>> + Send;
}

/// Combines the requests of one client's claims into few calls.
///
/// ```
/// use dlock_core::{Result, driver::{Batch, Batcher, StoreErrors}};
/// use std::{sync::Arc, time::Duration};
///
/// struct Renewals; // and a connection
///
/// impl Batch for Renewals {
///     type Request = u64;
///     type Reply = bool;
///     type Group = ();
///
///     fn group(&self, _: &u64) {}
///     fn max_size(&self) -> usize { 200 }
///     async fn send_one(&self, row: &u64) -> Result<bool> {
///         Ok(*row > 0) // UPDATE … WHERE row = ?
///     }
///     async fn send_many(&self, rows: &[Arc<u64>]) -> Result<Vec<Option<bool>>> {
///         Ok(rows.iter().map(|row| Some(**row > 0)).collect()) // UPDATE … WHERE row IN (?, ?, …)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let renewals = Batcher::new(StoreErrors::new("table"), Renewals);
/// assert!(renewals.submit(Arc::new(7), Duration::from_secs(30)).await?);
/// # Ok(()) }
/// ```
pub struct Batcher<B: Batch> {
    errors: StoreErrors,
    batch: B,
    round: Mutex<Round<B>>,
}

/// The callers that wait for the leader to divide their requests.
struct Round<B: Batch> {
    /// Callers of the current round, the leader first. Empty if there is no round.
    callers: Vec<Caller<B>>,
    /// Number of the next caller.
    next_number: u64,
}

struct Caller<B: Batch> {
    number: u64,
    request: Arc<B::Request>,
    ttl: Duration,
    arrived: Instant,
    channel: oneshot::Sender<Message<B>>,
}

/// A message of the caller that divides the round, or of a sender, to a caller.
enum Message<B: Batch> {
    /// The reply to the caller's request.
    Reply(Result<B::Reply>),
    /// Makes the caller the sender of this chunk, which includes its own request. Its own reply
    /// then arrives on the receiver.
    Send(Vec<Caller<B>>, oneshot::Receiver<Self>),
}

impl<B: Batch> Batcher<B> {
    /// Creates the batcher of one client.
    pub fn new(errors: StoreErrors, batch: B) -> Self {
        Self { errors, batch, round: Mutex::new(Round { callers: Vec::new(), next_number: 0 }) }
    }

    /// Returns the implementation that sends the requests to the store.
    pub fn batch(&self) -> &B {
        &self.batch
    }

    /// Sends a request in one call with those of other callers, and returns the reply.
    ///
    /// `ttl` is the time after which the reply is worthless. Batching delays the reply by up to 20
    /// ms, so a request with a ttl below 2 s is sent alone. A caller waits at most a quarter of
    /// `ttl` for the sender of its chunk, and then sends its own request.
    ///
    /// # Errors
    /// Those of the store's call. If a call for several requests fails, each of its callers gets
    /// the error.
    ///
    /// # Cancel safety
    /// Safe. If this caller is the leader or a sender, the others time out as if it were suspended.
    /// The request of this caller may have been sent.
    pub async fn submit(&self, request: Arc<B::Request>, ttl: Duration) -> Result<B::Reply> {
        if ttl < MIN_TTL {
            return self.batch.send_one(&request).await;
        }
        let (number, max_wait, mut inbox) = self.enter(&request, ttl);
        let mut next = if let Ok(message) = timeout(max_wait, &mut inbox).await {
            message.ok()
        } else {
            self.close_round_of(number);
            receive(ttl, inbox).await
        };
        loop {
            match next {
                Some(Message::Reply(result)) => return result,
                Some(Message::Send(chunk, inbox)) => {
                    self.send_chunk(chunk).await;
                    next = inbox.await.ok();
                }
                // The sender of the chunk is suspended or has ended with its runtime, or its call
                // could not answer this request.
                None => return self.batch.send_one(&request).await,
            }
        }
    }

    /// Joins the current round. Returns the caller's number, and the time after which the caller
    /// itself closes the round if it has no message.
    fn enter(
        &self,
        request: &Arc<B::Request>,
        ttl: Duration,
    ) -> (u64, Duration, oneshot::Receiver<Message<B>>) {
        let (sender, receiver) = oneshot::channel();
        let arrived = Instant::now();
        let mut round = self.round.lock();
        let number = round.next_number;
        round.next_number += 1;
        let max_wait = match round.callers.first() {
            None => COLLECT_TIME,
            Some(leader) if arrived < leader.arrived + LEADER_TIMEOUT => LEADER_TIMEOUT,
            Some(_) => Duration::ZERO,
        };
        let request = Arc::clone(request);
        round.callers.push(Caller { number, request, ttl, arrived, channel: sender });
        (number, max_wait, receiver)
    }

    /// Ends the current round if the caller with this number is one of its callers, and distributes
    /// the requests.
    fn close_round_of(&self, number: u64) {
        let mut round = self.round.lock();
        // The callers are in the order of their numbers.
        if round.callers.binary_search_by_key(&number, |caller| caller.number).is_ok() {
            let callers = std::mem::take(&mut round.callers);
            drop(round);
            self.distribute(callers, number);
        }
    }

    /// Divides the requests into chunks, and makes the first caller of each chunk its sender.
    /// `closer` is the number of the caller that closed the round.
    fn distribute(&self, mut callers: Vec<Caller<B>>, closer: u64) {
        let leader = callers.first().map(|leader| leader.number);
        callers.retain(|caller| !caller.channel.is_closed());
        callers.sort_by_key(|caller| {
            // The first caller of each chunk becomes its sender. The callers with the least time
            // left come first, so the most urgent caller of a chunk waits for no other. There are
            // two exceptions. If another caller has closed the round in the place of the leader,
            // the leader may be suspended and comes last. The caller that closed the round is
            // certainly running and comes first.
            let is_suspect = Some(caller.number) == leader && caller.number != closer;
            let has_taken_over = caller.number == closer && leader != Some(closer);
            (is_suspect, !has_taken_over, caller.arrived + caller.ttl)
        });
        let mut groups: HashMap<B::Group, Vec<Caller<B>>> = HashMap::new();
        for caller in callers {
            groups.entry(self.batch.group(&caller.request)).or_default().push(caller);
        }
        for mut group in groups.into_values() {
            while !group.is_empty() {
                let rest = group.split_off(group.len().min(self.batch.max_size().max(1)));
                let mut chunk = std::mem::replace(&mut group, rest);
                let (sender, receiver) = oneshot::channel();
                let first = std::mem::replace(&mut chunk[0].channel, sender);
                first.send(Message::Send(chunk, receiver)).ok();
            }
        }
    }

    /// Makes the call for a chunk, and sends each caller its reply.
    async fn send_chunk(&self, chunk: Vec<Caller<B>>) {
        let (requests, mut channels): (Vec<_>, Vec<_>) =
            chunk.into_iter().map(|caller| (caller.request, caller.channel)).unzip();
        if let ([request], Some(channel)) = (&requests[..], channels.pop_if(|_| requests.len() == 1)) {
            channel.send(Message::Reply(self.batch.send_one(request).await)).ok();
            return;
        }
        match self.batch.send_many(&requests).await {
            Ok(replies) => {
                // Without a reply, the channel is dropped, and the caller sends its own request.
                // The sender does not do that for it, because the sender's own reply would be
                // delayed.
                for (reply, channel) in replies.into_iter().zip(channels) {
                    if let Some(reply) = reply {
                        channel.send(Message::Reply(Ok(reply))).ok();
                    }
                }
            }
            Err(error) => {
                let error = self.errors.share(&error);
                channels
                    .into_iter()
                    .for_each(|channel| drop(channel.send(Message::Reply(Err(error.error())))));
            }
        }
    }
}

/// Waits at most a quarter of `ttl` for a message. The sender of the chunk may be suspended, and
/// this caller needs time to send its own request.
async fn receive<B: Batch>(ttl: Duration, inbox: oneshot::Receiver<Message<B>>) -> Option<Message<B>> {
    timeout(ttl / 4, inbox).await.ok()?.ok()
}

impl<B: Batch> fmt::Debug for Batcher<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let callers = self.round.lock().callers.len();
        write!(f, "Batcher({} with {callers} callers)", self.errors.store())
    }
}

#[cfg(test)]
mod tests;
