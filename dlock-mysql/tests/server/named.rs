//! Tests of the owners of named locks, and of their loss and release.

use std::{thread, time::Duration};

use dlock_conformance::Proxy;
use dlock_core::{Error, Locks, Registry};
use dlock_mysql::DRIVER;
use dlock_testbed::servers::{Running, mysql::Brand};
use futures_util::future::{join, join_all};
use tokio::{
    runtime::Runtime,
    time::{sleep, timeout},
};

use crate::{SOON, brand, connect, execute, plain_session, query, status, until};

/// A ttl that no test waits for.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Counts the sessions that wait for a named lock.
pub(crate) const WAITING: &str =
    "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'";

/// Counts the sessions that wait for the lock `job`, without the watch of its holder.
const WAITING_FOR_JOB: &str = "SELECT COUNT(*) FROM information_schema.processlist
    WHERE state = 'User lock' AND info LIKE '%GET_LOCK(''job''%'";

async fn session_mode(server: &Running) -> Locks {
    connect(server, "?mode=session").await.expect("the server runs")
}

/// Waits until the session of a holder is watched. Its claim is then shown.
pub(crate) async fn until_watched(locks: &Locks, name: &str) {
    let watched = async {
        loop {
            let state = locks.inspect(name).await.expect("the server replies").expect("the lock is held");
            if state.holders[0].ttl_left.is_some() {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, watched).await.expect("a hold is watched soon after its grant");
}

pub(crate) async fn a_killed_session_has_lost_its_lock_at_once(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    let held = locks.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
    let beside = locks.mutex("other").lock().ttl(LONG).await.expect("the lock is free");
    until_watched(&locks, "job").await;
    let id = query(&mut other, "SELECT IS_USED_LOCK('job')").await;
    execute(&mut other, &format!("KILL {id}")).await;
    timeout(SOON, held.lost()).await.expect("the holder is notified long before the next renewal");
    assert!(!beside.is_lost(), "the lock of another session is lost");
    drop(locks.mutex("job").lock().wait(SOON).await.expect("the lock is granted"));
    beside.release().await.expect("the lock is still held");
    drop(held);
    let anchors = match brand(&mut other).await {
        Brand::Mariadb => {
            "information_schema.metadata_lock_info WHERE table_schema LIKE 'dlock:%-%'
            AND table_schema NOT LIKE 'dlock:session:%'"
        }
        Brand::Mysql => {
            "performance_schema.metadata_locks WHERE object_name LIKE 'dlock:%-%'
            AND object_name NOT LIKE 'dlock:session:%'"
        }
    };
    until(&mut other, &format!("SELECT COUNT(*) FROM {anchors}"), 0).await;
}

/// A lease is not renewed, so only its watch detects the loss.
pub(crate) async fn a_lease_whose_session_is_killed_is_lost_at_once(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    let held = locks.mutex("job").lock().lease(LONG).await.expect("the lock is free");
    until_watched(&locks, "job").await;
    let id = query(&mut other, "SELECT IS_USED_LOCK('job')").await;
    execute(&mut other, &format!("KILL {id}")).await;
    timeout(SOON, held.lost()).await.expect("the holder is notified long before the end of its lease");
    drop(locks.mutex("job").lock().wait(SOON).await.expect("the lock is granted"));
}

pub(crate) async fn tables_that_were_dropped_are_created_again_with_an_idle_session(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    locks.mutex("job").lock().await.expect("the lock is free").release().await.expect("still held");
    execute(&mut other, "DROP TABLE dlock_fence, dlock_queue, dlock_store").await;
    let held = locks.mutex("job").lock().wait(SOON).await.expect("the tables are created again");
    held.release().await.expect("still held");
}

/// A backup locks all tables, so the next holder cannot draw its number. The holder waits for that,
/// and keeps its place.
pub(crate) async fn waiters_keep_their_order_while_tables_are_locked(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    let held = locks.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
    let mut waiting = Vec::new();
    for place in 1..=3 {
        let job = locks.mutex("job");
        waiting.push(tokio::spawn(async move {
            let held = job.lock().ttl(LONG).await.expect("the waiter gets the lock");
            let token = held.token().expect("each hold has a token").get();
            held.release().await.expect("the lock is still held");
            token
        }));
        until(&mut other, WAITING_FOR_JOB, place).await;
    }
    execute(&mut other, "FLUSH TABLES WITH READ LOCK").await;
    held.release().await.expect("a release needs no table");
    sleep(SOON).await;
    execute(&mut other, "UNLOCK TABLES").await;
    let mut last = 0;
    for waiting in waiting {
        let token = waiting.await.expect("the task does not panic");
        assert!(token > last, "a waiter has lost its place");
        last = token;
    }
}

/// `KILL QUERY` of a holder's session ends the watch, and not the hold.
pub(crate) async fn a_hold_outlives_the_end_of_its_watch(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    let held = locks.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
    until_watched(&locks, "job").await;
    let owner = query(&mut other, "SELECT IS_USED_LOCK('job')").await;
    for _ in 0..3 {
        execute(&mut other, &format!("KILL QUERY {owner}")).await;
        until_watched(&locks, "job").await;
    }
    assert!(!held.is_lost(), "the hold is lost although its session lives");
    assert_eq!(
        query(&mut other, "SELECT IS_USED_LOCK('job')").await,
        owner,
        "the lock of another session is lost"
    );
    held.release().await.expect("the lock is still held");
}

/// A backup locks all tables. A renewal needs none of them.
pub(crate) async fn a_hold_outlives_locked_tables(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    let held = locks.mutex("job").lock().ttl(Duration::from_secs(3)).await.expect("the lock is free");
    execute(&mut other, "FLUSH TABLES WITH READ LOCK").await;
    // The hold is renewed every second.
    sleep(SOON).await;
    assert!(!held.is_lost(), "the hold is lost although its session lives");
    execute(&mut other, "UNLOCK TABLES").await;
    held.release().await.expect("the lock is still held");
}

pub(crate) async fn statements_may_take_as_long_as_they_wait(server: &Running) {
    let mut other = plain_session(server).await;
    let limit = match brand(&mut other).await {
        Brand::Mariadb => "max_statement_time = 1",
        Brand::Mysql => "max_execution_time = 1000",
    };
    execute(&mut other, &format!("SET GLOBAL {limit}")).await;
    let locks = session_mode(server).await;
    let held = locks.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
    until_watched(&locks, "job").await;
    let job = locks.mutex("job");
    let waits = tokio::spawn(async move { job.lock().ttl(LONG).await });
    until(&mut other, WAITING, 2).await;
    let (of_waiting, ids) =
        ("FROM information_schema.processlist WHERE state = 'User lock'", "SELECT SUM(id)");
    let before = query(&mut other, &format!("{ids} {of_waiting} AND time >= 0")).await;
    until(&mut other, &format!("SELECT COUNT(*) {of_waiting} AND time > 2"), 2).await;
    assert_eq!(query(&mut other, &format!("{ids} {of_waiting}")).await, before, "the sessions were replaced");
    held.release().await.expect("the lock is still held");
    waits
        .await
        .expect("the task does not panic")
        .expect("the lock is granted")
        .release()
        .await
        .expect("the lock is still held");
}

pub(crate) async fn a_hold_outlives_the_sessions_beside_it(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    let held = locks.mutex("job").lock().ttl(Duration::from_secs(2)).await.expect("the lock is free");
    for _ in 0..8 {
        until_watched(&locks, "job").await;
        let ids = "SELECT id FROM information_schema.processlist
            WHERE user = 'dlock' AND id <> CONNECTION_ID() AND id <> IS_USED_LOCK('job')";
        let ids = sqlx::raw_sql(ids).fetch_all(&mut other).await.expect("rows");
        for id in ids {
            let id: i64 = sqlx::Row::try_get_unchecked(&id, 0).expect("a number");
            // The session may have ended since the list was read.
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!("KILL {id}"))).execute(&mut other).await.ok();
        }
        sleep(Duration::from_millis(400)).await;
        assert!(!held.is_lost(), "the hold is lost although its session was not killed");
    }
    held.release().await.expect("the lock is still held");
    assert_eq!(
        query(&mut other, "SELECT COALESCE(IS_USED_LOCK('job'), 0)").await,
        0,
        "the lock was not released"
    );
}

