//! A port of 127.0.0.1 that stays reserved while its server is killed and restarted.

use std::{
    io,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    ops::Range,
};

/// First port that the kernel may use for outgoing connections. Such a connection could take a
/// server's port while the server is stopped.
const FIRST_EPHEMERAL_PORT: u16 = 32_000;

/// A TCP port that no other test takes while this value exists.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    /// UDP port with the same number, which marks the TCP port as taken. The kernel closes it when
    /// the process ends.
    _claim: UdpSocket,
}

impl Port {
    pub(super) fn claim() -> io::Result<Self> {
        search(15_000..FIRST_EPHEMERAL_PORT, Self::claim_this)
    }

    /// Claims the two ports of a node of a Redis cluster, for clients and for the cluster bus.
    /// Before Redis 7 the difference between the two is fixed.
    pub(super) fn claim_with_bus() -> io::Result<(Self, Self)> {
        const BUS_OFFSET: u16 = 10_000;
        search(15_000..FIRST_EPHEMERAL_PORT - BUS_OFFSET, |number| {
            Some((Self::claim_this(number)?, Self::claim_this(number + BUS_OFFSET)?))
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
    const ATTEMPTS: usize = 200;
    let found = (0..ATTEMPTS).find_map(|_| claim(fastrand::u16(range.clone())));
    found.ok_or_else(|| io::Error::other(format!("no free port among {range:?}")))
}
