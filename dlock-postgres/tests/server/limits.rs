//! Users who may open few sessions.

use tokio::time::sleep;

use super::{check_in::session, *};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        a_hold_outlives_sessions_that_cannot_be_opened,
        a_waiter_whose_client_cannot_listen_polls,
        an_error_about_too_many_sessions_names_the_settings,
    }
}

/// Creates a user who may open this number of sessions, and returns the URL with the user.
async fn url_of_user(server: &Running, sessions: u32) -> String {
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
    let (waiter, guard) =
        (waiter.expect("one session is enough"), holder.mutex("job").lock().await.expect("the lock"));
    // The waiter sends no attempt of its own within the time limit of the test.
    let waiting = waiter.mutex("job").lock().ttl(SOON * 12).into_future();
    let releasing = async {
        while rows(server).await != "2" {}
        guard.release().await.expect("released");
    };
    let handed_over = async { tokio::join!(waiting, releasing).0.expect("the lock") };
    let guard = timeout(SOON, handed_over).await.expect("the waiter polls");
    guard.release().await.expect("released");
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
