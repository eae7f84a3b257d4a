//! A connection that many callers share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use dlock_interleavings::{
    Result,
    driver::{Connect, Link, StoreErrors},
    runner::{Time, explore},
};

use tokio::time::sleep;

use crate::{drop_after, finish, yield_randomly};

const STORE: StoreErrors = StoreErrors::new("table");

#[derive(Default)]
struct Server {
    opened: AtomicUsize,
    opening: AtomicUsize,
}

/// An attempt to connect. Dropping it ends the attempt.
struct Opening(Arc<Server>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.opening.fetch_sub(1, SeqCst);
    }
}

struct Client(Arc<Server>);

impl Connect for Client {
    type Connection = ();

    async fn connect(&self) -> Result<()> {
        let opening = self.0.opening.fetch_add(1, SeqCst);
        let _opening = Opening(Arc::clone(&self.0));
        assert_eq!(opening, 0, "two callers open the connection");
        yield_randomly(3).await;
        self.0.opened.fetch_add(1, SeqCst);
        Ok(())
    }
}

/// Three callers use a connection that breaks. The call of a fourth one is dropped at any step.
pub(crate) async fn callers() {
    let server = Arc::new(Server::default());
    let link = Arc::new(Link::new(STORE, Duration::from_secs(3), Client(Arc::clone(&server))));
    let tasks: Vec<_> = (0..4)
        .map(|number| {
            let link = Arc::clone(&link);
            tokio::spawn(async move {
                yield_randomly(4).await;
                if number == 0 {
                    drop(drop_after(8, link.live()).await);
                    return;
                }
                let live = link.live().await.expect("the server is up");
                link.note_reply();
                yield_randomly(6).await;
                link.give_up(&live, STORE.unavailable("broke"));
                let next = link.live().await.expect("the server is up");
                assert!(next.number() > live.number(), "the broken connection was used again");
            })
        })
        .collect();
    finish(tasks).await;
    // Each of the three callers has given up one connection. Several may have given up the same.
    let last = link.live().await.expect("the server is up").number();
    let opened = server.opened.load(SeqCst);
    assert!(opened <= 4, "{opened} connections for three breaks");
    assert!(last <= 4, "the last connection is number {last}");
}

#[test]
fn one_caller_at_a_time_opens_a_connection_and_none_is_opened_without_need() {
    explore(Time::WhenIdle, callers);
}

/// An error that arrives late concerns a connection that was replaced.
pub(crate) async fn late_error() {
    let server = Arc::new(Server::default());
    let link = Arc::new(Link::new(STORE, Duration::from_secs(3), Client(Arc::clone(&server))));
    let live = link.live().await.expect("the server is up");
    // A connection that has worked for a second is opened again without a pause.
    link.note_reply();
    sleep(Duration::from_secs(1)).await;
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let (link, live) = (Arc::clone(&link), live.clone());
            tokio::spawn(async move {
                yield_randomly(6).await;
                link.give_up(&live, STORE.unavailable("broke"));
                yield_randomly(6).await;
                link.live().await.expect("the server is up").number()
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(
            task.await.expect("no panic"),
            2,
            "the error of the first connection has ended the second"
        );
    }
}

#[test]
fn a_late_error_ends_no_newer_connection() {
    explore(Time::WhenIdle, late_error);
}
