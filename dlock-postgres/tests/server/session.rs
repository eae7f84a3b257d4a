//! Session mode: other programs, the loss of a session, and the end of waits.

use std::{collections::HashSet, net::SocketAddr, sync::Arc, thread};

use dlock_conformance::Proxy;
use futures_util::future::join;
use sqlx::postgres::PgAdvisoryLock;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinHandle,
    time::sleep,
};
use tokio_postgres::Client;

use super::{
    check_in::{session, sqlx_session},
    *,
};

/// A ttl that no test waits for.
const LONG: Duration = Duration::from_secs(60);

/// Number of sessions that wait for an advisory lock, as a condition for [`until`].
const WAITING: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";

/// Number of advisory locks, without those of the schema and of the queue's buckets.
const LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid <> 1145851715";

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        pg_advisory_lock_and_dlock_exclude_each_other_in_order,
        shared_locks_of_other_programs_admit_readers_only,
        a_lock_of_sqlx_and_dlock_exclude_each_other,
        the_keys_of_other_programs_are_locked,
        two_names_with_one_key_exclude_each_other,
        a_terminated_session_has_lost_its_lock_at_once,
        a_lease_whose_session_is_terminated_is_lost_at_once,
        a_terminated_waiter_requests_the_lock_again,
        a_silent_holder_loses_its_session_after_its_ttl,
        a_dead_client_holds_nothing,
        the_session_of_a_dead_waiter_leaves_the_queue,
        a_wait_that_is_given_up_as_it_is_granted_leaves_no_lock,
        a_wait_that_times_out_as_it_is_granted_leaves_no_lock,
        a_wait_that_the_server_cancels_is_repeated,
        a_waiter_whose_connection_breaks_in_silence_gets_the_lock,
        two_that_wait_for_each_other_time_out_and_keep_their_locks,
        a_waiter_sends_no_statement,
        a_waiter_has_a_snapshot_and_a_holder_has_none,
        time_limits_of_the_role_end_no_wait_and_no_hold,
        a_hold_outlives_the_sessions_beside_it,
        a_hundred_locks_leave_few_sessions,
        a_storm_of_terminated_sessions_leaves_nothing,
        a_token_is_greater_than_those_of_the_queue,
        readers_that_draw_the_first_tokens_of_a_bucket_do_not_conflict,
        a_schema_that_was_dropped_is_created_again,
        other_programs_are_shown_and_their_locks_are_broken,
        a_release_that_the_server_executes_late_is_no_loss,
        a_standby_is_refused,
    }
}

/// Starts a task, because several waits have to run at once.
#[expect(clippy::disallowed_methods, reason = "a waiter that a test can abort")]
fn go<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(work)
}

async fn session_mode(server: &Running, names: &str) -> Locks {
    connect_to(&url(server, names)).await.expect("connected")
}

fn url(server: &Running, names: &str) -> String {
    format!("{}?mode=session&names={names}", server.url())
}

/// Executes a query as a program other than dlock, and returns the first column.
pub(crate) async fn ask(client: &Client, query: &str) -> String {
    let reply = client.simple_query(query).await.expect(query);
    let value = reply.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
        _ => None,
    });
    value.unwrap_or_default()
}

/// Waits until a query returns this number.
async fn until(client: &Client, query: &str, number: u32) {
    let reached = async { while ask(client, query).await != number.to_string() {} };
    timeout(SOON, reached).await.unwrap_or_else(|_| panic!("not {number}: {query}"));
}

