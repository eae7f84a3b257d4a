//! Servers that speak the protocol and are not a PostgreSQL that dlock supports.

use std::{error::Error as _, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
};

use super::*;

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        cockroachdb_and_old_versions_are_refused,
    }
}

async fn cockroachdb_and_old_versions_are_refused(server: &Running) {
    let reason = refusal(server, "PostgreSQL ", "CockroachDB").await;
    assert!(reason.contains("not PostgreSQL"), "{reason}");
    let version = sql(server, "SHOW server_version_num").await;
    let reason = refusal(server, &version, "130021").await;
    assert!(reason.contains("older than PostgreSQL 14"), "{reason}");
    let guard = connect(server).await.expect("connected").mutex("job").lock().await.expect("the lock");
    guard.release().await.expect("released");
}

/// Connects to the server through a relay, which replaces a text in the server's messages by another
/// of the same length. Returns the reason for the refusal.
async fn refusal(server: &Running, text: &str, other: &str) -> String {
    assert_eq!(text.len(), other.len(), "the length of the messages must not change");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, relay) = (server.servers()[0].address(), listener.local_addr().expect("a port"));
    let url = server.url().replace(&address.to_string(), &relay.to_string());
    let relaying = async {
        loop {
            let (client, _) = listener.accept().await.expect("a connection");
            // Fails when the client disconnects.
            relay_changed(client, address, text.as_bytes(), other.as_bytes()).await.ok();
        }
    };
    let connected = tokio::select! {
        connected = connect_to(&url) => connected,
        () = relaying => unreachable!("the relay never ends"),
    };
    match connected {
        Err(error @ Error::Refused { .. }) => error.source().expect("a source").to_string(),
        other => panic!("{other:?}"),
    }
}

async fn relay_changed(
    client: TcpStream,
    server: SocketAddr,
    text: &[u8],
    other: &[u8],
) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = TcpStream::connect(server).await?.into_split();
    let changing = async {
        let mut messages = vec![0; 64 << 10];
        loop {
            let length = from_server.read(&mut messages).await?;
            if length == 0 {
                return std::io::Result::Ok(());
            }
            for at in 0..(length + 1).saturating_sub(text.len()) {
                let part = &mut messages[at..at + text.len()];
                if part == text {
                    part.copy_from_slice(other);
                }
            }
            to_client.write_all(&messages[..length]).await?;
        }
    };
    tokio::select! {
        end = copy(&mut from_client, &mut to_server) => end.map(drop),
        end = changing => end,
    }
}
