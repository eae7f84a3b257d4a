//! Connects to one of the members, and to the next one where that does not answer.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use dlock_core::{
    ClaimId, Error, Result,
    driver::{Address, Connect},
};
use etcd_client::{Certificate, Client as Etcd, ConnectOptions, Identity, TlsOptions};
use tokio::{
    sync::watch::{Receiver, Sender},
    time::Instant,
};

use crate::{
    config::EtcdConfig,
    connection::{ask_majority, probe},
    error::{self, STORE},
};

/// How long a connection with a stream may be silent before HTTP/2 asks whether the other end is there. A server ends
/// connections that ask more often than every 5 s.
const QUIET: Duration = Duration::from_secs(6);

/// When the connection was begun that has replaced another.
pub(crate) type Moved = Receiver<Option<Instant>>;

/// Knows how to reach the members. Files of certificates and passwords are read for each connection, because they are replaced
/// before they expire.
pub(crate) struct Dial {
    config: EtcdConfig,
    /// The member to begin with.
    next: AtomicUsize,
    moved: Sender<Option<Instant>>,
}

impl Dial {
    /// # Errors
    /// For a file that cannot be read now.
    pub(super) fn new(config: EtcdConfig, moved: Sender<Option<Instant>>) -> Result<Self> {
        // Each client begins with another member, so that the members share the work.
        let next = AtomicUsize::new(usize::from(ClaimId::random().as_bytes()[0]));
        let dial = Self { config, next, moved };
        dial.options().map(|_| dial)
    }

    fn options(&self) -> Result<ConnectOptions> {
        let limit = self.share();
        let mut options = ConnectOptions::new()
            .with_connect_timeout(limit)
            .with_keep_alive(QUIET, limit)
            .with_keep_alive_while_idle(false)
            // A member without a leader then says so at once, also on streams.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let (Some(user), Some(password)) = (&self.config.login.user, &self.config.login.password) {
            options = options.with_user(user, password.read()?);
        }
        if let Some(tls) = &self.config.tls {
            let pems = tls.read()?;
            let mut tls = TlsOptions::new();
            tls = match pems.ca {
                Some(ca) => tls.ca_certificate(Certificate::from_pem(ca)),
                None => tls.with_native_roots(),
            };
            if let Some((certificate, key)) = pems.client_cert {
                tls = tls.identity(Identity::from_pem(certificate, key));
            }
            options = options.with_tls(tls);
        }
        Ok(options)
    }

    /// The time of one member. All of them together, and one call, fit into the time-out.
    fn share(&self) -> Duration {
        let members = u32::try_from(self.config.hosts.len()).unwrap_or(u32::MAX);
        if members == 1 { self.config.timeout } else { self.config.timeout / (members + 1) }
    }

    async fn member(&self, address: &Address) -> Result<Etcd> {
        let options = self.options().map_err(|error| STORE.as_transient(&error))?;
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        let etcd = Etcd::connect([format!("{scheme}://{address}")], Some(options));
        let etcd = etcd.await.map_err(error::explain)?;
        // The client crate connects with the first request. This one needs a majority, as locks do.
        match ask_majority(&etcd, &probe(&self.config)).await {
            Err(error) if !error::is_denied(&error) => Err(error::explain(error)),
            _ => Ok(etcd),
        }
    }
}

impl Connect for Dial {
    type Connection = Etcd;

    /// Tries the members one after the other, beginning behind the last one that failed.
    async fn connect(&self) -> Result<Etcd> {
        let (hosts, share) = (&self.config.hosts, self.share());
        let mut last = None;
        for _ in hosts {
            let host = &hosts[self.next.fetch_add(1, Relaxed) % hosts.len()];
            match STORE.with_timeout(share, self.member(host)).await {
                Ok(etcd) => return Ok(etcd),
                // Another member would refuse, too.
                Err(error @ Error::Refused { .. }) => return Err(STORE.at_host(host, error)),
                Err(error) => last = Some(STORE.at_host(host, error)),
            }
        }
        Err(last.unwrap_or_else(|| STORE.refused("the URL names no member")))
    }

    fn reconnected(&self, since: Instant) {
        self.moved.send_replace(Some(since));
    }
}
