//! A port of 127.0.0.1 for a server that is to start, now and again after it was killed.

use std::{
    io,
    net::{Ipv4Addr, TcpListener, UdpSocket},
};

/// A TCP port that no other test takes as long as this lives.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    /// The UDP port of the same number stands for the claim: the kernel gives it up with the process.
    _claim: UdpSocket,
}

impl Port {
    pub(super) fn claim() -> io::Result<Self> {
        // Below the ports that the kernel gives to outgoing connections, which would take it while the server is down.
        const RANGE: std::ops::Range<u16> = 15_000..32_000;
        const TRIES: usize = 200;
        for _ in 0..TRIES {
            let number = fastrand::u16(RANGE);
            let Ok(_claim) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else { continue };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _claim });
            }
        }
        Err(io::Error::other(format!("no free port among {RANGE:?}")))
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }
}
