//! Faults of the queue. Transactions that are not committed, crashes, notifications, other databases,
//! and leftovers.

use std::env;

use dlock_conformance::Proxy;
use dlock_core::{DistributedLock as _, Guard, Kind, LockOptions, MultiLock};
use futures_util::{StreamExt as _, stream};
use tokio::time::sleep;
use tokio_postgres::AsyncMessage;

use super::{
    check_in::{LEASE, session, until_expired},
    session::ask,
    *,
};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        no_claim_passes_an_attempt_that_is_not_committed,
        a_renewal_that_is_not_committed_at_the_expiry_excludes_the_next_holder,
        a_grant_and_a_renewal_outlive_a_crash_of_the_server,
        a_crash_does_not_bring_back_a_released_ticket,
        a_grant_that_waits_for_an_absent_standby_ends_in_time,
        a_token_is_greater_than_those_of_before_a_restore,
        a_hand_off_is_one_notification,
        a_release_beside_a_full_queue_of_notifications_succeeds,
        a_waiter_without_notifications_stores_no_channel,
        a_stuck_bucket_delays_no_lock_of_another_bucket,
        a_listener_that_is_terminated_is_replaced,
        many_clients_without_waiters_listen_to_nothing,
        a_long_snapshot_slows_down_a_hot_lock_and_breaks_nothing,
        objects_of_another_schema_are_not_used,
        names_are_bytes_in_any_encoding_of_the_database,
        a_full_lock_table_refuses_attempts_until_it_has_room,
        an_attempt_that_finds_no_connection_is_not_released,
        nothing_is_left_after_use,
        a_storm_of_terminated_sessions_breaks_no_guarantee,
    }
}

async fn two_clients(server: &Running) -> [Locks; 2] {
    [connect(server).await.expect("connected"), connect(server).await.expect("connected")]
}

/// Tries to acquire a lock, which must not be granted now, whether the try is refused or fails.
async fn assert_not_granted(locks: &Locks, name: &str) {
    match locks.mutex(name).try_lock().ttl(LEASE).await {
        Ok(granted) => assert!(granted.is_none(), "the lock was granted"),
        Err(error) => assert!(error.is_transient(), "{error:?}"),
    }
}

/// Another session keeps the buckets locked, as an attempt does between its number and its commit.
async fn no_claim_passes_an_attempt_that_is_not_committed(server: &Running) {
    let [first, _] = two_clients(server).await;
    let attempt = session(server.url()).await;
    let buckets = "BEGIN; SELECT count(pg_advisory_xact_lock(1145851715, bucket)) FROM generate_series(0, 1023) AS bucket";
    ask(&attempt, buckets).await;
    assert_not_granted(&first, "job").await;
    ask(&attempt, "COMMIT").await;
    let held = timeout(SOON, first.mutex("job").lock()).await.expect("a reply").expect("the lock");
    held.release().await.expect("still held");
}

async fn a_renewal_that_is_not_committed_at_the_expiry_excludes_the_next_holder(server: &Running) {
    let [holder, other] = two_clients(server).await;
    // No client releases a detached hold when it ends.
    let held = holder.mutex("job").lock().await.expect("the lock");
    held.detach(LEASE).await.expect("detached");
    let renewal = session(server.url()).await;
    let renew = "SELECT dlock.renew_2(ARRAY(SELECT claim FROM dlock.queue), 60000000, false)";
    ask(&renewal, &format!("BEGIN; {renew}")).await;
    until_expired(server, "job").await;
    // An attempt that waits for the renewal finds it committed.
    let committed = async {
        sleep(Duration::from_millis(300)).await;
        ask(&renewal, "COMMIT").await;
    };
    tokio::join!(assert_not_granted(&other, "job"), committed);
    let granted = other.mutex("job").try_lock().await.expect("a reply");
    assert!(granted.is_none(), "the renewal was committed before this attempt");
}

async fn restart(server: &Running) {
    let server = &server.servers()[0];
    server.kill().await.expect("killed");
    start_again(server).await;
}

