//! Holds that are verified inside a transaction of the user.

use dlock_conformance::Proxy;
use dlock_core::{DistributedLock as _, Guard, Kind, LockOptions, MultiLock};
use dlock_postgres::CheckIn as _;
use sqlx::Connection as _;
use tokio_postgres::{Client, IsolationLevel};

use super::*;

/// Length of a lease that ends during a test, instead of a holder that is paused. An attempt may take
/// a third of it.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        a_transaction_that_checked_in_excludes_the_next_holder_after_the_expiry,
        a_transaction_of_sqlx_excludes_the_next_holder_after_the_expiry,
        a_rolled_back_transaction_excludes_no_client,
        a_terminated_transaction_excludes_no_client,
        a_hold_is_renewed_during_a_transaction_that_checked_in,
        a_release_during_the_transaction_is_done_at_once_and_frees_the_lock_after_it,
        a_broken_lock_stays_taken_until_the_transaction_ends,
        a_hold_that_was_broken_during_the_transaction_cannot_be_downgraded,
        a_transaction_that_checked_in_delays_no_other_lock_of_its_bucket,
        a_detachment_waits_for_the_transaction,
        a_reader_excludes_writers_and_no_readers,
        a_permit_stays_taken_until_the_transaction_ends,
        all_locks_of_a_guard_are_checked_in,
        a_check_in_after_the_loss_fails_at_each_isolation_level,
        a_claim_that_is_deleted_after_the_snapshot_is_a_conflict,
        a_snapshot_from_before_the_grant_is_refused,
        a_slow_check_in_after_the_loss_is_a_loss,
        a_rollback_to_an_older_savepoint_ends_the_check_in,
        a_guard_of_another_store_is_refused,
        a_database_without_the_schema_is_refused,
    }
}

/// Opens a session of the user.
#[expect(clippy::disallowed_methods, reason = "the client crate needs a task for each connection")]
pub(crate) async fn session(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a session");
    tokio::spawn(connection);
    client
}

pub(crate) async fn sqlx_session(server: &Running) -> sqlx::PgConnection {
    sqlx::PgConnection::connect(server.url()).await.expect("a session")
}

/// Waits until no claim of a lock is held by the server's clock.
pub(crate) async fn until_expired(server: &Running, name: &str) {
    let held = format!(
        "SELECT count(*) FROM dlock.queue WHERE name = '{name}' AND held AND expires > clock_timestamp()"
    );
    let expired = async { while sql(server, &held).await != "0" {} };
    timeout(SOON, expired).await.expect("the hold expires");
}

async fn leased(locks: &Locks, name: &str) -> Guard {
    locks.mutex(name).lock().lease(LEASE).await.expect("the lock")
}

/// Asserts that the lock stays taken until `end` has ended the transaction, for a try and for a
/// waiter that has begun to wait before.
async fn assert_taken_until(server: &Running, name: &str, end: impl Future<Output = ()>) {
    let other = connect(server).await.expect("connected");
    let is_ending = AtomicUsize::new(0);
    let waiting = async {
        let guard = other.mutex(name).lock().await.expect("the lock");
        assert_eq!(is_ending.load(Relaxed), 1, "the lock was granted during the transaction");
        guard.release().await.expect("released");
    };
    let ending = async {
        let waiters = format!("SELECT count(*) FROM dlock.queue WHERE name = '{name}' AND NOT held");
        while sql(server, &waiters).await != "1" {}
        // Each of these tries finds the hold expired, and so do the polls of the waiter between them.
        for _ in 0..10 {
            assert!(other.mutex(name).try_lock().await.expect("a reply").is_none(), "a try was granted");
        }
        is_ending.store(1, Relaxed);
        end.await;
    };
    timeout(SOON, async { tokio::join!(waiting, ending) }).await.expect("the waiter gets the lock");
    assert_eq!(rows(server).await, "0");
}

async fn a_transaction_that_checked_in_excludes_the_next_holder_after_the_expiry(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    for level in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable]
    {
        let guard = leased(&locks, "job").await;
        let mut transaction = client.build_transaction().isolation_level(level).start().await.expect("begun");
        guard.check_in(&mut transaction).await.expect("held");
        guard.check_in(&mut transaction).await.expect("held, and checked in again");
        until_expired(server, "job").await;
        assert!(guard.is_lost());
        assert_taken_until(server, "job", async { transaction.commit().await.expect("committed") }).await;
    }
}

