//! A port of 127.0.0.1 that stays reserved for a server while the server is killed and started again.

use std::{
    io,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    ops::Range,
};

/// From this number on the kernel uses ports for outgoing connections. Such a connection could take the port while the
/// server is down.
const END: u16 = 32_000;

/// A TCP port that no other test takes as long as this lives.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    /// The UDP port of the same number marks the TCP port as taken. The kernel frees it when the process ends.
    _claim: UdpSocket,
}

impl Port {
    pub(super) fn claim() -> io::Result<Self> {
        search(15_000..END, Self::claim_this)
    }

    /// Two ports for a node of a cluster: one for clients, and one for other nodes. Before Redis 7 the distance between the
    /// two is fixed.
    pub(super) fn claim_with_bus() -> io::Result<(Self, Self)> {
        const ABOVE: u16 = 10_000;
        search(15_000..END - ABOVE, |number| {
            Some((Self::claim_this(number)?, Self::claim_this(number + ABOVE)?))
        })
    }

    fn claim_this(number: u16) -> Option<Self> {
        let _claim = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _claim })
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }
}

fn search<T>(range: Range<u16>, claim: impl Fn(u16) -> Option<T>) -> io::Result<T> {
    const TRIES: usize = 200;
    let found = (0..TRIES).find_map(|_| claim(fastrand::u16(range.clone())));
    found.ok_or_else(|| io::Error::other(format!("no free port among {range:?}")))
}
