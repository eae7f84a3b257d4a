//! Tests of users, their permissions, and certificates.

#[path = "common/mod.rs"]
mod common;

use std::{error::Error as _, time::Duration};

use common::{Bench, SOON, TTL, connect, soon, spawn, unique, withheld::Relay};
use dlock_conformance::Proxy;
use dlock_core::{DistributedLock, Error, Kind, LockOptions, Locks, MultiLock};
use dlock_testbed::servers::etcd::{Flavour, client, start};
use etcd_client::{Permission, PermissionType};
use tokio::time::{sleep, timeout};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        a_login_that_is_missing_or_wrong_is_refused_with_what_to_do,
        a_server_without_users_says_so,
        a_user_needs_rights_on_its_locks_and_the_refusal_names_them,
        of_several_locks_one_without_rights_is_refused_and_the_others_stay_free,
        a_refusal_of_several_locks_is_cleaned_up_after_its_caller_has_left,
        a_token_that_expires_costs_no_lock_and_no_wake_up,
        a_changed_password_is_read_again_and_costs_no_lock,
        a_login_that_takes_long_costs_no_lock_and_is_not_repeated,
        a_revoked_right_affects_no_other_lock,
        tls_needs_the_authority_and_the_clients_certificate,
    }])
}

/// Time after which every authentication token of the test server has expired.
const EXPIRED: Duration = Duration::from_secs(8);

/// Starts a server with the users `root` and `app`, both with the password `secret`. `app` may lock
/// names that begin with `app.`.
async fn with_users() -> Option<Bench> {
    let bench = Bench::standalone().await?;
    let mut auth = bench.raw.auth_client();
    let rights = Permission::new(PermissionType::Readwrite, "app.").with_prefix();
    auth.user_add("root", "secret", None).await.expect("the user is new");
    auth.role_add("root").await.expect("the role is new");
    auth.user_grant_role("root", "root").await.expect("the user exists");
    auth.user_add("app", "secret", None).await.expect("the user is new");
    auth.role_add("locks").await.expect("the role is new");
    auth.role_grant_permission("locks", rights).await.expect("the role exists");
    auth.user_grant_role("app", "locks").await.expect("the user exists");
    auth.auth_enable().await.expect("the user `root` exists");
    Some(bench)
}

/// Returns the URL of the server with a login such as `app:secret@`.
fn url(bench: &Bench, login: &str) -> String {
    format!("{}?session=20s", bench.running.url().replace("://", &format!("://{login}")))
}

/// Returns the reason with which the server refuses a login.
async fn refusal(bench: &Bench, login: &str) -> String {
    match connect(&url(bench, login)).await {
        Err(error @ Error::Refused { .. }) => error.source().expect("the error has a source").to_string(),
        result => panic!("{result:?}"),
    }
}

async fn a_login_that_is_missing_or_wrong_is_refused_with_what_to_do() {
    let Some(bench) = with_users().await else { return };
    assert!(refusal(&bench, "").await.contains("wants a user and a password"));
    let reason = refusal(&bench, "app:wrong@").await;
    assert!(reason.contains("knows no such user") && !reason.contains("wrong"), "{reason}");
}

async fn a_server_without_users_says_so() {
    let Some(bench) = Bench::standalone().await else { return };
    assert!(refusal(&bench, "app:secret@").await.contains("leave the user out"));
}

async fn a_user_needs_rights_on_its_locks_and_the_refusal_names_them() {
    let Some(bench) = with_users().await else { return };
    let locks = Locks::new(connect(&url(&bench, "app:secret@")).await.expect("the user may connect"));
    let name = format!("app.{}", unique());
    let held = locks.mutex(&name).lock().ttl(TTL).await.expect("the user has the rights");
    assert!(locks.mutex(&name).try_lock().await.expect("the user has the rights").is_none());
    held.detach(TTL).await.expect("the user has the rights");
    assert!(locks.force_release(&name).await.expect("the user has the rights"));
    let result = locks.mutex(unique()).lock().await;
    let Err(error @ Error::Refused { .. }) = result else { panic!("{result:?}") };
    assert!(
        error.source().expect("the error has a source").to_string().contains("grant-permission"),
        "{error:?}"
    );
    locks.close().await;
}

