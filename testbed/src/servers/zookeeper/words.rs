//! Four-letter commands, to which a server replies in text: `srvr`, `mntr`, `wchs`.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Sends a four-letter command, and returns the reply.
///
/// # Errors
/// If the server does not reply within two seconds.
pub async fn word(server: SocketAddr, word: &str) -> io::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        Ok(reply)
    };
    timeout(Duration::from_secs(2), exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Returns the server's mode, such as `leader`, if it serves clients.
///
/// # Errors
/// The server's reply, if it reports no mode.
pub(super) async fn mode(server: SocketAddr) -> io::Result<String> {
    let reply = word(server, "srvr").await?;
    let mode = reply.lines().find_map(|line| line.strip_prefix("Mode: "));
    mode.map(str::to_owned).ok_or_else(|| io::Error::other(reply.trim().to_owned()))
}
