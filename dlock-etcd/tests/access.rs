//! Who may do what: users, their rights, and certificates.

#[path = "common/mod.rs"]
mod common;

use std::{error::Error as _, time::Duration};

use common::{Bench, SOON, TTL, connect, go, soon, unique};
use dlock_conformance::Proxy;
use dlock_core::{DistributedLock, Error, Kind, LockOptions, Locks, MultiLock};
use dlock_testbed::servers::etcd::{Flavour, client, start};
use etcd_client::{Permission, PermissionType};
use tokio::time::sleep;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_login_that_is_missing_or_wrong_is_refused_with_what_to_do,
        a_server_without_users_says_so,
        a_user_needs_rights_on_its_locks_and_is_told_which,
        of_several_locks_one_without_rights_is_refused_and_the_others_stay_free,
        a_refusal_of_several_locks_that_nobody_waits_for_any_more_ends,
        a_token_that_expires_costs_no_lock_and_no_wake_up,
        a_changed_password_is_read_again_and_costs_no_lock,
        a_right_that_is_revoked_concerns_no_other_lock,
        tls_needs_the_authority_and_the_clients_certificate,
    }])
}

/// Longer than a token of the test's server lives.
const EXPIRED: Duration = Duration::from_secs(8);

/// A server that knows `root` and `app`, who may lock below `app.`, both with the password `secret`.
async fn with_users() -> Option<Bench> {
    let bench = Bench::one().await?;
    let mut auth = bench.raw.auth_client();
    let rights = Permission::new(PermissionType::Readwrite, "app.").with_prefix();
    auth.user_add("root", "secret", None).await.expect("new");
    auth.role_add("root").await.expect("new");
    auth.user_grant_role("root", "root").await.expect("new");
    auth.user_add("app", "secret", None).await.expect("new");
    auth.role_add("locks").await.expect("new");
    auth.role_grant_permission("locks", rights).await.expect("new");
    auth.user_grant_role("app", "locks").await.expect("new");
    auth.auth_enable().await.expect("there is a root");
    Some(bench)
}

fn url(bench: &Bench, login: &str) -> String {
    format!("{}?session=20s", bench.running.url().replace("://", &format!("://{login}")))
}

async fn refusal(bench: &Bench, login: &str) -> String {
    match connect(&url(bench, login)).await {
        Err(error @ Error::Refused { .. }) => error.source().expect("the server's").to_string(),
        told => panic!("{told:?}"),
    }
}

async fn a_login_that_is_missing_or_wrong_is_refused_with_what_to_do() {
    let Some(bench) = with_users().await else { return };
    assert!(refusal(&bench, "").await.contains("wants a user and a password"));
    let told = refusal(&bench, "app:wrong@").await;
    assert!(told.contains("knows no such user") && !told.contains("wrong"), "{told}");
}

async fn a_server_without_users_says_so() {
    let Some(bench) = Bench::one().await else { return };
    assert!(refusal(&bench, "app:secret@").await.contains("leave the user out"));
}

async fn a_user_needs_rights_on_its_locks_and_is_told_which() {
    let Some(bench) = with_users().await else { return };
    let locks = Locks::new(connect(&url(&bench, "app:secret@")).await.expect("it may connect"));
    let name = format!("app.{}", unique());
    let held = locks.mutex(&name).lock().ttl(TTL).await.expect("it may");
    assert!(locks.mutex(&name).try_lock().await.expect("it may").is_none());
    held.detach(TTL).await.expect("it may");
    assert!(locks.force_release(&name).await.expect("it may"));
    let told = locks.mutex(unique()).lock().await;
    let Err(error @ Error::Refused { .. }) = told else { panic!("{told:?}") };
    assert!(error.source().expect("ours").to_string().contains("grant-permission"), "{error:?}");
    locks.close().await;
}

async fn of_several_locks_one_without_rights_is_refused_and_the_others_stay_free() {
    let Some(bench) = with_users().await else { return };
    let locks = Locks::new(connect(&url(&bench, "app:secret@")).await.expect("it may connect"));
    let (mine, other) = (format!("app.{}", unique()), unique());
    let both = [&mine, &other].map(|name| locks.of(Kind::Mutex, name));
    let told = MultiLock::new(both).expect("two names").lock(&LockOptions::new().ttl(TTL)).await;
    let Err(error @ Error::Refused { .. }) = told else { panic!("{told:?}") };
    assert!(error.source().expect("ours").to_string().contains("grant-permission"), "{error:?}");
    let held = soon("the other one is held", locks.mutex(&mine).lock().ttl(TTL).into_future()).await;
    held.expect("free").release().await.expect("held until now");
    soon("it goes on releasing what it may not have", locks.close()).await;
}

async fn a_refusal_of_several_locks_that_nobody_waits_for_any_more_ends() {
    let Some(bench) = with_users().await else { return };
    let proxy = Proxy::to(bench.running.servers()[0].address()).await.expect("a port is free");
    let url = format!("etcd://app:secret@{}?session=20s&timeout=9s", proxy.address());
    let locks = Locks::new(connect(&url).await.expect("it may connect"));
    let mine = format!("app.{}", unique());
    // Opens what there is to open.
    locks.mutex(&mine).lock().ttl(TTL).await.expect("it may").release().await.expect("held until now");
    proxy.hold_answers();
    let both = [&mine, &unique()].map(|name| locks.of(Kind::Mutex, name));
    let asking = go(async move {
        let both = MultiLock::new(both).expect("two names");
        both.lock(&LockOptions::new().ttl(TTL)).await.map(drop)
    });
    // The refusal is on its way.
    sleep(Duration::from_millis(300)).await;
    asking.abort();
    assert!(asking.await.is_err(), "it was answered");
    proxy.pass();
    soon("it goes on releasing what it never had", locks.close()).await;
}

