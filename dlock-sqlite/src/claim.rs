//! One claim in the file.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_core::{Attempt, Claim, Grant, Release, Renewal, Request, Result, Token, Wait};
use tokio::sync::Notify;

use crate::{backend::Shared, bell::Watch, connection::Access, queue::Stand};

/// How often a waiter asks where it cannot be rung. A hand-off then takes half of this on average, and a waiter about
/// one percent of a core.
const INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct SqliteClaim {
    shared: Arc<Shared>,
    request: Request,
    /// Rung by whoever changes the queue; there is one as long as this claim may be in the file.
    bell: Option<Arc<Notify>>,
    /// Watches the client of the claim ahead.
    ahead: Option<Arc<Watch>>,
}

impl SqliteClaim {
    pub(crate) fn new(shared: Arc<Shared>, request: Request) -> Self {
        Self { shared, request, bell: None, ahead: None }
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
        // Before anything is in the file, so that no ring is missed.
        self.bell = Some(self.shared.bells.enter(self.request.id));
        self.ahead = None;
        let (shared, request) = (Arc::clone(&self.shared), self.request.clone());
        let (stand, now) = self.shared.thread.run(async move { ask(&shared, &request).await }).await?;
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
            _ if bells.work() => Duration::MAX,
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
async fn ask(shared: &Shared, request: &Request) -> Result<(Stand, i64)> {
    loop {
        let (mut tx, mut bells) = (shared.begin(Access::Write).await?, Vec::new());
        let stand = tx.ask(request, &shared.me, &mut bells).await?;
        let now = tx.now;
        shared.commit(tx, bells).await?;
        match &stand {
            // It will not leave by itself before its ttl.
            Stand::Behind(ahead) if shared.bells.is_dead(ahead.client) => shared.bury(ahead.client).await?,
            _ => return Ok((stand, now)),
        }
    }
}
