//! Connects to one of the members, and to the next one if a member does not reply.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use dlock_core::{
    ClaimId, Error, Result,
    driver::{Address, Connect},
};
use etcd_client::{Certificate, Client as Etcd, ConnectOptions, GetOptions, Identity, TlsOptions};
use tokio::{
    sync::watch::{Receiver, Sender},
    time::{Instant, timeout_at},
};

use super::{
    login::{LoginPace, Member},
    probe_key,
};
use crate::{
    config::EtcdConfig,
    error::{self, Fault, STORE},
};

/// Time without messages on a connection with a stream, after which HTTP/2 sends a ping. A server
/// closes connections that send more than one ping in 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(6);

/// Start time of the current connection, once it has replaced another one.
pub(crate) type ReopenedAt = Receiver<Option<Instant>>;

/// Opens connections to the members. Reads the files of certificates and passwords for each
/// connection, because operators replace these files before they expire.
pub(crate) struct Dial {
    config: EtcdConfig,
    /// Index of the next member to try, modulo the number of members.
    next: AtomicUsize,
    reopened_at: Sender<Option<Instant>>,
    login_pace: LoginPace,
}

impl Dial {
    /// Checks the files of the configuration.
    ///
    /// # Errors
    /// For a file that cannot be read.
    pub(super) fn new(config: EtcdConfig, reopened_at: Sender<Option<Instant>>) -> Result<Self> {
        // Each client begins with a random member, which spreads the clients over the members.
        let next = AtomicUsize::new(usize::from(ClaimId::random().as_bytes()[0]));
        let dial = Self { config, next, reopened_at, login_pace: LoginPace::default() };
        dial.options()?;
        dial.login()?;
        Ok(dial)
    }

    /// Returns the options of a connection without a login.
    fn options(&self) -> Result<ConnectOptions> {
        let limit = self.member_limit();
        let mut options = ConnectOptions::new()
            .with_connect_timeout(limit)
            .with_keep_alive(PING_INTERVAL, limit)
            .with_keep_alive_while_idle(false)
            // A member without a leader then reports that at once, also on streams.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
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

    /// Returns the user and the password. `None` if the URL has no login.
    fn login(&self) -> Result<Option<(&str, String)>> {
        match (&self.config.login.user, &self.config.login.password) {
            (Some(user), Some(password)) => Ok(Some((user, password.read()?))),
            _ => Ok(None),
        }
    }

    /// Returns the time limit for one member. The attempts with all members and one call fit into
    /// the timeout.
    fn member_limit(&self) -> Duration {
        let members = u32::try_from(self.config.hosts.len()).unwrap_or(u32::MAX);
        if members == 1 { self.config.timeout } else { self.config.timeout / (members + 1) }
    }

    /// Connects to one member.
    ///
    /// # Errors
    /// If the member does not respond within `limit`.
    async fn connect_to(&self, address: &Address, limit: Duration) -> Result<Reached> {
        let deadline = Instant::now() + limit;
        let open = async {
            let options = self.options().map_err(|error| STORE.as_transient(&error))?;
            let login = self.login().map_err(|error| STORE.as_transient(&error))?;
            let scheme = if self.config.tls.is_some() { "https" } else { "http" };
            let endpoint = [format!("{scheme}://{address}")];
            let etcd = Etcd::connect(&endpoint, Some(options.clone())).await.map_err(error::explain)?;
            Ok(match login {
                None => Member::without_user(etcd),
                Some((user, password)) => {
                    let options = options.with_user(user, password);
                    let login = async move { Etcd::connect(endpoint, Some(options)).await };
                    Member::with_user(etcd, self.login_pace.clone(), login)
                }
            })
        };
        let member = STORE.with_timeout(limit, open).await?;
        // The client crate connects with the first request. The first read needs a majority, as the
        // requests of locks do. The second is answered by the member alone.
        let (etcd, key) = (member.current(), probe_key(&self.config));
        let confirmed = timeout_at(deadline, member.confirm_majority(&key));
        let responds = timeout_at(deadline, responds(&etcd, &key));
        let (confirmed, responds) = tokio::join!(confirmed, responds);
        let error = match confirmed {
            Ok(Err(error)) => error::explain(error),
            Ok(Ok(())) => return Ok(Reached::Majority(member)),
            Err(_) => STORE.timed_out(limit),
        };
        let is_alive = error.is_transient() && responds.is_ok_and(|responds| responds);
        if is_alive { Ok(Reached::Member(member)) } else { Err(error) }
    }
}

/// Result of a connection to a member.
enum Reached {
    /// A majority has confirmed a read through the member.
    Majority(Member),
    /// Only the member itself has responded.
    Member(Member),
}

/// Returns whether a member responds to a read that needs no other member. A refusal is a response.
async fn responds(etcd: &Etcd, key: &str) -> bool {
    let options = GetOptions::new().with_count_only().with_serializable();
    match etcd.kv_client().get(key, Some(options)).await {
        Ok(_) => true,
        Err(error) => error::fault(&error) != Fault::Connection,
    }
}

impl Connect for Dial {
    type Connection = Member;

    /// Tries the members one after the other, from the member behind the last failed one, until a
    /// majority confirms a read. An election may take longer than these attempts. A member that
    /// responds without a majority is therefore used if there is no better one. Requests then fail
    /// with transient errors until the election has ended.
    async fn connect(&self) -> Result<Member> {
        let (hosts, limit) = (&self.config.hosts, self.member_limit());
        let (mut alive, mut last_error) = (None, None);
        for _ in hosts {
            let host = &hosts[self.next.fetch_add(1, Relaxed) % hosts.len()];
            match self.connect_to(host, limit).await {
                Ok(Reached::Majority(member)) => return Ok(member),
                Ok(Reached::Member(member)) => alive = Some(member),
                // Another member would refuse as well.
                Err(error @ Error::Refused { .. }) => return Err(STORE.at_host(host, error)),
                Err(error) => last_error = Some(STORE.at_host(host, error)),
            }
        }
        let no_member = || STORE.refused("the URL names no member");
        alive.ok_or_else(|| last_error.unwrap_or_else(no_member))
    }

    fn reconnected(&self, since: Instant) {
        self.reopened_at.send_replace(Some(since));
    }
}
