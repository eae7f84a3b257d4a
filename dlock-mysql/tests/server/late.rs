//! Requests that the server receives after the client has given up, and connections that break in
//! silence.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use dlock_core::{
    ClaimId, Kind, LockName,
    driver::{Attempt, Request, Store},
};
use dlock_mysql::DRIVER;
use dlock_testbed::servers::Running;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

use crate::{SOON, plain_session, query};

/// A relay between client and server. It can hold requests back and deliver them later, also those
/// of a client that has disconnected.
struct Relay {
    address: SocketAddr,
    holds: watch::Sender<bool>,
    accepted: Arc<AtomicU64>,
    /// Connections with a lower number forward nothing, and stay open.
    silent_below: Arc<AtomicU64>,
    /// Number of replies of the server that were forwarded.
    replies: Arc<AtomicU64>,
}

impl Relay {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("a port");
        let (holds, held) = watch::channel(false);
        let replies = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&replies);
        let (accepted, silent_below) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (numbers, silent) = (Arc::clone(&accepted), Arc::clone(&silent_below));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = numbers.fetch_add(1, SeqCst);
                let silent = [Arc::clone(&silent), Arc::clone(&silent)];
                let is_silent = move |silent: &AtomicU64| number < silent.load(SeqCst);
                let [silent, silent_back] = silent;
                let server = TcpStream::connect(server).await.expect("the server runs");
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                let (mut held, count) = (held.clone(), Arc::clone(&count));
                tokio::spawn(async move {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
                        held.wait_for(|held| !held).await.ok();
                        if is_silent(&silent) {
                            break;
                        }
                        if to_server.write_all(&buffer[..length]).await.is_err() {
                            return;
                        }
                    }
                    // The server must not see the end of the connection before it has replied.
                    std::future::pending::<()>().await;
                });
                tokio::spawn(async move {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
                        if is_silent(&silent_back) {
                            break;
                        }
                        to_client.write_all(&buffer[..length]).await.ok();
                        count.fetch_add(1, SeqCst);
                    }
                    if is_silent(&silent_back) {
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        Self { address, holds, accepted, silent_below, replies }
    }

    /// Makes the relay forward nothing on the connections that are open now.
    fn silence(&self) {
        self.silent_below.store(self.accepted.load(SeqCst), SeqCst);
    }

    /// Delivers the requests that were held back, and waits for a reply of the server to them.
    async fn deliver(&self) {
        let before = self.replies.load(SeqCst);
        self.holds.send_replace(false);
        let replied = async {
            while self.replies.load(SeqCst) == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, replied).await.expect("the server replies to the requests that were held back");
    }
}

/// The server ends a session whose connection has broken in silence. The client receives no end of
/// the connection.
pub(crate) async fn a_waiter_whose_connection_breaks_in_silence_gets_the_lock(server: &Running) {
    let real = server.servers()[0].address();
    let relay = Relay::to(real).await;
    let url = server.url().replace(&real.to_string(), &relay.address.to_string());
    let ttl = Duration::from_secs(6);
    let holder = crate::connect(server, "?mode=session").await.expect("the server runs");
    let held = holder.mutex("job").lock().ttl(ttl).await.expect("the lock is free");
    let locks = dlock_core::Registry::new()
        .with(DRIVER)
        .connect(&format!("{url}?mode=session"))
        .await
        .expect("the server runs");
    let waits = tokio::spawn(async move { locks.mutex("job").lock().ttl(ttl).await });
    let mut other = plain_session(server).await;
    crate::until(&mut other, crate::named::WAITING, 1).await;
    relay.silence();
    held.release().await.expect("the lock is still held");
    let held = timeout(ttl * 4, waits)
        .await
        .expect("the waiter notices the end of its session")
        .expect("the task does not panic")
        .expect("the lock is granted");
    held.release().await.expect("the lock is still held");
}

pub(crate) async fn a_request_that_is_delivered_late_changes_nothing(server: &Running) {
    let real = server.servers()[0].address();
    let relay = Relay::to(real).await;
    let url = server.url().replace(&real.to_string(), &relay.address.to_string());
    let connect = async |url: &str| -> Store {
        DRIVER
            .connect(format!("{url}?timeout=500ms&connections=1&doorbell=off").parse().expect("a URL"))
            .await
            .expect("the server runs")
    };
    let (late, prompt) = (connect(&url).await, connect(server.url()).await);
    let ttl = Duration::from_secs(20);
    let request = |name: &str| Request::new(LockName::new(name).expect("a name"), Kind::Mutex, ttl);
    let mut other = plain_session(server).await;
    let rows = "SELECT COUNT(*) FROM dlock_queue";
    let left = "SELECT (MAX(expires) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) DIV 1000000 FROM dlock_queue";

    // An attempt.
    let mut warm = late.backend.claim(request("warm"));
    assert!(matches!(warm.attempt().await, Ok(Attempt::Granted(_))));
    warm.release().await.expect("the store replies");
    relay.holds.send_replace(true);
    let mut claim = late.backend.claim(request("attempt"));
    claim.attempt().await.expect_err("the request is held back");
    relay.deliver().await;
    assert_eq!(query(&mut other, rows).await, 0, "a late attempt put a claim into the queue");

    // A detachment.
    let mut held = late.backend.claim(request("detach"));
    assert!(matches!(held.attempt().await, Ok(Attempt::Granted(_))));
    relay.holds.send_replace(true);
    held.detach(ttl * 10, ClaimId::random()).await.expect_err("the request is held back");
    relay.deliver().await;
    let seconds = query(&mut other, left).await;
    assert!(seconds <= 20, "a late detachment extended the hold to {seconds} s");
    held.renew().await.expect("the store replies");
    held.release().await.expect("the store replies");
    assert_eq!(query(&mut other, rows).await, 0, "a claim is left in the queue");

    // A resumption. The hold keeps the ticket's id.
    let ticket = ClaimId::random();
    let mut first = prompt.backend.claim(request("resume"));
    assert!(matches!(first.attempt().await, Ok(Attempt::Granted(_))));
    first.detach(ttl * 10, ticket).await.expect("the store replies");
    let mut warm = late.backend.claim(request("warm"));
    assert!(matches!(warm.attempt().await, Ok(Attempt::Granted(_))));
    warm.release().await.expect("the store replies");
    relay.holds.send_replace(true);
    let mut taker = late.backend.claim(request("resume"));
    taker.resume(ticket).await.expect_err("the request is held back");
    relay.deliver().await;
    let seconds = query(&mut other, left).await;
    assert!(seconds > 100, "a late resumption shortened the hold to {seconds} s");

    // A renewal of the former holder finds no hold.
    first.renew().await.expect("the store replies");
    assert_eq!(query(&mut other, rows).await, 1, "a renewal of the former holder changed the hold");
}
