//! The connection that all claims of a client share: to one member at a time, and to the next one when that member fails.

mod dial;

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use dlock_core::{
    Error, Result,
    driver::{Link, LiveConnection},
};
use etcd_client::{
    Client as Etcd, Error as EtcdError, GetOptions, GetResponse, LeaseGrantOptions, ResponseHeader, Txn,
    TxnResponse,
};
use tokio::sync::watch::channel;
use tokio::time::{Instant, timeout};

use crate::{
    config::EtcdConfig,
    error::{self, Fault, STORE},
};
use dial::Dial;
pub(crate) use dial::Moved;

/// The largest answer that a client accepts: a queue of a hundred thousand claims.
const LARGEST: usize = 64 << 20;

/// A client's connection.
pub(crate) struct Connection {
    link: Link<Dial>,
    /// How long one try of a request may take.
    limit: Duration,
    /// Since when requests are sent and nothing is answered.
    silent: Mutex<Option<Instant>>,
    /// Time of the last response to a request.
    answered: Mutex<Option<(u64, Instant)>>,
    has_other_members: bool,
    moved: Moved,
    probe: String,
}

/// The response to a keep-alive.
pub(crate) struct Beat {
    /// Whether the cluster knows the lease.
    pub(crate) is_alive: bool,
    /// `None` if the user may not read the key.
    pub(crate) history: Option<History>,
}

/// Where a cluster stands in its history of changes. Linearizable reads never see it go back, unless the cluster was restored
/// from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct History {
    cluster: u64,
    revision: i64,
}

impl History {
    /// Whether this cannot come after `before` in one history.
    pub(crate) fn breaks_with(self, before: Self) -> bool {
        self.cluster != before.cluster || self.revision < before.revision
    }
}

/// What the server answered.
pub(crate) struct Answer<T> {
    pub(crate) told: T,
    /// Whether the request may have been done twice. The answer is then that of the second time.
    pub(crate) twice: bool,
}

impl Connection {
    /// A connection that is opened when it is first needed.
    ///
    /// # Errors
    /// For a file of the URL that cannot be read.
    pub(crate) fn new(config: &EtcdConfig) -> Result<Self> {
        let (sender, moved) = channel(None);
        let has_other_members = config.hosts.len() > 1;
        // With other members there must be time left to ask one of them.
        let limit = if has_other_members { config.timeout / 3 } else { config.timeout };
        let link = Link::new(STORE, config.timeout, Dial::new(config.clone(), sender)?);
        Ok(Self {
            link,
            limit,
            silent: Mutex::new(None),
            answered: Mutex::new(None),
            has_other_members,
            moved,
            probe: probe(config),
        })
    }

    /// When the connection was begun that has replaced another.
    pub(crate) fn moved(&self) -> Moved {
        self.moved.clone()
    }

    /// How long one try of a request may take.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// The connection of the moment, for a stream.
    pub(crate) async fn live(&self) -> Result<LiveConnection<Etcd>> {
        self.link.live().await
    }

    /// The server has answered on a stream.
    pub(crate) fn note_answer(&self) {
        *self.silent() = None;
        self.link.note_answer();
    }

    fn silent(&self) -> MutexGuard<'_, Option<Instant>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to send a request through. A caller with little time stops waiting for its request before the `limit`. So
    /// if there was no answer for that long, whoever asks next gives the connection up.
    async fn answering(&self) -> Result<LiveConnection<Etcd>> {
        let live = self.link.live().await?;
        let is_dead = self.silent().get_or_insert_with(Instant::now).elapsed() >= self.limit;
        if !is_dead {
            return Ok(live);
        }
        *self.silent() = None;
        let _ = self.link.give_up(&live, STORE.timed_out(self.limit));
        let live = self.link.live().await?;
        self.silent().get_or_insert_with(Instant::now);
        Ok(live)
    }

    /// An error of the client crate as one of ours. If the connection or its member is the cause, the next request goes to
    /// another one.
    pub(crate) fn judge(&self, live: &LiveConnection<Etcd>, error: EtcdError) -> Error {
        let is_over = match error::fault(&error) {
            Fault::None => false,
            Fault::Member => self.has_other_members,
            Fault::Broken | Fault::Login => true,
        };
        let error = error::explain(error);
        if is_over {
            *self.silent() = None;
            return self.link.give_up(live, error);
        }
        error
    }

