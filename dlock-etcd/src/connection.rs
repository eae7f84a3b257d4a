//! The connection that all claims of a client share. It leads to one member at a time, and to the
//! next member after a failure.

mod dial;
mod login;

use std::{fmt, future::pending, time::Duration};

use dlock_core::{
    Error, Result,
    driver::{Link, LiveConnection, Retries},
};
use etcd_client::{
    Client as Etcd, Error as EtcdError, GetOptions, GetResponse, LeaseGrantOptions, ResponseHeader, Txn,
    TxnResponse,
};
use parking_lot::Mutex;
use tokio::{
    sync::watch::channel,
    time::{Instant, sleep, timeout},
};

use crate::{
    config::EtcdConfig,
    error::{self, Fault, STORE},
};
use dial::Dial;
pub(crate) use dial::ReopenedAt;
pub(crate) use login::Member;

/// Maximum bytes of a response that a client accepts. It suffices for a queue of a hundred thousand
/// claims.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// A client's connection.
pub(crate) struct Connection {
    link: Link<Dial>,
    /// Time limit of one send of a request.
    limit: Duration,
    /// Send time of the first request after the last response. `None` if there was none.
    silent_since: Mutex<Option<Instant>>,
    /// Latest position in the cluster's history that a response had since the current lease was
    /// requested.
    history: Mutex<Option<History>>,
    /// Number of the connection with the last response to a request, and the time of that response.
    last_response: Mutex<Option<(u64, Instant)>>,
    has_other_members: bool,
    reopened_at: ReopenedAt,
    probe_key: String,
}

/// The response to a keep-alive.
pub(crate) struct KeepAlive {
    /// Whether the lease exists.
    pub(crate) is_alive: bool,
    /// State of the cluster. `None` if the user has no right to read the key.
    pub(crate) history: Option<History>,
}

/// Position of a cluster in its history of changes. Linearizable reads never see it decrease,
/// unless the cluster was restored from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct History {
    cluster: u64,
    revision: i64,
}

impl History {
    fn of(header: &ResponseHeader) -> Self {
        Self { cluster: header.cluster_id(), revision: header.revision() }
    }

    /// Returns whether this position cannot follow `earlier` in one history.
    pub(crate) fn contradicts(self, earlier: Self) -> bool {
        self.cluster != earlier.cluster || self.revision < earlier.revision
    }
}

/// A response to a request.
pub(crate) struct Response<T> {
    pub(crate) body: T,
    /// Whether the request may have been executed twice. `body` is then the response to the second
    /// execution.
    pub(crate) maybe_repeated: bool,
}

impl Connection {
    /// Creates a connection that is opened when it is first needed.
    ///
    /// # Errors
    /// For a file of the URL that cannot be read.
    pub(crate) fn new(config: &EtcdConfig) -> Result<Self> {
        let (sender, reopened_at) = channel(None);
        let has_other_members = config.hosts.len() > 1;
        // With several members, enough time must remain for a request to another member.
        let limit = if has_other_members { config.timeout / 3 } else { config.timeout };
        let link = Link::new(STORE, config.timeout, Dial::new(config.clone(), sender)?);
        Ok(Self {
            link,
            limit,
            silent_since: Mutex::new(None),
            history: Mutex::new(None),
            last_response: Mutex::new(None),
            has_other_members,
            reopened_at,
            probe_key: probe_key(config),
        })
    }

    /// Returns the start time of the connection that has replaced another one.
    pub(crate) fn reopened_at(&self) -> ReopenedAt {
        self.reopened_at.clone()
    }

    /// Returns the time limit of one send of a request.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the current connection, for a stream.
    pub(crate) async fn live(&self) -> Result<LiveConnection<Member>> {
        self.link.live().await
    }

    /// Records that the server has sent a message on a stream.
    pub(crate) fn note_reply(&self) {
        *self.silent_since.lock() = None;
        self.link.note_reply();
    }

    /// Returns the connection for a request.
    ///
    /// A caller with little time abandons its request before `limit` has passed. If there was no
    /// response for `limit`, the next caller therefore gives the connection up.
    async fn responsive(&self) -> Result<LiveConnection<Member>> {
        let live = self.link.live().await?;
        let is_silent = self.silent_since.lock().get_or_insert_with(Instant::now).elapsed() >= self.limit;
        if !is_silent || self.may_log_in(&live).await {
            return Ok(live);
        }
        *self.silent_since.lock() = None;
        let _ = self.link.give_up(&live, STORE.timed_out(self.limit));
        let live = self.link.live().await?;
        self.silent_since.lock().get_or_insert_with(Instant::now);
        Ok(live)
    }

    /// Returns whether a connection is only silent because it is not logged in yet. Its member then
    /// counts as responding.
    async fn may_log_in(&self, live: &LiveConnection<Member>) -> bool {
        let member = &live.connection;
        let check = async { !member.is_logged_in() && member.may_log_in(&self.probe_key).await };
        let may_log_in = timeout(self.limit / 2, check).await.unwrap_or(false);
        if may_log_in {
            self.note_response(live);
        }
        may_log_in
    }

