//! The connections between the members of a cluster, which a test can cut. Connections of clients
//! are not affected.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// Header of each request from one member to another. Its value is the sender's member id.
const SENDER: &[u8] = b"X-Server-From: ";

/// The connections between the members of a cluster. Each member is behind a proxy, through which
/// the other members connect to it.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    isolated: watch::Sender<Option<Isolated>>,
}

/// The member that is cut off from all others, in both directions.
#[derive(Clone, Copy, Debug)]
struct Isolated {
    /// Index of the member's server.
    index: usize,
    /// Member id, as in the header [`SENDER`].
    id: u64,
}

impl Lines {
    /// Cuts a member off from the others.
    ///
    /// `index` is that of the member's server, and `id` its member id. An earlier isolated member
    /// is connected again.
    pub fn cut_off(&self, index: usize, id: u64) {
        self.isolated.send_replace(Some(Isolated { index, id }));
    }

    /// Connects all members again.
    pub fn mend(&self) {
        self.isolated.send_replace(None);
    }

    /// Starts the proxy of the server with this index, which forwards connections from one port to
    /// another until the process ends.
    ///
    /// # Errors
    /// If the port is taken.
    #[expect(clippy::disallowed_methods, reason = "a task accepts the connections")]
    pub(super) fn forward(&self, index: usize, from: u16, to: u16) -> io::Result<()> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, from))?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let (lines, to) = (self.clone(), SocketAddr::from((Ipv4Addr::LOCALHOST, to)));
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((sender, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(serve(sender, to, index, lines.isolated.subscribe()));
            }
        });
        Ok(())
    }
}

impl Isolated {
    /// Returns whether a connection to the server with this index must be cut. A connection with an
    /// unknown sender is cut too, because members reconnect.
    fn cuts(self, index: usize, sender: Option<u64>) -> bool {
        self.index == index || sender.is_none_or(|sender| sender == self.id)
    }
}

/// Forwards one connection to the server with this index, until either side or the test ends it.
async fn serve(
    mut sender: TcpStream,
    to: SocketAddr,
    index: usize,
    mut isolated: watch::Receiver<Option<Isolated>>,
) -> io::Result<()> {
    let (mut request, mut reply) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    // All requests of a connection have the same sender.
    let mut sender_id = None;
    let mut count = sender.read(&mut request).await?;
    let mut member: Option<TcpStream> = None;
    while count > 0 {
        sender_id = sender_id.or_else(|| sender_in(&request[..count]));
        if isolated.borrow_and_update().is_some_and(|isolated| isolated.cuts(index, sender_id)) {
            return Ok(());
        }
        if member.is_none() {
            sender.set_nodelay(true)?;
            let new = TcpStream::connect(to).await?;
            new.set_nodelay(true)?;
            member = Some(new);
        }
        let Some(member) = &mut member else { return Ok(()) };
        member.write_all(&request[..count]).await?;
        count = loop {
            tokio::select! {
                count = sender.read(&mut request) => break count?,
                count = member.read(&mut reply) => match count? {
                    0 => return Ok(()),
                    count => sender.write_all(&reply[..count]).await?,
                },
                changed = isolated.changed() => {
                    let is_cut =
                        isolated.borrow_and_update().is_some_and(|isolated| isolated.cuts(index, sender_id));
                    if changed.is_err() || is_cut {
                        return Ok(());
                    }
                }
            }
        };
    }
    Ok(())
}

/// Returns the sender's member id, if these bytes of a request contain the header.
fn sender_in(bytes: &[u8]) -> Option<u64> {
    let at = bytes.windows(SENDER.len()).position(|some| some == SENDER)? + SENDER.len();
    let digits = bytes[at..].split(|byte| !byte.is_ascii_hexdigit()).next()?;
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_the_member_that_sends_it() {
        let request =
            b"GET /raft/stream/message/1 HTTP/1.1\r\nX-Server-From: 8e9e05c52164694d\r\nX-Y: 1\r\n\r\n";
        assert_eq!(sender_in(request), Some(0x8e9e_05c5_2164_694d));
        assert_eq!(sender_in(b"GET /version HTTP/1.1\r\n\r\n"), None);
    }

    #[test]
    fn a_member_that_is_alone_neither_reaches_others_nor_is_reached() {
        let isolated = Isolated { index: 1, id: 7 };
        assert!(isolated.cuts(1, Some(8)) && isolated.cuts(0, Some(7)) && isolated.cuts(0, None));
        assert!(!isolated.cuts(0, Some(8)), "a connection between two other members is cut");
    }
}