async fn pg_advisory_lock_and_dlock_exclude_each_other_in_order(server: &Running) {
    let locks = session_mode(server, "number").await;
    let [first, third, other] =
        [session(server.url()).await, session(server.url()).await, session(server.url()).await];
    for (name, key) in [("42", "42"), ("42,-7", "42, -7"), ("-9223372036854775808", "-9223372036854775808")] {
        let [lock, unlock, try_lock] = ["pg_advisory_lock", "pg_advisory_unlock", "pg_try_advisory_lock"]
            .map(|function| format!("SELECT {function}({key})"));
        ask(&first, &lock).await;
        let job = locks.mutex(name);
        assert!(job.try_lock().await.expect("a reply").is_none(), "dlock took {name}, which is held");
        let waits = go(async move { job.lock().ttl(LONG).await });
        until(&other, WAITING, 1).await;
        let handed_over = async {
            let behind = ask(&third, &lock);
            let in_order = async {
                until(&other, WAITING, 2).await;
                assert_eq!(ask(&first, &unlock).await, "t");
                let held = waits.await.expect("no panic").expect("the lock");
                assert_eq!(ask(&first, &try_lock).await, "f", "another program took {name}, which is held");
                assert!(held.token().is_some());
                held.release().await.expect("still held");
            };
            join(behind, in_order).await;
        };
        timeout(SOON, handed_over).await.expect("each waiter is granted the lock");
        assert_eq!(ask(&third, &unlock).await, "t");
        let again = locks.mutex(name).try_lock().await.expect("a reply").expect("the lock is free");
        again.release().await.expect("still held");
    }
}

async fn shared_locks_of_other_programs_admit_readers_only(server: &Running) {
    let locks = session_mode(server, "number").await;
    let other = session(server.url()).await;
    let lock = locks.rwlock("42");
    ask(&other, "SELECT pg_advisory_lock_shared(42)").await;
    let reader = lock.read().try_lock().await.expect("a reply").expect("a reader beside a reader");
    assert!(lock.write().try_lock().await.expect("a reply").is_none(), "a writer beside a reader");
    assert_eq!(ask(&other, "SELECT pg_advisory_unlock_shared(42)").await, "t");
    assert_eq!(ask(&other, "SELECT pg_try_advisory_lock(42)").await, "f");
    reader.release().await.expect("still held");
    let writer = lock.write().try_lock().await.expect("a reply").expect("the lock is free");
    assert_eq!(ask(&other, "SELECT pg_try_advisory_lock_shared(42)").await, "f");
    writer.release().await.expect("still held");
    let error = locks.semaphore("42", 2).try_acquire().await.expect_err("no permits");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
}

async fn a_lock_of_sqlx_and_dlock_exclude_each_other(server: &Running) {
    let locks = session_mode(server, "sqlx").await;
    for name in ["orders", "invoice/42", "漢"] {
        let peer = PgAdvisoryLock::new(name);
        let job = locks.mutex(name);
        let peers = peer.acquire(sqlx_session(server).await).await.expect("the lock");
        assert!(job.try_lock().await.expect("a reply").is_none(), "dlock took {name}, which is held");
        let waits = go(async move { job.lock().ttl(LONG).await });
        until(&session(server.url()).await, WAITING, 1).await;
        let connection = peers.release_now().await.expect("released");
        let held = timeout(SOON, waits).await.expect("woken").expect("no panic").expect("the lock");
        let refused = peer.try_acquire(connection).await.expect("a reply");
        assert!(refused.is_right(), "sqlx took {name}, which is held");
        held.release().await.expect("still held");
    }
}

async fn the_keys_of_other_programs_are_locked(server: &Running) {
    let other = session(server.url()).await;
    for (names, name, key) in [
        ("dotnet", "orders", "-540334498, 1558183935"),
        ("dotnet", "00000003ffffffff", "17179869183"),
        ("dotnet", "Orders/42!", "1909825527885244575"),
        ("ruby", "orders", "1697644014, 0"),
        ("sqlx", "my first Postgres advisory lock!", "-5560419505042474287"),
        ("pglock", "orders", "-2015129932123204068"),
        ("hashtext", "orders", "hashtext('orders')"),
        ("hashtext", "it's 漢", "hashtext('it''s 漢')"),
        ("number", "42,7", "42, 7"),
    ] {
        let locks = session_mode(server, names).await;
        let held = locks.mutex(name).try_lock().await.expect("a reply").expect("the lock is free");
        let tried = ask(&other, &format!("SELECT pg_try_advisory_lock({key})")).await;
        assert_eq!(tried, "f", "names={names} locks another key for {name}");
        held.release().await.expect("still held");
        let tried =
            ask(&other, &format!("SELECT pg_try_advisory_lock({key}), pg_advisory_unlock_all()")).await;
        assert_eq!(tried, "t", "a release left {name} locked");
    }
    let locks = session_mode(server, "number").await;
    let error = locks.mutex("orders").lock().await.expect_err("no number");
    assert!(matches!(error, Error::InvalidName { .. }), "{error:?}");
}