async fn a_transaction_of_sqlx_excludes_the_next_holder_after_the_expiry(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut connection = sqlx_session(server).await;
    let guard = leased(&locks, "job").await;
    let mut transaction = connection.begin().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    until_expired(server, "job").await;
    assert_taken_until(server, "job", async { transaction.commit().await.expect("committed") }).await;

    let guard = leased(&locks, "job").await;
    until_expired(server, "job").await;
    let mut transaction = connection.begin().await.expect("begun");
    let error = guard.check_in(&mut transaction).await.expect_err("expired");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    transaction.rollback().await.expect("rolled back");

    let guard = locks.mutex("job").lock().await.expect("the lock");
    sql(server, "DROP FUNCTION dlock.check_in_2").await;
    let mut transaction = connection.begin().await.expect("begun");
    let error = guard.check_in(&mut transaction).await.expect_err("no such function");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("has no functions of this dlock"), "{error:?}");
}

async fn a_rolled_back_transaction_excludes_no_client(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    let guard = leased(&locks, "job").await;
    let mut transaction = client.transaction().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    until_expired(server, "job").await;
    assert_taken_until(server, "job", async { transaction.rollback().await.expect("rolled back") }).await;
}

async fn a_terminated_transaction_excludes_no_client(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    let guard = leased(&locks, "job").await;
    let mut transaction = client.transaction().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    until_expired(server, "job").await;
    let terminate =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    assert_taken_until(server, "job", async { drop(sql(server, terminate).await) }).await;
    assert!(transaction.commit().await.is_err(), "the session was terminated");
}

async fn a_hold_is_renewed_during_a_transaction_that_checked_in(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    let guard = locks.mutex("job").lock().ttl(Duration::from_secs(3)).await.expect("the lock");
    let mut transaction = client.transaction().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    // Longer than the ttl.
    transaction.simple_query("SELECT pg_sleep(5)").await.expect("slept");
    assert!(!guard.is_lost(), "the hold was not renewed");
    guard.check_in(&mut transaction).await.expect("still held");
    transaction.commit().await.expect("committed");
    guard.release().await.expect("released");
    assert_eq!(rows(server).await, "0");
}

async fn a_release_during_the_transaction_is_done_at_once_and_frees_the_lock_after_it(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    let guard = locks.mutex("job").lock().await.expect("the lock");
    let mut transaction = client.transaction().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    let id = guard.id().expect("an id");
    timeout(SOON, guard.release()).await.expect("not blocked").expect("released");
    let entry = locks.inspect("job").await.expect("a reply");
    assert!(entry.is_none(), "the released claim {id} is no holder any more: {entry:?}");
    assert_taken_until(server, "job", async { transaction.commit().await.expect("committed") }).await;
}

async fn a_broken_lock_stays_taken_until_the_transaction_ends(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    let guard = locks.mutex("job").lock().await.expect("the lock");
    let mut transaction = client.transaction().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    let breaking = locks.force_release("job");
    assert!(timeout(SOON, breaking).await.expect("not blocked").expect("a reply"), "the lock was held");
    assert_taken_until(server, "job", async { transaction.commit().await.expect("committed") }).await;
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })), "the lock was broken");
}

async fn a_hold_that_was_broken_during_the_transaction_cannot_be_downgraded(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    // The next renewal, which would report the loss, is far away.
    let guard = locks.rwlock("job").write().lock().ttl(SOON * 10).await.expect("the lock");
    let mut transaction = client.transaction().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    assert!(locks.force_release("job").await.expect("a reply"), "the lock was held");
    let refused = guard.downgrade().await.expect_err("the lock was broken");
    assert!(matches!(refused.error(), Error::Lost { .. }), "{refused:?}");
    drop(refused);
    assert_taken_until(server, "job", async { transaction.commit().await.expect("committed") }).await;
}

/// Returns the bucket of a name, as the README of the crate describes it.
fn bucket(name: &str) -> u32 {
    let shift = |crc: u32| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    let crc =
        name.bytes().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| shift(crc)));
    !crc % 1024
}

async fn a_transaction_that_checked_in_delays_no_other_lock_of_its_bucket(server: &Running) {
    let [locks, other] =
        [connect(server).await.expect("connected"), connect(server).await.expect("connected")];
    let neighbour = (0..).map(|n| format!("other/{n}")).find(|name| bucket(name) == bucket("job"));
    let neighbour = neighbour.expect("some name has the same bucket");
    let mut client = session(server.url()).await;
    let guard = leased(&locks, "job").await;
    let renewed = locks.mutex("renewed").lock().ttl(Duration::from_secs(3)).await.expect("the lock");
    let mut transaction = client.transaction().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    until_expired(server, "job").await;
    let waiter = other.mutex("job");
    let waiting = async { waiter.lock().await.expect("the lock") };
    let working = async {
        while rows(server).await != "3" {}
        drop(guard);
        // A call that waited for the locked row would keep the bucket locked for a second, and the
        // waiter polls all the time.
        let pairs = async {
            for _ in 0..100 {
                let guard = locks.mutex(neighbour.as_str()).lock().await.expect("the lock");
                guard.release().await.expect("released");
            }
        };
        timeout(SOON, pairs).await.expect("the neighbour is not delayed");
        transaction.simple_query("SELECT pg_sleep(4)").await.expect("slept");
        assert!(!renewed.is_lost(), "the hold of another lock was not renewed");
        transaction.commit().await.expect("committed");
    };
    let (guard, ()) = timeout(SOON * 2, async { tokio::join!(waiting, working) }).await.expect("in time");
    guard.release().await.expect("released");
    renewed.release().await.expect("released");
}

