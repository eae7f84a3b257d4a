//! Requests that the server receives after the client has given them up.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use dlock_conformance::stores::Running;
use dlock_core::{
    ClaimId, Kind, LockName,
    driver::{Attempt, Request, Store},
};
use dlock_mysql::DRIVER;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

use crate::{SOON, ask, stranger};

/// Passes bytes on. While it holds requests back it still takes them, and delivers them later, also for a client that has left.
struct Relay {
    address: SocketAddr,
    holds: watch::Sender<bool>,
    accepted: Arc<AtomicU64>,
    /// Connections with a lower number pass nothing, and are not closed.
    silent_below: Arc<AtomicU64>,
    /// Bytes that were delivered after they had been held back, and bytes of answers.
    answered: Arc<AtomicU64>,
}

impl Relay {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("a port");
        let (holds, held) = watch::channel(false);
        let answered = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&answered);
        let (accepted, silent_below) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (numbers, silent) = (Arc::clone(&accepted), Arc::clone(&silent_below));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = numbers.fetch_add(1, SeqCst);
                let silent = [Arc::clone(&silent), Arc::clone(&silent)];
                let is_silent = move |silent: &AtomicU64| number < silent.load(SeqCst);
                let [silent, silent_back] = silent;
                let server = TcpStream::connect(server).await.expect("the server runs");
                let ((mut asks, mut told), (mut tells, mut asked)) =
                    (client.into_split(), server.into_split());
                let (mut held, count) = (held.clone(), Arc::clone(&count));
                tokio::spawn(async move {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = asks.read(&mut buffer).await {
                        held.wait_for(|held| !held).await.ok();
                        if is_silent(&silent) {
                            break;
                        }
                        if asked.write_all(&buffer[..length]).await.is_err() {
                            return;
                        }
                    }
                    // The server must not see the end of the connection before it has answered.
                    std::future::pending::<()>().await;
                });
                tokio::spawn(async move {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = tells.read(&mut buffer).await {
                        if is_silent(&silent_back) {
                            break;
                        }
                        told.write_all(&buffer[..length]).await.ok();
                        count.fetch_add(1, SeqCst);
                    }
                    if is_silent(&silent_back) {
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        Self { address, holds, accepted, silent_below, answered }
    }

    /// From now on the connections of today pass nothing.
    fn silence(&self) {
        self.silent_below.store(self.accepted.load(SeqCst), SeqCst);
    }

    /// Delivers what was held back, and waits for an answer of the server to it.
    async fn deliver(&self) {
        let before = self.answered.load(SeqCst);
        self.holds.send_replace(false);
        let answered = async {
            while self.answered.load(SeqCst) == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, answered).await.expect("nothing was delivered");
    }
}

/// The server ends a session whose client has vanished, and the client hears nothing of that.
pub(crate) async fn a_waiter_whose_connection_breaks_in_silence_gets_the_lock(server: &Running) {
    let real = server.servers()[0].address();
    let relay = Relay::to(real).await;
    let url = server.url().replace(&real.to_string(), &relay.address.to_string());
    let ttl = Duration::from_secs(6);
    let holder = crate::connect(server, "?mode=session").await.expect("it runs");
    let held = holder.mutex("job").lock().ttl(ttl).await.expect("nobody holds it");
    let locks = dlock_core::Registry::new()
        .with(DRIVER)
        .connect(&format!("{url}?mode=session"))
        .await
        .expect("it runs");
    let waits = tokio::spawn(async move { locks.mutex("job").lock().ttl(ttl).await });
    let mut other = stranger(server).await;
    crate::until(&mut other, crate::named::WAITING, 1).await;
    relay.silence();
    held.release().await.expect("held until now");
    let held =
        timeout(ttl * 4, waits).await.expect("it waits for ever").expect("no panic").expect("it is free");
    held.release().await.expect("held until now");
}

pub(crate) async fn a_request_that_is_delivered_late_changes_nothing(server: &Running) {
    let real = server.servers()[0].address();
    let relay = Relay::to(real).await;
    let url = server.url().replace(&real.to_string(), &relay.address.to_string());
    let connect = async |url: &str| -> Store {
        (DRIVER.connect)(format!("{url}?timeout=500ms&connections=1&doorbell=off").parse().expect("a URL"))
            .await
            .expect("it runs")
    };
    let (late, prompt) = (connect(&url).await, connect(server.url()).await);
    let ttl = Duration::from_secs(20);
    let request = |name: &str| Request::new(LockName::new(name).expect("a name"), Kind::Mutex, ttl);
    let mut other = stranger(server).await;
    let rows = "SELECT COUNT(*) FROM dlock_queue";
    let left = "SELECT (MAX(expires) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) DIV 1000000 FROM dlock_queue";

    // An attempt.
    let mut warm = late.backend.claim(request("warm"));
    assert!(matches!(warm.attempt().await, Ok(Attempt::Granted(_))));
    warm.release().await.expect("it answers");
    relay.holds.send_replace(true);
    let mut claim = late.backend.claim(request("attempt"));
    claim.attempt().await.expect_err("nothing is delivered");
    relay.deliver().await;
    assert_eq!(ask(&mut other, rows).await, 0, "a late attempt made a claim");

    // A detachment.
    let mut held = late.backend.claim(request("detach"));
    assert!(matches!(held.attempt().await, Ok(Attempt::Granted(_))));
    relay.holds.send_replace(true);
    held.detach(ttl * 10, ClaimId::random()).await.expect_err("nothing is delivered");
    relay.deliver().await;
    let seconds = ask(&mut other, left).await;
    assert!(seconds <= 20, "a late detachment keeps the hold for {seconds} s");
    held.renew().await.expect("it answers");
    held.release().await.expect("it answers");
    assert_eq!(ask(&mut other, rows).await, 0, "a claim is left");

    // A resumption: the hold stays with its ticket, and another client gets it.
    let ticket = ClaimId::random();
    let mut first = prompt.backend.claim(request("resume"));
    assert!(matches!(first.attempt().await, Ok(Attempt::Granted(_))));
    first.detach(ttl * 10, ticket).await.expect("it answers");
    let mut warm = late.backend.claim(request("warm"));
    assert!(matches!(warm.attempt().await, Ok(Attempt::Granted(_))));
    warm.release().await.expect("it answers");
    relay.holds.send_replace(true);
    let mut taker = late.backend.claim(request("resume"));
    taker.resume(ticket).await.expect_err("nothing is delivered");
    relay.deliver().await;
    let seconds = ask(&mut other, left).await;
    assert!(seconds > 100, "a late resumption leaves the hold {seconds} s");

    // Releases and renewals of the earlier holder find nothing.
    first.renew().await.expect("it answers");
    assert_eq!(ask(&mut other, rows).await, 1, "an old renewal changed the hold");
}