/// These words have the same CRC-32.
async fn two_names_with_one_key_exclude_each_other(server: &Running) {
    let locks = session_mode(server, "ruby").await;
    let held = locks.mutex("plumless").lock().ttl(LONG).await.expect("the lock");
    let other = locks.mutex("buckeroo");
    assert!(other.try_lock().await.expect("a reply").is_none());
    let waits = go(async move { other.lock().ttl(LONG).await });
    until(&session(server.url()).await, WAITING, 1).await;
    assert!(!held.is_lost());
    held.release().await.expect("still held");
    let next = timeout(SOON, waits).await.expect("woken").expect("no panic").expect("the lock");
    next.release().await.expect("still held");
}

async fn a_terminated_session_has_lost_its_lock_at_once(server: &Running) {
    let locks = session_mode(server, "number").await;
    let other = session(server.url()).await;
    let held = locks.mutex("1").lock().ttl(LONG).await.expect("the lock");
    let beside = locks.mutex("2").lock().ttl(LONG).await.expect("the lock");
    let terminate =
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1";
    assert_eq!(ask(&other, terminate).await, "t");
    timeout(SOON, held.lost()).await.expect("the holder is notified long before the next renewal");
    assert!(!beside.is_lost(), "the lock of another session is lost");
    let again = locks.mutex("1").lock().wait(SOON).await.expect("the lock is free");
    let error = held.release().await.expect_err("lost");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    beside.release().await.expect("still held");
    again.release().await.expect("still held");
}

/// The next renewal comes later than the limit of this case, so only the end of the connection
/// shows the loss.
async fn a_lease_whose_session_is_terminated_is_lost_at_once(server: &Running) {
    let locks = session_mode(server, "number").await;
    let held = locks.mutex("1").lock().lease(LONG).await.expect("the lock");
    let terminate =
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1";
    assert_eq!(sql(server, terminate).await, "t");
    timeout(SOON, held.lost()).await.expect("the holder is notified long before the end of its lease");
}

async fn a_terminated_waiter_requests_the_lock_again(server: &Running) {
    let locks = session_mode(server, "number").await;
    let other = session(server.url()).await;
    ask(&other, "SELECT pg_advisory_lock(1)").await;
    let job = locks.mutex("1");
    let waits = go(async move { job.lock().ttl(LONG).await });
    let waiter = "SELECT coalesce(min(pid), 0) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    for _ in 0..3 {
        until(&other, WAITING, 1).await;
        let pid = ask(&other, waiter).await;
        ask(&other, &format!("SELECT pg_terminate_backend({pid}, 5000)")).await;
    }
    until(&other, WAITING, 1).await;
    ask(&other, "SELECT pg_advisory_unlock(1)").await;
    let held = timeout(SOON, waits).await.expect("woken").expect("no panic").expect("the lock");
    held.release().await.expect("still held");
}

async fn a_silent_holder_loses_its_session_after_its_ttl(server: &Running) {
    let ttl = Duration::from_secs(3);
    let address = server.servers()[0].address();
    let proxy = Proxy::to(address).await.expect("a port");
    let through_proxy = url(server, "number").replace(&address.to_string(), &proxy.address().to_string());
    let silent = connect_to(&through_proxy).await.expect("connected");
    let locks = session_mode(server, "number").await;
    let held = silent.mutex("1").lock().ttl(ttl).await.expect("the lock");
    // The hold is renewed during this time.
    sleep(ttl * 2).await;
    assert!(!held.is_lost(), "the hold was not renewed");
    proxy.stall();
    let began = Instant::now();
    let next =
        timeout(SOON, locks.mutex("1").lock().ttl(LONG)).await.expect("the session ends").expect("the lock");
    assert!(held.is_lost(), "two hold");
    assert!(began.elapsed() <= ttl * 2, "the session of a silent holder ended after {:?}", began.elapsed());
    next.release().await.expect("still held");
}