async fn a_detachment_waits_for_the_transaction(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    let guard = locks.mutex("job").lock().await.expect("the lock");
    let mut transaction = client.transaction().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    let mut detaching = std::pin::pin!(guard.detach(Duration::from_secs(60)));
    let busy = timeout(Duration::from_millis(500), &mut detaching).await;
    assert!(busy.is_err(), "the claim has another id during the transaction");
    transaction.commit().await.expect("committed");
    let ticket = timeout(SOON, detaching).await.expect("in time").expect("detached");
    locks.release(&ticket).await.expect("released");
    assert_eq!(rows(server).await, "0");
}

async fn a_reader_excludes_writers_and_no_readers(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    let stock = locks.rwlock("stock");
    let guard = stock.read().lock().lease(LEASE).await.expect("the lock");
    let mut transaction = client.transaction().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    until_expired(server, "stock").await;
    let reader = stock.read().try_lock().await.expect("a reply").expect("readers share the lock");
    reader.release().await.expect("released");
    assert!(stock.write().try_lock().await.expect("a reply").is_none(), "a writer was granted");
    assert_taken_until(server, "stock", async { transaction.commit().await.expect("committed") }).await;
}

async fn a_permit_stays_taken_until_the_transaction_ends(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    let two = locks.semaphore("pool", 2);
    let guard = two.acquire().lease(LEASE).await.expect("a permit");
    let mut transaction = client.transaction().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    until_expired(server, "pool").await;
    let second = two.try_acquire().await.expect("a reply").expect("the second permit is free");
    assert!(two.try_acquire().await.expect("a reply").is_none(), "three permits of two");
    transaction.commit().await.expect("committed");
    let third = two.try_acquire().await.expect("a reply").expect("the first permit is free again");
    second.release().await.expect("released");
    third.release().await.expect("released");
}

async fn all_locks_of_a_guard_are_checked_in(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    let both = MultiLock::new(["a", "b"].map(|name| locks.of(Kind::Mutex, name))).expect("two locks");
    let guard = both.lock(&LockOptions::default().lease(LEASE)).await.expect("both locks");
    let mut transaction = client.transaction().await.expect("begun");
    guard.check_in(&mut transaction).await.expect("held");
    for name in ["a", "b"] {
        until_expired(server, name).await;
        assert!(locks.mutex(name).try_lock().await.expect("a reply").is_none(), "{name} was granted");
    }
    transaction.commit().await.expect("committed");
    for name in ["a", "b"] {
        let free = locks.mutex(name).try_lock().await.expect("a reply").expect("free");
        free.release().await.expect("released");
    }
}

async fn a_check_in_after_the_loss_fails_at_each_isolation_level(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    for level in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable]
    {
        // The server has lost the claim, and the client has not noticed.
        for end in [
            "DELETE FROM dlock.queue",
            "UPDATE dlock.queue SET expires = clock_timestamp()",
            "UPDATE dlock.queue SET claim = gen_random_uuid()",
            "UPDATE dlock.queue SET seq = seq + 1",
        ] {
            let guard = locks.mutex("job").lock().await.expect("the lock");
            sql(server, end).await;
            let mut transaction =
                client.build_transaction().isolation_level(level).start().await.expect("begun");
            let error = guard.check_in(&mut transaction).await.expect_err(end);
            assert!(matches!(error, Error::Lost { .. }), "{end}: {error:?}");
            transaction.simple_query("SELECT 1").await.expect("the transaction may continue");
            transaction.rollback().await.expect("rolled back");
            sql(server, "DELETE FROM dlock.queue").await;
        }
    }
}

async fn a_claim_that_is_deleted_after_the_snapshot_is_a_conflict(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let guard = locks.mutex("job").lock().await.expect("the lock");
        let mut transaction = client.build_transaction().isolation_level(level).start().await.expect("begun");
        transaction.simple_query("SELECT count(*) FROM dlock.queue").await.expect("the snapshot is taken");
        sql(server, "DELETE FROM dlock.queue").await;
        let error = guard.check_in(&mut transaction).await.expect_err("deleted");
        assert!(error.is_transient(), "{error:?}");
        assert!(format!("{error:?}").contains("may have ended the hold"), "{error:?}");
    }
}

