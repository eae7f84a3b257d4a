//! A proxy that gives the calls of one connection to two sessions of the server in turn, as proxies with pools of sessions do.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_conformance::stores::Running;
use dlock_core::{Error, Locks, Registry};
use dlock_mysql::DRIVER;
use futures_util::future::join_all;
use tokio::{
    io::{self, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    task::AbortHandle,
    time::timeout,
};

use crate::{ask, stranger, tell};

/// What the first byte of an answer says if it is an error.
const ERROR: u8 = 0xff;

struct Swapping {
    address: SocketAddr,
    calls: Arc<Mutex<String>>,
    task: AbortHandle,
}

impl Swapping {
    /// A proxy to a server, where it makes a user without a password.
    async fn to(server: &Running) -> Self {
        let mut root = stranger(server).await;
        tell(&mut root, "CREATE USER pooled@'127.0.0.1'; GRANT ALL ON *.* TO pooled@'127.0.0.1'").await;
        // Both sessions are prepared, as their pool would do it.
        let prepared =
            "SET GLOBAL transaction_isolation = 'READ-COMMITTED', GLOBAL innodb_lock_wait_timeout = 1";
        tell(&mut root, prepared).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let (address, server) = (listener.local_addr().expect("it is bound"), server.servers()[0].address());
        let calls = Arc::<Mutex<String>>::default();
        let heard = Arc::clone(&calls);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(swap(client, server, Arc::clone(&heard)));
            }
        });
        Self { address, calls, task: task.abort_handle() }
    }

    async fn connect(&self, params: &str) -> Locks {
        let url = format!("mysql://pooled:@{}/dlock{params}", self.address);
        Registry::new().with(DRIVER).connect(&url).await.expect("the server runs")
    }

    /// Whether a call had this text in it.
    fn heard(&self, text: &str) -> bool {
        self.calls.lock().expect("no panic").contains(text)
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A packet of the protocol: its length and its number, and what it says.
async fn packet(from: &mut (impl io::AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut packet = vec![0; 4];
    from.read_exact(&mut packet).await?;
    let length = usize::from(packet[0]) | usize::from(packet[1]) << 8 | usize::from(packet[2]) << 16;
    packet.resize(4 + length, 0);
    from.read_exact(&mut packet[4..]).await?;
    Ok(packet)
}

/// Takes from a server's greeting what says that it can do TLS.
fn without_tls(greeting: &mut [u8]) {
    // Before it stand the protocol's version, the server's version, the number of the session, and the first part of a random text.
    let version_ends = greeting[5..].iter().position(|byte| *byte == 0).expect("a version");
    let abilities = 5 + version_ends + 1 + 4 + 8 + 1;
    greeting[abilities + 1] &= !0x08;
}

/// Two sessions answer in turn. After an error comes what undoes the call, so it goes to the same session.
async fn swap(client: TcpStream, server: SocketAddr, calls: Arc<Mutex<String>>) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let mut one = TcpStream::connect(server).await?;
    let mut greeting = packet(&mut one).await?;
    without_tls(&mut greeting);
    to_client.write_all(&greeting).await?;
    let login = packet(&mut from_client).await?;
    one.write_all(&login).await?;
    to_client.write_all(&packet(&mut one).await?).await?;
    // Without a password the same answer logs in to the other session, whatever the server greets with.
    let mut other = TcpStream::connect(server).await?;
    packet(&mut other).await?;
    other.write_all(&login).await?;
    packet(&mut other).await?;

    let failed = Arc::new(AtomicBool::new(false));
    let to_client = Arc::new(tokio::sync::Mutex::new(to_client));
    let answer = |from: OwnedReadHalf| {
        let (failed, to_client) = (Arc::clone(&failed), Arc::clone(&to_client));
        async move {
            let mut from = BufReader::new(from);
            loop {
                let answer = packet(&mut from).await?;
                failed.store(answer.get(4) == Some(&ERROR), Relaxed);
                to_client.lock().await.write_all(&answer).await?;
            }
        }
    };
    let ((from_one, mut to_one), (from_other, mut to_other)) = (one.into_split(), other.into_split());
    let requests = async {
        let mut turn = false;
        loop {
            let call = packet(&mut from_client).await?;
            calls.lock().expect("no panic").push_str(&String::from_utf8_lossy(&call));
            turn ^= !failed.swap(false, Relaxed);
            let session = if turn { &mut to_one } else { &mut to_other };
            session.write_all(&call).await?;
        }
    };
    tokio::select! {
        ended = requests => ended,
        ended = answer(from_one) => ended,
        ended = answer(from_other) => ended,
    }
}

pub(crate) async fn the_queue_goes_on_where_a_proxy_swaps_sessions(server: &Running) {
    const TURNS: u32 = 15;
    let proxy = Swapping::to(server).await;
    let (inside, done) = (AtomicU32::new(0), AtomicU32::new(0));
    let clients = [proxy.connect("").await, proxy.connect("").await, proxy.connect("").await];
    let contenders = clients.iter().map(async |client| {
        for _ in 0..TURNS {
            let guard = client.fair("job").lock().await.expect("its turn comes");
            assert_eq!(inside.fetch_add(1, Relaxed), 0, "two hold");
            // The others queue up behind it.
            tokio::time::sleep(Duration::from_millis(20)).await;
            inside.fetch_sub(1, Relaxed);
            guard.release().await.expect("held until now");
            done.fetch_add(1, Relaxed);
        }
    });
    // If each waiter waited for a doorbell that nobody rings, it would ask every two seconds: 90 s in all.
    let all = timeout(Duration::from_secs(60), join_all(contenders)).await;
    assert!(all.is_ok(), "{} turns of {} in 60 s", done.load(Relaxed), 3 * TURNS);
    let mut root = stranger(server).await;
    assert_eq!(ask(&mut root, "SELECT COUNT(*) FROM dlock_queue").await, 0, "a claim was left");
    assert!(proxy.heard("GET_LOCK"), "the first claims try doorbells");
    join_all(clients.iter().map(Locks::close)).await;
}

pub(crate) async fn named_locks_are_refused_where_a_proxy_swaps_sessions(server: &Running) {
    let proxy = Swapping::to(server).await;
    let locks = proxy.connect("?mode=session").await;
    let refused = locks.mutex("job").lock().await.map(drop).expect_err("it would exclude nobody");
    assert!(matches!(refused, Error::Refused { .. }), "{refused:?}");
    assert!(format!("{refused:?}").contains("without `mode=session`"), "{refused:?}");
    let free = ask(&mut stranger(server).await, "SELECT IS_FREE_LOCK('job')").await;
    assert_eq!(free, 1, "the refused lock was taken");
    locks.close().await;
}

pub(crate) async fn without_doorbells_no_named_lock_is_asked_for(server: &Running) {
    let proxy = Swapping::to(server).await;
    let locks = proxy.connect("?doorbell=off").await;
    let held = locks.mutex("job").lock().await.expect("free");
    let again = locks.mutex("job");
    let (other, waiting) = tokio::join!(held.release(), again.lock());
    other.expect("held until now");
    waiting.expect("its turn comes").release().await.expect("held until now");
    let held = locks.rwlock("shared").write().lock().await.expect("free");
    held.downgrade().await.expect("held").release().await.expect("held until now");
    for word in ["GET_LOCK", "RELEASE_LOCK"] {
        assert!(!proxy.heard(word), "a call has {word}");
    }
    locks.close().await;
}