    /// Returns whether the connection must be replaced after this fault.
    fn needs_replacement(&self, fault: Fault) -> bool {
        match fault {
            Fault::None => false,
            Fault::Member => self.has_other_members,
            Fault::Connection | Fault::Login => true,
        }
    }

    /// Converts an error of the client crate. If the connection or its member has caused it, gives
    /// the connection up, so that the next request uses another one.
    pub(crate) fn explain(&self, live: &LiveConnection<Member>, error: EtcdError) -> Error {
        let needs_replacement = self.needs_replacement(error::fault(&error));
        let error = error::explain(error);
        if needs_replacement {
            *self.silent_since.lock() = None;
            return self.link.give_up(live, error);
        }
        error
    }

    /// Records a response to a request.
    fn note_response(&self, live: &LiveConnection<Member>) {
        *self.last_response.lock() = Some((live.number(), Instant::now()));
        self.note_reply();
    }

    /// Returns whether another request got a response on the same connection after `sent_at`.
    fn has_responded_since(&self, live: &LiveConnection<Member>, sent_at: Instant) -> bool {
        let last_response = *self.last_response.lock();
        last_response.is_some_and(|(number, at)| number == live.number() && at > sent_at)
    }

    /// Waits until the connection is logged in. If that takes long, checks that the member responds,
    /// so that the connection, and with it the login, is not given up.
    ///
    /// # Errors
    /// Of the login. The connection is then given up.
    ///
    /// # Cancel safety
    /// Safe. The next caller waits for the same login.
    pub(crate) async fn logged_in(&self, live: &LiveConnection<Member>) -> Result<Etcd, EtcdError> {
        let member = &live.connection;
        if member.is_logged_in() {
            return Ok(member.current());
        }
        let check = async {
            sleep(self.limit / 2).await;
            self.may_log_in(live).await;
            pending().await
        };
        let login = tokio::select! {
            biased;
            login = member.logged_in() => login,
            login = check => login,
        };
        if login.is_ok() {
            self.note_response(live);
        }
        login.map_err(|status| {
            let _ = self.link.give_up(live, error::explain(status.clone().into()));
            status.into()
        })
    }