async fn a_grant_and_a_renewal_outlive_a_crash_of_the_server(server: &Running) {
    let ttl = Duration::from_secs(20);
    let [holder, other] = two_clients(server).await;
    let held = holder.mutex("job").lock().ttl(ttl).await.expect("the lock");
    let expires = "SELECT (extract(epoch FROM expires) * 1000000)::bigint FROM dlock.queue";
    restart(server).await;
    let granted = sql(server, expires).await;
    let renewed = async { while sql(server, expires).await == granted {} };
    timeout(ttl, renewed).await.expect("the claim is renewed");
    let renewed = sql(server, expires).await;
    restart(server).await;
    assert!(sql(server, expires).await >= renewed, "the crash has undone a renewal");
    assert!(!held.is_lost(), "the crash has ended the hold");
    assert!(try_until_reply(&other, "job").await.is_none(), "two hold after the crash");
    held.release().await.expect("still held");
    // The crash may undo the release, but not for longer than the ttl.
    restart(server).await;
    let next = timeout(ttl * 2, other.mutex("job").lock()).await.expect("the lock is free");
    next.expect("the lock").release().await.expect("still held");
}

async fn a_crash_does_not_bring_back_a_released_ticket(server: &Running) {
    let [holder, other] = two_clients(server).await;
    let held = holder.mutex("job").lock().await.expect("the lock");
    let ticket = held.detach(Duration::from_secs(24 * 3600)).await.expect("detached");
    holder.release(&ticket).await.expect("released");
    restart(server).await;
    let next = try_until_reply(&other, "job").await.expect("the crash has undone the release of the ticket");
    next.release().await.expect("still held");
}

async fn a_grant_that_waits_for_an_absent_standby_ends_in_time(server: &Running) {
    let [first, second] = two_clients(server).await;
    sql(server, "ALTER SYSTEM SET synchronous_standby_names = 'absent'").await;
    sql(server, "SELECT pg_reload_conf()").await;
    let took_effect = async { while sql(server, "SHOW synchronous_standby_names").await != "absent" {} };
    timeout(SOON, took_effect).await.expect("the server reads its configuration");
    let attempt = timeout(SOON, first.mutex("job").try_lock().ttl(LEASE)).await.expect("the call ends");
    let error = attempt.expect_err("the grant cannot be committed");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    sql(server, "ALTER SYSTEM RESET synchronous_standby_names").await;
    sql(server, "SELECT pg_reload_conf()").await;
    // The grant may still be committed, without a holder. It then blocks the lock for its ttl.
    let held = timeout(LEASE + SOON, second.mutex("job").lock()).await.expect("the lock is free");
    assert!(first.mutex("job").try_lock().await.expect("a reply").is_none(), "two hold");
    held.expect("the lock").release().await.expect("still held");
}

async fn a_token_is_greater_than_those_of_before_a_restore(server: &Running) {
    let locks = connect(server).await.expect("connected");
    let token = async || {
        let held = locks.mutex("job").lock().await.expect("the lock");
        let token = held.token().expect("each grant has a token");
        held.release().await.expect("still held");
        token
    };
    let before = token().await;
    // The backup is older than the grant.
    sql(server, "UPDATE dlock.fence SET last = 7").await;
    let after = token().await;
    assert!(after > before, "{after:?} follows {before:?}");
}

/// Counts the notifications on the channel of a waiting client, without the probes.
async fn a_hand_off_is_one_notification(server: &Running) {
    const ROUNDS: usize = 5;
    let [holder, waiter] = two_clients(server).await;
    let (observer, mut connection) = tokio_postgres::connect(server.url(), NoTls).await.expect("a session");
    let notified = AtomicUsize::new(0);
    let observe = async {
        let mut messages = stream::poll_fn(|context| connection.poll_message(context));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(notification) = message
                && notification.payload() != "probe"
            {
                notified.fetch_add(1, Relaxed);
            }
        }
    };
    let hand_over = async {
        for round in 0..ROUNDS {
            let guard = holder.mutex("job").lock().await.expect("the lock");
            let job = waiter.mutex("job");
            let waiting = async { job.lock().await.expect("the lock") };
            let releasing = async {
                while rows(server).await != "2" {}
                let channel = sql(server, "SELECT channel FROM dlock.queue WHERE NOT held").await;
                observer.batch_execute(&format!("LISTEN {channel}")).await.expect("a channel");
                assert!(holder.mutex("job").try_lock().await.expect("a reply").is_none());
                assert_eq!(notified.load(Relaxed), round, "a try or an entry was notified");
                guard.release().await.expect("released");
            };
            let (next, ()) = tokio::join!(waiting, releasing);
            next.release().await.expect("released");
        }
        // The notifications are delivered in order, before this reply.
        sql(server, "SELECT 1").await;
        observer.batch_execute("SELECT 1").await.expect("a reply");
    };
    tokio::select! {
        () = observe => panic!("the session of the observer has ended"),
        result = timeout(SOON * 2, hand_over) => result.expect("each waiter is granted the lock"),
    }
    assert_eq!(notified.load(Relaxed), ROUNDS);
}

