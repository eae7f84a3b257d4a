//! Servers that are not fit for locks, and the errors that say so.

use dlock_core::{Error, Locks};
use dlock_testbed::servers::redis::Flavour;

use crate::common::{
    connect, error_text,
    relay::{Relay, Words, error_reply, text_reply},
    servers,
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_server_that_is_too_old_is_reported,
        a_cluster_that_is_too_old_is_reported,
        a_command_that_the_server_lacks_is_reported,
        a_server_that_cannot_wait_for_replicas_grants_nothing_to_a_client_that_requires_it,
        a_master_that_no_sentinel_knows_is_named,
    }
}

/// The error that a client gets if `rewrite` replaces the commands that it sends to the server.
async fn told_of(scheme: &str, flavour: Flavour, rewrite: fn(Words) -> Words) -> Option<String> {
    let running = servers(flavour).await?;
    let relay = Relay::rewriting(running.servers()[0].address(), rewrite).await;
    let used = async {
        let store = connect(&format!("{scheme}://{}?wait_replicas=1", relay.address)).await?;
        Locks::new(store).mutex("foo").try_lock().await
    };
    let error = used.await.expect_err("this server cannot do what is asked");
    assert!(matches!(error, Error::Refused { .. }), "asking again does not help: {error:?}");
    Some(error_text(&error))
}

async fn a_server_that_is_too_old_is_reported() {
    let told = told_of("redis", Flavour::Standalone, |words| match &*words[0] {
        "INFO" => text_reply("# Server\r\nredis_version:4.0.14\r\nredis_mode:standalone\r\n"),
        _ => words,
    });
    let Some(told) = told.await else { return };
    assert!(told.contains("the server is Redis 4.0.14; locks need 5 or later"), "{told}");
}

async fn a_cluster_that_is_too_old_is_reported() {
    let told = told_of("redis-cluster", Flavour::Cluster, |words| match &*words[0] {
        "HELLO" => error_reply("ERR unknown command `HELLO`, with args beginning with: `3`, "),
        _ => words,
    });
    let Some(told) = told.await else { return };
    assert!(told.contains("a cluster needs Redis 6 or later"), "{told}");
}

async fn a_command_that_the_server_lacks_is_reported() {
    let told = told_of("redis", Flavour::Standalone, |words| match &*words[0] {
        "EVALSHA" => error_reply("ERR unknown command `EVALSHA`, with args beginning with: "),
        _ => words,
    });
    let Some(told) = told.await else { return };
    assert!(told.contains("lacks a command that locks need") && told.contains("EVALSHA"), "{told}");
}

async fn a_server_that_cannot_wait_for_replicas_grants_nothing_to_a_client_that_requires_it() {
    let told = told_of("redis", Flavour::Standalone, |words| match &*words[0] {
        "WAIT" => error_reply("ERR unknown command 'WAIT', with args beginning with: '0' "),
        _ => words,
    });
    let Some(told) = told.await else { return };
    assert!(told.contains("lacks a command that locks need") && told.contains("WAIT"), "{told}");
}

async fn a_master_that_no_sentinel_knows_is_named() {
    let Some(running) = servers(Flavour::Sentinel).await else { return };
    // A Sentinel that is down must not hide the error of the other.
    let url = running.url().replace("/dlock", ",127.0.0.1:1/nobody");
    let error = connect(&url).await.expect_err("there is no such master");
    assert!(matches!(error, Error::Refused { .. }), "asking again does not help: {error:?}");
    assert!(error_text(&error).contains("knows no master `nobody`"), "{}", error_text(&error));
}