pub(crate) async fn a_dead_client_holds_nothing(server: &Running) {
    let (locks, url) = (session_mode(server).await, format!("{}?mode=session", server.url()));
    // The sockets close with the runtime, as those of a process that is killed.
    let dead = thread::spawn(move || {
        let runtime = Runtime::new().expect("a runtime");
        let held = runtime.block_on(async {
            let locks = Registry::new().with(DRIVER).connect(&url).await;
            let locks = locks.expect("the server runs");
            let held = locks.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
            until_watched(&locks, "job").await;
            (locks, held)
        });
        runtime.shutdown_background();
        std::mem::forget(held);
    });
    dead.join().expect("the task does not panic");
    let held = timeout(SOON, locks.mutex("job").lock().ttl(LONG)).await;
    drop(held.expect("the server releases the lock long before its ttl").expect("the lock is granted"));
}

/// Connects in session mode through a proxy.
async fn session_mode_through(server: &Running) -> (Locks, Proxy) {
    let real = server.servers()[0].address();
    let proxy = Proxy::to(real).await.expect("a port is free");
    let url = server.url().replace(&real.to_string(), &proxy.address().to_string());
    let locks = Registry::new().with(DRIVER).connect(&format!("{url}?mode=session")).await;
    (locks.expect("the server runs"), proxy)
}

