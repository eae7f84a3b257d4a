//! Tests with many waiters of one client, and with restrictive settings of the server.

use std::time::Duration;

use dlock_core::{
    ClaimId, Error, Kind, LockName,
    driver::{Attempt, Release, Renewal, Request, Resumption},
};
use dlock_mysql::DRIVER;
use dlock_testbed::servers::{Running, mysql::Brand};
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::{SOON, brand, connect, end_sessions, execute, plain_session, query, status, until};

const TTL: Duration = Duration::from_secs(30);

/// Returns the number of statements a second that the server counts while `waiters` claims wait.
async fn statements(server: &Running, waiters: usize, detached: bool) -> i64 {
    let (holder, waiting) = (
        connect(server, "").await.expect("the server runs"),
        connect(server, "").await.expect("the server runs"),
    );
    let name = format!("job {waiters} {detached}");
    let held = holder.fair(&name).lock().ttl(TTL).await.expect("the lock is free");
    let mut other = plain_session(server).await;
    let (mut guard, mut ticket) = (None, None);
    if detached {
        ticket = Some(held.detach(TTL * 10).await.expect("the lock is still held"));
    } else {
        guard = Some(held);
    }
    let tasks: Vec<_> = (0..waiters)
        .map(|_| {
            let lock = waiting.fair(&name);
            tokio::spawn(async move { lock.lock().ttl(TTL).await.map(drop) })
        })
        .collect();
    let queued = i64::try_from(waiters + 1).expect("the number is small");
    until(&mut other, &format!("SELECT COUNT(*) FROM dlock_queue WHERE name = '{name}'"), queued).await;
    sleep(Duration::from_secs(2)).await;
    let before = status(&mut other, &["Questions"]).await;
    sleep(Duration::from_secs(6)).await;
    let counted = status(&mut other, &["Questions"]).await - before;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    if let Some(guard) = guard {
        assert!(!guard.is_lost(), "a hold was lost because of the waiters");
        guard.release().await.expect("the lock is still held");
    }
    if let Some(ticket) = ticket {
        holder.release(&ticket).await.expect("the store kept the detached hold");
    }
    // The statements of the waiters that leave would be counted for the next number of waiters.
    until(&mut other, &format!("SELECT COUNT(*) FROM dlock_queue WHERE name = '{name}'"), 0).await;
    counted / 6
}

#[expect(clippy::print_stdout, reason = "prints the measured rates")]
pub(crate) async fn the_number_of_statements_does_not_grow_with_the_number_of_waiters(server: &Running) {
    for detached in [false, true] {
        for waiters in [1, 100, 1000] {
            let rate = statements(server, waiters, detached).await;
            println!("{waiters} waiters, detached {detached}: {rate} statements a second");
            assert!(rate < 100, "{waiters} waiters, detached {detached}: {rate} statements a second");
        }
    }
}

pub(crate) async fn a_waiter_looks_a_silent_holder_up_when_its_claim_expires(server: &Running) {
    // Shorter than the interval at which a waiter checks a claim with a doorbell.
    const HELD: Duration = Duration::from_millis(1500);
    let connect = async || DRIVER.connect(server.url().parse().expect("a URL")).await;
    let request = |ttl| Request::new(LockName::new("job").expect("a name"), Kind::Fair, ttl);
    let holder = connect().await.expect("the server runs");
    let mut held = holder.backend.claim(request(HELD));
    assert!(matches!(held.attempt().await, Ok(Attempt::Granted(_))), "the lock is free");
    let waiter = connect().await.expect("the server runs");
    let mut waits = waiter.backend.claim(request(TTL));
    for request in ["attempt", "look-up"] {
        assert!(matches!(held.renew().await, Ok(Renewal::Renewed { .. })), "the lock is held");
        let Ok(Attempt::Busy { retry_in }) = waits.attempt().await else { panic!("the lock is not held") };
        assert!(retry_in <= HELD, "after the {request} the waiter sends no request for {retry_in:?}");
    }
    waits.release().await.expect("the store replies");
    held.release().await.expect("the store replies");
}

