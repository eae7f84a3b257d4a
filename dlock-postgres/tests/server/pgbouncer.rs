//! Both modes behind the connection pooler pgbouncer.

use dlock_testbed::servers::postgres::{Pooling, pool};

use super::{check_in::session, session::ask, *};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        session_mode_is_refused_behind_a_pooler_of_transactions,
        session_mode_works_behind_a_pooler_of_sessions,
        a_waiter_behind_a_pooler_of_transactions_polls,
        the_isolation_level_of_pooled_sessions_is_not_changed,
    }
}

async fn pooler(server: &Running, pooling: Pooling) -> Running {
    pool(server, pooling).await.unwrap_or_else(|unreachable| panic!("{}", unreachable.reason))
}

async fn session_mode_is_refused_behind_a_pooler_of_transactions(server: &Running) {
    for pooling in [Pooling::Transaction, Pooling::TransactionWithoutStatements] {
        let pooler = pooler(server, pooling).await;
        let error = connect_to(&format!("{}?mode=session", pooler.url())).await.expect_err("a pooler");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(format!("{error:?}").contains("connect to the server directly"), "{error:?}");
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        assert_eq!(sql(server, locks).await, "0", "a refused client has left a lock");
    }
}

async fn session_mode_works_behind_a_pooler_of_sessions(server: &Running) {
    let pooler = pooler(server, Pooling::Session).await;
    let locks = connect_to(&format!("{}?mode=session&names=number", pooler.url())).await.expect("connected");
    let other = session(server.url()).await;
    let held = locks.mutex("1").lock().await.expect("the lock");
    assert_eq!(ask(&other, "SELECT pg_try_advisory_lock(1)").await, "f", "two hold");
    held.release().await.expect("still held");
    assert_eq!(ask(&other, "SELECT pg_try_advisory_lock(1)").await, "t", "a release left the lock taken");
    assert!(locks.mutex("1").try_lock().await.expect("a reply").is_none(), "two hold");
}

async fn a_waiter_behind_a_pooler_of_transactions_polls(server: &Running) {
    let pooler = pooler(server, Pooling::Transaction).await;
    let (holder, waiter) = (connect(server).await, connect_to(pooler.url()).await);
    let (holder, waiter) = (holder.expect("connected"), waiter.expect("connected"));
    hand_over_to_a_poller(server, &holder, &waiter).await;
    waiter.close().await;
    let pooled = session(pooler.url()).await;
    let listening = "SELECT count(*) FROM pg_listening_channels()";
    assert_eq!(ask(&pooled, listening).await, "0", "a pooled session still listens for a client");
}

async fn the_isolation_level_of_pooled_sessions_is_not_changed(server: &Running) {
    sql(server, "ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'").await;
    let pooler = pooler(server, Pooling::Transaction).await;
    let error = connect_to(pooler.url()).await.expect_err("the level cannot be chosen");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("ALTER ROLE"), "{error:?}");
    let pooled = session(pooler.url()).await;
    let level = ask(&pooled, "SHOW default_transaction_isolation").await;
    assert_eq!(level, "serializable", "dlock has changed a session of another client");
    sql(server, "ALTER ROLE dlock SET default_transaction_isolation = 'read committed'").await;
    // The sessions of the pooler have the old default until they end.
    sql(server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'").await;
    let connected = async {
        loop {
            match connect_to(pooler.url()).await {
                Ok(locks) => break locks,
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        }
    };
    let locks = timeout(SOON, connected).await.expect("connected");
    locks.mutex("job").lock().await.expect("the lock").release().await.expect("released");
}