/// The server notices the silence of the host after the ttl, or a quarter of the ttl later.
pub(crate) async fn the_lock_of_a_host_that_vanishes_is_granted_after_its_hold_is_lost(server: &Running) {
    const TTL: Duration = Duration::from_secs(4);
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    let (vanishing, proxy) = session_mode_through(server).await;
    let held = vanishing.mutex("job").lock().ttl(TTL).await.expect("the lock is free");
    until_watched(&locks, "job").await;
    let waits = tokio::spawn(locks.mutex("job").lock().ttl(LONG).into_future());
    until(&mut other, WAITING_FOR_JOB, 1).await;
    proxy.stall();
    let next = timeout(TTL * 5 / 4 + SOON, waits).await;
    assert!(held.is_lost(), "two clients hold the lock");
    let next = next.expect("the server releases the lock").expect("the task does not panic");
    next.expect("the lock is granted").release().await.expect("the lock is still held");
}

pub(crate) async fn a_waiter_whose_client_has_vanished_delays_the_next_one_for_seconds(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    let (vanishing, proxy) = session_mode_through(server).await;
    let held = locks.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
    let vanished = tokio::spawn(vanishing.mutex("job").lock().ttl(LONG).into_future());
    until(&mut other, WAITING_FOR_JOB, 1).await;
    let waits = tokio::spawn(locks.mutex("job").lock().ttl(LONG).into_future());
    until(&mut other, WAITING_FOR_JOB, 2).await;
    proxy.stall();
    held.release().await.expect("the lock is still held");
    // The server grants the lock to the vanished client, and waits for its reply for two seconds.
    let next = timeout(SOON * 2, waits).await.expect("the next waiter gets the lock long before the ttl");
    assert!(!vanished.is_finished(), "the wait of the vanished client ended: {:?}", vanished.await);
    let next = next.expect("the task does not panic").expect("the lock is granted");
    next.release().await.expect("the lock is still held");
    vanished.abort();
}

pub(crate) async fn a_user_without_rights_sees_the_owners_connection_and_breaks_no_lock(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    for user in ["holder", "app"] {
        let create = format!(
            "CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'x';
            GRANT SELECT, INSERT, UPDATE, DELETE ON dlock.* TO {user}@'127.0.0.1'"
        );
        execute(&mut other, &create).await;
    }
    let address = server.servers()[0].address();
    let connect_as = async |user: &str| {
        let url = format!("mysql://{user}:x@{address}/dlock?mode=session");
        Registry::new().with(DRIVER).connect(&url).await.expect("these rights are enough")
    };
    let held = connect_as("holder").await.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
    // A user with the right PROCESS sees the claim.
    until_watched(&locks, "job").await;
    let owner = query(&mut other, "SELECT IS_USED_LOCK('job')").await;
    let app = connect_as("app").await;
    let state = app.inspect("job").await.expect("the server replies").expect("the lock is held");
    let [holder] = &state.holders[..] else { panic!("{state:?}") };
    assert_eq!(holder.id, format!("connection {owner}"));
    assert_eq!((&holder.who, holder.ttl_left), (&None, None), "the user sees a session of another user");
    let error = app.force_release("job").await.expect_err("the user may not end the session");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(!held.is_lost(), "the hold is lost");
    let right = match brand(&mut other).await {
        Brand::Mariadb => "CONNECTION ADMIN",
        Brand::Mysql => "CONNECTION_ADMIN",
    };
    execute(&mut other, &format!("GRANT {right} ON *.* TO app@'127.0.0.1'")).await;
    let app = connect_as("app").await;
    assert!(app.force_release("job").await.expect("the user may end the session"), "the lock was held");
    timeout(SOON, held.lost()).await.expect("the holder is notified long before the next renewal");
}

