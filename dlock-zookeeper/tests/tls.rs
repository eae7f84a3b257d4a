//! TLS: who trusts whom, and certificates as logins.

mod common;

use std::{error::Error as _, time::Duration};

use common::{connect, locks, soon, store, unique};
use dlock_conformance::stores::zookeeper::{Flavour, tls_params};
use dlock_core::Error;

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        whoever_is_not_trusted_is_told_to_look_at_the_certificates,
        a_certificate_is_a_login,
    }])
}

async fn whoever_is_not_trusted_is_told_to_look_at_the_certificates() {
    let Some(running) = store(Flavour::Tls).await else { return };
    let Some(server) = running.own_server() else { return };
    let all = tls_params(server);
    let own = all.find("&cert=").expect("a certificate of the client");
    // The machine trusts authorities of its own, not the one of this server.
    for params in [&all[..own], &format!("tls=on{}", &all[own..])] {
        let told = connect(&format!("{}?timeout=2s&{params}", running.url())).await.map(drop);
        let error = told.expect_err("one does not trust the other");
        let told = format!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default());
        // A machine may trust nobody at all.
        let is_expected = matches!(error, Error::Unavailable { .. } | Error::InvalidConfig { .. });
        assert!(is_expected && told.contains("certificate"), "{params}: {told}");
    }
    let url = format!("{}?timeout=10s&{all}", running.url());
    let client = soon("nobody answers", locks(&url)).await;
    client.mutex(unique()).lock().await.expect("free").release().await.expect("held until now");
    client.close().await;
}

async fn a_certificate_is_a_login() {
    let Some(running) = store(Flavour::Tls).await else { return };
    let Some(server) = running.own_server() else { return };
    let (base, name) = (unique(), "a");
    let url = format!("{}/{base}?acl=creator&session=10s&timeout=10s&{}", running.url(), tls_params(server));
    let [owner, friend] = [locks(&url).await, locks(&url).await];
    let held = owner.mutex(name).lock().await.expect("free");
    // The server's other port asks for no certificate.
    let stranger = locks(&format!("zk://{}/{base}?session=10s&timeout=10s", server.address())).await;
    let refused = stranger.mutex(name).try_lock().await.map(drop).expect_err("only the owner may");
    assert!(matches!(refused, Error::Refused { .. }), "{refused:?}");
    assert!(friend.mutex(name).try_lock().await.expect("an answer").is_none(), "two hold it");
    held.release().await.expect("held until now");
    let held = friend.mutex(name).lock().wait(Duration::from_secs(30)).await.expect("it was released");
    held.release().await.expect("held until now");
    for client in [owner, friend, stranger] {
        soon("it cannot be closed", client.close()).await;
    }
}