/// Each release of a waiter waits for a second for its locked row, so the releases of the crowd
/// occupy the sessions for longer than the ttl of the hold. Their time limit is longer than that.
/// After the end of the sessions that own the doorbells, the releases use all sessions.
pub(crate) async fn a_crowd_that_leaves_costs_its_client_no_lock(server: &Running) {
    const WAITERS: usize = 200;
    let ttl = Duration::from_secs(12);
    let locks = connect(server, "?timeout=60s").await.expect("the server runs");
    let precious = locks.mutex("precious").lock().ttl(ttl).await.expect("the lock is free");
    let job = locks.mutex("job").lock().ttl(TTL).await.expect("the lock is free");
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let lock = locks.mutex("job");
            tokio::spawn(async move { lock.lock().ttl(TTL).await.map(drop) })
        })
        .collect();
    let mut other = plain_session(server).await;
    let count = "SELECT COUNT(*) FROM dlock_queue WHERE name = 'job'";
    until(&mut other, count, i64::try_from(WAITERS + 1).expect("the number is small")).await;
    execute(&mut other, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
    execute(&mut other, "START TRANSACTION; SELECT * FROM dlock_queue WHERE name = 'job' FOR UPDATE").await;
    end_sessions(&mut other).await;
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    timeout(ttl * 3 / 2, precious.lost()).await.expect_err("the renewals waited for the releases");
    execute(&mut other, "ROLLBACK").await;
    job.release().await.expect("the lock is still held");
    precious.release().await.expect("the lock is still held");
}

