//! A claim in the file.

use std::{
    collections::BTreeSet,
    future::{Future as _, pending, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use dlock_core::{
    ClaimId, Kind, Result, Token, Wait,
    driver::{Attempt, Batcher, Claim, Grant, Release, Renewal, Request, Resumption},
};
use tokio::sync::Notify;

use crate::{
    bell::ClientWatch,
    client::{Client, NO_CLIENT, Renewals},
    connection::Access,
    error, keys,
    queue::{Position, Resumed},
};

/// Poll interval of a waiter that cannot rely on a ring. A hand-off takes half of it on average,
/// and a waiter uses about one percent of a core.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Pause of a waiter after a call that found the file locked for seconds.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct SqliteClaim {
    client: Arc<Client>,
    renewals: Arc<Batcher<Renewals>>,
    request: Request,
    entry_state: EntryState,
    /// Rung when the queue has changed. `Some` while this claim may be in the file.
    bell: Option<Arc<Notify>>,
    /// Watches of the clients whose claims this claim waits for.
    watches: Vec<Arc<ClientWatch>>,
    /// Ticket of the last call of `detach`, whatever its outcome.
    ticket: Option<ClaimId>,
}

/// Whether the claim's entry may be in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryState {
    /// Unknown. This value has made no attempt, but another value with the same id may have made
    /// one, as in a downgrade.
    Unknown,
    /// An attempt may have created the entry.
    MayExist,
    /// The entry does not exist, because every attempt found the file busy.
    Absent,
}

impl SqliteClaim {
    pub(crate) fn new(client: Arc<Client>, renewals: Arc<Batcher<Renewals>>, request: Request) -> Self {
        Self {
            client,
            renewals,
            request,
            entry_state: EntryState::Unknown,
            bell: None,
            watches: Vec::new(),
            ticket: None,
        }
    }

    /// Drops the bell and the watches of this claim, which is no longer in the file.
    fn drop_bell(&mut self) {
        self.client.bells.unregister(self.request.id);
        (self.bell, self.watches) = (None, Vec::new());
    }

    /// Watches the client of a claim ahead. Returns the time until the next attempt if there is no
    /// ring.
    fn watch(&mut self, client: ClaimId) -> Duration {
        let bells = &self.client.bells;
        match bells.watch(client) {
            // The client has died since the attempt. Attempt again at once.
            None if bells.is_dead(client) => Duration::ZERO,
            None if client == self.client.me.id => Duration::MAX,
            // The client that resumes or releases the detached claim rings.
            None if client == NO_CLIENT && bells.can_be_rung() => Duration::MAX,
            Some(watch) => {
                self.watches.push(watch);
                if bells.can_be_rung() { Duration::MAX } else { POLL_INTERVAL }
            }
            // The client has no doorbell that this user can access, and may not be able to ring
            // this client's doorbell either.
            None => POLL_INTERVAL,
        }
    }
}