async fn a_slow_check_in_after_the_loss_is_a_loss(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let address = server.servers()[0].address();
    let proxy = Proxy::to(address).await.expect("a proxy");
    let mut client = session(&server.url().replace(&address.to_string(), &proxy.address().to_string())).await;
    let guard = locks.mutex("job").lock().await.expect("the lock");
    sql(server, "DELETE FROM dlock.queue").await;
    let level = IsolationLevel::RepeatableRead;
    let mut transaction = client.build_transaction().isolation_level(level).start().await.expect("begun");
    // At the call the guard is younger than the transaction will be when the server executes it.
    proxy.delay_requests(Duration::from_secs(2));
    let error = guard.check_in(&mut transaction).await.expect_err("deleted");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    assert_eq!(proxy.connections(), 1, "the transaction does not use the proxy");
}

async fn a_snapshot_from_before_the_grant_is_refused(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let mut transaction = client.build_transaction().isolation_level(level).start().await.expect("begun");
        transaction.simple_query("SELECT count(*) FROM dlock.queue").await.expect("the snapshot is taken");
        let guard = locks.mutex("job").lock().await.expect("the lock");
        let error = guard.check_in(&mut transaction).await.expect_err("the snapshot is older");
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("older than the grant"), "{error}");
        transaction.rollback().await.expect("rolled back");
        guard.release().await.expect("released");
    }
    // Each statement has a snapshot of its own.
    let mut transaction = client.transaction().await.expect("begun");
    transaction.simple_query("SELECT count(*) FROM dlock.queue").await.expect("a reply");
    let guard = locks.mutex("job").lock().await.expect("the lock");
    guard.check_in(&mut transaction).await.expect("held");
    transaction.commit().await.expect("committed");
    guard.release().await.expect("released");
}

async fn a_rollback_to_an_older_savepoint_ends_the_check_in(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let mut client = session(server.url()).await;
    let guard = leased(&locks, "job").await;
    let mut transaction = client.transaction().await.expect("begun");
    let mut savepoint = transaction.transaction().await.expect("a savepoint");
    guard.check_in(&mut savepoint).await.expect("held");
    savepoint.rollback().await.expect("rolled back");
    until_expired(server, "job").await;
    let next = locks.mutex("job").try_lock().await.expect("a reply").expect("free");
    let error = guard.check_in(&mut transaction).await.expect_err("lost");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    next.release().await.expect("released");
}

async fn a_guard_of_another_store_is_refused(server: &Running) {
    sql(server, "CREATE DATABASE other").await;
    let url = server.url().replace("/postgres", "/other");
    let [locks, other] =
        [connect(server).await.expect("connected"), connect_to(&url).await.expect("connected")];
    let mut client = session(server.url()).await;
    let mut transaction = client.transaction().await.expect("begun");
    for (guard, words) in [
        (other.mutex("job").lock().await.expect("the lock"), "on another database"),
        (Locks::memory().mutex("job").lock().await.expect("the lock"), "memory cannot check in lock `job`"),
    ] {
        let error = guard.check_in(&mut transaction).await.expect_err(words);
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let guard = locks.mutex("job").lock().await.expect("the lock");
    guard.check_in(&mut transaction).await.expect("the transaction may continue");
    // A client that creates the schema again finds a new identity.
    sql(server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'")
        .await;
    sql(server, "DROP SCHEMA dlock CASCADE").await;
    let again = locks.mutex("again").lock().await.expect("the lock");
    let mut client = session(server.url()).await;
    let mut transaction = client.transaction().await.expect("begun");
    again.check_in(&mut transaction).await.expect("held");
    let error = guard.check_in(&mut transaction).await.expect_err("lost with its data");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
}

async fn a_database_without_the_schema_is_refused(server: &Running) {
    sql(server, "CREATE DATABASE empty").await;
    let locks = connect(server).await.expect("connected");
    let guard = locks.mutex("job").lock().await.expect("the lock");
    let mut client = session(&server.url().replace("/postgres", "/empty")).await;
    let mut transaction = client.transaction().await.expect("begun");
    let error = guard.check_in(&mut transaction).await.expect_err("no schema");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("has no functions of this dlock"), "{error:?}");
    drop(transaction);

    let mut client = session(server.url()).await;
    let mut transaction = client.build_transaction().read_only(true).start().await.expect("begun");
    let error = guard.check_in(&mut transaction).await.expect_err("read-only");
    assert!(format!("{error:?}").contains("read-only"), "{error:?}");
}
