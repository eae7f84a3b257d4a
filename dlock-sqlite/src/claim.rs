//! One claim in the file.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Kind, Result, Token, Wait,
    driver::{Attempt, Claim, Grant, Release, Renewal, Request},
};
use tokio::sync::Notify;

use crate::{backend::Client, bell::Watch, connection::Access, error, keys, queue::Stand};

/// How often a waiter asks where it cannot be rung. A hand-off then takes half of this on average, and a waiter about
/// one percent of a core.
const INTERVAL: Duration = Duration::from_millis(50);

/// The pause before a waiter whose call found the file locked for seconds asks again.
const BREATHER: Duration = Duration::from_millis(200);

pub(crate) struct SqliteClaim {
    shared: Arc<Client>,
    request: Request,
    /// What is known of it without a look into the file.
    known: Known,
    /// Rung by whoever changes the queue; there is one as long as this claim may be in the file.
    bell: Option<Arc<Notify>>,
    /// Watches the client of the claim ahead.
    ahead: Option<Arc<Watch>>,
}

/// What is known of a claim without a look into the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Nothing: it was not asked for by this value, but may have been by another.
    Nothing,
    /// It was tried, and may be in the file.
    Tried,
    /// It was tried, and each time the file was too busy for it to get there.
    Outside,
}

impl SqliteClaim {
    pub(crate) fn new(shared: Arc<Client>, request: Request) -> Self {
        Self { shared, request, known: Known::Nothing, bell: None, ahead: None }
    }

    /// Nothing of this claim is in the file.
    fn left(&mut self) {
        self.shared.bells.leave(self.request.id);
        (self.bell, self.ahead) = (None, None);
    }
}

#[async_trait]
impl Claim for SqliteClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        // Refuses an unknown kind before the file is asked.
        keys::word(self.request.kind)?;
        // Before anything is in the file, so that no ring is missed.
        self.bell = Some(self.shared.bells.enter(self.request.id));
        self.ahead = None;
        let known = std::mem::replace(&mut self.known, Known::Tried);
        let (shared, request) = (Arc::clone(&self.shared), self.request.clone());
        let (stand, now) = match self.shared.thread.run(async move { ask(&shared, &request).await }).await {
            Err(error) if error::is_busy(&error) => {
                // This call has put nothing into the file. But a read claim may be a hold's that is to be downgraded.
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
        if self.request.wait == Wait::Never {
            self.left();
            return Ok(Attempt::Busy { retry_in: ahead.ttl_left(now) });
        }
        let bells = &self.shared.bells;
        self.ahead = bells.watch(ahead.client);
        let longest = match &self.ahead {
            // It has died since.
            None if bells.is_dead(ahead.client) => Duration::ZERO,
            Some(_) if bells.work() => Duration::MAX,
            None if ahead.client == self.shared.me.id => Duration::MAX,
            // Whose doorbell is not to be seen may not be able to ring ours.
            _ => INTERVAL,
        };
        Ok(Attempt::Busy { retry_in: ahead.ttl_left(now).min(longest) })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let (shared, request) = (Arc::clone(&self.shared), self.request.clone());
        let renewal = async move {
            let mut tx = shared.begin(Access::Write).await?;
            let renewed = tx.renew(&request).await?;
            shared.commit(tx, Vec::new()).await?;
            Ok(if renewed { Renewal::Renewed { valid_for: request.ttl } } else { Renewal::Lost })
        };
        self.shared.thread.run(renewal).await
    }

    async fn release(&mut self) -> Result<Release> {
        if self.known == Known::Outside {
            self.left();
            return Ok(Release::Gone);
        }
        let (shared, id) = (Arc::clone(&self.shared), self.request.id);
        let release = async move {
            let (mut tx, mut bells) = (shared.begin(Access::Write).await?, Vec::new());
            let place = tx.own(id).await?;
            if let Some(place) = &place {
                tx.remove(place, &mut bells).await?;
            }
            shared.commit(tx, bells).await?;
            Ok(if place.is_some() { Release::Done } else { Release::Gone })
        };
        let released = self.shared.thread.run(release).await?;
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
        let over = async {
            match &self.ahead {
                Some(ahead) => ahead.over().await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = rung => {}
            () = over => {}
        }
    }
}

/// Asks where the claim stands, and when that was on the host's clock.
///
/// # Errors
/// If the file [`is_busy`](error::is_busy), nothing was put into it.
async fn ask(shared: &Client, request: &Request) -> Result<(Stand, i64)> {
    loop {
        let (mut tx, mut bells) = (shared.begin(Access::Write).await?, Vec::new());
        let stand = tx.ask(request, &shared.me, &mut bells).await?;
        if shared.sweeps() {
            // What another program wrote under another name is no reason to refuse this lock.
            tx.sweep(&mut bells).await.ok();
        }
        let now = tx.now;
        shared.commit(tx, bells).await?;
        // The one ahead will not leave by itself before its ttl, if its client is dead.
        let dead = match &stand {
            Stand::Behind(ahead) if shared.bells.is_dead(ahead.client) => ahead.client,
            _ => return Ok((stand, now)),
        };
        match shared.bury(&[dead]).await {
            Err(error) if error::is_busy(&error) && request.wait != Wait::Never => return Ok((stand, now)),
            outcome => outcome?,
        }
    }
}
