//! The part of Redis's protocol that is needed to ask a server for its state.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::servers::server::Server;

/// The longest that one answer may take. A server that is paused gives none.
const ANSWER: Duration = Duration::from_secs(5);

/// Whether a server answers. Only for servers that need no password.
pub(super) async fn ping(server: &Server) -> io::Result<()> {
    ask(server, &[&["PING"]]).await.map(drop)
}

/// Sends commands over a connection of its own. Returns the last answer, nested lists made flat.
pub(super) async fn ask(server: &Server, commands: &[&[&str]]) -> io::Result<Vec<String>> {
    tokio::time::timeout(ANSWER, asked(server, commands)).await?
}

async fn asked(server: &Server, commands: &[&[&str]]) -> io::Result<Vec<String>> {
    let stream = TcpStream::connect(server.address()).await?;
    let mut stream = BufReader::new(stream);
    let mut answer = Vec::new();
    for command in commands {
        let mut request = format!("*{}\r\n", command.len());
        for word in *command {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        stream.write_all(request.as_bytes()).await?;
        answer = read(&mut stream).await?;
    }
    Ok(answer)
}

/// Reads one answer; a server's error becomes ours.
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
        let invalid = || io::Error::other(format!("not an answer: {kind}{rest}"));
        match kind {
            "+" | ":" => values.push(rest.to_owned()),
            "-" => return Err(io::Error::other(rest)),
            // No list and no text, both "nothing", count as an empty answer.
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
