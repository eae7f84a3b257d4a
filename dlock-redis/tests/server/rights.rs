//! Tests of refused users and passwords, of the errors about missing rights, and that no password
//! is displayed.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks")]

use std::time::Duration;

use dlock_core::{Error, Kind, LockOptions, Locks, Result};
use dlock_testbed::servers::{Running, redis::Flavour};
use futures_util::future::join_all;

use crate::common::{connect, error_text, query, servers, soon};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        a_user_without_rights_gets_the_acl_line_and_with_it_all_operations_work,
        the_acl_line_is_enough_for_events_and_replicas,
        on_a_cluster_a_user_without_rights_gets_the_acl_line_and_with_it_all_operations_work,
        a_user_who_may_not_write_its_label_can_do_everything_else,
        a_wrong_password_is_refused_permanently_and_never_displayed,
        a_missing_password_is_reported,
        errors_of_unreachable_servers_contain_no_password,
        the_debug_output_of_a_connection_contains_no_password,
        a_name_that_the_user_may_no_longer_use_loses_no_other_lock,
    }
}

/// Returns the rights that a user needs, according to the README.
///
/// # Panics
/// If the error does not name the same rights.
fn rights(error: &str) -> &'static str {
    let line = include_str!("../../README.md").lines().find(|line| line.starts_with("ACL SETUSER name "));
    let line = line.expect("the README names the rights of a user");
    assert!(error.contains(line), "the README says {line}, and the error: {error}");
    &line["ACL SETUSER name ".len()..]
}

/// Sends a command to each server.
async fn each(running: &Running, command: &str) {
    for server in running.servers() {
        query::<()>(server, command).await;
    }
}

/// Returns the URL with this user.
fn with_user(url: &str, user: &str) -> String {
    url.replacen("://", &format!("://{user}@"), 1)
}

async fn locks(url: &str) -> Result<Locks> {
    Ok(Locks::new(connect(url).await?))
}

/// Asserts that all operations work: every kind, waits, renewals, inspection and breaking locks.
async fn all_works(locks: &Locks) {
    let options = LockOptions::new().ttl(Duration::from_secs(600));
    for kind in crate::common::KINDS {
        let held = locks.of(*kind, "foo").lock(&options).await.expect("the lock is free");
        let lock = locks.of(if *kind == Kind::Read { Kind::Write } else { *kind }, "foo");
        let waiter_options = options.clone();
        let waiter = tokio::spawn(async move { lock.lock(&waiter_options).await });
        // The server has no data about waiters for a mutex.
        while *kind != Kind::Mutex && waiting(locks).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        held.release().await.expect("the lock is still held");
        let held = soon("the waiter was not woken", waiter)
            .await
            .expect("no panic")
            .expect("the user may subscribe");
        held.release().await.expect("the lock is still held");
    }
    // The first renewal is sent before the end of the sleep.
    let held = locks.mutex("foo").lock().ttl(Duration::from_secs(2)).await.expect("the lock is free");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!held.is_lost(), "the hold was not renewed");
    assert_eq!(locks.list("").await.expect("the user may inspect locks").len(), 1);
    assert!(locks.force_release("foo").await.expect("the user may break locks"));
}

async fn waiting(locks: &Locks) -> usize {
    locks.inspect("foo").await.expect("the user may inspect locks").map_or(0, |state| state.queue.len())
}

async fn is_refused_without_rights_and_works_with_them(flavour: Flavour, params: &str) {
    let Some(running) = servers(flavour).await else { return };
    each(&running, "ACL SETUSER poor on >hunter2 +@connection ~*").await;
    let url = with_user(running.url(), "poor:hunter2") + params;
    let refused = async { locks(&url).await?.mutex("foo").lock().await }.await;
    let error = refused.expect_err("the user may do nothing");
    assert!(!error.is_transient(), "an error that needs a person counts as transient: {error:?}");
    each(&running, &format!("ACL SETUSER poor {}", rights(&error_text(&error)))).await;
    all_works(&locks(&url).await.expect("the user may connect")).await;
}

async fn a_user_without_rights_gets_the_acl_line_and_with_it_all_operations_work() {
    is_refused_without_rights_and_works_with_them(Flavour::Standalone, "").await;
}

async fn the_acl_line_is_enough_for_events_and_replicas() {
    let params = "?keyspace_events=on&wait_replicas=1";
    is_refused_without_rights_and_works_with_them(Flavour::Standalone, params).await;
}

async fn on_a_cluster_a_user_without_rights_gets_the_acl_line_and_with_it_all_operations_work() {
    is_refused_without_rights_and_works_with_them(Flavour::Cluster, "").await;
}