pub(crate) async fn a_wait_that_is_given_up_leaves_no_session_waiting(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    assert_eq!(query(&mut other, "SELECT GET_LOCK('job', 0)").await, 1);
    for _ in 0..5 {
        let job = locks.mutex("job");
        let waits = tokio::spawn(async move { job.lock().ttl(LONG).await });
        until(&mut other, WAITING, 1).await;
        waits.abort();
        until(&mut other, WAITING, 0).await;
    }
    assert_eq!(query(&mut other, "SELECT RELEASE_LOCK('job')").await, 1);
    drop(locks.mutex("job").try_lock().await.expect("the server replies").expect("the lock is free"));
}

/// The server grants the lock while the client ends the wait.
pub(crate) async fn a_wait_that_is_given_up_as_it_is_granted_leaves_no_lock(server: &Running) {
    let (mut holder, mut other) = (plain_session(server).await, plain_session(server).await);
    let mut rng = fastrand::Rng::with_seed(0);
    for round in 0..100 {
        let locks = session_mode(server).await;
        assert_eq!(query(&mut holder, "SELECT GET_LOCK('job', 0)").await, 1);
        let job = locks.mutex("job");
        let waits = tokio::spawn(async move { job.lock().ttl(LONG).await });
        until(&mut other, WAITING_FOR_JOB, 1).await;
        let (first, then) = (rng.u64(..1000), rng.u64(..1000));
        let give_up = async {
            sleep(Duration::from_micros(first)).await;
            waits.abort();
        };
        let release = async {
            sleep(Duration::from_micros(then)).await;
            assert_eq!(query(&mut holder, "SELECT RELEASE_LOCK('job')").await, 1);
        };
        join(give_up, release).await;
        drop(waits.await);
        locks.close().await;
        assert_eq!(
            query(&mut other, "SELECT IS_FREE_LOCK('job')").await,
            1,
            "the lock stays taken in round {round}"
        );
    }
}

/// If a wait is ended, `GET_LOCK` returns `NULL` or an error. Neither says whether the session owns
/// the lock.
pub(crate) async fn a_wait_that_the_server_ends_is_no_answer(server: &Running) {
    let (locks, mut holder, mut other) =
        (session_mode(server).await, plain_session(server).await, plain_session(server).await);
    assert_eq!(query(&mut holder, "SELECT GET_LOCK('job', 0)").await, 1);
    let job = locks.mutex("job");
    let waits = tokio::spawn(async move { job.lock().ttl(LONG).await });
    for _ in 0..3 {
        until(&mut other, WAITING, 1).await;
        let id = "SELECT id FROM information_schema.processlist WHERE state = 'User lock'";
        let id = query(&mut other, id).await;
        let sets_before = status(&mut other, &["Com_set_option"]).await;
        execute(&mut other, &format!("KILL QUERY {id}")).await;
        let asks_again = async {
            // The client sends two batches, a try and a wait. Each begins with a SET.
            while status(&mut other, &["Com_set_option"]).await < sets_before + 2 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, asks_again).await.expect("the client asks for the lock again");
        assert!(!waits.is_finished(), "the wait of the caller ended: {:?}", waits.await);
    }
    assert_eq!(query(&mut holder, "SELECT RELEASE_LOCK('job')").await, 1);
    let held =
        timeout(SOON, waits).await.expect("the server wakes the waiter").expect("the task does not panic");
    held.expect("the lock is granted").release().await.expect("the lock is still held");
}

pub(crate) async fn a_hundred_locks_leave_no_connection(server: &Running) {
    let (mut other, sessions) =
        (plain_session(server).await, "FROM information_schema.processlist WHERE user = 'dlock'");
    // The plain session is one of them.
    for (params, most, kept) in [("", 5, 5), ("?mode=session", 105, 21)] {
        let locks = connect(server, params).await.expect("the server runs");
        let all = (0..100).map(|number| locks.mutex(format!("hundred/{number}")));
        let held = join_all(all.map(|lock| async move { lock.lock().ttl(LONG).await })).await;
        let count = query(&mut other, &format!("SELECT COUNT(*) {sessions}")).await;
        assert!(count <= most, "{params}: {count} sessions for a hundred locks");
        for held in join_all(held.into_iter().map(|held| held.expect("the lock is free").release())).await {
            held.expect("the lock is still held");
        }
        until(&mut other, &format!("SELECT COUNT(*) <= {kept} {sessions}"), 1).await;
        locks.close().await;
        drop(locks);
        until(&mut other, &format!("SELECT COUNT(*) {sessions}"), 1).await;
    }
}

pub(crate) async fn a_watched_lock_is_released_at_once(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    for _ in 0..5 {
        let held = locks.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
        until_watched(&locks, "job").await;
        timeout(SOON, held.release())
            .await
            .expect("a watch does not delay the release")
            .expect("the lock is still held");
        assert_eq!(
            query(&mut other, "SELECT COALESCE(IS_USED_LOCK('job'), 0)").await,
            0,
            "the lock is still owned"
        );
    }
    assert_eq!(query(&mut other, WAITING).await, 0, "a watch was not ended");
}

