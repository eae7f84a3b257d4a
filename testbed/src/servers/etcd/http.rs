//! A minimal HTTP client for the probes.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Maximum time for a reply, with the connection.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the body of the reply to a GET request.
///
/// # Errors
/// If the server does not reply in time, or replies with a status other than 200.
pub(super) async fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
        if head.split(' ').nth(1) == Some("200") { Ok(body.to_owned()) } else { Err(io::Error::other(reply)) }
    };
    timeout(REPLY_TIMEOUT, exchange).await?
}
