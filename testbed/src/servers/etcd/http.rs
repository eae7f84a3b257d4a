//! As much of HTTP as the probes need.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// The longest that an answer may take.
const LIMIT: Duration = Duration::from_secs(2);

/// The body of what a server has at a path.
///
/// # Errors
/// If it does not answer in time, or with another status than 200.
pub(super) async fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        if head.split(' ').nth(1) == Some("200") {
            Ok(body.to_owned())
        } else {
            Err(io::Error::other(answer))
        }
    };
    timeout(LIMIT, asked).await?
}