pub(crate) async fn a_short_ttl_is_renewed_and_a_long_one_is(server: &Running) {
    let locks = session_mode(server).await;
    let mut held = Vec::new();
    for ttl in [1, 2, 5] {
        let name = format!("job of {ttl} s");
        held.push(locks.mutex(name).lock().ttl(Duration::from_secs(ttl)).await.expect("the lock is free"));
    }
    sleep(Duration::from_secs(7)).await;
    for held in held {
        held.release().await.expect("the lock is still held");
    }
}

pub(crate) async fn other_programs_are_shown_and_their_locks_are_broken(server: &Running) {
    let (locks, mut holder, mut other) =
        (session_mode(server).await, plain_session(server).await, plain_session(server).await);
    assert_eq!(query(&mut holder, "SELECT GET_LOCK('app/job', 0)").await, 1);
    let id = query(&mut holder, "SELECT CONNECTION_ID()").await;
    let mut waiter = plain_session(server).await;
    let waits = tokio::spawn(async move { query(&mut waiter, "SELECT GET_LOCK('app/job', 60)").await });
    until(&mut other, WAITING, 1).await;
    let state = locks.inspect("app/job").await.expect("the server replies").expect("the lock is held");
    assert_eq!(state.holders[0].id, format!("connection {id}"));
    assert!(state.holders[0].who.as_deref().is_some_and(|who| who.starts_with("dlock@")), "{state:?}");
    assert_eq!((state.holders.len(), state.queue.len()), (1, 1));
    let names = |states: Vec<dlock_core::LockState>| -> Vec<String> {
        states.into_iter().map(|state| state.name.as_str().to_owned()).collect()
    };
    assert_eq!(names(locks.list("app/").await.expect("the server replies")), ["app/job"]);
    assert!(names(locks.list("apps/").await.expect("the server replies")).is_empty());
    assert!(locks.force_release("app/job").await.expect("the user may end the session"), "the lock was held");
    assert_eq!(timeout(SOON, waits).await.expect("the waiter is next").expect("the task does not panic"), 1);
}

pub(crate) async fn get_lock_and_dlock_exclude_each_other(server: &Running) {
    let (locks, mut other) = (session_mode(server).await, plain_session(server).await);
    let job = locks.mutex("job");
    assert_eq!(query(&mut other, "SELECT GET_LOCK('job', 0)").await, 1);
    assert!(
        job.try_lock().await.expect("the server replies").is_none(),
        "dlock took a lock that another program holds"
    );
    let waits = tokio::spawn({
        let job = job.clone();
        async move { job.lock().await }
    });
    let mut third = plain_session(server).await;
    // The third session must wait behind dlock.
    let waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'";
    while query(&mut third, waiting).await < 1 {
        sleep(Duration::from_millis(10)).await;
    }
    let behind = tokio::spawn(async move { query(&mut third, "SELECT GET_LOCK('job', 20)").await });
    assert_eq!(query(&mut other, "SELECT RELEASE_LOCK('job')").await, 1);
    let held = timeout(SOON, waits)
        .await
        .expect("the server wakes the waiter")
        .expect("the task does not panic")
        .expect("the lock is granted");
    assert_eq!(
        query(&mut other, "SELECT GET_LOCK('job', 0)").await,
        0,
        "another program took a lock that dlock holds"
    );
    assert!(held.token().is_some());
    held.release().await.expect("the lock is still held");
    assert_eq!(
        timeout(SOON, behind).await.expect("dlock has released the lock").expect("the task does not panic"),
        1
    );
    locks.close().await;
}

pub(crate) async fn a_release_that_the_server_does_late_is_no_loss(server: &Running) {
    let locks = connect(server, "?mode=session&timeout=500ms").await.expect("the server runs");
    let held = locks.mutex("job").lock().ttl(LONG).await.expect("the lock is free");
    let machine = &server.servers()[0];
    machine.pause().await.expect("the server runs");
    let released = tokio::spawn(held.release());
    // The client tries to release the lock several times in this time.
    sleep(Duration::from_secs(3)).await;
    machine.resume().await.expect("the server is paused");
    released
        .await
        .expect("the task does not panic")
        .expect("the server has released the lock, and no other client took it");
    let next = session_mode(server).await;
    drop(next.mutex("job").try_lock().await.expect("the store replies").expect("the lock was released"));
}