/// Executes work on a runtime of its own, which then ends like a process that is killed.
fn on_a_runtime_that_dies<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) {
    let dead = thread::spawn(move || {
        let runtime = Runtime::new().expect("a runtime");
        let left = runtime.block_on(work);
        runtime.shutdown_background();
        // The sockets close with the runtime.
        std::mem::forget(left);
    });
    dead.join().expect("no panic");
}

async fn a_dead_client_holds_nothing(server: &Running) {
    let locks = session_mode(server, "number").await;
    let url = url(server, "number");
    on_a_runtime_that_dies(async move {
        let locks = connect_to(&url).await.expect("connected");
        let held = locks.mutex("1").lock().ttl(LONG).await.expect("the lock");
        (locks, held)
    });
    let held = timeout(SOON, locks.mutex("1").lock().ttl(LONG)).await;
    held.expect("free long before the ttl ends").expect("the lock").release().await.expect("still held");
}

async fn the_session_of_a_dead_waiter_leaves_the_queue(server: &Running) {
    let other = session(server.url()).await;
    ask(&other, "SELECT pg_advisory_lock(1)").await;
    let (url, own) = (url(server, "number"), server.url().to_owned());
    on_a_runtime_that_dies(async move {
        let locks = connect_to(&url).await.expect("connected");
        let job = locks.mutex("1");
        let waits = go(async move { job.lock().ttl(LONG).await });
        until(&session(&own).await, WAITING, 1).await;
        (locks, waits)
    });
    until(&other, WAITING, 0).await;
    assert_eq!(ask(&other, "SELECT pg_advisory_unlock(1)").await, "t");
}

/// Lets a waiter leave by `leave` in the moment in which it is granted the lock, many times. Without the
/// check of its session, the lock stays taken in some of the rounds.
async fn leave_at_the_grant(server: &Running, leave: impl AsyncFn(Locks, Duration) -> bool) {
    const ROUNDS: u32 = 400;
    let locks = session_mode(server, "number").await;
    let holder = session(server.url()).await;
    let mut rng = fastrand::Rng::with_seed(0);
    let mut granted = 0;
    for round in 0..ROUNDS {
        let locked = timeout(SOON, ask(&holder, "SELECT pg_advisory_lock(1)")).await;
        locked.unwrap_or_else(|_| panic!("the lock stays taken after round {round}"));
        let (leaves_after, released_after) = (rng.u64(1000..4000), rng.u64(1000..4000));
        let release = async {
            sleep(Duration::from_micros(released_after)).await;
            assert_eq!(ask(&holder, "SELECT pg_advisory_unlock(1)").await, "t");
        };
        let leaving = leave(locks.clone(), Duration::from_micros(leaves_after));
        granted += u32::from(join(leaving, release).await.0);
    }
    assert!(granted > 0 && granted < ROUNDS, "{granted} of {ROUNDS} waits were granted: no race");
    locks.close().await;
    drop(holder);
    until(&session(server.url()).await, LOCKS, 0).await;
}

async fn a_wait_that_is_given_up_as_it_is_granted_leaves_no_lock(server: &Running) {
    leave_at_the_grant(server, async |locks, after| {
        let waits = go(async move { locks.mutex("1").lock().ttl(LONG).await });
        sleep(after).await;
        waits.abort();
        waits.await.is_ok()
    })
    .await;
}

async fn a_wait_that_times_out_as_it_is_granted_leaves_no_lock(server: &Running) {
    leave_at_the_grant(server, async |locks, after| {
        match locks.mutex("1").lock().ttl(LONG).wait(after).await {
            Ok(held) => {
                held.release().await.expect("still held");
                true
            }
            Err(error) => {
                assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
                false
            }
        }
    })
    .await;
}

