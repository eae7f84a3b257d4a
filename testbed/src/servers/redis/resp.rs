//! The part of Redis's protocol that the recipes need.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::servers::server::Server;

/// Maximum time for the replies to a list of commands. A paused server does not reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks whether a server replies. Only for servers without a password.
pub(super) async fn ping(server: &Server) -> io::Result<()> {
    ask(server, &[&["PING"]]).await.map(drop)
}

/// Sends commands over a new connection. Returns the last reply, with nested lists flattened.
pub(super) async fn ask(server: &Server, commands: &[&[&str]]) -> io::Result<Vec<String>> {
    tokio::time::timeout(REPLY_TIMEOUT, exchange(server, commands)).await?
}

async fn exchange(server: &Server, commands: &[&[&str]]) -> io::Result<Vec<String>> {
    let stream = TcpStream::connect(server.address()).await?;
    let mut stream = BufReader::new(stream);
    let mut reply = Vec::new();
    for command in commands {
        let mut request = format!("*{}\r\n", command.len());
        for word in *command {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        stream.write_all(request.as_bytes()).await?;
        reply = read(&mut stream).await?;
    }
    Ok(reply)
}

/// Reads one reply. An error reply of the server becomes an error.
async fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Vec<String>> {
    let mut values = Vec::new();
    let mut missing = 1;
    while missing > 0 {
        missing -= 1;
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((kind, rest)) = line.trim_end().split_at_checked(1) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let invalid = || io::Error::other(format!("not a reply: {kind}{rest}"));
        match kind {
            "+" | ":" => values.push(rest.to_owned()),
            "-" => return Err(io::Error::other(rest)),
            // A null list or null string counts as an empty reply.
            "*" | "$" if rest == "-1" => {}
            "*" => missing += rest.parse::<usize>().map_err(|_| invalid())?,
            "$" => {
                let length = rest.parse::<usize>().map_err(|_| invalid())?;
                let mut bytes = vec![0; length + "\r\n".len()];
                stream.read_exact(&mut bytes).await?;
                bytes.truncate(length);
                values.push(String::from_utf8_lossy(&bytes).into_owned());
            }
            _ => return Err(invalid()),
        }
    }
    Ok(values)
}