pub(crate) async fn a_hold_outlives_sessions_that_cannot_be_opened(server: &Running) {
    let mut other = plain_session(server).await;
    execute(&mut other, "CREATE USER few@'127.0.0.1' IDENTIFIED BY 'x' WITH MAX_USER_CONNECTIONS 2").await;
    execute(&mut other, "GRANT ALL ON dlock.* TO few@'127.0.0.1'").await;
    let address = server.servers()[0].address();
    let url = format!("mysql://few:x@{address}/dlock");
    let locks = dlock_core::Registry::new().with(DRIVER).connect(&url).await.expect("one session is enough");
    let ttl = Duration::from_secs(3);
    let held = locks.mutex("precious").lock().ttl(ttl).await.expect("the lock is free");
    let tasks = (0..8).map(|number| {
        let lock = locks.mutex(format!("other {number}"));
        tokio::spawn(async move {
            for _ in 0..50 {
                let held =
                    lock.try_lock().await.expect("two sessions can be opened").expect("the lock is free");
                held.release().await.expect("the lock is still held");
                sleep(Duration::from_millis(50)).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("the task does not panic");
    }
    assert!(!held.is_lost(), "the hold is lost");
    held.release().await.expect("the lock is still held");
}

pub(crate) async fn settings_of_the_server_cost_no_hold(server: &Running) {
    let mut other = plain_session(server).await;
    drop(connect(server, "").await.expect("the client creates the tables"));
    let sql_mode = match brand(&mut other).await {
        Brand::Mariadb => "sql_mode = 'ORACLE'",
        // MySQL 8.0 and later have no mode of another database.
        Brand::Mysql => "sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'",
    };
    for (setting, default) in [
        ("sql_safe_updates = 1", "sql_safe_updates = 0"),
        ("sql_select_limit = 1", "sql_select_limit = DEFAULT"),
        ("max_join_size = 1", "max_join_size = DEFAULT"),
        (sql_mode, "sql_mode = DEFAULT"),
    ] {
        execute(&mut other, &format!("SET GLOBAL {setting}")).await;
        let ttl = Duration::from_secs(4);
        let locks = connect(server, "").await.expect("the server runs");
        let mut held = Vec::new();
        for number in 0..3 {
            let lock = locks.mutex(format!("job {number}"));
            held.push(lock.lock().ttl(ttl).await.unwrap_or_else(|error| panic!("{setting}: {error:?}")));
        }
        sleep(ttl * 3 / 2).await;
        execute(&mut other, &format!("SET GLOBAL {default}")).await;
        for held in held {
            assert!(!held.is_lost(), "{setting}: a renewal failed");
            held.release().await.expect("the lock is still held");
        }
    }
}

pub(crate) async fn tables_without_their_version_are_completed(server: &Running) {
    let mut other = plain_session(server).await;
    drop(connect(server, "").await.expect("the client creates the tables"));
    execute(&mut other, "DELETE FROM dlock_store").await;
    let locks = connect(server, "").await.expect("the client completes the tables");
    locks
        .mutex("job")
        .lock()
        .await
        .expect("the lock is free")
        .release()
        .await
        .expect("the lock is still held");
    assert_eq!(query(&mut other, "SELECT version FROM dlock_store").await, 1);
}

/// Each client creates the tables that it does not find, at the same time as the others.
pub(crate) async fn all_of_many_first_clients_get_locks(server: &Running) {
    const CLIENTS: usize = 40;
    let mut other = plain_session(server).await;
    for round in 0..5 {
        execute(&mut other, "DROP TABLE IF EXISTS dlock_store, dlock_fence, dlock_queue").await;
        let clients = (0..CLIENTS).map(|number| async move {
            let locks = connect(server, "").await?;
            locks.mutex(format!("job/{number}")).lock().await?.release().await
        });
        for (number, locked) in join_all(clients).await.into_iter().enumerate() {
            locked.unwrap_or_else(|error| panic!("client {number} of round {round}: {error:?}"));
        }
        assert_eq!(query(&mut other, "SELECT COUNT(*) FROM dlock_fence").await, 1024);
    }
}

pub(crate) async fn a_fence_without_rows_refuses_locks(server: &Running) {
    let (first, second) = (
        connect(server, "").await.expect("the server runs"),
        connect(server, "").await.expect("the server runs"),
    );
    first
        .mutex("job")
        .lock()
        .await
        .expect("the lock is free")
        .release()
        .await
        .expect("the lock is still held");
    let mut other = plain_session(server).await;
    execute(&mut other, "TRUNCATE dlock_fence").await;
    for locks in [&first, &second] {
        let error = timeout(SOON, locks.mutex("job").lock())
            .await
            .expect("the store replies")
            .expect_err("no token can be drawn");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    }
    let named = connect(server, "?mode=session").await.expect("the server runs");
    let error = timeout(SOON, named.mutex("job").lock())
        .await
        .expect("the store replies")
        .expect_err("no token can be drawn");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert_eq!(
        query(&mut other, "SELECT COUNT(*) FROM dlock_queue").await,
        0,
        "a claim is left in the queue"
    );
}

pub(crate) async fn a_ticket_has_one_taker_and_a_waiting_claim_is_none(server: &Running) {
    let store = DRIVER.connect(server.url().parse().expect("a URL")).await.expect("the server runs");
    let request = || Request::new(LockName::new("job").expect("a name"), Kind::Mutex, TTL);
    let [mut held, mut waits, mut taker, mut late] = [(); 4].map(|()| store.backend.claim(request()));
    let (ticket, waiter) = (ClaimId::random(), ClaimId::random());
    let Attempt::Granted(first) = held.attempt().await.expect("the store replies") else {
        panic!("the lock is free")
    };
    let mut named = store.backend.claim(request().id(waiter));
    assert!(matches!(named.attempt().await, Ok(Attempt::Busy { .. })), "two clients hold the lock");
    assert_eq!(
        late.resume(waiter).await.expect("the store replies"),
        Resumption::Gone,
        "a waiting claim is taken for a detached hold"
    );
    named.release().await.expect("the store replies");
    let lasting = TTL * 4;
    for _ in 0..2 {
        let kept = held.detach(lasting, ticket).await.expect("the store replies");
        assert_eq!(kept, Renewal::Renewed { valid_for: lasting });
    }
    assert_eq!(
        held.renew().await.expect("the store replies"),
        Renewal::Lost,
        "the old id still finds the hold"
    );
    assert!(matches!(waits.attempt().await, Ok(Attempt::Busy { .. })), "two clients hold the lock");
    for round in 0..2 {
        let resumed = taker.resume(ticket).await.expect("the store replies");
        let Resumption::Resumed { grant, remaining } = resumed else { panic!("the ticket finds no hold") };
        assert_eq!(grant.token, first.token, "the hold has another place in the queue");
        assert_eq!(remaining.is_some(), round == 0, "{remaining:?}");
    }
    assert_eq!(
        late.resume(ticket).await.expect("the store replies"),
        Resumption::Gone,
        "a ticket has two takers"
    );
    assert_eq!(
        held.release().await.expect("the store replies"),
        Release::Gone,
        "the old holder releases the lock"
    );
    assert!(matches!(waits.attempt().await, Ok(Attempt::Busy { .. })), "two clients hold the lock");
    assert_eq!(taker.release().await.expect("the store replies"), Release::Done);
    assert!(matches!(waits.attempt().await, Ok(Attempt::Granted(_))), "the lock is granted");
    waits.release().await.expect("the store replies");
}