async fn a_wait_that_the_server_cancels_is_repeated(server: &Running) {
    let locks = session_mode(server, "number").await;
    let other = session(server.url()).await;
    ask(&other, "SELECT pg_advisory_lock(1)").await;
    let job = locks.mutex("1");
    let waits = go(async move { job.lock().ttl(LONG).await });
    for _ in 0..3 {
        until(&other, WAITING, 1).await;
        let cancel = "SELECT bool_or(pg_cancel_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        assert_eq!(ask(&other, cancel).await, "t");
        until(&other, WAITING, 0).await;
    }
    until(&other, WAITING, 1).await;
    assert!(!waits.is_finished(), "the caller's wait has ended");
    ask(&other, "SELECT pg_advisory_unlock(1)").await;
    let held = timeout(SOON, waits).await.expect("woken").expect("no panic").expect("the lock");
    held.release().await.expect("still held");
}

/// A relay between client and server that can stop forwarding without closing a connection.
struct Relay {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    /// Connections with a lower number forward nothing, and stay open.
    silent_below: Arc<AtomicUsize>,
}

impl Relay {
    #[expect(clippy::disallowed_methods, reason = "connections end with the runtime of the test")]
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("a port");
        let (accepted, silent_below) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let relay =
            Self { address, accepted: Arc::clone(&accepted), silent_below: Arc::clone(&silent_below) };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = accepted.fetch_add(1, Relaxed);
                let server = TcpStream::connect(server).await.expect("the server runs");
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(forward(from_client, to_server, number, Arc::clone(&silent_below)));
                tokio::spawn(forward(from_server, to_client, number, Arc::clone(&silent_below)));
            }
        });
        relay
    }

    /// Makes the relay forward nothing on the connections that are open now.
    fn silence(&self) {
        self.silent_below.store(self.accepted.load(Relaxed), Relaxed);
    }
}

/// Forwards one direction of a connection.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: usize,
    silent_below: Arc<AtomicUsize>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut buffer).await.unwrap_or(0);
        if number < silent_below.load(Relaxed) {
            return std::future::pending().await;
        }
        if length == 0 || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// The server grants the lock to the session of a waiter that does not receive the reply.
async fn a_waiter_whose_connection_breaks_in_silence_gets_the_lock(server: &Running) {
    let address = server.servers()[0].address();
    let relay = Relay::to(address).await;
    let through_relay = format!(
        "{}&timeout=500ms",
        url(server, "number").replace(&address.to_string(), &relay.address.to_string())
    );
    let locks = connect_to(&through_relay).await.expect("connected");
    let other = session(server.url()).await;
    ask(&other, "SELECT pg_advisory_lock(1)").await;
    let waits = go(async move { locks.mutex("1").lock().ttl(Duration::from_secs(3)).await });
    until(&other, WAITING, 1).await;
    relay.silence();
    ask(&other, "SELECT pg_advisory_unlock(1)").await;
    let held = timeout(SOON * 2, waits).await.expect("the waiter requests the lock again");
    held.expect("no panic").expect("the lock").release().await.expect("still held");
}

/// Each wait has a session of its own, so the server sees no deadlock.
async fn two_that_wait_for_each_other_time_out_and_keep_their_locks(server: &Running) {
    let locks = session_mode(server, "number").await;
    let first = locks.mutex("1").lock().ttl(LONG).await.expect("the lock");
    let second = locks.mutex("2").lock().ttl(LONG).await.expect("the lock");
    // The server looks for deadlocks after a second.
    let wait = Duration::from_secs(3);
    let [one, two] = [locks.mutex("1"), locks.mutex("2")];
    let waits =
        join(two.lock().ttl(LONG).wait(wait).into_future(), one.lock().ttl(LONG).wait(wait).into_future());
    let (a, b) = timeout(SOON, waits).await.expect("both time out");
    for result in [a, b] {
        let error = result.expect_err("the lock is held");
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    }
    first.release().await.expect("still held");
    second.release().await.expect("still held");
}