async fn a_user_who_may_not_write_its_label_can_do_everything_else() {
    let Some(running) = servers(Flavour::Standalone).await else { return };
    let keys = "~foo ~redisson_lock_*{foo} ~dlock_*{foo} ~{foo}:* ~dlock_forced:*";
    each(&running, &format!("ACL SETUSER poor on >hunter2 +@all &* {keys}")).await;
    let locks = locks(&with_user(running.url(), "poor:hunter2")).await.expect("the user may connect");
    all_works(&locks).await;
    let texts: Vec<String> = query(&running.servers()[0], "KEYS dlock_who:*").await;
    assert!(texts.is_empty(), "the user has written {texts:?}, so this test covers nothing");
}

async fn a_wrong_password_is_refused_permanently_and_never_displayed() {
    for (flavour, servers_with_users) in [
        (Flavour::Standalone, 0..1),
        (Flavour::Tls, 0..0),
        (Flavour::Sentinel, 0..2),
        (Flavour::Cluster, 0..3),
    ] {
        let Some(running) = servers(flavour).await else { return };
        for server in &running.servers()[servers_with_users] {
            query::<()>(server, "ACL SETUSER app on >right +@all ~* &*").await;
        }
        let mut url = with_user(running.url(), "app:hunter2");
        if let Some(ca) = running.ca() {
            let (_, host) = running.url().rsplit_once('@').expect("the URL has a user");
            url = format!("rediss://app:hunter2@{host}?ca={}", ca.display());
        }
        let error = connect(&url).await.expect_err("the password is wrong");
        let text = error_text(&error);
        assert!(matches!(error, Error::Refused { .. }), "{flavour:?}: a retry does not help: {text}");
        assert!(text.contains("no such user and password"), "{flavour:?}: {text}");
        assert!(!text.contains("hunter2"), "{flavour:?}: {text}");
    }
}

async fn a_missing_password_is_reported() {
    let Some(running) = servers(Flavour::Standalone).await else { return };
    query::<()>(&running.servers()[0], "CONFIG SET requirepass hunter2").await;
    let error = connect(running.url()).await.expect_err("there is no password");
    assert!(
        !error.is_transient() && error_text(&error).contains("put it into the URL"),
        "{}",
        error_text(&error)
    );
}

async fn errors_of_unreachable_servers_contain_no_password() {
    for url in [
        "redis://app:hunter2@127.0.0.1:1",
        "redis+sentinel://app:hunter2@127.0.0.1:1,127.0.0.1:2/main",
        "redis-cluster://app:hunter2@127.0.0.1:1,127.0.0.1:2",
        "redis+redlock://app:hunter2@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
        "rediss://app:hunter2@127.0.0.1:1?ca=/nowhere",
    ] {
        let text = error_text(&connect(url).await.expect_err("no server has this address"));
        assert!(!text.contains("hunter2"), "{text}");
    }
}

async fn the_debug_output_of_a_connection_contains_no_password() {
    let Some(running) = servers(Flavour::Tls).await else { return };
    let url = format!("{}?ca={}", running.url(), running.ca().expect("the server uses TLS").display());
    let store = connect(&url).await.unwrap();
    let locks = Locks::new(store.clone());
    let held = locks.mutex("foo").lock().await.unwrap();
    let state = locks.inspect("foo").await.unwrap();
    let text = format!("{store:?} {locks:?} {held:?} {state:?} {:?}", store.backend.info());
    for secret in ["s3cret", "odd#signs", "odd%23signs"] {
        assert!(!text.contains(secret), "{text}");
    }
}

async fn a_name_that_the_user_may_no_longer_use_loses_no_other_lock() {
    let Some(running) = servers(Flavour::Standalone).await else { return };
    each(&running, "ACL SETUSER app on >secret +@all ~* &*").await;
    let locks = locks(&with_user(running.url(), "app:secret")).await.unwrap();
    let ttl = Duration::from_secs(3);
    let taken = ["a1", "a2", "b1"].map(|name| locks.mutex(name).lock().ttl(ttl).into_future());
    let held = join_all(taken).await;
    let held: Vec<_> = held.into_iter().map(|held| held.expect("no other client holds the lock")).collect();
    each(&running, "ACL SETUSER app resetkeys ~a* ~redisson_lock_token:{a*").await;
    soon("the holder was not notified that its user may no longer renew the lock", held[2].lost()).await;
    // The ttl of the other locks has ended too by then, so only a renewal can have kept them.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(
        !held[0].is_lost() && !held[1].is_lost(),
        "a lock that the user may renew was lost with a lock that it may not renew: {held:?}"
    );
}
