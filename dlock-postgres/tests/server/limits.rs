//! Users who may open few sessions, or whose sessions have time limits.

use tokio::time::sleep;

use super::{check_in::session, *};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        a_hold_outlives_sessions_that_cannot_be_opened,
        a_waiter_whose_client_cannot_listen_polls,
        an_error_about_too_many_sessions_names_the_settings,
        time_limits_of_the_server_cost_no_hold_and_no_waiter,
        the_longest_name_of_a_schema_is_that_of_a_store,
        a_client_with_one_connection_keeps_its_holds_beside_many_attempts,
    }
}

/// Creates a user who may open this number of sessions, and returns the URL with the user.
async fn url_of_user(server: &Running, sessions: i32) -> String {
    connect(server).await.expect("the client creates the schema");
    let create = format!(
        "CREATE ROLE few LOGIN PASSWORD 'few' CONNECTION LIMIT {sessions}; GRANT USAGE ON SCHEMA dlock TO few; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dlock TO few"
    );
    sql(server, &create).await;
    server.url().replace("dlock:s3cret%3A%2F@", "few:few@")
}

async fn a_hold_outlives_sessions_that_cannot_be_opened(server: &Running) {
    let url = url_of_user(server, 2).await;
    let locks = connect_to(&url).await.expect("one session is enough");
    let ttl = Duration::from_secs(5);
    let held = locks.mutex("precious").lock().ttl(ttl).await.expect("the lock");
    let began = Instant::now();
    join_all((0..8).map(|number| {
        let lock = locks.mutex(format!("other {number}"));
        async move {
            while began.elapsed() < ttl * 2 {
                let guard = lock.try_lock().await.expect("two sessions can be opened");
                guard.expect("the lock is free").release().await.expect("released");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }))
    .await;
    assert!(!held.is_lost(), "the hold is lost");
    held.release().await.expect("released");
}

async fn a_waiter_whose_client_cannot_listen_polls(server: &Running) {
    let url = url_of_user(server, 1).await;
    let (holder, waiter) = (connect(server).await.expect("connected"), connect_to(&url).await);
    hand_over_to_a_poller(server, &holder, &waiter.expect("one session is enough")).await;
}

async fn an_error_about_too_many_sessions_names_the_settings(server: &Running) {
    let url = url_of_user(server, 1).await;
    let occupied = session(&url).await;
    let error = connect_to(&url).await.expect_err("no session is free");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("max_connections") && source.contains("`connections`"), "{source}");
    drop(occupied);
}

async fn time_limits_of_the_server_cost_no_hold_and_no_waiter(server: &Running) {
    let ttl = Duration::from_secs(8);
    let url = url_of_user(server, -1).await;
    for limit in [
        "statement_timeout = '1s'",
        "lock_timeout = '1s'",
        "idle_in_transaction_session_timeout = '100ms'",
        "idle_session_timeout = '1s'",
    ] {
        sql(server, &format!("ALTER ROLE few SET {limit}")).await;
    }
    let (holder, waiter) = (connect_to(&url).await, connect_to(&url).await);
    let (holder, waiter) = (holder.expect("connected"), waiter.expect("connected"));
    let held = holder.mutex("job").lock().ttl(ttl).await.expect("the lock");
    // The waiter sends no attempt of its own within the time limit of the test.
    let waiting = waiter.mutex("job").lock().ttl(SOON * 12).into_future();
    let releasing = async {
        while rows(server).await != "2" {}
        sleep(ttl * 3).await;
        assert!(!held.is_lost(), "the hold is lost");
        held.release().await.expect("released");
        Instant::now()
    };
    let handed_over = async {
        let (next, released_at) = tokio::join!(waiting, releasing);
        next.expect("the lock").release().await.expect("released");
        released_at.elapsed()
    };
    let duration = timeout(ttl * 3 + SOON * 2, handed_over).await.expect("the waiter gets the lock");
    assert!(duration < SOON, "the hand-off took {duration:?}");
}

async fn the_longest_name_of_a_schema_is_that_of_a_store(server: &Running) {
    let urls = ["a", "b"].map(|end| format!("{}?schema={}{end}", server.url(), "x".repeat(62)));
    let holder = connect_to(&urls[0]).await.expect("the schema can be created");
    let waiter = connect_to(&urls[0]).await.expect("the schema can be used");
    let other = connect_to(&urls[1]).await.expect("the schema can be created");
    let held = holder.mutex("job").lock().await.expect("the lock");
    assert!(waiter.mutex("job").try_lock().await.expect("a reply").is_none(), "two hold the lock");
    drop(other.mutex("job").try_lock().await.expect("a reply").expect("another schema is another store"));
    let waiting = waiter.mutex("job").lock().into_future();
    let handed_over = async { tokio::join!(waiting, held.release()) };
    let (next, released) = timeout(SOON, handed_over).await.expect("the waiter is woken");
    released.expect("released");
    next.expect("the lock").release().await.expect("released");
}

async fn a_client_with_one_connection_keeps_its_holds_beside_many_attempts(server: &Running) {
    let ttl = Duration::from_secs(8);
    let locks = connect_to(&format!("{}?connections=1", server.url())).await.expect("connected");
    let held = locks.mutex("precious").lock().ttl(ttl).await.expect("the lock");
    let began = Instant::now();
    let contend = |number: usize| {
        let lock = locks.mutex(format!("job {}", number % 4));
        async move {
            while began.elapsed() < ttl * 3 {
                let granted = lock.lock().ttl(ttl).await.expect("one connection is enough");
                granted.release().await.expect("released");
            }
        }
    };
    let finished = timeout(ttl * 3 + SOON * 2, join_all((0..64).map(contend))).await;
    finished.expect("each contender gets the lock");
    assert!(!held.is_lost(), "the hold is lost");
    held.release().await.expect("released");
}
