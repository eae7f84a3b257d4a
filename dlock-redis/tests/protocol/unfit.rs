//! Tests of servers that do not support locks, and of their errors.

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

/// Returns the text of the error that a client gets if `rewrite` replaces its commands.
async fn error_of(scheme: &str, flavour: Flavour, rewrite: fn(Words) -> Words) -> Option<String> {
    let running = servers(flavour).await?;
    let relay = Relay::rewriting(running.servers()[0].address(), rewrite).await;
    let result = async {
        let store = connect(&format!("{scheme}://{}?wait_replicas=1", relay.address)).await?;
        Locks::new(store).mutex("foo").try_lock().await
    };
    let error = result.await.expect_err("the server does not support the request");
    assert!(matches!(error, Error::Refused { .. }), "a retry does not help: {error:?}");
    Some(error_text(&error))
}

async fn a_server_that_is_too_old_is_reported() {
    let text = error_of("redis", Flavour::Standalone, |words| match &*words[0] {
        "INFO" => text_reply("# Server\r\nredis_version:4.0.14\r\nredis_mode:standalone\r\n"),
        _ => words,
    });
    let Some(text) = text.await else { return };
    assert!(text.contains("the server is Redis 4.0.14; locks need 5 or later"), "{text}");
}

async fn a_cluster_that_is_too_old_is_reported() {
    let text = error_of("redis-cluster", Flavour::Cluster, |words| match &*words[0] {
        "HELLO" => error_reply("ERR unknown command `HELLO`, with args beginning with: `3`, "),
        _ => words,
    });
    let Some(text) = text.await else { return };
    assert!(text.contains("a cluster needs Redis 6 or later"), "{text}");
}

async fn a_command_that_the_server_lacks_is_reported() {
    let text = error_of("redis", Flavour::Standalone, |words| match &*words[0] {
        "EVALSHA" => error_reply("ERR unknown command `EVALSHA`, with args beginning with: "),
        _ => words,
    });
    let Some(text) = text.await else { return };
    assert!(text.contains("lacks a command that locks need") && text.contains("EVALSHA"), "{text}");
}

async fn a_server_that_cannot_wait_for_replicas_grants_nothing_to_a_client_that_requires_it() {
    let text = error_of("redis", Flavour::Standalone, |words| match &*words[0] {
        "WAIT" => error_reply("ERR unknown command 'WAIT', with args beginning with: '0' "),
        _ => words,
    });
    let Some(text) = text.await else { return };
    assert!(text.contains("lacks a command that locks need") && text.contains("WAIT"), "{text}");
}

async fn a_master_that_no_sentinel_knows_is_named() {
    let Some(running) = servers(Flavour::Sentinel).await else { return };
    // A Sentinel that is down must not hide the error of another one.
    let url = running.url().replace("/dlock", ",127.0.0.1:1/nobody");
    let error = connect(&url).await.expect_err("the master does not exist");
    assert!(matches!(error, Error::Refused { .. }), "a retry does not help: {error:?}");
    assert!(error_text(&error).contains("knows no master `nobody`"), "{}", error_text(&error));
}
