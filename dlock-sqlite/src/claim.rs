//! One claim in the file.

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
    driver::{Attempt, Claim, Grant, Release, Renewal, Request, Resumption},
};
use tokio::sync::Notify;

use crate::{
    bell::Watch,
    client::{Client, NOBODY},
    connection::Access,
    error, keys,
    queue::{Resumed, Stand},
};

/// How often a waiter looks into the file where nobody can ring it. A hand-off then takes half of this on average, and a
/// waiter uses about one percent of a core.
const INTERVAL: Duration = Duration::from_millis(50);

/// How long a waiter pauses after a call that found the file locked for seconds.
const BREATHER: Duration = Duration::from_millis(200);

pub(crate) struct SqliteClaim {
    client: Arc<Client>,
    request: Request,
    /// Whether this claim may be in the file, as far as this client knows.
    known: Known,
    /// Rung when the queue has changed. `Some` as long as this claim may be in the file.
    bell: Option<Arc<Notify>>,
    /// Tell when a client of a claim dies that this one waits for.
    ahead: Vec<Arc<Watch>>,
    /// Id that the claim was detached as, or was to be.
    ticket: Option<ClaimId>,
}

/// Whether a claim may be in the file, as far as its client knows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Not known. This value has not attempted the claim, but another value with the same id may have: a downgrade makes one.
    Nothing,
    /// It was attempted, and may be in the file.
    Tried,
    /// It is not in the file: each attempt failed because the file was busy.
    Outside,
}

impl SqliteClaim {
    pub(crate) fn new(client: Arc<Client>, request: Request) -> Self {
        Self { client, request, known: Known::Nothing, bell: None, ahead: Vec::new(), ticket: None }
    }

    /// Forgets the bells of this claim, which is no longer in the file.
    fn left(&mut self) {
        self.client.bells.leave(self.request.id);
        (self.bell, self.ahead) = (None, Vec::new());
    }

    /// Watches the client of a claim ahead until it dies. Tells after how long to ask again all the same.
    fn watch(&mut self, client: ClaimId) -> Duration {
        let bells = &self.client.bells;
        match bells.watch(client) {
            // The client has died since the look into the file: look again at once.
            None if bells.is_dead(client) => Duration::ZERO,
            None if client == self.client.me.id => Duration::MAX,
            // Who takes the detached claim back, or releases it, rings.
            None if client == NOBODY && bells.work() => Duration::MAX,
            Some(watch) => {
                self.ahead.push(watch);
                if bells.work() { Duration::MAX } else { INTERVAL }
            }
            // The client has no doorbell that this user can see. Then it may not be able to ring ours either.
            None => INTERVAL,
        }
    }
}