async fn a_waiter_sends_no_statement(server: &Running) {
    let locks = session_mode(server, "number").await;
    let other = session(server.url()).await;
    ask(&other, "SELECT pg_advisory_lock(1)").await;
    let waits = join_all((0..5).map(|_| {
        let job = locks.mutex("1");
        async move { job.lock().ttl(LONG).await.expect("the lock").release().await.expect("still held") }
    }));
    let released = async {
        until(&other, WAITING, 5).await;
        let last = "SELECT max(query_start) FROM pg_stat_activity WHERE application_name LIKE 'dlock%'";
        let before = ask(&other, last).await;
        sleep(Duration::from_secs(3)).await;
        assert_eq!(ask(&other, last).await, before, "a waiter has sent a statement");
        ask(&other, "SELECT pg_advisory_unlock(1)").await;
    };
    timeout(SOON, join(waits, released)).await.expect("each waiter is granted the lock");
}

/// Limit: vacuum keeps the rows that a snapshot may see.
async fn a_waiter_has_a_snapshot_and_a_holder_has_none(server: &Running) {
    let (holder, waiter) = (session_mode(server, "number").await, session_mode(server, "number").await);
    let other = session(server.url()).await;
    let snapshots = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dlock%' AND backend_xmin IS NOT NULL";
    let held = holder.mutex("1").lock().ttl(LONG).await.expect("the lock");
    until(&other, snapshots, 0).await;
    let job = waiter.mutex("1");
    let released = async {
        until(&other, WAITING, 1).await;
        assert_eq!(ask(&other, snapshots).await, "1");
        held.release().await.expect("still held");
    };
    let (granted, ()) =
        timeout(SOON, join(job.lock().ttl(LONG).into_future(), released)).await.expect("a grant");
    granted.expect("the lock").release().await.expect("still held");
}

async fn time_limits_of_the_role_end_no_wait_and_no_hold(server: &Running) {
    connect(server).await.expect("the client creates the schema");
    for limit in
        ["statement_timeout", "lock_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout"]
    {
        sql(server, &format!("ALTER DATABASE postgres SET {limit} = '700ms'")).await;
    }
    let locks = session_mode(server, "number").await;
    let held = locks.mutex("1").lock().ttl(LONG).await.expect("the lock");
    let job = locks.mutex("1");
    let waits = go(async move { job.lock().ttl(LONG).await });
    let sessions = "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_locks WHERE locktype = 'advisory'";
    while sql(server, WAITING).await != "1" {}
    let before = sql(server, sessions).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(sql(server, sessions).await, before, "a time limit of the role has ended a session");
    held.release().await.expect("still held");
    let next = timeout(SOON, waits).await.expect("woken").expect("no panic").expect("the lock");
    next.release().await.expect("still held");
}

async fn a_hold_outlives_the_sessions_beside_it(server: &Running) {
    let locks = session_mode(server, "number").await;
    let other = session(server.url()).await;
    let held = locks.mutex("1").lock().ttl(Duration::from_secs(2)).await.expect("the lock");
    let beside = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'dlock%' \
        AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";
    for _ in 0..8 {
        ask(&other, beside).await;
        let name = (100 + fastrand::u32(..100)).to_string();
        drop(locks.mutex(name).lock().await.expect("a new session"));
        sleep(Duration::from_millis(400)).await;
        assert!(!held.is_lost(), "the hold is lost although its session was not terminated");
    }
    held.release().await.expect("still held");
}

async fn a_hundred_locks_leave_few_sessions(server: &Running) {
    let other = session(server.url()).await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dlock%'";
    let locks = session_mode(server, "number").await;
    let all = (0..100).map(|number| locks.mutex(number.to_string()));
    let held = join_all(all.map(|lock| async move { lock.lock().ttl(LONG).await })).await;
    let count: u32 = ask(&other, sessions).await.parse().expect("a number");
    assert!((100..=104).contains(&count), "{count} sessions for a hundred locks");
    for released in join_all(held.into_iter().map(|held| held.expect("the lock").release())).await {
        released.expect("still held");
    }
    until(&other, &format!("SELECT (({sessions}) <= 20)::int"), 1).await;
    locks.close().await;
    drop(locks);
    until(&other, sessions, 0).await;
}