    /// Sends a request, once the connection is logged in. If the connection breaks, sends it once
    /// more on another connection. All requests of this crate may therefore be executed twice.
    ///
    /// If a response is late while others arrive, the server is under load. Another connection, or
    /// a second request while the first may still be executed, would add to the load. The caller
    /// gets a transient error instead.
    async fn send<T, F>(&self, request: impl Fn(Etcd) -> F) -> Result<Response<T>>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let mut retries = Retries::default();
        loop {
            let live = self.responsive().await?;
            let (sent_at, mut is_login) = (Instant::now(), false);
            let login = timeout(self.limit, self.logged_in(&live)).await;
            let was_sent = matches!(login, Ok(Ok(_)));
            let response = match login {
                Ok(Ok(etcd)) => timeout(self.limit, request(etcd)).await,
                Ok(Err(error)) => Ok(Err(error)),
                Err(elapsed) => Err(elapsed),
            };
            let (error, may_retry) = match response {
                Ok(Ok(body)) => {
                    self.note_response(&live);
                    return Ok(Response { body, maybe_repeated: retries.maybe_executed() });
                }
                Ok(Err(error)) => {
                    let fault = error::fault(&error);
                    *self.silent_since.lock() = None;
                    if fault == Fault::None {
                        self.note_response(&live);
                    }
                    is_login = fault == Fault::Login;
                    (self.explain(&live, error), self.needs_replacement(fault))
                }
                Err(_) if self.has_responded_since(&live, sent_at) => (STORE.timed_out(self.limit), false),
                Err(_) => {
                    *self.silent_since.lock() = None;
                    (self.link.give_up(&live, STORE.timed_out(self.limit)), self.has_other_members)
                }
            };
            if retries.maybe_executed() {
                return Err(as_unknown_outcome(error));
            }
            let maybe_executed = was_sent && !is_login;
            let is_sent_again = match (may_retry, maybe_executed) {
                (false, _) => false,
                (true, false) => retries.after_refusal(),
                (true, true) => retries.after_break(),
            };
            if !is_sent_again {
                return Err(error);
            }
        }
    }

    /// Sends a transaction.
    pub(crate) async fn txn(&self, txn: Txn) -> Result<Response<TxnResponse>> {
        let response = self.send(|etcd| {
            let (mut kv, txn) = (etcd.kv_client().max_decoding_message_size(MAX_RESPONSE_BYTES), txn.clone());
            async move { kv.txn(txn).await }
        });
        let response = response.await?;
        if let Some(header) = response.body.header() {
            self.note_history(History::of(header));
        }
        Ok(response)
    }

    /// Returns the latest position in the cluster's history that a response had since
    /// [`forget_history`](Self::forget_history).
    pub(crate) fn history(&self) -> Option<History> {
        *self.history.lock()
    }

    /// Records a position in the cluster's history. Responses may arrive in another order than they
    /// were made in, and the first ones of a restored cluster must not hide that it was restored.
    pub(crate) fn note_history(&self, now: History) {
        let mut history = self.history.lock();
        if history.is_none_or(|earlier| !now.contradicts(earlier)) {
            *history = Some(now);
        }
    }

    /// Forgets the position. A new lease has no claims that a restore could bring back.
    pub(crate) fn forget_history(&self) {
        *self.history.lock() = None;
    }

    /// Reads keys.
    pub(crate) async fn get(&self, key: &[u8], options: GetOptions) -> Result<GetResponse> {
        let response = self.send(|etcd| {
            let mut kv = etcd.kv_client().max_decoding_message_size(MAX_RESPONSE_BYTES);
            let options = options.clone();
            async move { kv.get(key, Some(options)).await }
        });
        Ok(response.await?.body)
    }

    /// Creates a lease with this id. Returns the ttl that the cluster has granted, in whole
    /// seconds.
    pub(crate) async fn grant(&self, id: i64, ttl: Duration) -> Result<Duration> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let response = self.send(|etcd| {
            let mut leases = etcd.lease_client();
            async move {
                match leases.grant(seconds, Some(LeaseGrantOptions::new().with_id(id))).await {
                    // The first send has created it.
                    Err(error) if error::is_lease_duplicate(&error) => {
                        leases.time_to_live(id, None).await.map(|lease| lease.granted_ttl())
                    }
                    result => result.map(|lease| lease.ttl()),
                }
            }
        });
        let granted =
            u64::try_from(response.await?.body).map_err(|_| STORE.unexpected_reply("a lease request"))?;
        Ok(Duration::from_secs(granted))
    }

    /// Extends a lease by its ttl, if the cluster still has it.
    ///
    /// Servers before 3.5.13 let a leader respond to a keep-alive without the other members. A
    /// leader whose disk hangs therefore confirms leases that a newer leader has already expired.
    /// So a linearizable read is sent before the keep-alive. It succeeds only if a majority has
    /// confirmed the leader after the read was sent, and a leader that is elected later gives the
    /// lease its full ttl again. Both requests go to the same member. If another member executed
    /// the read, the keep-alive could still reach the old leader.
    pub(crate) async fn keep_alive(&self, lease: i64) -> Result<KeepAlive> {
        let response = self.send(|etcd| async move {
            let history = match read_through_majority(&etcd, &self.probe_key).await {
                Err(error) if error::is_denied(&error) => None,
                history => history?,
            };
            match etcd.lease_client().keep_alive(lease).await {
                Ok(_) => Ok(KeepAlive { is_alive: true, history }),
                Err(error) if error::is_lease_missing(&error) => Ok(KeepAlive { is_alive: false, history }),
                Err(error) => Err(error),
            }
        });
        Ok(response.await?.body)
    }

    /// Ends a lease, which deletes all its keys.
    pub(crate) async fn revoke(&self, lease: i64) -> Result<()> {
        let response = self.send(|etcd| {
            let mut leases = etcd.lease_client();
            async move {
                match leases.revoke(lease).await {
                    Err(error) if !error::is_lease_missing(&error) => Err(error),
                    _ => Ok(()),
                }
            }
        });
        response.await.map(drop)
    }

    /// Returns the time after which a lease expires without a keep-alive. `None` if it does not
    /// exist.
    pub(crate) async fn lease_remaining(&self, lease: i64) -> Result<Option<Duration>> {
        let response = self.send(|etcd| {
            let mut leases = etcd.lease_client();
            async move { leases.time_to_live(lease, None).await }
        });
        Ok(u64::try_from(response.await?.body.ttl()).ok().map(Duration::from_secs))
    }
}

/// Reads a key linearizably, and returns the position of the cluster's history. The content of the
/// key has no significance. The server checks the login and the user's rights only after a majority
/// has confirmed the read, so a refusal for one of these confirms the majority, too.
async fn read_through_majority(etcd: &Etcd, key: &str) -> Result<Option<History>, EtcdError> {
    let count_only = GetOptions::new().with_count_only();
    let response = etcd.kv_client().get(key, Some(count_only)).await?;
    Ok(response.header().map(History::of))
}

/// Returns the key for [`read_through_majority`]. It begins with the prefix of the locks, so that a
/// user with rights for the prefix may read it and get the history.
fn probe_key(config: &EtcdConfig) -> String {
    format!("{}dlock", config.prefix)
}

/// Returns a random positive number, as the id of a new lease.
pub(crate) fn lease_id() -> i64 {
    let bytes = *dlock_core::ClaimId::random().as_bytes();
    let id = i64::from_le_bytes(std::array::from_fn(|at| bytes[at])) & i64::MAX;
    id.max(1)
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.link).finish()
    }
}

/// Makes a refusal of the second of two sends transient. A slow member may still execute the first
/// send, so the outcome is unknown. If the lease has ended, no send can have an effect, and the
/// error stays as it is.
fn as_unknown_outcome(error: Error) -> Error {
    match error {
        Error::Refused { .. } if !error::is_without_lease(&error) => {
            STORE.unavailable(STORE.share(&error).to_string())
        }
        error => error,
    }
}
