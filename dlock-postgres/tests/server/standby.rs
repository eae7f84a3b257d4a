//! A primary with a standby. The URL of the servers names the standby first.

use super::{check_in::session, session::ask, *};

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        a_client_uses_the_primary_and_follows_a_promotion,
        a_promoted_standby_forgets_the_grants_that_it_has_not_received,
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