#[async_trait]
impl Claim for SqliteClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        // Refuses an unknown kind before the file is asked.
        keys::word(self.request.kind)?;
        // Before the claim is in the file: from then on others may ring it.
        self.bell = Some(self.client.bells.enter(self.request.id));
        self.ahead.clear();
        let known = std::mem::replace(&mut self.known, Known::Tried);
        let (client, request) = (Arc::clone(&self.client), self.request.clone());
        let (stand, now) = match self.client.thread.run(async move { ask(&client, &request).await }).await {
            Err(error) if error::is_busy(&error) => {
                // This call has put nothing into the file. But an exclusive hold with the id of this read claim may be there:
                // the one that is to be downgraded.
                if known != Known::Tried && self.request.kind != Kind::Read {
                    self.known = Known::Outside;
                }
                if self.request.wait == Wait::Never {
                    return Err(error);
                }
                // A wait does not end because others keep the file busy.
                return Ok(Attempt::Busy { retry_in: BREATHER });
            }
            outcome => outcome?,
        };
        let ahead = match stand {
            Stand::Holds(number) => {
                let token = Token::new(number.unsigned_abs());
                return Ok(Attempt::Granted(Grant { token, valid_for: self.request.ttl }));
            }
            Stand::Behind(ahead) => ahead,
        };
        let mut retry_in = ahead.iter().map(|ahead| ahead.ttl_left(now)).min().unwrap_or_default();
        if self.request.wait == Wait::Never {
            self.left();
            return Ok(Attempt::Busy { retry_in });
        }
        let clients: BTreeSet<_> = ahead.iter().map(|ahead| ahead.client).collect();
        for client in clients {
            retry_in = retry_in.min(self.watch(client));
        }
        Ok(Attempt::Busy { retry_in })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let (client, request) = (Arc::clone(&self.client), self.request.clone());
        let renewal = async move {
            let mut tx = client.begin(Access::Write).await?;
            let renewed = tx.renew(&request, &client.me).await?;
            client.commit(tx, Vec::new()).await?;
            Ok(renewed.then_some(request.ttl))
        };
        let renewed = self.client.thread.run(renewal).await?;
        if renewed.is_none() {
            self.left();
        }
        Ok(renewal_of(renewed))
    }

    async fn detach(&mut self, lasting: Duration, ticket: ClaimId) -> Result<Renewal> {
        self.ticket = Some(ticket);
        let (client, id) = (Arc::clone(&self.client), self.request.id);
        let detachment = async move {
            let (mut tx, mut bells) = (client.begin(Access::Write).await?, Vec::new());
            let detached = tx.detach(id, ticket, lasting, &mut bells).await?;
            client.commit(tx, bells).await?;
            Ok(detached.then_some(lasting))
        };
        let detached = self.client.thread.run(detachment).await?;
        // The file has nothing of this client by this claim now. So nobody must ring for it, nor wait for the client's end.
        self.left();
        Ok(renewal_of(detached))
    }

    async fn resume(&mut self, ticket: ClaimId) -> Result<Resumption> {
        // Before the claim is in the file for this client: from then on others may ring it.
        self.bell.get_or_insert_with(|| self.client.bells.enter(self.request.id));
        let (client, request) = (Arc::clone(&self.client), self.request.clone());
        let ttl = request.ttl;
        let resumption = async move {
            let (mut tx, mut bells) = (client.begin(Access::Write).await?, Vec::new());
            let resumed = tx.resume(&request, ticket, &client.me, &mut bells).await?;
            client.commit(tx, bells).await?;
            Ok(resumed)
        };
        let Some(Resumed { number, remaining }) = self.client.thread.run(resumption).await? else {
            self.left();
            return Ok(Resumption::Gone);
        };
        let grant = Grant { token: Token::new(number.unsigned_abs()), valid_for: ttl };
        Ok(Resumption::Resumed { grant, remaining })
    }

    async fn release(&mut self) -> Result<Release> {
        if self.known == Known::Outside {
            self.left();
            return Ok(Release::Gone);
        }
        let (client, ids) = (Arc::clone(&self.client), [Some(self.request.id), self.ticket]);
        let name = self.request.name.clone();
        let release = async move {
            let (mut tx, mut bells) = (client.begin(Access::Write).await?, Vec::new());
            let mut release = Release::Gone;
            for id in ids.into_iter().flatten() {
                // A ticket may name another lock than the one that has its id.
                if let Some(place) = tx.own(id).await?.filter(|place| place.name == name.as_str()) {
                    tx.remove(&place, &mut bells).await?;
                    release = Release::Done;
                }
            }
            client.commit(tx, bells).await?;
            Ok(release)
        };
        let released = self.client.thread.run(release).await?;
        self.left();
        Ok(released)
    }

    async fn changed(&mut self) {
        let rung = async {
            match &self.bell {
                Some(bell) => bell.notified().await,
                None => pending().await,
            }
        };
        let mut ahead: Vec<_> = self.ahead.iter().map(|ahead| Box::pin(ahead.over())).collect();
        let over = poll_fn(|context| {
            let is_over = ahead.iter_mut().any(|ahead| ahead.as_mut().poll(context).is_ready());
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::select! {
            () = rung => {}
            () = over => {}
        }
    }
}

fn renewal_of(valid_for: Option<Duration>) -> Renewal {
    valid_for.map_or(Renewal::Lost, |valid_for| Renewal::Renewed { valid_for })
}

/// Enters the claim into the queue, or finds it there. Tells where it stands, and at what time of the host's clock.
///
/// # Errors
/// If the file [`is_busy`](error::is_busy), nothing was put into it.
async fn ask(client: &Client, request: &Request) -> Result<(Stand, i64)> {
    loop {
        let (mut tx, mut bells) = (client.begin(Access::Write).await?, Vec::new());
        let stand = tx.ask(request, &client.me, &mut bells).await?;
        if client.sweeps() {
            // A damaged row of another lock is no reason to refuse this one.
            tx.sweep(&mut bells).await.ok();
        }
        let now = tx.now;
        client.commit(tx, bells).await?;
        // A claim of a dead client would stay ahead until its ttl is over. So it is removed, and the loop looks again.
        let ahead = match &stand {
            Stand::Behind(ahead) => &ahead[..],
            Stand::Holds(_) => &[],
        };
        let clients: BTreeSet<_> = ahead.iter().map(|ahead| ahead.client).collect();
        let dead: Vec<_> = clients.into_iter().filter(|one| client.bells.is_dead(*one)).collect();
        if dead.is_empty() {
            return Ok((stand, now));
        }
        match client.bury(&dead).await {
            Err(error) if error::is_busy(&error) && request.wait != Wait::Never => return Ok((stand, now)),
            outcome => outcome?,
        }
    }
}
