//! A read of the store that many callers share.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;
use tokio::runtime::{self, Handle};

/// Combines the reads of many callers, so that at most one is in flight on each runtime.
///
/// Waiters of one client read the same queue. A read for each of them would load the server with
/// the square of their number. If a server is slow, and its callers give up and call again, the
/// server still has only one reply to send.
///
/// Reads are numbered from 1. Call [`sent`](Self::sent) first. Any read with a greater number was
/// sent after that call, so it shows everything that was stored by then.
///
/// ```
/// use dlock_core::driver::SharedRead;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let reads = SharedRead::new();
/// let before = reads.sent();
/// // The reply to a read that was in flight may be too old. The next one is not.
/// let rows = loop {
///     let (number, rows) = reads.join(|| Box::pin(async { vec!["a row"].len() })).await;
///     if number > before {
///         break rows;
///     }
/// };
/// assert_eq!(rows, 1);
/// # }
/// ```
pub struct SharedRead<T> {
    sent: AtomicU64,
    /// Reads in flight, at most one for each runtime.
    in_flight: Mutex<Vec<InFlight<T>>>,
}

/// A read in flight. Each caller that waits for it may be dropped.
#[derive(Clone)]
struct InFlight<T> {
    number: u64,
    /// Runtime that owns the timers of the read, which panic once the runtime has ended.
    runtime: Option<runtime::Id>,
    reply: Shared<BoxFuture<'static, T>>,
}

impl<T> SharedRead<T> {
    /// Creates a shared read, of which none was sent yet.
    pub fn new() -> Self {
        Self { sent: AtomicU64::new(0), in_flight: Mutex::new(Vec::new()) }
    }

    /// Returns the number of reads sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Counts a read that the caller sends now by itself, without sharing it. Returns its number.
    pub fn number_next(&self) -> u64 {
        self.sent.fetch_add(1, Relaxed) + 1
    }

    fn forget(&self, number: u64) {
        self.in_flight.lock().retain(|read| read.number != number);
    }
}

impl<T: Clone + Send + Sync + 'static> SharedRead<T> {
    /// Waits for the reply to the read in flight. If there is none, sends the read that `read`
    /// returns, which must bound its own I/O. Returns the number of the read, and its reply.
    ///
    /// # Cancel safety
    /// Safe. If all callers of a read are dropped, the next caller on the same runtime continues
    /// it. A caller on another runtime sends another read, because the first runtime may have
    /// ended.
    pub async fn join(&self, read: impl FnOnce() -> BoxFuture<'static, T>) -> (u64, T) {
        let InFlight { number, reply, .. } = self.read_in_flight(read);
        let _forget_on_panic = ForgetOnPanic { reads: self, number };
        let reply = reply.await;
        self.forget(number);
        (number, reply)
    }

    fn read_in_flight(&self, read: impl FnOnce() -> BoxFuture<'static, T>) -> InFlight<T> {
        let runtime = Handle::try_current().map(|handle| handle.id()).ok();
        let mut in_flight = self.in_flight.lock();
        if let Some(read) = in_flight.iter().find(|read| read.runtime == runtime) {
            return read.clone();
        }
        // No caller waits for these reads, and their runtimes may have ended.
        in_flight.retain(|read| read.reply.strong_count().is_some_and(|count| count > 1));
        let read = InFlight { number: self.number_next(), runtime, reply: read().shared() };
        in_flight.push(read.clone());
        read
    }
}

/// Removes a read whose future has panicked. It would panic again for each later caller.
struct ForgetOnPanic<'a, T> {
    reads: &'a SharedRead<T>,
    number: u64,
}

impl<T> Drop for ForgetOnPanic<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.reads.forget(self.number);
        }
    }
}

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for SharedRead<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRead({} sent)", self.sent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use std::{sync::Arc, time::Duration};
    use tokio::time::{sleep, timeout};

    const ROUND_TRIP: Duration = Duration::from_millis(10);

    /// A server that counts reads.
    #[derive(Clone, Default)]
    struct Server(Arc<AtomicU64>);

    impl Server {
        fn read(&self) -> BoxFuture<'static, u64> {
            let reads = Arc::clone(&self.0);
            Box::pin(async move {
                let read = reads.fetch_add(1, Relaxed) + 1;
                sleep(ROUND_TRIP).await;
                read
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_at_the_same_time_share_a_read_and_later_ones_get_another() {
        let (server, reads) = (Server::default(), SharedRead::new());
        let replies = join_all((0..100).map(|_| reads.join(|| server.read()))).await;
        assert_eq!(replies, [(1, 1); 100]);
        assert_eq!(reads.join(|| server.read()).await, (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_give_up_and_come_again_send_one_read() {
        let (server, reads) = (Server::default(), SharedRead::new());
        for _ in 0..3 {
            timeout(ROUND_TRIP / 5, reads.join(|| server.read())).await.expect_err("takes longer");
        }
        assert_eq!(reads.join(|| server.read()).await, (1, 1));
        assert_eq!(reads.sent(), 1);
    }

    #[test]
    fn a_read_whose_runtime_has_ended_is_sent_again() {
        let (server, reads) = (Server::default(), SharedRead::new());
        let runtime = || runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime()
            .block_on(async { timeout(ROUND_TRIP / 5, reads.join(|| server.read())).await })
            .expect_err("takes longer");
        assert_eq!(runtime().block_on(reads.join(|| server.read())), (2, 2));
    }

    #[test]
    fn callers_on_two_runtimes_share_a_read_on_each() {
        let (server, reads) = (Server::default(), SharedRead::new());
        // Their clocks are paused, so that no read ends during the other calls.
        let paused = || runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtimes = [(); 2].map(|()| paused().unwrap());
        let mut callers: Vec<_> = (0..4).map(|_| Box::pin(reads.join(|| server.read()))).collect();
        for (number, caller) in callers.iter_mut().enumerate() {
            let wait = async { timeout(Duration::from_millis(1), caller).await };
            runtimes[number % 2].block_on(wait).expect_err("takes longer");
        }
        assert_eq!(reads.sent(), 2, "a caller has replaced the read of the other runtime");
        let replies: Vec<_> =
            callers.into_iter().enumerate().map(|(at, caller)| runtimes[at % 2].block_on(caller).0).collect();
        assert_eq!(replies, [1, 2, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_panic_the_next_caller_sends_a_read() {
        let (server, reads) = (Server::default(), SharedRead::new());
        let panicking = reads.join(|| Box::pin(async { panic!("expected in this test") }));
        std::panic::AssertUnwindSafe(panicking).catch_unwind().await.expect_err("panics");
        assert_eq!(reads.join(|| server.read()).await, (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_in_flight_has_no_greater_number_than_were_sent() {
        let (server, reads) = (Server::default(), SharedRead::new());
        timeout(ROUND_TRIP / 5, reads.join(|| server.read())).await.expect_err("takes longer");
        let before = reads.sent();
        let (number, _) = reads.join(|| server.read()).await;
        assert!(number <= before, "the read was sent before");
        let (number, _) = reads.join(|| server.read()).await;
        assert!(number > before, "the read was sent after");
    }
}
