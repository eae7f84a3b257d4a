//! Tests behind a proxy that alternates the calls of one connection between two sessions of the
//! server, as proxies with pools of sessions do.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Error, Locks, LostReason, Registry};
use dlock_mysql::DRIVER;
use dlock_testbed::servers::Running;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{
    io::{self, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    task::AbortHandle,
    time::timeout,
};

use crate::{execute, plain_session, query, until};

/// First byte of a reply that is an error.
const ERROR: u8 = 0xff;

struct Swapping {
    address: SocketAddr,
    traffic: Arc<Traffic>,
    task: AbortHandle,
}

/// State that the connections of a proxy share.
#[derive(Default)]
struct Traffic {
    /// All calls of all clients.
    calls: Mutex<String>,
    /// Whether all calls of a client go to one session.
    is_sticky: AtomicBool,
    /// Whether the sessions of a client stay open after it has disconnected, as in a pool.
    keeps_sessions: AtomicBool,
}

impl Swapping {
    /// Starts a proxy to a server, and creates a user without a password there.
    async fn to(server: &Running) -> Self {
        let mut root = plain_session(server).await;
        execute(&mut root, "CREATE USER pooled@'127.0.0.1'; GRANT ALL ON *.* TO pooled@'127.0.0.1'").await;
        // The pool of such a proxy would prepare its sessions.
        let prepared =
            "SET GLOBAL transaction_isolation = 'READ-COMMITTED', GLOBAL innodb_lock_wait_timeout = 1";
        execute(&mut root, prepared).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let (address, server) =
            (listener.local_addr().expect("the listener is bound"), server.servers()[0].address());
        let traffic = Arc::<Traffic>::default();
        let shared = Arc::clone(&traffic);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(swap(client, server, Arc::clone(&shared)));
            }
        });
        Self { address, traffic, task: task.abort_handle() }
    }

    async fn connect(&self, params: &str) -> Locks {
        let url = format!("mysql://pooled:@{}/dlock{params}", self.address);
        Registry::new().with(DRIVER).connect(&url).await.expect("the server runs")
    }

    /// Returns whether a call contained this text.
    fn was_sent(&self, text: &str) -> bool {
        self.traffic.calls.lock().contains(text)
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads a packet of the protocol: its length, its number and its body.
async fn packet(from: &mut (impl io::AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut packet = vec![0; 4];
    from.read_exact(&mut packet).await?;
    let length = usize::from(packet[0]) | usize::from(packet[1]) << 8 | usize::from(packet[2]) << 16;
    packet.resize(4 + length, 0);
    from.read_exact(&mut packet[4..]).await?;
    Ok(packet)
}

/// Removes the support of TLS from a server's greeting.
fn without_tls(greeting: &mut [u8]) {
    // The flags follow the protocol's version, the server's version, the connection id, and the
    // first part of a random text.
    let version_length = greeting[5..].iter().position(|byte| *byte == 0).expect("a version");
    let capabilities = 5 + version_length + 1 + 4 + 8 + 1;
    greeting[capabilities + 1] &= !0x08;
}

/// Forwards the calls of a client to two sessions alternately. The call after an error goes to the
/// same session, because it undoes the refused call.
async fn swap(client: TcpStream, server: SocketAddr, traffic: Arc<Traffic>) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let mut one = TcpStream::connect(server).await?;
    let mut greeting = packet(&mut one).await?;
    without_tls(&mut greeting);
    to_client.write_all(&greeting).await?;
    let login = packet(&mut from_client).await?;
    one.write_all(&login).await?;
    to_client.write_all(&packet(&mut one).await?).await?;
    // Without a password, the same login works for the other session, whatever its greeting.
    let mut other = TcpStream::connect(server).await?;
    packet(&mut other).await?;
    other.write_all(&login).await?;
    packet(&mut other).await?;

    let failed = Arc::new(AtomicBool::new(false));
    let to_client = Arc::new(tokio::sync::Mutex::new(to_client));
    let forward_replies = |from: OwnedReadHalf| {
        let (failed, to_client) = (Arc::clone(&failed), Arc::clone(&to_client));
        async move {
            let mut from = BufReader::new(from);
            loop {
                let reply = packet(&mut from).await?;
                failed.store(reply.get(4) == Some(&ERROR), Relaxed);
                to_client.lock().await.write_all(&reply).await?;
            }
        }
    };
    let ((from_one, mut to_one), (from_other, mut to_other)) = (one.into_split(), other.into_split());
    let forward_calls = async {
        let mut is_first = false;
        loop {
            let call = packet(&mut from_client).await?;
            traffic.calls.lock().push_str(&String::from_utf8_lossy(&call));
            is_first ^= !failed.swap(false, Relaxed);
            is_first |= traffic.is_sticky.load(Relaxed);
            let session = if is_first { &mut to_one } else { &mut to_other };
            session.write_all(&call).await?;
        }
    };
    let ended = tokio::select! {
        ended = forward_calls => ended,
        ended = forward_replies(from_one) => ended,
        ended = forward_replies(from_other) => ended,
    };
    if traffic.keeps_sessions.load(Relaxed) {
        std::future::pending::<()>().await;
    }
    ended
}

pub(crate) async fn the_queue_works_where_a_proxy_swaps_sessions(server: &Running) {
    const TURNS: u32 = 15;
    let proxy = Swapping::to(server).await;
    let (inside, done) = (AtomicU32::new(0), AtomicU32::new(0));
    let clients = [proxy.connect("").await, proxy.connect("").await, proxy.connect("").await];
    let contenders = clients.iter().map(async |client| {
        for _ in 0..TURNS {
            let guard = client.fair("job").lock().await.expect("the waiter gets the lock");
            assert_eq!(inside.fetch_add(1, Relaxed), 0, "two clients hold the lock");
            // The other contenders join the queue in this time.
            tokio::time::sleep(Duration::from_millis(20)).await;
            inside.fetch_sub(1, Relaxed);
            guard.release().await.expect("the lock is still held");
            done.fetch_add(1, Relaxed);
        }
    });
    // If each waiter waited for a doorbell that never rings, it would poll every two seconds, and
    // the test would take 90 s.
    let all = timeout(Duration::from_secs(60), join_all(contenders)).await;
    assert!(all.is_ok(), "{} of {} holds in 60 s", done.load(Relaxed), 3 * TURNS);
    let mut root = plain_session(server).await;
    assert_eq!(query(&mut root, "SELECT COUNT(*) FROM dlock_queue").await, 0, "a claim is left in the queue");
    assert!(proxy.was_sent("GET_LOCK"), "the first claims take doorbells");
    join_all(clients.iter().map(Locks::close)).await;
}

pub(crate) async fn named_locks_are_refused_where_a_proxy_swaps_sessions(server: &Running) {
    let proxy = Swapping::to(server).await;
    let locks = proxy.connect("?mode=session").await;
    let refused =
        locks.mutex("job").lock().await.map(drop).expect_err("the lock would exclude no other client");
    assert!(matches!(refused, Error::Refused { .. }), "{refused:?}");
    assert!(format!("{refused:?}").contains("without `mode=session`"), "{refused:?}");
    let free = query(&mut plain_session(server).await, "SELECT IS_FREE_LOCK('job')").await;
    assert_eq!(free, 1, "the refused lock was taken");
    locks.close().await;
}

/// A limit of named locks that the README documents. The lock stays taken, because the proxy keeps
/// the session that owns it.
pub(crate) async fn a_hold_is_lost_when_a_proxy_begins_to_swap_and_its_lock_stays_taken(server: &Running) {
    const TTL: Duration = Duration::from_secs(8);
    let proxy = Swapping::to(server).await;
    proxy.traffic.is_sticky.store(true, Relaxed);
    proxy.traffic.keeps_sessions.store(true, Relaxed);
    let locks = proxy.connect("?mode=session").await;
    let held = locks.mutex("job").lock().ttl(TTL).await.expect("the lock is free");
    proxy.traffic.is_sticky.store(false, Relaxed);
    let reason = timeout(TTL * 2, held.lost()).await.expect("the loss is reported");
    assert_eq!(reason, LostReason::Deleted, "no renewal has reported the loss");
    let mut root = plain_session(server).await;
    let owner = query(&mut root, "SELECT COALESCE(IS_USED_LOCK('job'), 0)").await;
    assert_ne!(owner, 0, "the lock is free although its session lives");
    execute(&mut root, &format!("KILL {owner}")).await;
    until(&mut root, "SELECT IS_FREE_LOCK('job')", 1).await;
}

pub(crate) async fn without_doorbells_no_named_lock_is_requested(server: &Running) {
    let proxy = Swapping::to(server).await;
    let locks = proxy.connect("?doorbell=off").await;
    let held = locks.mutex("job").lock().await.expect("the lock is free");
    let again = locks.mutex("job");
    let (released, waiting) = tokio::join!(held.release(), again.lock());
    released.expect("the lock is still held");
    waiting.expect("the waiter gets the lock").release().await.expect("the lock is still held");
    let held = locks.rwlock("shared").write().lock().await.expect("the lock is free");
    held.downgrade().await.expect("the lock is held").release().await.expect("the lock is still held");
    for word in ["GET_LOCK", "RELEASE_LOCK"] {
        assert!(!proxy.was_sent(word), "a call contains {word}");
    }
    locks.close().await;
}