async fn of_several_locks_one_without_rights_is_refused_and_the_others_stay_free() {
    let Some(bench) = with_users().await else { return };
    let locks = Locks::new(connect(&url(&bench, "app:secret@")).await.expect("the user may connect"));
    let (mine, other) = (format!("app.{}", unique()), unique());
    let both = [&mine, &other].map(|name| locks.of(Kind::Mutex, name));
    let result = MultiLock::new(both).expect("two names").lock(&LockOptions::new().ttl(TTL)).await;
    let Err(error @ Error::Refused { .. }) = result else { panic!("{result:?}") };
    assert!(
        error.source().expect("the error has a source").to_string().contains("grant-permission"),
        "{error:?}"
    );
    let held = soon("the permitted lock stayed held", locks.mutex(&mine).lock().ttl(TTL).into_future()).await;
    held.expect("the lock is free").release().await.expect("the lock is held");
    soon("the client still releases the refused lock", locks.close()).await;
}

async fn a_refusal_of_several_locks_is_cleaned_up_after_its_caller_has_left() {
    let Some(bench) = with_users().await else { return };
    let proxy = Proxy::to(bench.running.servers()[0].address()).await.expect("a port is free");
    let url = format!("etcd://app:secret@{}?session=20s&timeout=9s", proxy.address());
    let locks = Locks::new(connect(&url).await.expect("the user may connect"));
    let mine = format!("app.{}", unique());
    // Opens the connections and the session.
    locks
        .mutex(&mine)
        .lock()
        .ttl(TTL)
        .await
        .expect("the user has the rights")
        .release()
        .await
        .expect("the lock is held");
    proxy.hold_answers();
    let both = [&mine, &unique()].map(|name| locks.of(Kind::Mutex, name));
    let attempt = spawn(async move {
        let both = MultiLock::new(both).expect("two names");
        both.lock(&LockOptions::new().ttl(TTL)).await.map(drop)
    });
    // The server has sent its refusal, which the proxy holds back.
    sleep(Duration::from_millis(300)).await;
    attempt.abort();
    assert!(attempt.await.is_err(), "the reply arrived before the caller left");
    proxy.pass();
    soon("the client still releases locks that it never held", locks.close()).await;
}

async fn a_token_that_expires_costs_no_lock_and_no_wake_up() {
    let Some(bench) = with_users().await else { return };
    let store =
        async || Locks::new(connect(&url(&bench, "app:secret@")).await.expect("the user may connect"));
    let (a, b, name) = (store().await, store().await, format!("app.{}", unique()));
    let held = a.mutex(&name).lock().ttl(TTL).await.expect("the lock is free");
    let waiter = spawn(b.mutex(&name).lock().ttl(TTL));
    sleep(EXPIRED).await;
    assert!(!held.is_lost());
    held.release().await.expect("the lock is held");
    let held =
        soon("the waiter was not woken", waiter).await.expect("no panic").expect("the waiter gets the lock");
    sleep(EXPIRED).await;
    // The new watch uses an expired token.
    let waiter = spawn(a.mutex(&name).lock().ttl(TTL));
    sleep(SOON).await;
    held.release().await.expect("the lock is held");
    soon("the waiter was not woken", waiter)
        .await
        .expect("no panic")
        .expect("the waiter gets the lock")
        .release()
        .await
        .expect("the lock is held");
}

async fn tls_needs_the_authority_and_the_clients_certificate() {
    let Some(running) = dlock_conformance::or_ignore(start(Flavour::Tls).await) else { return };
    let Some(ca) = running.ca() else { return };
    let [certificate, key] = client(&running.servers()[0]);
    let ca = format!("{}?ca={}", running.url(), ca.display());
    let url = format!("{ca}&cert={}&key={}", certificate.display(), key.display());
    let locks = Locks::new(connect(&url).await.expect("the CA and the client's certificate are valid"));
    let held = locks.mutex("x").lock().await.expect("the lock is free");
    let waiter = spawn(locks.mutex("x").lock());
    sleep(Duration::from_millis(300)).await;
    held.release().await.expect("the lock is held");
    soon("the waiter was not woken", waiter)
        .await
        .expect("no panic")
        .expect("the waiter gets the lock")
        .release()
        .await
        .expect("the lock is held");
    locks.close().await;
    for wrong in [running.url(), &ca] {
        let result = connect(wrong).await;
        assert!(result.is_err(), "{wrong}");
    }
}

