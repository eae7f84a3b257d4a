//! The lines between the members of a cluster, which a test cuts. Clients have other lines.

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

/// Stands in each request from one member to another, before the number of the member that sends it.
const SENDER: &[u8] = b"X-Server-From: ";

/// The lines between the members of a cluster: a proxy before each member, through which the others reach it.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    alone: watch::Sender<Option<Alone>>,
}

/// The member that no other can reach, and that can reach no other.
#[derive(Clone, Copy, Debug)]
struct Alone {
    /// Its place among the servers.
    place: usize,
    /// What it calls itself.
    number: u64,
}

impl Lines {
    /// Cuts a member off from the others: the server at this place, which calls itself by this number.
    pub fn cut_off(&self, place: usize, number: u64) {
        self.alone.send_replace(Some(Alone { place, number }));
    }

    /// From now on all members reach each other.
    pub fn mend(&self) {
        self.alone.send_replace(None);
    }

    /// Leads from one port to another, until the process ends: the way to the server at this place.
    ///
    /// # Errors
    /// When the port is taken.
    #[expect(clippy::disallowed_methods, reason = "what accepts connections is a task")]
    pub(super) fn lead(&self, place: usize, from: u16, to: u16) -> io::Result<()> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, from))?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let (lines, to) = (self.clone(), SocketAddr::from((Ipv4Addr::LOCALHOST, to)));
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((sender, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(serve(sender, to, place, lines.alone.subscribe()));
            }
        });
        Ok(())
    }
}

impl Alone {
    /// Whether it cuts a connection to the server at this place. One whose sender is not known is cut, too: members make another.
    fn cuts(self, place: usize, sender: Option<u64>) -> bool {
        self.place == place || sender.is_none_or(|sender| sender == self.number)
    }
}

async fn serve(
    mut sender: TcpStream,
    to: SocketAddr,
    place: usize,
    mut alone: watch::Receiver<Option<Alone>>,
) -> io::Result<()> {
    let (mut request, mut answer) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    // A connection belongs to one member for as long as it lives.
    let mut number = None;
    let mut count = sender.read(&mut request).await?;
    let mut member: Option<TcpStream> = None;
    while count > 0 {
        number = number.or_else(|| sender_in(&request[..count]));
        if alone.borrow_and_update().is_some_and(|alone| alone.cuts(place, number)) {
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
                count = member.read(&mut answer) => match count? {
                    0 => return Ok(()),
                    count => sender.write_all(&answer[..count]).await?,
                },
                is_over = alone.changed() => {
                    let is_cut = alone.borrow_and_update().is_some_and(|alone| alone.cuts(place, number));
                    if is_over.is_err() || is_cut {
                        return Ok(());
                    }
                }
            }
        };
    }
    Ok(())
}

/// The number of the member that sends a request, if it stands in these bytes.
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
        let alone = Alone { place: 1, number: 7 };
        assert!(alone.cuts(1, Some(8)) && alone.cuts(0, Some(7)) && alone.cuts(0, None));
        assert!(!alone.cuts(0, Some(8)), "the others reach each other");
    }
}