/// Holders are terminated too, so two may hold for the time until the first one is notified. Their
/// tokens tell them apart.
async fn a_storm_of_terminated_sessions_leaves_nothing(server: &Running) {
    const CONTENDERS: usize = 8;
    const ROUNDS: usize = 25;
    const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity \
        WHERE application_name LIKE 'dlock%' ORDER BY random() LIMIT 2) AS sessions";
    let other = session(server.url()).await;
    let clients = join_all((0..CONTENDERS).map(|_| session_mode(server, "number"))).await;
    let tokens = parking_lot::Mutex::new(Vec::new());
    let lost = AtomicUsize::new(0);
    let contend = async |index: usize, locks: &Locks| {
        for round in 0..ROUNDS {
            let held = loop {
                let result = match (index + round) % 3 {
                    0 => locks.mutex("1").lock().ttl(LONG).await,
                    1 => locks.rwlock("1").read().lock().ttl(LONG).await,
                    _ => locks.rwlock("1").write().lock().ttl(LONG).await,
                };
                match result {
                    Ok(held) => break held,
                    Err(error) => assert!(error.is_transient(), "{error:?}"),
                }
            };
            tokens.lock().push(held.token().expect("a token").get());
            ask(&other, TERMINATE).await;
            match held.release().await {
                Ok(()) => {}
                Err(Error::Lost { .. }) => {
                    lost.fetch_add(1, Relaxed);
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    let all = join_all(clients.iter().enumerate().map(|(index, locks)| contend(index, locks)));
    timeout(SOON * 9, all).await.expect("each contender gets the lock");
    assert!(lost.into_inner() > 0, "no holder was terminated");
    let tokens = tokens.into_inner();
    assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), tokens.len(), "two grants have the same token");
    for locks in &clients {
        locks.close().await;
    }
    drop(clients);
    until(&other, LOCKS, 0).await;
    until(&other, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dlock%'", 0).await;
}

async fn a_token_is_greater_than_those_of_the_queue(server: &Running) {
    let (queue, session) = (connect(server).await.expect("connected"), session_mode(server, "dotnet").await);
    // The clock may be set back by an hour.
    let ahead = "UPDATE dlock.fence SET last = last + 3600000000";
    let mut last = 0;
    for locks in [&queue, &session, &queue, &session] {
        let held = locks.mutex("job").lock().await.expect("the lock");
        let token = held.token().expect("each grant has a token").get();
        assert!(token > last, "the token {token} follows {last}");
        last = token;
        held.release().await.expect("still held");
        sql(server, ahead).await;
    }
}

async fn readers_that_draw_the_first_tokens_of_a_bucket_do_not_conflict(server: &Running) {
    const READERS: usize = 8;
    let clients = join_all((0..READERS).map(|_| session_mode(server, "number"))).await;
    for _ in 0..20 {
        sql(server, "DELETE FROM dlock.fence").await;
        let readers = clients.iter().map(|locks| async { locks.rwlock("1").read().try_lock().await });
        let held: Vec<_> = join_all(readers).await.into_iter().map(|held| held.expect("a reply")).collect();
        let tokens: HashSet<_> = held.iter().map(|held| held.as_ref().expect("a reader").token()).collect();
        assert_eq!(tokens.len(), READERS, "two readers have the same token");
    }
}

async fn a_schema_that_was_dropped_is_created_again(server: &Running) {
    let locks = session_mode(server, "number").await;
    sql(server, "DROP SCHEMA dlock CASCADE").await;
    let held = locks.mutex("1").lock().wait(SOON).await.expect("the lock");
    assert_eq!(sql(server, LOCKS).await, "1", "a failed attempt has left a lock");
    held.release().await.expect("still held");
    assert_eq!(sql(server, LOCKS).await, "0");
}

async fn other_programs_are_shown_and_their_locks_are_broken(server: &Running) {
    let locks = session_mode(server, "number").await;
    let [holder, waiter] = [session(server.url()).await, session(server.url()).await];
    ask(&holder, "SET application_name = 'payroll'").await;
    ask(&holder, "SELECT pg_advisory_lock(42, 7)").await;
    let pid = ask(&holder, "SELECT pg_backend_pid()").await;
    let waits = go(async move {
        ask(&waiter, "SELECT pg_advisory_lock(42, 7)").await;
        waiter
    });
    let other = session(server.url()).await;
    until(&other, WAITING, 1).await;
    let state = locks.inspect("42,7").await.expect("a reply").expect("the lock is held");
    assert_eq!((state.holders.len(), state.queue.len()), (1, 1));
    assert_eq!(state.holders[0].id, format!("pid {pid}"));
    assert_eq!(state.holders[0].who.as_deref(), Some("payroll dlock@127.0.0.1"));
    let listed = locks.list("42").await.expect("a reply");
    assert_eq!(listed.iter().map(|state| state.name.as_str()).collect::<Vec<_>>(), ["42,7"]);
    assert!(locks.list("43").await.expect("a reply").is_empty());
    assert!(locks.force_release("42,7").await.expect("broken"), "the lock was held");
    let _waiter = timeout(SOON, waits).await.expect("the waiter is next").expect("no panic");
    assert!(locks.force_release("42,7").await.expect("broken"), "the waiter holds now");
    assert!(!locks.force_release("42,7").await.expect("nothing to break"));
    let held = locks.mutex("42,7").lock().ttl(LONG).await.expect("the lock");
    assert!(locks.force_release("42,7").await.expect("broken"));
    timeout(SOON, held.lost()).await.expect("a holder is notified at once");
}

async fn a_release_that_the_server_executes_late_is_no_loss(server: &Running) {
    let url = format!("{}?mode=session&names=number&timeout=500ms", server.url());
    let locks = connect_to(&url).await.expect("connected");
    let held = locks.mutex("1").lock().ttl(LONG).await.expect("the lock");
    let address = server.servers()[0].address();
    let proxy = Proxy::to(address).await.expect("a port");
    let through_proxy = url.replace(&address.to_string(), &proxy.address().to_string());
    let far = connect_to(&through_proxy).await.expect("connected");
    let far_held = far.mutex("2").lock().ttl(LONG).await.expect("the lock");
    proxy.hold_requests();
    let released = go(far_held.release());
    // The client tries to release the lock several times in this time.
    sleep(Duration::from_secs(2)).await;
    proxy.pass();
    let released = timeout(SOON, released).await.expect("released at last").expect("no panic");
    released.expect("the server has released the lock, and no other client took it");
    drop(locks.mutex("2").try_lock().await.expect("a reply").expect("the lock was released"));
    held.release().await.expect("still held");
}

async fn a_standby_is_refused(server: &Running) {
    let locks = session_mode(server, "number").await;
    drop(locks.mutex("1").lock().await.expect("the lock"));
    let other = session(server.url()).await;
    // The server becomes a standby of no primary.
    let signal = "DO $$ BEGIN EXECUTE format('COPY (SELECT 1) TO %L', current_setting('data_directory') || '/standby.signal'); END $$";
    ask(&other, signal).await;
    ask(&other, "CHECKPOINT").await;
    let machine = &server.servers()[0];
    machine.kill().await.expect("killed");
    start_again(machine).await;
    let other = session(server.url()).await;
    assert_eq!(ask(&other, "SELECT pg_is_in_recovery()").await, "t");
    assert_eq!(ask(&other, "SELECT pg_try_advisory_lock(1)").await, "t", "a standby grants locks");
    let error = connect_to(&url(server, "number")).await.expect_err("a standby");
    assert!(matches!(error, Error::Unwritable { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("name the primary"), "{error:?}");
    let error = locks.mutex("2").try_lock().await.expect_err("a standby");
    assert!(matches!(error, Error::Unwritable { .. }), "{error:?}");
    assert_eq!(ask(&other, LOCKS).await, "1", "dlock has a lock on a standby");
}