async fn a_changed_password_is_read_again_and_costs_no_lock() {
    let Some(bench) = with_users().await else { return };
    let file = std::env::temp_dir().join(unique());
    std::fs::write(&file, "secret").expect("a directory for temporary files");
    let url = format!("{}&password_file={}", url(&bench, "app@"), file.display());
    let (locks, name) =
        (Locks::new(connect(&url).await.expect("the user may connect")), format!("app.{}", unique()));
    let held = locks.mutex(&name).lock().ttl(TTL).await.expect("the lock is free");
    let root = etcd_client::ConnectOptions::new().with_user("root", "secret");
    let server = bench.running.servers()[0].address().to_string();
    let root = etcd_client::Client::connect([server], Some(root)).await.expect("the login is right");
    root.auth_client().user_change_password("app", "other").await.expect("the user has the rights");
    std::fs::write(&file, "other").expect("the file is writable");
    let next = locks.mutex(format!("{name}.next")).lock().ttl(TTL).await.expect("the new password is right");
    next.release().await.expect("the lock is held");
    held.release().await.expect("the lock is held");
    assert_eq!(
        locks.list("app.").await.expect("the user has the rights"),
        [],
        "a released lock is still held"
    );
    std::fs::remove_file(&file).expect("the file exists");
}

async fn a_login_that_takes_long_costs_no_lock_and_is_not_repeated() {
    let Some(bench) = with_users().await else { return };
    let relay = Relay::to(bench.running.servers()[0].address(), "secret").await.expect("a port is free");
    let url = format!("etcd://app:secret@{}?session=20s&timeout=3s", relay.address());
    let locks = Locks::new(connect(&url).await.expect("the user may connect"));
    let (held, free) = (format!("app.{}", unique()), format!("app.{}", unique()));
    let guard = locks.mutex(held).lock().ttl(TTL).await.expect("the lock is free");
    assert_eq!(relay.logins(), 1);
    relay.go_down().await;
    // The client gives the connection up, and with it the login.
    locks.mutex(&free).try_lock().await.expect_err("the member is down");
    relay.come_up_without_logins();
    // A client that repeated the login after the timeout of a call would do so in this time.
    let waiting = async {
        loop {
            let error = locks.mutex(&free).try_lock().await.expect_err("the request needs a login");
            assert!(error.is_transient(), "{error:?}");
        }
    };
    timeout(SOON * 2, waiting).await.expect_err("the login is withheld");
    assert_eq!(relay.logins(), 2, "the client did not wait for the login that it had begun");
    relay.pass();
    let next = locks.mutex(free).lock().ttl(TTL).await.expect("the login is right");
    next.release().await.expect("the lock is held");
    guard.release().await.expect("the lock is held");
    assert_eq!(relay.logins(), 2);
}

async fn a_revoked_right_affects_no_other_lock() {
    let Some(bench) = with_users().await else { return };
    let server = bench.running.servers()[0].address().to_string();
    let root = etcd_client::ConnectOptions::new().with_user("root", "secret");
    let root = etcd_client::Client::connect([server], Some(root)).await.expect("the login is right");
    let rights = Permission::new(PermissionType::Readwrite, "other.").with_prefix();
    root.auth_client().role_grant_permission("locks", rights).await.expect("the user has the rights");
    let app = Locks::new(connect(&url(&bench, "app:secret@")).await.expect("the user may connect"));
    let rival = Locks::new(connect(&url(&bench, "root:secret@")).await.expect("the user may connect"));
    let (mine, theirs) = (format!("other.{}", unique()), format!("app.{}", unique()));
    let held = app.mutex(&mine).lock().ttl(TTL).await.expect("the lock is free");
    // After this time, the client watches the held key.
    sleep(Duration::from_secs(1)).await;
    let range_end = Some(etcd_client::RoleRevokePermissionOptions::new().with_prefix());
    root.auth_client()
        .role_revoke_permission("locks", "other.", range_end)
        .await
        .expect("the user has the rights");
    for round in 0..3 {
        let first = rival.mutex(&theirs).lock().ttl(TTL).await.expect("the lock is free");
        let (name, app) = (theirs.clone(), app.clone());
        let waiter = spawn(async move { app.mutex(name).lock().ttl(TTL).await });
        sleep(Duration::from_secs(1)).await;
        first.release().await.expect("the lock is held");
        let next = soon("the waiter was not woken", waiter).await.expect("no panic");
        let next = next.unwrap_or_else(|error| {
            panic!("the revoked right affects another lock in round {round}: {error:?}")
        });
        next.release().await.expect("the lock is held");
    }
    drop(held);
}