async fn a_token_that_expires_costs_no_lock_and_no_wake_up() {
    let Some(bench) = with_users().await else { return };
    let store = async || Locks::new(connect(&url(&bench, "app:secret@")).await.expect("it may connect"));
    let (a, b, name) = (store().await, store().await, format!("app.{}", unique()));
    let held = a.mutex(&name).lock().ttl(TTL).await.expect("free");
    let waiter = go(b.mutex(&name).lock().ttl(TTL));
    sleep(EXPIRED).await;
    assert!(!held.is_lost());
    held.release().await.expect("held until now");
    let held = soon("it is not woken", waiter).await.expect("no panic").expect("its turn");
    sleep(EXPIRED).await;
    // A watch with a token that has expired.
    let waiter = go(a.mutex(&name).lock().ttl(TTL));
    sleep(SOON).await;
    held.release().await.expect("held until now");
    soon("it is not woken", waiter)
        .await
        .expect("no panic")
        .expect("its turn")
        .release()
        .await
        .expect("held");
}

async fn tls_needs_the_authority_and_the_clients_certificate() {
    let Some(running) = dlock_conformance::or_ignore(start(Flavour::Tls).await) else { return };
    let Some(ca) = running.ca() else { return };
    let [certificate, key] = client(&running.servers()[0]);
    let ca = format!("{}?ca={}", running.url(), ca.display());
    let url = format!("{ca}&cert={}&key={}", certificate.display(), key.display());
    let locks = Locks::new(connect(&url).await.expect("both are there"));
    let held = locks.mutex("x").lock().await.expect("free");
    let waiter = go(locks.mutex("x").lock());
    sleep(Duration::from_millis(300)).await;
    held.release().await.expect("held until now");
    soon("it is not woken", waiter)
        .await
        .expect("no panic")
        .expect("its turn")
        .release()
        .await
        .expect("held");
    locks.close().await;
    for wrong in [running.url(), &ca] {
        let told = connect(wrong).await;
        assert!(told.is_err(), "{wrong}");
    }
}

async fn a_changed_password_is_read_again_and_costs_no_lock() {
    let Some(bench) = with_users().await else { return };
    let file = std::env::temp_dir().join(unique());
    std::fs::write(&file, "secret").expect("a directory for temporary files");
    let url = format!("{}&password_file={}", url(&bench, "app@"), file.display());
    let (locks, name) = (Locks::new(connect(&url).await.expect("it may")), format!("app.{}", unique()));
    let held = locks.mutex(&name).lock().ttl(TTL).await.expect("free");
    let root = etcd_client::ConnectOptions::new().with_user("root", "secret");
    let server = bench.running.servers()[0].address().to_string();
    let root = etcd_client::Client::connect([server], Some(root)).await.expect("it may");
    root.auth_client().user_change_password("app", "other").await.expect("it may");
    std::fs::write(&file, "other").expect("it is there");
    let next = locks.mutex(format!("{name}.next")).lock().ttl(TTL).await.expect("the new password is right");
    next.release().await.expect("held until now");
    held.release().await.expect("held until now");
    assert_eq!(locks.list("app.").await.expect("it may"), [], "a release was not done");
    std::fs::remove_file(&file).expect("it is there");
}

async fn a_right_that_is_revoked_concerns_no_other_lock() {
    let Some(bench) = with_users().await else { return };
    let server = bench.running.servers()[0].address().to_string();
    let root = etcd_client::ConnectOptions::new().with_user("root", "secret");
    let root = etcd_client::Client::connect([server], Some(root)).await.expect("it may");
    let rights = Permission::new(PermissionType::Readwrite, "other.").with_prefix();
    root.auth_client().role_grant_permission("locks", rights).await.expect("it may");
    let app = Locks::new(connect(&url(&bench, "app:secret@")).await.expect("it may"));
    let rival = Locks::new(connect(&url(&bench, "root:secret@")).await.expect("it may"));
    let (mine, theirs) = (format!("other.{}", unique()), format!("app.{}", unique()));
    let held = app.mutex(&mine).lock().ttl(TTL).await.expect("free");
    // Longer than the time after which a held key is watched.
    sleep(Duration::from_secs(1)).await;
    let range_end = Some(etcd_client::RoleRevokePermissionOptions::new().with_prefix());
    root.auth_client().role_revoke_permission("locks", "other.", range_end).await.expect("it may");
    for round in 0..3 {
        let first = rival.mutex(&theirs).lock().ttl(TTL).await.expect("free");
        let (name, app) = (theirs.clone(), app.clone());
        let waiter = go(async move { app.mutex(name).lock().ttl(TTL).await });
        sleep(Duration::from_secs(1)).await;
        first.release().await.expect("held until now");
        let next = soon("it is not woken", waiter).await.expect("no panic");
        let next = next.unwrap_or_else(|error| panic!("a lock with every right, round {round}: {error:?}"));
        next.release().await.expect("held until now");
    }
    drop(held);
}