pub(crate) const LISTENERS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock' AND query LIKE 'LISTEN%'";

async fn a_release_beside_a_full_queue_of_notifications_succeeds(server: &Running) {
    sql(server, "ALTER SYSTEM SET max_notify_queue_pages = 64").await;
    restart(server).await;
    let [holder, waiter] = two_clients(server).await;
    let guard = holder.mutex("job").lock().await.expect("the lock");
    // The waiter sends no attempt of its own within the time limit of the test.
    let waiting = waiter.mutex("job").lock().ttl(SOON * 12).into_future();
    let releasing = async {
        while sql(server, LISTENERS).await != "1" || rows(server).await != "2" {}
        // A listener in a transaction keeps the notifications in the queue.
        let listener = session(server.url()).await;
        listener.batch_execute("LISTEN other").await.expect("listens");
        ask(&listener, "BEGIN; SELECT count(*) FROM pg_class").await;
        let fill = "SELECT pg_notify('other', repeat('x', 7900))";
        let sender = session(server.url()).await;
        let error = loop {
            if let Err(error) = sender.batch_execute(fill).await {
                break error;
            }
        };
        assert_eq!(error.code().map(|code| code.code()), Some("54000"), "{error:?}");
        timeout(SOON, guard.release()).await.expect("the release ends").expect("released");
        drop(listener);
    };
    let handed_over = async { tokio::join!(waiting, releasing).0.expect("the lock") };
    let guard = timeout(SOON * 3, handed_over).await.expect("the waiter polls");
    guard.release().await.expect("released");
}

async fn a_waiter_without_notifications_stores_no_channel(server: &Running) {
    let holder = connect(server).await.expect("connected");
    let waiter = connect_to(&format!("{}?notify=off", server.url())).await.expect("connected");
    let guard = holder.mutex("job").lock().await.expect("the lock");
    let waiting = waiter.mutex("job").lock().into_future();
    let releasing = async {
        while rows(server).await != "2" {}
        let channel = sql(server, "SELECT channel FROM dlock.queue WHERE NOT held").await;
        assert_eq!(channel, "-", "a release notifies a client that does not listen");
        guard.release().await.expect("released");
    };
    let handed_over = async { tokio::join!(waiting, releasing).0.expect("the lock") };
    let guard = timeout(SOON, handed_over).await.expect("the waiter polls");
    guard.release().await.expect("released");
}

/// Returns the number of the bucket of a lock's name.
async fn bucket_of(server: &Running, locks: &Locks, name: &str) -> i32 {
    sql(server, "DELETE FROM dlock.fence").await;
    locks.mutex(name).lock().await.expect("the lock").release().await.expect("still held");
    sql(server, "SELECT bucket FROM dlock.fence").await.parse().expect("a number")
}

async fn a_stuck_bucket_delays_no_lock_of_another_bucket(server: &Running) {
    let [locks, other] = two_clients(server).await;
    let mut names = Vec::new();
    for name in ["a", "b", "c"] {
        names.push((bucket_of(server, &locks, name).await, name));
    }
    names.sort_unstable();
    let [(_, first), (stuck, second), (_, third)] = names[..] else { unreachable!("three names") };
    let attempt = session(server.url()).await;
    ask(&attempt, &format!("BEGIN; SELECT pg_advisory_xact_lock(1145851715, {stuck})")).await;
    let all = MultiLock::new([first, second, third].map(|name| locks.of(Kind::Mutex, name)));
    let all = all.expect("three locks");
    let options = LockOptions::default();
    let releasing = async {
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        while sql(server, waits).await != "1" {}
        let beside = "SELECT count(*) FROM pg_locks AS waits JOIN pg_locks AS held USING (pid) \
            WHERE waits.locktype = 'advisory' AND held.locktype = 'advisory' AND NOT waits.granted AND held.granted";
        assert_eq!(sql(server, beside).await, "0", "the attempt waits for a bucket and keeps another locked");
        for name in [first, third] {
            let granted = other.mutex(name).try_lock().await.expect("a reply");
            granted.expect("no claim holds the lock").release().await.expect("still held");
        }
        ask(&attempt, "COMMIT").await;
    };
    let both = async { tokio::join!(all.lock(&options), releasing).0.expect("the locks") };
    timeout(SOON, both).await.expect("the locks are granted").release().await.expect("still held");
}