#[async_trait]
impl Claim for SqliteClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        // Refuses an unsupported kind before any I/O.
        keys::word(self.request.kind)?;
        // Registered before the claim is in the file, because other clients may ring from then on.
        self.bell = Some(self.client.bells.register(self.request.id));
        self.watches.clear();
        let entry_state = std::mem::replace(&mut self.entry_state, EntryState::MayExist);
        let (client, request) = (Arc::clone(&self.client), self.request.clone());
        let attempt = async move { attempt(&client, &request).await };
        let (position, now) = match self.client.thread.run(attempt).await {
            Err(error) if error::is_busy(&error) => {
                // This attempt has created no entry. But if this is a read claim, the file may have
                // an exclusive hold with the same id, which this attempt should have downgraded.
                if entry_state != EntryState::MayExist && self.request.kind != Kind::Read {
                    self.entry_state = EntryState::Absent;
                }
                if self.request.wait == Wait::Never {
                    return Err(error);
                }
                // A wait does not end because other clients keep the file locked.
                return Ok(Attempt::Busy { retry_in: BUSY_PAUSE });
            }
            result => result?,
        };
        let ahead = match position {
            Position::Holds(number) => {
                let token = Token::new(number.unsigned_abs());
                return Ok(Attempt::Granted(Grant { token, valid_for: self.request.ttl }));
            }
            Position::Behind(ahead) => ahead,
        };
        let mut retry_in = ahead.iter().map(|ahead| ahead.ttl_left(now)).min().unwrap_or_default();
        if self.request.wait == Wait::Never {
            self.drop_bell();
            return Ok(Attempt::Busy { retry_in });
        }
        let clients: BTreeSet<_> = ahead.iter().map(|ahead| ahead.client).collect();
        for client in clients {
            retry_in = retry_in.min(self.watch(client));
        }
        Ok(Attempt::Busy { retry_in })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let ttl = self.request.ttl;
        let is_renewed = self.renewals.submit(Arc::new(self.request.clone()), ttl).await?;
        if !is_renewed {
            self.drop_bell();
        }
        Ok(renewal_of(is_renewed.then_some(ttl)))
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.ticket = Some(ticket);
        let (client, id) = (Arc::clone(&self.client), self.request.id);
        let detachment = async move {
            let (mut tx, mut to_ring) = (client.begin(Access::Write).await?, Vec::new());
            let detached = tx.detach(id, ticket, lasting, &mut to_ring).await?;
            client.commit(tx, to_ring).await?;
            Ok(detached.then_some(lasting))
        };
        let detached = self.client.thread.run(detachment).await?;
        if detached.is_none() {
            // The ticket may be that of another claim, which the release must not find.
            self.ticket = None;
        }
        // This client no longer has the claim in the file. So no client has to ring for it, or to
        // watch this client because of it.
        self.drop_bell();
        Ok(renewal_of(detached))
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        // Registered before this client has the claim in the file, because other clients may ring
        // from then on.
        self.bell.get_or_insert_with(|| self.client.bells.register(self.request.id));
        let (client, request) = (Arc::clone(&self.client), self.request.clone());
        let ttl = request.ttl;
        let resumption = async move {
            let (mut tx, mut to_ring) = (client.begin(Access::Write).await?, Vec::new());
            let resumed = tx.resume(&request, ticket, &client.me, &mut to_ring).await?;
            client.commit(tx, to_ring).await?;
            Ok(resumed)
        };
        let Some(Resumed { number, remaining }) = self.client.thread.run(resumption).await? else {
            self.drop_bell();
            return Ok(Resumption::Gone);
        };
        let grant = Grant { token: Token::new(number.unsigned_abs()), valid_for: ttl };
        Ok(Resumption::Resumed { grant, remaining })
    }

    async fn release(&mut self) -> Result<Release> {
        if self.entry_state == EntryState::Absent {
            self.drop_bell();
            return Ok(Release::Gone);
        }
        let (client, ids) = (Arc::clone(&self.client), [Some(self.request.id), self.ticket]);
        let name = self.request.name.clone();
        let release = async move {
            let (mut tx, mut to_ring) = (client.begin(Access::Write).await?, Vec::new());
            let mut release = Release::Gone;
            for id in ids.into_iter().flatten() {
                // The text of a ticket can be edited, so its id may be that of another lock's
                // claim.
                if let Some(row) = tx.find(id).await?.filter(|row| row.name == name.as_str()) {
                    tx.remove(&row, &mut to_ring).await?;
                    release = Release::Done;
                }
            }
            client.commit(tx, to_ring).await?;
            Ok(release)
        };
        let released = self.client.thread.run(release).await?;
        self.drop_bell();
        Ok(released)
    }

    async fn changed(&mut self) {
        let rung = async {
            match &self.bell {
                Some(bell) => bell.notified().await,
                None => pending().await,
            }
        };
        let mut deaths: Vec<_> = self.watches.iter().map(|watch| Box::pin(watch.died())).collect();
        let client_died = poll_fn(|context| {
            let has_died = deaths.iter_mut().any(|death| death.as_mut().poll(context).is_ready());
            if has_died { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::select! {
            () = rung => {}
            () = client_died => {}
        }
    }
}

fn renewal_of(valid_for: Option<Duration>) -> Renewal {
    valid_for.map_or(Renewal::Lost, |valid_for| Renewal::Renewed { valid_for })
}

/// Adds the claim to the queue, or finds it there. Returns its position, and the time of the host's
/// clock at which it had this position.
///
/// # Errors
/// The attempt has created no entry if the error [`is_busy`](error::is_busy).
async fn attempt(client: &Client, request: &Request) -> Result<(Position, i64)> {
    let mut entered = None;
    loop {
        let (position, now) = match (enter(client, request).await, entered.take()) {
            // The entry exists since the first transaction of this loop.
            (Err(error), Some(entered)) if error::is_busy(&error) => return Ok(entered),
            (result, _) => result?,
        };
        // The claims of dead clients would stay ahead until the end of their ttl. So they are
        // removed before the next attempt of this loop.
        let ahead = match &position {
            Position::Behind(ahead) => &ahead[..],
            Position::Holds(_) => &[],
        };
        let owners: BTreeSet<_> = ahead.iter().map(|ahead| ahead.client).collect();
        let dead: Vec<_> = owners.into_iter().filter(|owner| client.bells.is_dead(*owner)).collect();
        if dead.is_empty() {
            return Ok((position, now));
        }
        match client.remove_dead(&dead).await {
            Err(error) if error::is_busy(&error) && request.wait != Wait::Never => {
                return Ok((position, now));
            }
            result => result?,
        }
        // A single try leaves no entry.
        entered = Some((position, now)).filter(|_| request.wait != Wait::Never);
    }
}

/// Adds the claim to the queue, or finds it there, in one transaction. Returns as [`attempt`] does.
async fn enter(client: &Client, request: &Request) -> Result<(Position, i64)> {
    let (mut tx, mut to_ring) = (client.begin(Access::Write).await?, Vec::new());
    let position = tx.attempt(request, &client.me, &mut to_ring).await?;
    if client.count_attempt() {
        // An error is ignored, because a damaged row of another lock is no reason to refuse this one.
        tx.sweep(&mut to_ring).await.ok();
    }
    let now = tx.now;
    client.commit(tx, to_ring).await?;
    Ok((position, now))
}