    /// Notes a response to a request.
    fn note_response(&self, live: &LiveConnection<Etcd>) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some((live.number(), Instant::now()));
        self.note_answer();
    }

    /// Whether another request got a response over the same connection after this one was sent.
    fn has_answered_since(&self, live: &LiveConnection<Etcd>, sent: Instant) -> bool {
        let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.is_some_and(|(number, answered)| number == live.number() && answered > sent)
    }

    /// Sends a request, and a second time over another connection if the first one breaks. So all requests of this crate may be
    /// done twice.
    ///
    /// A response that is late while others arrive means load. Another connection, and a second request while the first may
    /// still be executed, would add to it: the caller gets a transient error instead.
    async fn send<T, F>(&self, request: impl Fn(Etcd) -> F) -> Result<Answer<T>>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        // Whether the request was sent before, and whether it may have been executed then.
        let (mut again, mut twice) = (false, false);
        loop {
            let live = self.answering().await?;
            let (sent, mut is_login) = (Instant::now(), false);
            let (error, is_over) = match timeout(self.limit, request(live.connection.clone())).await {
                Ok(Ok(told)) => {
                    self.note_response(&live);
                    return Ok(Answer { told, twice });
                }
                Ok(Err(error)) => {
                    let fault = error::fault(&error);
                    *self.silent() = None;
                    if fault == Fault::None {
                        self.note_response(&live);
                    }
                    is_login = fault == Fault::Login;
                    let is_over = is_login
                        || fault == Fault::Broken
                        || fault == Fault::Member && self.has_other_members;
                    (self.judge(&live, error), is_over)
                }
                Err(_) if self.has_answered_since(&live, sent) => (STORE.timed_out(self.limit), false),
                Err(_) => {
                    *self.silent() = None;
                    (self.link.give_up(&live, STORE.timed_out(self.limit)), self.has_other_members)
                }
            };
            if twice {
                return Err(doubted(error));
            }
            if !is_over || again {
                return Err(error);
            }
            (again, twice) = (true, !is_login);
        }
    }

    pub(crate) async fn txn(&self, txn: Txn) -> Result<Answer<TxnResponse>> {
        self.send(|etcd| {
            let (mut kv, txn) = (etcd.kv_client().max_decoding_message_size(LARGEST), txn.clone());
            async move { kv.txn(txn).await }
        })
        .await
    }

    pub(crate) async fn get(&self, key: &[u8], options: GetOptions) -> Result<GetResponse> {
        let answer = self.send(|etcd| {
            let (mut kv, options) = (etcd.kv_client().max_decoding_message_size(LARGEST), options.clone());
            async move { kv.get(key, Some(options)).await }
        });
        Ok(answer.await?.told)
    }

    /// Makes a lease with this id. For how long the cluster has granted it.
    pub(crate) async fn grant(&self, id: i64, lasting: Duration) -> Result<Duration> {
        let seconds = lasting.as_secs() + u64::from(lasting.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let answer = self.send(|etcd| {
            let mut leases = etcd.lease_client();
            async move {
                match leases.grant(seconds, Some(LeaseGrantOptions::new().with_id(id))).await {
                    // The first try has made it.
                    Err(error) if error::is_lease_there(&error) => {
                        leases.time_to_live(id, None).await.map(|told| told.granted_ttl())
                    }
                    told => told.map(|told| told.ttl()),
                }
            }
        });
        let granted = u64::try_from(answer.await?.told).map_err(|_| STORE.unexpected_reply("a lease"))?;
        Ok(Duration::from_secs(granted))
    }

    /// Keeps a lease alive for another of its ttls; `false` if the cluster does not know it any more.
    ///
    /// Servers before 3.5.13 let a leader answer a keep-alive without asking the other members. A leader whose disk hangs
    /// therefore confirms leases that a newer leader has already expired. So a linearizable read goes first: it succeeds
    /// only if the leader was confirmed by a majority after the read was sent, and a leader that is elected later gives the
    /// lease its full ttl again. Both requests go to the same member. With a read at one member and the keep-alive at
    /// another, the keep-alive could still reach the old leader.
    pub(crate) async fn beat(&self, lease: i64) -> Result<Beat> {
        let beaten = self.send(|etcd| {
            let mut leases = etcd.lease_client();
            async move {
                let history = match ask_majority(&etcd, &self.probe).await {
                    Err(error) if error::is_denied(&error) => None,
                    history => history?,
                };
                match leases.keep_alive(lease).await {
                    Ok(_) => Ok(Beat { is_alive: true, history }),
                    Err(error) if error::is_lease_gone(&error) => Ok(Beat { is_alive: false, history }),
                    Err(error) => Err(error),
                }
            }
        });
        Ok(beaten.await?.told)
    }

    /// Ends a lease, and with it all keys that have it.
    pub(crate) async fn revoke(&self, lease: i64) -> Result<()> {
        let revoked = self.send(|etcd| {
            let mut leases = etcd.lease_client();
            async move {
                match leases.revoke(lease).await {
                    Err(error) if !error::is_lease_gone(&error) => Err(error),
                    _ => Ok(()),
                }
            }
        });
        revoked.await.map(drop)
    }

    /// How long the keys of a lease stay if nobody keeps it alive; `None` if it is gone.
    pub(crate) async fn left(&self, lease: i64) -> Result<Option<Duration>> {
        let told = self.send(|etcd| {
            let mut leases = etcd.lease_client();
            async move { leases.time_to_live(lease, None).await }
        });
        Ok(u64::try_from(told.await?.told.ttl()).ok().map(Duration::from_secs))
    }
}

/// Reads a key linearizably. The key itself does not matter, and the server checks the user's rights to it only after the
/// majority has answered: "permission denied" confirms the majority too.
async fn ask_majority(etcd: &Etcd, probe: &str) -> Result<Option<History>, EtcdError> {
    let count_only = GetOptions::new().with_count_only();
    let response = etcd.kv_client().get(probe, Some(count_only)).await?;
    let history =
        |header: &ResponseHeader| History { cluster: header.cluster_id(), revision: header.revision() };
    Ok(response.header().map(history))
}

/// The key that [`ask_majority`] reads. With a prefix, the user has the right to read it, and the response tells the history.
fn probe(config: &EtcdConfig) -> String {
    format!("{}dlock", config.prefix)
}

/// A positive number that nobody else draws.
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

/// A refusal of the second of two requests. The first may still be done by a member that answers late, so it is not known that nothing
/// was done; but if the lease has ended, nothing can be.
fn doubted(error: Error) -> Error {
    match error {
        Error::Refused { .. } if !error::is_without_lease(&error) => {
            STORE.unavailable(STORE.share(&error).to_string())
        }
        error => error,
    }
}
