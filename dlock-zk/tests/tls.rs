//! TLS: certificates that the other side does not trust, and certificates as logins.
#![expect(clippy::disallowed_methods, reason = "the connections of a relay are tasks")]

mod common;

use std::{error::Error as _, net::SocketAddr, time::Duration};

use common::{connect, locks, soon, store, unique};
use dlock_core::Error;
use dlock_testbed::servers::zookeeper::{Flavour, tls_params};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

fn main() -> std::process::ExitCode {
    dlock_conformance::run_tests([dlock_conformance::tests! {
        an_untrusted_certificate_is_named_as_a_possible_cause,
        a_certificate_is_a_login,
        a_host_that_the_certificate_does_not_name_is_refused,
    }])
}

async fn an_untrusted_certificate_is_named_as_a_possible_cause() {
    let Some(running) = store(Flavour::Tls).await else { return };
    let Some(server) = running.own_server() else { return };
    let all = tls_params(server);
    let own = all.find("&cert=").expect("a certificate of the client");
    // The machine does not trust the authority of this server.
    for params in [&all[..own], &format!("tls=on{}", &all[own..])] {
        let connected = connect(&format!("{}?timeout=2s&{params}", running.url())).await.map(drop);
        let error = connected.expect_err("one side does not trust the other");
        let text = format!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default());
        // A machine may trust no authority at all.
        let is_expected = matches!(error, Error::Unavailable { .. } | Error::InvalidConfig { .. });
        assert!(is_expected && text.contains("certificate"), "{params}: {text}");
    }
    let url = format!("{}?timeout=10s&{all}", running.url());
    let client = soon("the server does not reply", locks(&url)).await;
    client
        .mutex(unique())
        .lock()
        .await
        .expect("the lock is free")
        .release()
        .await
        .expect("the claim holds the lock");
    client.close().await;
}

async fn a_certificate_is_a_login() {
    let Some(running) = store(Flavour::Tls).await else { return };
    let Some(server) = running.own_server() else { return };
    let (base, name) = (unique(), "a");
    let url = format!("{}/{base}?acl=creator&session=10s&timeout=10s&{}", running.url(), tls_params(server));
    let [owner, friend] = [locks(&url).await, locks(&url).await];
    let held = owner.mutex(name).lock().await.expect("the lock is free");
    // The server's other port requires no certificate.
    let stranger = locks(&format!("zk://{}/{base}?session=10s&timeout=10s", server.address())).await;
    let refused = stranger.mutex(name).try_lock().await.map(drop).expect_err("only the owner has the rights");
    assert!(matches!(refused, Error::Refused { .. }), "{refused:?}");
    assert!(
        friend.mutex(name).try_lock().await.expect("the server replies").is_none(),
        "two claims hold the lock"
    );
    held.release().await.expect("the claim holds the lock");
    let held = friend.mutex(name).lock().wait(Duration::from_secs(30)).await.expect("the lock was released");
    held.release().await.expect("the claim holds the lock");
    for client in [owner, friend, stranger] {
        soon("the client cannot be closed", client.close()).await;
    }
}

/// Returns an address of this host that leads to the server.
async fn relay(host: &str, server: String) -> SocketAddr {
    let listener = TcpListener::bind((host, 0)).await.expect("a port is free");
    let address = listener.local_addr().expect("the listener is bound");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&server).await.expect("the server is running");
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    address
}

/// The certificate of the server names `127.0.0.1` and `localhost`.
async fn a_host_that_the_certificate_does_not_name_is_refused() {
    let Some(running) = store(Flavour::Tls).await else { return };
    let Some(server) = running.own_server() else { return };
    let (params, address) = (tls_params(server), running.url().trim_start_matches("zk://"));
    let [named, other] = ["127.0.0.1", "127.0.0.2"].map(|host| relay(host, address.to_owned()));
    let (named, other) = (named.await, other.await);
    let error = connect(&format!("zk://{other}?timeout=2s&{params}")).await.map(drop);
    let error = error.expect_err("the certificate names other hosts");
    let text = format!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default());
    assert!(matches!(error, Error::Unavailable { .. }) && text.contains("certificate"), "{text}");
    for host in [named.to_string(), format!("localhost:{}", named.port())] {
        let url = format!("zk://{host}?timeout=10s&{params}");
        let client = soon("the server does not reply", locks(&url)).await;
        soon("the client cannot be closed", client.close()).await;
    }
}
