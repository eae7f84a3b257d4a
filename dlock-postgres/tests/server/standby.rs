//! A primary with a standby. The URL of the servers names the standby first.

use super::{check_in::session, queue::LISTENERS, session::ask, *};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        a_client_uses_the_primary_and_follows_a_promotion,
        a_promoted_standby_forgets_the_grants_that_it_has_not_received,
        a_listener_follows_the_calls_to_a_promoted_standby,
        a_client_that_only_waits_follows_a_promotion,
    }
}

/// Returns the URL of one of the servers.
fn url_of(server: &Running, index: usize) -> String {
    let (login, _) = server.url().split_once('@').expect("a login");
    format!("{login}@{}/postgres", server.servers()[index].address())
}

/// Makes the standby the primary.
async fn promote(server: &Running) {
    assert_eq!(ask(&session(&url_of(server, 1)).await, "SELECT pg_promote()").await, "t");
}

async fn until_replicated(server: &Running, query: &str, expected: &str) {
    let standby = session(&url_of(server, 1)).await;
    let replicated = async {
        // The schema may not be replicated yet.
        while !standby.simple_query(query).await.is_ok_and(|reply| {
            reply.iter().any(
                |message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some(expected)),
            )
        }) {}
    };
    timeout(SOON, replicated).await.expect("the standby receives the claim");
}

async fn a_client_uses_the_primary_and_follows_a_promotion(server: &Running) {
    let (holder, other) =
        (connect(server).await.expect("connected"), connect(server).await.expect("connected"));
    let held = holder.mutex("job").lock().ttl(SOON * 6).await.expect("the lock");
    until_replicated(server, "SELECT count(*) FROM dlock.queue WHERE held", "1").await;
    server.servers()[0].kill().await.expect("killed");
    promote(server).await;
    assert!(try_until_reply(&other, "job").await.is_none(), "two hold after the promotion");
    let token = held.token();
    held.release().await.expect("the promoted standby has the claim");
    let next = other.mutex("job").lock().wait(SOON).await.expect("the lock is free");
    assert!(next.token() > token, "{:?} follows {token:?}", next.token());
    next.release().await.expect("still held");
}

/// A limit of asynchronous replication that the README documents.
async fn a_promoted_standby_forgets_the_grants_that_it_has_not_received(server: &Running) {
    let (holder, other) =
        (connect(server).await.expect("connected"), connect(server).await.expect("connected"));
    holder.mutex("job").lock().await.expect("the lock").release().await.expect("still held");
    until_replicated(server, "SELECT count(*) FROM dlock.queue", "0").await;
    let [primary, standby] = [&server.servers()[0], &server.servers()[1]];
    standby.kill().await.expect("killed");
    let held = holder.mutex("job").lock().ttl(SOON).await.expect("the lock");
    primary.kill().await.expect("killed");
    start_again(standby).await;
    promote(server).await;
    let next = try_until_reply(&other, "job").await.expect("the standby has not received the claim");
    assert!(next.token() > held.token(), "{:?} follows {:?}", next.token(), held.token());
    timeout(SOON * 2, held.lost()).await.expect("the first holder is notified");
    next.release().await.expect("still held");
}

/// Makes the primary refuse writes, as a failover does that cannot stop it. Its sessions stay open.
async fn fence_primary(server: &Running) {
    let primary = session(&url_of(server, 0)).await;
    ask(&primary, "ALTER SYSTEM SET default_transaction_read_only = on").await;
    ask(&primary, "SELECT pg_reload_conf()").await;
    let took_effect = async { while ask(&primary, "SHOW transaction_read_only").await != "on" {} };
    timeout(SOON, took_effect).await.expect("the server reads its configuration");
}

/// Waits until a client listens on one of the servers.
async fn until_listening(server: &Running, index: usize) {
    let observer = session(&url_of(server, index)).await;
    let listens = async { while ask(&observer, LISTENERS).await != "1" {} };
    timeout(SOON, listens).await.unwrap_or_else(|_| panic!("no client listens on server {index}"));
}

/// Fails over while a client waits for a lock. `until_moved` uses the waiter's client before the
/// lock is released on the new primary.
async fn fail_over_beside_a_waiter(server: &Running, until_moved: impl AsyncFnOnce(&Locks)) {
    let (holder, waiter) =
        (connect(server).await.expect("connected"), connect(server).await.expect("connected"));
    let held = holder.mutex("job").lock().ttl(SOON * 12).await.expect("the lock");
    // The waiter sends no attempt of its own within the time limit of the test.
    let waiting = waiter.mutex("job").lock().ttl(SOON * 12).into_future();
    let releasing = async {
        until_listening(server, 0).await;
        until_replicated(server, "SELECT count(*) FROM dlock.queue", "2").await;
        fence_primary(server).await;
        promote(server).await;
        until_moved(&waiter).await;
        held.release().await.expect("the promoted standby has the claim");
    };
    let handed_over = async { tokio::join!(waiting, releasing).0.expect("the lock") };
    let next = timeout(SOON * 3, handed_over).await.expect("the waiter is granted the lock");
    next.release().await.expect("still held");
}

async fn a_listener_follows_the_calls_to_a_promoted_standby(server: &Running) {
    fail_over_beside_a_waiter(server, async |waiter| {
        let other = waiter.mutex("other").lock().await.expect("the promoted standby accepts writes");
        until_listening(server, 1).await;
        other.release().await.expect("still held");
    })
    .await;
}

async fn a_client_that_only_waits_follows_a_promotion(server: &Running) {
    fail_over_beside_a_waiter(server, async |_| {}).await;
}
