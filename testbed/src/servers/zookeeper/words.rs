//! The short words that a server answers beside its protocol: `srvr`, `mntr`, `wchs`.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// What a server answers to a word.
///
/// # Errors
/// If it does not answer in time.
pub async fn word(server: SocketAddr, word: &str) -> io::Result<String> {
    let asking = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    timeout(Duration::from_secs(2), asking).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The server's part in the ensemble, if it serves clients.
///
/// # Errors
/// What it says in place of that.
pub(super) async fn mode(server: SocketAddr) -> io::Result<String> {
    let told = word(server, "srvr").await?;
    let mode = told.lines().find_map(|line| line.strip_prefix("Mode: "));
    mode.map(str::to_owned).ok_or_else(|| io::Error::other(told.trim().to_owned()))
}