async fn a_listener_that_is_terminated_is_replaced(server: &Running) {
    let [holder, waiter] = two_clients(server).await;
    let guard = holder.mutex("job").lock().await.expect("the lock");
    let waiting = waiter.mutex("job").lock().ttl(SOON * 12).into_future();
    let releasing = async {
        for _ in 0..3 {
            while sql(server, LISTENERS).await != "1" {}
            let terminate = LISTENERS.replace("count(*)", "count(pg_terminate_backend(pid, 5000))");
            assert_eq!(sql(server, &terminate).await, "1");
        }
        while sql(server, LISTENERS).await != "1" {}
        guard.release().await.expect("released");
    };
    let handed_over = async { tokio::join!(waiting, releasing).0.expect("the lock") };
    let guard = timeout(SOON * 3, handed_over).await.expect("the waiter is granted the lock");
    guard.release().await.expect("released");
}

async fn many_clients_without_waiters_listen_to_nothing(server: &Running) {
    let clients = join_all((0..100).map(|_| connect(server))).await;
    let clients: Vec<_> = clients.into_iter().map(|client| client.expect("connected")).collect();
    let names = (0..clients.len()).map(|number| format!("job {number}"));
    let held = clients.iter().zip(names).map(|(locks, name)| async move { locks.mutex(name).lock().await });
    let held: Vec<Guard> = join_all(held).await.into_iter().map(|held| held.expect("the lock")).collect();
    assert_eq!(sql(server, LISTENERS).await, "0");
    for guard in held {
        guard.release().await.expect("still held");
    }
}

#[expect(clippy::print_stdout, reason = "libtest shows it with --nocapture")]
async fn a_long_snapshot_slows_down_a_hot_lock_and_breaks_nothing(server: &Running) {
    const PAIRS: u32 = 2000;
    let [locks, other] = two_clients(server).await;
    let pairs = async |name: &str| {
        let began = Instant::now();
        for _ in 0..PAIRS {
            locks.mutex(name).lock().await.expect("free").release().await.expect("held until now");
        }
        began.elapsed() / PAIRS
    };
    let without = pairs("before").await;
    sql(server, "CREATE DATABASE reports").await;
    let elsewhere = session(&server.url().replace("/postgres", "/reports")).await;
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
    ask(&elsewhere, snapshot).await;
    let in_another_database = pairs("elsewhere").await;
    let in_same = session(server.url()).await;
    ask(&in_same, snapshot).await;
    let held = other.mutex("precious").lock().ttl(LEASE * 2).await.expect("the lock");
    let in_this_database = timeout(SOON * 6, pairs("local")).await.expect("the pairs end");
    println!(
        "a pair took {without:?}, {in_another_database:?} beside a snapshot in another database, and \
         {in_this_database:?} beside one in this database"
    );
    assert!(!held.is_lost(), "a long snapshot has cost a hold");
    held.release().await.expect("still held");
}

