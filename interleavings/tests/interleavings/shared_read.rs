//! A read of the store that many callers share.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use dlock_interleavings::{
    driver::SharedRead,
    runner::{Time, explore},
};

use crate::{drop_after, finish, yield_randomly};

#[derive(Default)]
struct Server {
    value: AtomicUsize,
    /// Number of reads that the server executes.
    reading: AtomicUsize,
}

impl Server {
    async fn read(self: Arc<Self>) -> usize {
        let reading = self.reading.fetch_add(1, SeqCst);
        assert_eq!(reading, 0, "two reads of one client at the same time");
        let value = self.value.load(SeqCst);
        yield_randomly(3).await;
        self.reading.fetch_sub(1, SeqCst);
        value
    }
}

/// Callers write a value, and then read it.
pub(crate) async fn readers() {
    let (server, reads) = (Arc::new(Server::default()), Arc::new(SharedRead::new()));
    let tasks: Vec<_> = (0..4)
        .map(|number| {
            let (server, reads) = (Arc::clone(&server), Arc::clone(&reads));
            tokio::spawn(async move {
                let read = || Box::pin(Arc::clone(&server).read()) as _;
                if number == 0 {
                    drop_after(6, reads.join(read)).await;
                    return;
                }
                yield_randomly(4).await;
                let written = server.value.fetch_add(1, SeqCst) + 1;
                let before = reads.sent();
                loop {
                    let (number, value) = reads.join(read).await;
                    if number > before {
                        assert!(value >= written, "read {number} is older than the value of read {before}");
                        return;
                    }
                }
            })
        })
        .collect();
    finish(tasks).await;
}

#[test]
fn a_later_read_shows_what_was_written_before_and_one_is_in_flight_at_a_time() {
    explore(Time::WhenIdle, readers);
}
