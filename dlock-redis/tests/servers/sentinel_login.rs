//! Tests of Sentinels that require a password.

use std::time::Duration;

use dlock_core::Locks;
use dlock_testbed::servers::{Running, redis::Flavour};
use tokio::time::timeout;

use crate::common::{connect, error_text, query, replicated, servers};

/// The tests of this file.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    dlock_conformance::tests! {
        the_password_of_a_sentinel_is_sent_also_after_a_failover,
        a_refusal_by_a_sentinel_names_the_parameter_and_contains_no_password,
    }
}

/// Login of a client that may only query a Sentinel for the master.
const WATCH: &str = "sentinel_username=watch&sentinel_password=s3cret";

/// Starts a Sentinel that admits only `watch` and the default user, each with a password.
async fn guarded() -> Option<Running> {
    let running = servers(Flavour::Sentinel).await?;
    let sentinel = &running.servers()[2];
    query::<()>(sentinel, "ACL SETUSER watch on >s3cret +sentinel|get-master-addr-by-name").await;
    query::<()>(sentinel, "ACL SETUSER idle on >s3cret").await;
    query::<()>(sentinel, "ACL SETUSER default resetpass >pa55").await;
    Some(running)
}

async fn the_password_of_a_sentinel_is_sent_also_after_a_failover() {
    let Some(running) = guarded().await else { return };
    connect(&format!("{}?sentinel_password=pa55", running.url()))
        .await
        .expect("the default user may query the master");
    let store =
        connect(&format!("{}?{WATCH}", running.url())).await.expect("the user has all necessary rights");
    let locks = Locks::new(store);
    let held = locks.mutex("foo").lock().await.unwrap();
    replicated(&running.servers()[0]).await;
    running.servers()[0].kill().await.unwrap();
    let promoted = async {
        while locks.mutex("bar").try_lock().await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(Duration::from_secs(30), promoted).await.expect("the new primary is never found");
    held.release().await.unwrap();
}

async fn a_refusal_by_a_sentinel_names_the_parameter_and_contains_no_password() {
    let Some(running) = guarded().await else { return };
    for (params, words) in [
        ("", "wants a password; put `sentinel_password=…`"),
        ("sentinel_password=hunter2", "does not take `sentinel_password`"),
        ("sentinel_username=watch&sentinel_password=hunter2", "or knows no such `sentinel_username`"),
        ("sentinel_username=idle&sentinel_password=s3cret", "`sentinel_username` lacks rights"),
    ] {
        let error = connect(&format!("{}?{params}", running.url())).await.unwrap_err();
        assert!(!error.is_transient(), "{params}: {error:?}");
        let text = error_text(&error);
        assert!(text.contains(words), "{params}: {text}");
        assert!(!text.contains("hunter2") && !text.contains("s3cret"), "{params}: {text}");
    }
    let url = format!("redis+sentinel://{}/dlock", running.servers()[0].address());
    let text = error_text(&connect(&url).await.unwrap_err());
    assert!(text.contains("is no Sentinel but a server"), "{text}");
}