/// A user can be given a search path in which other objects come before those of the server.
async fn objects_of_another_schema_are_not_used(server: &Running) {
    connect(server).await.expect("the client creates the schema");
    let objects = "CREATE SCHEMA evil;
        CREATE TABLE evil.queue (LIKE dlock.queue);
        CREATE TABLE evil.fence (LIKE dlock.fence);
        CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$;
        CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$;
        CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$;
        CREATE FUNCTION evil.pg_advisory_xact_lock(int, int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$;
        ALTER ROLE dlock SET search_path = evil, pg_catalog";
    sql(server, objects).await;
    a_waiter_of_another_client_is_woken_by_the_server(server).await;
    assert_eq!(sql(server, "SELECT count(*) FROM evil.queue").await, "0");
}

async fn names_are_bytes_in_any_encoding_of_the_database(server: &Running) {
    let names = [
        "x".repeat(1024),
        "é".to_owned(),
        "e\u{301}".to_owned(),
        "É".to_owned(),
        "job".to_owned(),
        "Job".to_owned(),
        "job ".to_owned(),
        "漢字".to_owned(),
        "it's \\ 100%".to_owned(),
    ];
    for (database, options) in [
        ("latin1", "ENCODING 'LATIN1' LOCALE 'C'"),
        ("ascii", "ENCODING 'SQL_ASCII' LOCALE 'C'"),
        ("icu", "ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'und' LOCALE 'C'"),
    ] {
        sql(server, &format!("CREATE DATABASE {database} TEMPLATE template0 {options}")).await;
        let url = server.url().replace("/postgres", &format!("/{database}"));
        let (locks, other) =
            (connect_to(&url).await.expect(database), connect_to(&url).await.expect(database));
        let mut held = Vec::new();
        for name in &names {
            let granted = locks.mutex(name).try_lock().await.expect("a reply");
            held.push(granted.unwrap_or_else(|| panic!("{database}: `{name}` is another lock's name")));
            let granted = other.mutex(name).try_lock().await.expect("a reply");
            assert!(granted.is_none(), "{database}: two hold `{name}`");
        }
        let listed = other.list("").await.expect("a reply");
        let mut listed: Vec<_> = listed.iter().map(|state| state.name.to_string()).collect();
        let mut expected = names.to_vec();
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected, "{database}");
        // A waiter of another client is woken.
        let waits = join_all(names.iter().map(|name| other.mutex(name).lock().into_future()));
        let releases = join_all(held.into_iter().map(Guard::release));
        let handed_over = async { tokio::join!(waits, releases) };
        let (granted, released) = timeout(SOON, handed_over).await.expect("each waiter is woken");
        released.into_iter().for_each(|released| released.expect("still held"));
        for guard in granted {
            guard.expect("the lock").release().await.expect("still held");
        }
    }
}

async fn a_full_lock_table_refuses_attempts_until_it_has_room(server: &Running) {
    sql(server, "ALTER SYSTEM SET max_locks_per_transaction = 10").await;
    restart(server).await;
    let locks = connect(server).await.expect("connected");
    let held = locks.mutex("precious").lock().ttl(SOON * 6).await.expect("the lock");
    let greedy = session(server.url()).await;
    let all = "SELECT count(pg_advisory_lock(number)) FROM generate_series(1, 1000000) AS number";
    let error = greedy.simple_query(all).await.expect_err("the table has no room for a million locks");
    assert_eq!(error.code().map(|code| code.code()), Some("53200"), "{error:?}");
    let error = locks.mutex("job").try_lock().ttl(LEASE).await.expect_err("there is no room");
    assert!(matches!(error, Error::Unwritable { .. }), "{error:?}");
    drop(greedy);
    let granted = async {
        loop {
            match locks.mutex("job").try_lock().await {
                Ok(granted) => break granted.expect("a free lock"),
                Err(error) => assert!(matches!(error, Error::Unwritable { .. }), "{error:?}"),
            }
        }
    };
    let next = timeout(SOON, granted).await.expect("the lock is granted once there is room");
    next.release().await.expect("still held");
    held.release().await.expect("still held");
}

/// A release would be repeated for the ttl, and would delay the close.
async fn an_attempt_that_finds_no_connection_is_not_released(server: &Running) {
    let address = server.servers()[0].address().to_string();
    let proxy = Proxy::to(server.servers()[0].address()).await.expect("a proxy");
    let url = server.url().replace(&address, &proxy.address().to_string());
    let locks = connect_to(&url).await.expect("connected");
    proxy.hang_up();
    // The first attempt may be sent on a connection that has just ended, and is released.
    for (name, ttl) in [("first", Duration::from_secs(1)), ("second", Duration::from_secs(600))] {
        let error = timeout(SOON * 2, locks.mutex(name).lock().ttl(ttl)).await.expect("an error");
        assert!(error.expect_err("no server").is_transient());
    }
    timeout(SOON * 3, locks.close()).await.expect("the client releases a claim that was never sent");
}

async fn nothing_is_left_after_use(server: &Running) {
    let [locks, other] = two_clients(server).await;
    let guards = [
        locks.mutex("a").lock().await,
        locks.fair("b").lock().await,
        locks.rwlock("c").read().lock().await,
        locks.rwlock("d").write().lock().await,
        locks.semaphore("e", 3).acquire().await,
        MultiLock::new(["f", "g"].map(|name| locks.of(Kind::Mutex, name)))
            .expect("two locks")
            .lock(&LockOptions::default())
            .await,
    ];
    let waiting = other.mutex("a").lock().wait(Duration::from_millis(300)).await;
    assert!(matches!(waiting, Err(Error::Timeout { .. })), "{waiting:?}");
    for guard in guards {
        guard.expect("the lock").release().await.expect("still held");
    }
    let ticket = locks.mutex("h").lock().await.expect("the lock").detach(SOON).await.expect("detached");
    other.resume(&ticket).await.expect("resumed").release().await.expect("still held");
    assert_eq!(rows(server).await, "0", "a claim is left");
    let locked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(sql(server, locked).await, "0", "an advisory lock is left");
    let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock' \
        AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL)";
    assert_eq!(sql(server, open).await, "0", "a transaction is open");
    locks.close().await;
    other.close().await;
    drop((locks, other));
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock'";
    let closed = async { while sql(server, sessions).await != "0" {} };
    timeout(SOON, closed).await.expect("the clients close their sessions");
}

/// The holders of the lock of the storm.
#[derive(Default)]
struct Holders {
    exclusive: usize,
    readers: usize,
    permits: usize,
    greatest_token: u64,
}

impl Holders {
    /// Returns the number of holders of this kind.
    fn of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Read => &mut self.readers,
            Kind::Permit => &mut self.permits,
            _ => &mut self.exclusive,
        }
    }

    fn add(&mut self, kind: Kind, token: u64) {
        *self.of(kind) += 1;
        let &mut Self { exclusive, readers, permits, greatest_token } = self;
        let kinds = [exclusive, readers, permits].iter().filter(|count| **count > 0).count();
        assert!(
            kinds == 1 && exclusive <= 1 && permits <= PERMITS as usize,
            "{exclusive} exclusive holders, {readers} readers and {permits} permits"
        );
        // The tasks of shared holders may run in another order than they were granted the lock.
        assert!(exclusive == 0 || token > greatest_token, "the token {token} follows {greatest_token}");
        self.greatest_token = token.max(greatest_token);
    }
}

/// Number of permits of the lock of the storm.
const PERMITS: u32 = 3;

/// Contenders of all kinds compete for one name, while sessions are terminated. `DLOCK_STORM` is the
/// number of acquisitions of each contender.
async fn a_storm_of_terminated_sessions_breaks_no_guarantee(server: &Running) {
    const CONTENDERS: usize = 16;
    const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity \
        WHERE application_name = 'dlock' ORDER BY random() LIMIT 1) AS sessions";
    let rounds = env::var("DLOCK_STORM").map_or(25, |rounds| rounds.parse().expect("a number"));
    let holders = parking_lot::Mutex::new(Holders::default());
    let clients = join_all((0..4).map(|_| connect(server))).await;
    let clients: Vec<_> = clients.into_iter().map(|client| client.expect("connected")).collect();
    let contend = async |index: usize| {
        let locks = &clients[index % clients.len()];
        for round in 0..rounds {
            let kind = [Kind::Mutex, Kind::Fair, Kind::Write, Kind::Read, Kind::Permit][(index + round) % 5];
            let held = loop {
                let result = match kind {
                    Kind::Permit => locks.semaphore("storm", PERMITS).acquire().await,
                    kind => locks.of(kind, "storm").lock(&LockOptions::default()).await,
                };
                match result {
                    Ok(held) => break held,
                    Err(error) => assert!(error.is_transient(), "{error:?}"),
                }
            };
            holders.lock().add(kind, held.token().expect("each grant has a token").get());
            tokio::task::yield_now().await;
            *holders.lock().of(kind) -= 1;
            held.release().await.expect("a hold outlives its sessions");
        }
    };
    let storm = async {
        loop {
            sql(server, TERMINATE).await;
            sleep(Duration::from_millis(50)).await;
        }
    };
    let all = join_all((0..CONTENDERS).map(contend));
    let limit = Duration::from_secs(60)
        + Duration::from_millis(100) * u32::try_from(CONTENDERS * rounds).unwrap_or(1);
    tokio::select! {
        () = storm => unreachable!("the storm does not end"),
        finished = timeout(limit, all) => drop(finished.expect("each contender gets the lock")),
    }
    assert_eq!(rows(server).await, "0", "a claim is left");
    let locked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(sql(server, locked).await, "0", "an advisory lock is left");
}
